// Tensors and numbers in and out, static and dynamic shapes, several results and none.
module @arithmetic {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %r = arith.addf %a, %b : tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func @add_named(%a: tensor<2x3xi32> {iree.abi.name = "left"}, %b: tensor<2x3xi32> {iree.abi.name = "right"})
      -> (tensor<2x3xi32> {iree.abi.name = "sum"}) attributes {iree.reflection = {author = "somebody"}} {
    %r = arith.addi %a, %b : tensor<2x3xi32>
    return %r : tensor<2x3xi32>
  }
  func.func @twice(%a: tensor<?x3xf32>) -> tensor<?x3xf32> {
    %r = arith.addf %a, %a : tensor<?x3xf32>
    return %r : tensor<?x3xf32>
  }
  func.func @square(%a: tensor<f32>) -> tensor<f32> {
    %r = arith.mulf %a, %a : tensor<f32>
    return %r : tensor<f32>
  }
  func.func @scale(%a: tensor<8xf32>, %factor: f32) -> tensor<8xf32> {
    %f = flow.tensor.splat %factor : tensor<8xf32>
    %r = arith.mulf %a, %f : tensor<8xf32>
    return %r : tensor<8xf32>
  }
  func.func @large(%a: tensor<65536xf32>) -> tensor<65536xf32> {
    %r = arith.addf %a, %a : tensor<65536xf32>
    return %r : tensor<65536xf32>
  }
  func.func @sums(%a: tensor<4xi64>, %n: i64) -> (tensor<4xi64>, i64, f32) {
    %s = flow.tensor.splat %n : tensor<4xi64>
    %r = arith.addi %a, %s : tensor<4xi64>
    %f = arith.sitofp %n : i64 to f32
    return %r, %n, %f : tensor<4xi64>, i64, f32
  }
  func.func @consume(%a: tensor<4xf32>) {
    return
  }
  func.func @nothing() {
    return
  }
  func.func @numbers(%a: i32, %b: i64, %c: f32, %d: f64, %e: i1, %f: i8) -> (i32, i64, f32, f64, i1, i8) {
    return %a, %b, %c, %d, %e, %f : i32, i64, f32, f64, i1, i8
  }
}
