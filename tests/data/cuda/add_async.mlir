// Compiled by iree-compile 3.13.0 --iree-hal-target-device=cuda --iree-cuda-target=sm_80 --iree-execution-model=async-external
func.func @add(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
  %c = arith.addf %a, %b : tensor<8xf32>
  return %c : tensor<8xf32>
}
