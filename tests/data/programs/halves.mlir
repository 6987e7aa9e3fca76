// Parameters of both types of 16 bits: numpy has half precision, and not bfloat16.

util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<6xf16>
util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<6xbf16>

func.func @f(%x: tensor<6xf16>) -> tensor<6xf16> {
  %w = util.global.load @w : tensor<6xf16>
  %y = arith.mulf %x, %w : tensor<6xf16>
  return %y : tensor<6xf16>
}

func.func @g(%x: tensor<6xbf16>) -> tensor<6xbf16> {
  %b = util.global.load @b : tensor<6xbf16>
  %y = arith.mulf %x, %b : tensor<6xbf16>
  return %y : tensor<6xbf16>
}
