// Module state, assertions and control flow that reads tensors.
module @state {
  util.global private mutable @counter = 10 : i32
  util.global private mutable @total = dense<0.0> : tensor<4xf32>
  func.func @increment() -> i32 {
    %c1 = arith.constant 1 : i32
    %0 = util.global.load @counter : i32
    %1 = arith.addi %0, %c1 : i32
    util.global.store %1, @counter : i32
    return %1 : i32
  }
  func.func @accumulate(%x: tensor<4xf32>) -> tensor<4xf32> {
    %a = util.global.load @total : tensor<4xf32>
    %s = arith.addf %a, %x : tensor<4xf32>
    util.global.store %s, @total : tensor<4xf32>
    return %s : tensor<4xf32>
  }
  func.func @positive(%a: i32) -> i32 {
    %c0 = arith.constant 0 : i32
    %ok = arith.cmpi sgt, %a, %c0 : i32
    cf.assert %ok, "value must be positive"
    return %a : i32
  }
  func.func @double_until(%a: tensor<f32>, %limit: f32) -> (tensor<f32>, i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %r:2 = scf.while (%x = %a, %k = %c0) : (tensor<f32>, i32) -> (tensor<f32>, i32) {
      %v = tensor.extract %x[] : tensor<f32>
      %go = arith.cmpf olt, %v, %limit : f32
      scf.condition(%go) %x, %k : tensor<f32>, i32
    } do {
    ^bb0(%x: tensor<f32>, %k: i32):
      %0 = arith.addf %x, %x : tensor<f32>
      %1 = arith.addi %k, %c1 : i32
      scf.yield %0, %1 : tensor<f32>, i32
    }
    return %r#0, %r#1 : tensor<f32>, i32
  }
  func.func @trace(%a: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %r = arith.addf %a, %a : tensor<2x2xf32>
    flow.tensor.trace "doubled" = [%r : tensor<2x2xf32>]
    return %r : tensor<2x2xf32>
  }
}
