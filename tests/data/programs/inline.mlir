// inline_vmvx.vmfb: iree-compile (3.13.0) --iree-execution-model=inline-static --iree-hal-target-backends=vmvx-inline
// inline_cpu.vmfb:  iree-compile (3.13.0) --iree-execution-model=inline-dynamic --iree-hal-target-backends=llvm-cpu
//                   --iree-llvmcpu-target-cpu=generic --iree-llvmcpu-debug-symbols=false

func.func @scaled_sum(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  %two = arith.constant dense<2.0> : tensor<f32>
  %zero = arith.constant 0 : index
  %size = tensor.dim %a, %zero : tensor<?xf32>
  %empty = tensor.empty(%size) : tensor<?xf32>
  %sum = linalg.generic {
    indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>, affine_map<(d0) -> (d0)>],
    iterator_types = ["parallel"]
  } ins(%a, %b, %two : tensor<?xf32>, tensor<?xf32>, tensor<f32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%x: f32, %y: f32, %factor: f32, %out: f32):
    %scaled = arith.mulf %y, %factor : f32
    %value = arith.addf %x, %scaled : f32
    linalg.yield %value : f32
  } -> tensor<?xf32>
  return %sum : tensor<?xf32>
}
