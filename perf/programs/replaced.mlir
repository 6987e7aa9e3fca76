// What perf/replaced_gpu.py replaces: a product with weights of bytes (two dispatches), a product, softmax and
// layer normalisation.
// iree-compile replaced.mlir -o replaced_cuda.vmfb --iree-hal-target-device=cuda --iree-cuda-target=sm_80
module @replaced {
  func.func @dequantised(%x: tensor<64x1024xf32>, %weights: tensor<1024x1024xi8>, %scales: tensor<1024xf32>)
      -> tensor<64x1024xf32> {
    %empty = tensor.empty() : tensor<1024x1024xf32>
    %numbers = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]}
        ins(%weights, %scales : tensor<1024x1024xi8>, tensor<1024xf32>) outs(%empty : tensor<1024x1024xf32>) {
      ^bb0(%weight: i8, %scale: f32, %out: f32):
        %number = arith.sitofp %weight : i8 to f32
        %scaled = arith.mulf %number, %scale : f32
        linalg.yield %scaled : f32
    } -> tensor<1024x1024xf32>
    %made = iree_tensor_ext.compute_barrier.start %numbers : tensor<1024x1024xf32> -> tensor<1024x1024xf32>
    %zero = arith.constant 0.0 : f32
    %sums = tensor.empty() : tensor<64x1024xf32>
    %none = linalg.fill ins(%zero : f32) outs(%sums : tensor<64x1024xf32>) -> tensor<64x1024xf32>
    %product = linalg.matmul ins(%x, %made : tensor<64x1024xf32>, tensor<1024x1024xf32>)
        outs(%none : tensor<64x1024xf32>) -> tensor<64x1024xf32>
    return %product : tensor<64x1024xf32>
  }
  func.func @product(%x: tensor<1024x1024xf32>, %y: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %zero = arith.constant 0.0 : f32
    %sums = tensor.empty() : tensor<1024x1024xf32>
    %none = linalg.fill ins(%zero : f32) outs(%sums : tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %product = linalg.matmul ins(%x, %y : tensor<1024x1024xf32>, tensor<1024x1024xf32>)
        outs(%none : tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    return %product : tensor<1024x1024xf32>
  }
  func.func @softmax(%x: tensor<16384x1024xf32>) -> tensor<16384x1024xf32> {
    %out = tensor.empty() : tensor<16384x1024xf32>
    %found = linalg.softmax dimension(1) ins(%x : tensor<16384x1024xf32>) outs(%out : tensor<16384x1024xf32>)
        -> tensor<16384x1024xf32>
    return %found : tensor<16384x1024xf32>
  }
  func.func @layer_norm(%x: tensor<16384x768xf32>, %factors: tensor<768xf32>, %summands: tensor<768xf32>)
      -> tensor<16384x768xf32> {
    %zero = arith.constant 0.0 : f32
    %size = arith.constant 768.0 : f32
    %epsilon = arith.constant 1.0e-5 : f32
    %rows = tensor.empty() : tensor<16384xf32>
    %none = linalg.fill ins(%zero : f32) outs(%rows : tensor<16384xf32>) -> tensor<16384xf32>
    %sums = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
        iterator_types = ["parallel", "reduction"]} ins(%x : tensor<16384x768xf32>) outs(%none : tensor<16384xf32>) {
      ^bb0(%a: f32, %b: f32):
        %c = arith.addf %a, %b : f32
        linalg.yield %c : f32
    } -> tensor<16384xf32>
    %squares = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>],
        iterator_types = ["parallel", "reduction"]}
        ins(%x, %sums : tensor<16384x768xf32>, tensor<16384xf32>) outs(%none : tensor<16384xf32>) {
      ^bb0(%a: f32, %sum: f32, %b: f32):
        %mean = arith.divf %sum, %size : f32
        %apart = arith.subf %a, %mean : f32
        %square = arith.mulf %apart, %apart : f32
        %c = arith.addf %square, %b : f32
        linalg.yield %c : f32
    } -> tensor<16384xf32>
    %empty = tensor.empty() : tensor<16384x768xf32>
    %found = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>,
                         affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]}
        ins(%x, %sums, %squares, %factors, %summands : tensor<16384x768xf32>, tensor<16384xf32>,
            tensor<16384xf32>, tensor<768xf32>, tensor<768xf32>) outs(%empty : tensor<16384x768xf32>) {
      ^bb0(%a: f32, %sum: f32, %square: f32, %factor: f32, %summand: f32, %out: f32):
        %mean = arith.divf %sum, %size : f32
        %apart = arith.subf %a, %mean : f32
        %variance = arith.divf %square, %size : f32
        %more = arith.addf %variance, %epsilon : f32
        %scale = math.rsqrt %more : f32
        %normal = arith.mulf %apart, %scale : f32
        %scaled = arith.mulf %normal, %factor : f32
        %c = arith.addf %scaled, %summand : f32
        linalg.yield %c : f32
    } -> tensor<16384x768xf32>
    return %found : tensor<16384x768xf32>
  }
}
