// A function of the compiler's mathematics, which the dispatch calls, is all that needs the feature it is compiled with.
func.func @remainder(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %empty = tensor.empty() : tensor<64xf32>
  %result = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<64xf32>, tensor<64xf32>) outs(%empty : tensor<64xf32>) {
  ^bb0(%x: f32, %y: f32, %unused: f32):
    %remainder = arith.remf %x, %y : f32
    linalg.yield %remainder : f32
  } -> tensor<64xf32>
  return %result : tensor<64xf32>
}
