// Embeddings of sentences: the mean of their tokens' rows in a table, of length 1.
// The table is a parameter, so the program has no weights: they are read where the package wordllama has them.
// Its elements are f16, which vmvx does not know; they are read as integers, and become f32 by their bits.
module @similar {
  util.global private @table = #flow.parameter.named<"wordllama"::"embedding.weight"> : tensor<32000x256xi16>

  func.func @main(%tokens: tensor<?x?xi32>, %counts: tensor<?xi32>) -> tensor<?x256xf32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %zero = arith.constant 0.0 : f32
    %magnitude_bits = arith.constant 0x7FFF : i32
    %thirteen = arith.constant 13 : i32
    %none_bits = arith.constant 0 : i32
    %bias = arith.constant 0x77800000 : f32  // 2 to the 112th: what exponents of f16 and f32 differ by
    %sentences = tensor.dim %tokens, %c0 : tensor<?x?xi32>
    %table = util.global.load @table : tensor<32000x256xi16>
    %empty = tensor.empty(%sentences) : tensor<?x256xf32>
    %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x256xf32>) -> tensor<?x256xf32>

    // The sum of the rows; a place behind the end of its sentence adds nothing.
    %sum = linalg.generic {
      indexing_maps = [affine_map<(s, e, t) -> (s, t)>, affine_map<(s, e, t) -> (s)>, affine_map<(s, e, t) -> (s, e)>],
      iterator_types = ["parallel", "parallel", "reduction"]
    } ins(%tokens, %counts : tensor<?x?xi32>, tensor<?xi32>) outs(%zeros : tensor<?x256xf32>) {
    ^bb0(%token: i32, %count: i32, %total: f32):
      %row = arith.index_cast %token : i32 to index
      %column = linalg.index 1 : index
      %place = linalg.index 2 : index
      %end = arith.index_cast %count : i32 to index
      %half = tensor.extract %table[%row, %column] : tensor<32000x256xi16>
      %bits = arith.extsi %half : i16 to i32
      %magnitude = arith.andi %bits, %magnitude_bits : i32
      %shifted = arith.shli %magnitude, %thirteen : i32
      %small = arith.bitcast %shifted : i32 to f32
      %positive = arith.mulf %small, %bias : f32
      %negative = arith.negf %positive : f32
      %is_negative = arith.cmpi slt, %bits, %none_bits : i32
      %value = arith.select %is_negative, %negative, %positive : f32
      %is_used = arith.cmpi ult, %place, %end : index
      %part = arith.select %is_used, %value, %zero : f32
      %next = arith.addf %total, %part : f32
      linalg.yield %next : f32
    } -> tensor<?x256xf32>

    // Length 1: the mean is not needed for that, its direction is that of the sum.
    %line = tensor.empty(%sentences) : tensor<?xf32>
    %none = linalg.fill ins(%zero : f32) outs(%line : tensor<?xf32>) -> tensor<?xf32>
    %squares = linalg.generic {
      indexing_maps = [affine_map<(s, e) -> (s, e)>, affine_map<(s, e) -> (s)>], iterator_types = ["parallel", "reduction"]
    } ins(%sum : tensor<?x256xf32>) outs(%none : tensor<?xf32>) {
    ^bb0(%value: f32, %total: f32):
      %square = arith.mulf %value, %value : f32
      %next = arith.addf %total, %square : f32
      linalg.yield %next : f32
    } -> tensor<?xf32>
    %unit = linalg.generic {
      indexing_maps = [affine_map<(s, e) -> (s, e)>, affine_map<(s, e) -> (s)>, affine_map<(s, e) -> (s, e)>],
      iterator_types = ["parallel", "parallel"]
    } ins(%sum, %squares : tensor<?x256xf32>, tensor<?xf32>) outs(%empty : tensor<?x256xf32>) {
    ^bb0(%value: f32, %square: f32, %result: f32):
      %length = math.sqrt %square : f32
      %scaled = arith.divf %value, %length : f32
      linalg.yield %scaled : f32
    } -> tensor<?x256xf32>
    return %unit : tensor<?x256xf32>
  }
}
