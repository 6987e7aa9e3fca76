// A dispatch with operands of two types and a dimension that only calls state.
func.func @masked(%x: tensor<?xf32>, %mask: tensor<?xi1>) -> tensor<?xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %n = tensor.dim %x, %zero : tensor<?xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %l = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types=["parallel"]} ins(%x, %mask : tensor<?xf32>, tensor<?xi1>) outs(%e : tensor<?xf32>) {
  ^bb0(%v: f32, %m: i1, %o: f32):
    %s = arith.select %m, %v, %one : f32
    %q = math.log %s : f32
    linalg.yield %q : f32
  } -> tensor<?xf32>
  return %l : tensor<?xf32>
}
