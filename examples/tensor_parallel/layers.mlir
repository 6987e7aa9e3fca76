// What a device does with its part of the weights: half of the heads, half of the hidden units. The result
// of `attention` and `feed_forward` is a part of a sum. Weights are (outputs, inputs).
#rows = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>
#left = affine_map<(d0, d1, d2) -> (d0, d2)>
#right = affine_map<(d0, d1, d2) -> (d1, d2)>
#product = affine_map<(d0, d1, d2) -> (d0, d1)>
#query = affine_map<(h, i, j, d) -> (i, h, d)>
#key = affine_map<(h, i, j, d) -> (j, h, d)>
#score = affine_map<(h, i, j, d) -> (h, i, j)>
#chance = affine_map<(i, h, d, j) -> (h, i, j)>
#value = affine_map<(i, h, d, j) -> (j, h, d)>
#mixed = affine_map<(i, h, d, j) -> (i, h, d)>

util.func private @norm(%x: tensor<8x32xf32>, %scale: tensor<32xf32>) -> tensor<8x32xf32> attributes {inlining_policy = #util.inline.always} {
  %zero = arith.constant 0.0 : f32
  %size = arith.constant 32.0 : f32
  %epsilon = arith.constant 1.0e-05 : f32
  %none = tensor.empty() : tensor<8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%none : tensor<8xf32>) -> tensor<8xf32>
  %squares = linalg.generic {indexing_maps = [#rows, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<8x32xf32>) outs(%start : tensor<8xf32>) {
  ^bb0(%one: f32, %sum: f32):
    %square = arith.mulf %one, %one : f32
    %more = arith.addf %sum, %square : f32
    linalg.yield %more : f32
  } -> tensor<8xf32>
  %empty = tensor.empty() : tensor<8x32xf32>
  %result = linalg.generic {indexing_maps = [#rows, #row, #column, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%x, %squares, %scale : tensor<8x32xf32>, tensor<8xf32>, tensor<32xf32>) outs(%empty : tensor<8x32xf32>) {
  ^bb0(%one: f32, %sum: f32, %by: f32, %old: f32):
    %mean = arith.divf %sum, %size : f32
    %above = arith.addf %mean, %epsilon : f32
    %factor = math.rsqrt %above : f32
    %normal = arith.mulf %one, %factor : f32
    %scaled = arith.mulf %normal, %by : f32
    linalg.yield %scaled : f32
  } -> tensor<8x32xf32>
  util.return %result : tensor<8x32xf32>
}

util.func private @widen(%x: tensor<8x32xf32>, %w: tensor<16x32xf32>) -> tensor<8x16xf32> attributes {inlining_policy = #util.inline.always} {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x16xf32>) -> tensor<8x16xf32>
  %result = linalg.matmul indexing_maps = [#left, #right, #product]
      ins(%x, %w : tensor<8x32xf32>, tensor<16x32xf32>) outs(%start : tensor<8x16xf32>) -> tensor<8x16xf32>
  util.return %result : tensor<8x16xf32>
}

util.func private @project(%x: tensor<8x16xf32>, %w: tensor<32x16xf32>) -> tensor<8x32xf32> attributes {inlining_policy = #util.inline.always} {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x32xf32>) -> tensor<8x32xf32>
  %result = linalg.matmul indexing_maps = [#left, #right, #product]
      ins(%x, %w : tensor<8x16xf32>, tensor<32x16xf32>) outs(%start : tensor<8x32xf32>) -> tensor<8x32xf32>
  util.return %result : tensor<8x32xf32>
}

util.func private @attention(%x: tensor<8x32xf32>, %wq: tensor<16x32xf32>, %wk: tensor<16x32xf32>, %wv: tensor<16x32xf32>, %wo: tensor<32x16xf32>) -> tensor<8x32xf32> attributes {inlining_policy = #util.inline.always} {
  %zero = arith.constant 0.0 : f32
  %lowest = arith.constant 0xFF800000 : f32
  %scale = arith.constant 0.353553385 : f32
  %q0 = util.call @widen(%x, %wq) : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %k0 = util.call @widen(%x, %wk) : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %v0 = util.call @widen(%x, %wv) : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %q = tensor.expand_shape %q0 [[0], [1, 2]] output_shape [8, 2, 8] : tensor<8x16xf32> into tensor<8x2x8xf32>
  %k = tensor.expand_shape %k0 [[0], [1, 2]] output_shape [8, 2, 8] : tensor<8x16xf32> into tensor<8x2x8xf32>
  %v = tensor.expand_shape %v0 [[0], [1, 2]] output_shape [8, 2, 8] : tensor<8x16xf32> into tensor<8x2x8xf32>
  %empty = tensor.empty() : tensor<2x8x8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %scores = linalg.generic {indexing_maps = [#query, #key, #score], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%q, %k : tensor<8x2x8xf32>, tensor<8x2x8xf32>) outs(%start : tensor<2x8x8xf32>) {
  ^bb0(%a: f32, %b: f32, %sum: f32):
    %product = arith.mulf %a, %b : f32
    %more = arith.addf %sum, %product : f32
    linalg.yield %more : f32
  } -> tensor<2x8x8xf32>
  %seen = linalg.generic {indexing_maps = [affine_map<(h, i, j) -> (h, i, j)>, affine_map<(h, i, j) -> (h, i, j)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%scores : tensor<2x8x8xf32>) outs(%empty : tensor<2x8x8xf32>) {
  ^bb0(%score: f32, %old: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %later = arith.cmpi ugt, %j, %i : index
    %scaled = arith.mulf %score, %scale : f32
    %kept = arith.select %later, %lowest, %scaled : f32
    linalg.yield %kept : f32
  } -> tensor<2x8x8xf32>
  %chances = linalg.softmax dimension(2) ins(%seen : tensor<2x8x8xf32>) outs(%empty : tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %rooms = tensor.empty() : tensor<8x2x8xf32>
  %sums = linalg.fill ins(%zero : f32) outs(%rooms : tensor<8x2x8xf32>) -> tensor<8x2x8xf32>
  %mixed = linalg.generic {indexing_maps = [#chance, #value, #mixed], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%chances, %v : tensor<2x8x8xf32>, tensor<8x2x8xf32>) outs(%sums : tensor<8x2x8xf32>) {
  ^bb0(%a: f32, %b: f32, %sum: f32):
    %product = arith.mulf %a, %b : f32
    %more = arith.addf %sum, %product : f32
    linalg.yield %more : f32
  } -> tensor<8x2x8xf32>
  %heads = tensor.collapse_shape %mixed [[0], [1, 2]] : tensor<8x2x8xf32> into tensor<8x16xf32>
  %result = util.call @project(%heads, %wo) : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
  util.return %result : tensor<8x32xf32>
}

util.func private @feed_forward(%x: tensor<8x32xf32>, %gate: tensor<16x32xf32>, %up: tensor<16x32xf32>, %down: tensor<32x16xf32>) -> tensor<8x32xf32> attributes {inlining_policy = #util.inline.always} {
  %one = arith.constant 1.0 : f32
  %g = util.call @widen(%x, %gate) : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %u = util.call @widen(%x, %up) : (tensor<8x32xf32>, tensor<16x32xf32>) -> tensor<8x16xf32>
  %empty = tensor.empty() : tensor<8x16xf32>
  %hidden = linalg.generic {indexing_maps = [#rows, #rows, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<8x16xf32>, tensor<8x16xf32>) outs(%empty : tensor<8x16xf32>) {
  ^bb0(%a: f32, %b: f32, %old: f32):
    %minus = arith.negf %a : f32
    %power = math.exp %minus : f32
    %below = arith.addf %one, %power : f32
    %open = arith.divf %a, %below : f32
    %product = arith.mulf %open, %b : f32
    linalg.yield %product : f32
  } -> tensor<8x16xf32>
  %result = util.call @project(%hidden, %down) : (tensor<8x16xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
  util.return %result : tensor<8x32xf32>
}
