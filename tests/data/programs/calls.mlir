// Arguments of every register kind together, shapes found at run time, and results that are arguments, constants,
// state or each other.
module @calls {
  util.global private mutable @state = dense<0.0> : tensor<4xf32>
  func.func @mixed(%a: tensor<?xf32>, %i: i32, %b: tensor<?xf32>, %l: i64, %x: f32, %y: f64, %flag: i1, %byte: i8)
      -> (tensor<?xf32>, i32, i64, f32, f64, i1, i8, tensor<?xf32>) {
    %s = arith.addf %a, %b : tensor<?xf32>
    %p = arith.mulf %a, %b : tensor<?xf32>
    return %s, %i, %l, %x, %y, %flag, %byte, %p : tensor<?xf32>, i32, i64, f32, f64, i1, i8, tensor<?xf32>
  }
  func.func @both(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %r = arith.addf %a, %a : tensor<4xf32>
    return %a, %r, %r : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  func.func @constant() -> tensor<4xf32> {
    %c = util.unfoldable_constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    return %c : tensor<4xf32>
  }
  func.func @literal() -> tensor<4xf32> {
    %c = arith.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    return %c : tensor<4xf32>
  }
  func.func @set_state(%a: tensor<4xf32>) {
    util.global.store %a, @state : tensor<4xf32>
    return
  }
  func.func @get_state() -> tensor<4xf32> {
    %a = util.global.load @state : tensor<4xf32>
    return %a : tensor<4xf32>
  }
  func.func @at(%a: tensor<?xf32>, %i: index) -> f32 {
    %r = tensor.extract %a[%i] : tensor<?xf32>
    return %r : f32
  }
  func.func @checked(%a: tensor<4xf32>, %i: i32) -> tensor<4xf32> {
    %c0 = arith.constant 0 : i32
    %ok = arith.cmpi sge, %i, %c0 : i32
    cf.assert %ok, "negative"
    %r = arith.addf %a, %a : tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func @iota(%n: index) -> tensor<?xf32> {
    %e = tensor.empty(%n) : tensor<?xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
        outs(%e : tensor<?xf32>) {
    ^bb0(%out: f32):
      %i = linalg.index 0 : index
      %j = arith.index_cast %i : index to i32
      %f = arith.sitofp %j : i32 to f32
      linalg.yield %f : f32
    } -> tensor<?xf32>
    return %r : tensor<?xf32>
  }
}
