// iree-compile (3.13.0) --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu
//   --iree-hal-local-target-device-backends=vmvx --iree-hal-link-executables=false
//   --iree-llvmcpu-target-cpu=generic --iree-llvmcpu-debug-symbols=false
// Executables in two formats; numbers of workgroups depend on a size, `pick` has a table of its own, and one table
// leads to both dispatches of `pair`.
func.func @layers(%x: tensor<?x16xf32>, %w: tensor<16x24xf32>, %v: tensor<24x8xf32>) -> tensor<?x8xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x16xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%n) : tensor<?x24xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x24xf32>) -> tensor<?x24xf32>
  %h = linalg.matmul ins(%x, %w : tensor<?x16xf32>, tensor<16x24xf32>)
    outs(%f : tensor<?x24xf32>) -> tensor<?x24xf32>
  %e1 = tensor.empty(%n) : tensor<?x8xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<?x8xf32>) -> tensor<?x8xf32>
  %r = linalg.matmul ins(%h, %v : tensor<?x24xf32>, tensor<24x8xf32>)
    outs(%f1 : tensor<?x8xf32>) -> tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}
func.func @pick(%x: tensor<64xf32>, %i: i32) -> tensor<64xf32> {
  %e = tensor.empty() : tensor<64xf32>
  cf.switch %i : i32, [default: ^same, 0: ^twice, 1: ^square]
^same:
  return %x : tensor<64xf32>
^twice:
  %a = linalg.map { arith.addf } ins(%x, %x : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>)
  return %a : tensor<64xf32>
^square:
  %b = linalg.map { arith.mulf } ins(%x, %x : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>)
  return %b : tensor<64xf32>
}
func.func @pair(%x: tensor<4x8xf32>, %w: tensor<8x16xf32>, %y: tensor<5x6xf32>, %v: tensor<6x7xf32>)
    -> (tensor<4x16xf32>, tensor<5x7xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x16xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x16xf32>) -> tensor<4x16xf32>
  %a = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x16xf32>) outs(%f : tensor<4x16xf32>) -> tensor<4x16xf32>
  %e1 = tensor.empty() : tensor<5x7xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<5x7xf32>) -> tensor<5x7xf32>
  %b = linalg.matmul ins(%y, %v : tensor<5x6xf32>, tensor<6x7xf32>) outs(%f1 : tensor<5x7xf32>) -> tensor<5x7xf32>
  return %a, %b : tensor<4x16xf32>, tensor<5x7xf32>
}
