// Compiled by iree-compile 3.13.0 --iree-hal-target-backends=cuda --iree-cuda-target=sm_80; elementwise kernels only, which
// tests state again in numpy.
module @stateful {
  util.global private mutable @total = dense<0.0> : tensor<8xf32>
  func.func @accumulate(%x: tensor<8xf32>) -> tensor<8xf32> {
    %old = util.global.load @total : tensor<8xf32>
    %new = arith.addf %old, %x : tensor<8xf32>
    util.global.store %new, @total : tensor<8xf32>
    return %new : tensor<8xf32>
  }
  func.func @peek() -> tensor<8xf32> {
    %old = util.global.load @total : tensor<8xf32>
    return %old : tensor<8xf32>
  }
  func.func @set(%x: tensor<8xf32>) {
    util.global.store %x, @total : tensor<8xf32>
    return
  }
  func.func @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
    %y = arith.addf %x, %x : tensor<8xf32>
    return %y : tensor<8xf32>
  }
}
