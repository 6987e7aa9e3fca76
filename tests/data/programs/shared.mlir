// 32 MB of parameters, all of which a call reads.
module @shared {
  util.global private @weight = #flow.parameter.named<"model"::"w"> : tensor<2048x4096xf32>
  func.func @sums(%x: tensor<4096xf32>) -> tensor<2048xf32> {
    %w = util.global.load @weight : tensor<2048x4096xf32>
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2048xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2048xf32>) -> tensor<2048xf32>
    %r = linalg.matvec ins(%w, %x : tensor<2048x4096xf32>, tensor<4096xf32>) outs(%z : tensor<2048xf32>) -> tensor<2048xf32>
    return %r : tensor<2048xf32>
  }
}
