// Compiled by iree-compile 3.13.0 --iree-hal-target-device=cuda --iree-cuda-target=sm_80, and with
// --iree-execution-model=async-external to lending_async.vmfb; elementwise kernels only, which tests state again in numpy.
module @lending {
  util.global private mutable @kept : tensor<8xf32>
  func.func @same(%a: tensor<8xf32>) -> tensor<8xf32> {
    return %a : tensor<8xf32>
  }
  func.func @add(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
    %r = arith.addf %a, %b : tensor<8xf32>
    return %r : tensor<8xf32>
  }
  func.func @multiply_into(%a: tensor<8xf32>, %out: tensor<8xf32> {iree.abi.output = 0 : index}) -> tensor<8xf32> {
    %r = arith.mulf %a, %a : tensor<8xf32>
    return %r : tensor<8xf32>
  }
  func.func @subtract_from(%a: tensor<8xf32> {iree.abi.consume}, %b: tensor<8xf32>) -> tensor<8xf32> {
    %r = arith.subf %a, %b : tensor<8xf32>
    return %r : tensor<8xf32>
  }
  func.func @keep(%a: tensor<8xf32>) {
    util.global.store %a, @kept : tensor<8xf32>
    return
  }
  func.func @largest(%a: tensor<8xf32>) -> tensor<8xf32> {
    %b = util.global.load @kept : tensor<8xf32>
    %r = arith.maximumf %a, %b : tensor<8xf32>
    return %r : tensor<8xf32>
  }
}
