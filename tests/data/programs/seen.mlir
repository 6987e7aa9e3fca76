// Dispatches to look at: a product, a softmax and a reduction in one call; folded loops; a narrow type.
func.func @normalized(%a: tensor<4x64xf32>, %b: tensor<64x71xf32>, %c: tensor<71xf32>) -> (tensor<4x71xf32>, tensor<4xi64>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x71xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x71xf32>) -> tensor<4x71xf32>
  %m = linalg.matmul ins(%a, %b : tensor<4x64xf32>, tensor<64x71xf32>) outs(%f : tensor<4x71xf32>) -> tensor<4x71xf32>
  %l = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(j)>, affine_map<(i,j)->(i,j)>], iterator_types=["parallel","parallel"]} ins(%m, %c : tensor<4x71xf32>, tensor<71xf32>) outs(%e : tensor<4x71xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.subf %x, %y : f32
    %q = math.log %s : f32
    linalg.yield %q : f32
  } -> tensor<4x71xf32>
  %s2 = linalg.softmax dimension(1) ins(%l : tensor<4x71xf32>) outs(%e : tensor<4x71xf32>) -> tensor<4x71xf32>
  %ni = arith.constant 0xFF800000 : f32
  %i0 = arith.constant 0 : i64
  %e1 = tensor.empty() : tensor<4xf32>
  %e2 = tensor.empty() : tensor<4xi64>
  %f1 = linalg.fill ins(%ni : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %f2 = linalg.fill ins(%i0 : i64) outs(%e2 : tensor<4xi64>) -> tensor<4xi64>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>, affine_map<(i,j)->(i)>], iterator_types=["parallel","reduction"]} ins(%s2 : tensor<4x71xf32>) outs(%f1, %f2 : tensor<4xf32>, tensor<4xi64>) {
  ^bb0(%x: f32, %o: f32, %p: i64):
    %j = linalg.index 1 : index
    %k = arith.index_cast %j : index to i64
    %g = arith.cmpf ogt, %x, %o : f32
    %w = arith.select %g, %x, %o : f32
    %v = arith.select %g, %k, %p : i64
    linalg.yield %w, %v : f32, i64
  } -> (tensor<4xf32>, tensor<4xi64>)
  return %s2, %r#1 : tensor<4x71xf32>, tensor<4xi64>
}

func.func @folded(%a: tensor<4x71xf32>) -> tensor<4x71xf32> {
  %e = tensor.empty() : tensor<4x71xf32>
  %b = util.optimization_barrier %a : tensor<4x71xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>], iterator_types=["parallel","parallel"]} ins(%b : tensor<4x71xf32>) outs(%e : tensor<4x71xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = math.sqrt %x : f32
    linalg.yield %s : f32
  } -> tensor<4x71xf32>
  return %r : tensor<4x71xf32>
}

func.func @narrow(%a: tensor<8xf32>) -> tensor<8xf16> {
  %e = tensor.empty() : tensor<8xf16>
  %r = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types=["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xf16>) {
  ^bb0(%x: f32, %o: f16):
    %s = arith.truncf %x : f32 to f16
    linalg.yield %s : f16
  } -> tensor<8xf16>
  return %r : tensor<8xf16>
}
