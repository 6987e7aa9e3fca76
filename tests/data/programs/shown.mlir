// Parameters that no kernel binds: callers get them as they are, or a copy beside what a kernel computes.
module @shown {
  util.global private @h = #flow.parameter.named<"model"::"h"> : tensor<4xf16>
  util.global private @i = #flow.parameter.named<"model"::"i"> : tensor<4xi16>
  util.global private @d = #flow.parameter.named<"model"::"d"> : tensor<4xf64>
  util.global private @c = #flow.parameter.named<"model"::"c"> : tensor<9xi16>
  util.global private @l = #flow.parameter.named<"model"::"l"> : tensor<9xf32>
  util.global private @m = #flow.parameter.named<"model"::"m"> : tensor<6xi16>
  util.global private @a = #flow.parameter.named<"model"::"a"> : tensor<3xi16>
  util.global private @o = #flow.parameter.named<"model"::"o"> : tensor<5xi64>
  func.func @one() -> tensor<5xi64> {
    %o = util.global.load @o : tensor<5xi64>
    return %o : tensor<5xi64>
  }
  func.func @whole() -> (tensor<4xf16>, tensor<4xi16>, tensor<4xf64>) {
    %h = util.global.load @h : tensor<4xf16>
    %i = util.global.load @i : tensor<4xi16>
    %d = util.global.load @d : tensor<4xf64>
    return %h, %i, %d : tensor<4xf16>, tensor<4xi16>, tensor<4xf64>
  }
  func.func @beside(%x: tensor<8xf32>) -> (tensor<9xi16>, tensor<9xf32>, tensor<8xf32>) {
    %c = util.global.load @c : tensor<9xi16>
    %l = util.global.load @l : tensor<9xf32>
    %y = arith.addf %x, %x : tensor<8xf32>
    return %c, %l, %y : tensor<9xi16>, tensor<9xf32>, tensor<8xf32>
  }
  func.func @joined(%x: tensor<3xi16>) -> (tensor<6xf32>, tensor<6xi16>) {
    %m = util.global.load @m : tensor<6xi16>
    %a = util.global.load @a : tensor<3xi16>
    %b = tensor.empty() : tensor<6xi16>
    %0 = tensor.insert_slice %a into %b[0] [3] [1] : tensor<3xi16> into tensor<6xi16>
    %1 = tensor.insert_slice %x into %0[3] [3] [1] : tensor<3xi16> into tensor<6xi16>
    %2 = arith.sitofp %1 : tensor<6xi16> to tensor<6xf32>
    return %2, %m : tensor<6xf32>, tensor<6xi16>
  }
}
