// iree-compile --iree-hal-target-backends=llvm-cpu --iree-llvmcpu-target-cpu=generic addd.mlir -o addd.vmfb
func.func @addd(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  %0 = arith.addf %a, %b : tensor<?xf32>
  return %0 : tensor<?xf32>
}
