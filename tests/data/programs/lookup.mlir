// A parameter of integers whose type no kernel's name says: a table that a kernel looks numbers up in.
module @lookup {
  util.global private @table = #flow.parameter.named<"model"::"table"> : tensor<100xi32>
  util.global private @scale = #flow.parameter.named<"model"::"scale"> : tensor<4xf32>
  func.func @scaled(%x: tensor<4xf32>) -> tensor<4xf32> {
    %t = util.global.load @table : tensor<100xi32>
    %s = util.global.load @scale : tensor<4xf32>
    %e = tensor.empty() : tensor<4xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x, %s : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %i = linalg.index 0 : index
      %n = tensor.extract %t[%i] : tensor<100xi32>
      %f = arith.sitofp %n : i32 to f32
      %p = arith.mulf %a, %f : f32
      %q = arith.mulf %p, %b : f32
      linalg.yield %q : f32
    } -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
}
