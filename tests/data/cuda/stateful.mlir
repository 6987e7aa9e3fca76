// Compiled by iree-compile 3.13.0 --iree-hal-target-backends=cuda --iree-cuda-target=sm_80; elementwise kernels only, which
// tests state again in numpy.
util.global private mutable @total = dense<0.0> : tensor<8xf32>
func.func @accumulate(%x: tensor<8xf32>) -> tensor<8xf32> {
  %old = util.global.load @total : tensor<8xf32>
  %new = arith.addf %old, %x : tensor<8xf32>
  util.global.store %new, @total : tensor<8xf32>
  return %new : tensor<8xf32>
}
