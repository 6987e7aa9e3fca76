// Parameters of a named scope and without one: a constant, the initial value of a variable, one that is written.
module @parameters {
  util.global private @weight = #flow.parameter.named<"model"::"w"> : tensor<4x3xf32>
  util.global private @plain = #flow.parameter.named<"scale"> : tensor<3xf32>
  util.global private mutable @state = #flow.parameter.named<"model"::"b"> : tensor<3xf32>
  func.func @linear(%x: tensor<2x4xf32>) -> tensor<2x3xf32> {
    %w = util.global.load @weight : tensor<4x3xf32>
    %b = util.global.load @state : tensor<3xf32>
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x3xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
    %m = linalg.matmul ins(%x, %w : tensor<2x4xf32>, tensor<4x3xf32>) outs(%z : tensor<2x3xf32>) -> tensor<2x3xf32>
    %bb = linalg.broadcast ins(%b : tensor<3xf32>) outs(%e : tensor<2x3xf32>) dimensions = [0]
    %s = util.global.load @plain : tensor<3xf32>
    %sb = linalg.broadcast ins(%s : tensor<3xf32>) outs(%e : tensor<2x3xf32>) dimensions = [0]
    %r = arith.addf %m, %bb : tensor<2x3xf32>
    %q = arith.mulf %r, %sb : tensor<2x3xf32>
    return %q : tensor<2x3xf32>
  }
  func.func @set_state(%x: tensor<3xf32>) {
    util.global.store %x, @state : tensor<3xf32>
    return
  }
  util.func public @save(%x: tensor<3xf32>) -> tensor<3xf32> {
    %scope = util.buffer.constant : !util.buffer = "model"
    %key = util.buffer.constant : !util.buffer = "saved"
    %offset = arith.constant 4 : i64
    %twice = arith.addf %x, %x : tensor<3xf32>
    %written = flow.parameter.write %twice -> %scope::%key[%offset] : tensor<3xf32>
    util.return %written : tensor<3xf32>
  }
}
