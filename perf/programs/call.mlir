// Programs for perf/call.py, whose work takes no time: what is left is the call.
// iree-compile 3.13.0 --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu
//   --iree-llvmcpu-target-cpu=generic --iree-vm-bytecode-module-strip-source-map call.mlir -o call.vmfb
module @call {

  func.func @integers(%a: i32, %b: i32) -> i32 {
    %0 = arith.addi %a, %b : i32
    return %0 : i32
  }

  func.func @floats(%a: f32, %b: f64, %c: i64) -> (f64, i64) {
    %0 = arith.extf %a : f32 to f64
    %1 = arith.addf %0, %b : f64
    return %1, %c : f64, i64
  }

  func.func @same(%x: tensor<16xf32>) -> tensor<16xf32> {
    return %x : tensor<16xf32>
  }

  func.func @add(%x: tensor<16xf32>, %y: tensor<16xf32>) -> tensor<16xf32> {
    %0 = arith.addf %x, %y : tensor<16xf32>
    return %0 : tensor<16xf32>
  }

  func.func @scale(%x: tensor<?x8xf32>, %factor: f32) -> tensor<?x8xf32> {
    %c0 = arith.constant 0 : index
    %n = tensor.dim %x, %c0 : tensor<?x8xf32>
    %empty = tensor.empty(%n) : tensor<?x8xf32>
    %0 = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]
    } ins(%x : tensor<?x8xf32>) outs(%empty : tensor<?x8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %1 = arith.mulf %a, %factor : f32
      linalg.yield %1 : f32
    } -> tensor<?x8xf32>
    return %0 : tensor<?x8xf32>
  }

  // Eight arguments, four results.
  func.func @many(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xi32>, %d: tensor<2x2xf32>,
                  %e: tensor<4xf32>, %f: tensor<4xf32>, %g: tensor<4xi32>, %h: tensor<2x2xf32>)
      -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<2x2xf32>) {
    %0 = arith.addf %a, %e : tensor<4xf32>
    %1 = arith.mulf %b, %f : tensor<4xf32>
    %2 = arith.addi %c, %g : tensor<4xi32>
    %3 = arith.subf %d, %h : tensor<2x2xf32>
    return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<2x2xf32>
  }

  // State that stays in the program.
  util.global private mutable @total = dense<0.0> : tensor<16xf32>
  func.func @accumulate(%x: tensor<16xf32>) -> tensor<16xf32> {
    %0 = util.global.load @total : tensor<16xf32>
    %1 = arith.addf %0, %x : tensor<16xf32>
    util.global.store %1, @total : tensor<16xf32>
    return %1 : tensor<16xf32>
  }
}
