// A product whose weights are bytes: two dispatches, one makes numbers of all weights, the other multiplies.
// iree-compile --iree-hal-target-backends=llvm-cpu dequantised.mlir -o dequantised.vmfb
module @dequantised {
  func.func @main(%x: tensor<8x1024xf32>, %weights: tensor<1024x1024xi8>, %scales: tensor<1024xf32>)
      -> tensor<8x1024xf32> {
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
    %zero = arith.constant 0.0 : f32
    %sums = tensor.empty() : tensor<8x1024xf32>
    %none = linalg.fill ins(%zero : f32) outs(%sums : tensor<8x1024xf32>) -> tensor<8x1024xf32>
    %product = linalg.matmul ins(%x, %numbers : tensor<8x1024xf32>, tensor<1024x1024xf32>)
        outs(%none : tensor<8x1024xf32>) -> tensor<8x1024xf32>
    return %product : tensor<8x1024xf32>
  }
}
