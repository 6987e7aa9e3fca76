// Parameters that a matmul, a convolution and a kernel that looks numbers up bind, in a program that has integers, too.
module @summed {
  util.global private @w = #flow.parameter.named<"m"::"w"> : tensor<32x16xf32>
  util.global private @tab = #flow.parameter.named<"m"::"tab"> : tensor<100x16xf32>
  util.global private @k = #flow.parameter.named<"m"::"k"> : tensor<3x3x4x8xf32>
  func.func @mm(%a: tensor<8x32xf32>) -> tensor<8x16xf32> {
    %w = util.global.load @w : tensor<32x16xf32>
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<8x16xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
    %m = linalg.matmul ins(%a, %w : tensor<8x32xf32>, tensor<32x16xf32>) outs(%z : tensor<8x16xf32>) -> tensor<8x16xf32>
    return %m : tensor<8x16xf32>
  }
  func.func @gather(%i: tensor<8xi64>) -> tensor<8x16xf32> {
    %t = util.global.load @tab : tensor<100x16xf32>
    %e = tensor.empty() : tensor<8x16xf32>
    %r = linalg.generic {indexing_maps=[affine_map<(d0,d1)->(d0)>,affine_map<(d0,d1)->(d0,d1)>], iterator_types=["parallel","parallel"]} ins(%i: tensor<8xi64>) outs(%e: tensor<8x16xf32>) { ^bb0(%x: i64, %y: f32): %n = arith.index_cast %x : i64 to index %j = linalg.index 1 : index %v = tensor.extract %t[%n, %j] : tensor<100x16xf32> linalg.yield %v : f32 } -> tensor<8x16xf32>
    return %r : tensor<8x16xf32>
  }
  func.func @conv(%a: tensor<1x10x10x4xf32>) -> tensor<1x8x8x8xf32> {
    %w = util.global.load @k : tensor<3x3x4x8xf32>
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<1x8x8x8xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
    %m = linalg.conv_2d_nhwc_hwcf ins(%a, %w : tensor<1x10x10x4xf32>, tensor<3x3x4x8xf32>) outs(%z : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
    return %m : tensor<1x8x8x8xf32>
  }
  func.func @integers(%a: tensor<4xi32>) -> tensor<4xi32> {
    %0 = arith.addi %a, %a : tensor<4xi32>
    return %0 : tensor<4xi32>
  }
}
