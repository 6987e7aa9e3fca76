// Parameters of two types, each bound by kernels whose names say its type, or both types.
module @typed {
  util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
  util.global private @i = #flow.parameter.named<"model"::"i"> : tensor<4xi32>
  util.global private @n = #flow.parameter.named<"model"::"n"> : tensor<4xi32>
  util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<4xi32>
  util.global private @q = #flow.parameter.named<"model"::"q"> : tensor<4x8xi4>
  func.func @f(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xi32>, tensor<4xf32>) {
    %w = util.global.load @w : tensor<4xf32>
    %i = util.global.load @i : tensor<4xi32>
    %n = util.global.load @n : tensor<4xi32>
    %0 = arith.addf %a, %w : tensor<4xf32>
    %1 = arith.addi %i, %i : tensor<4xi32>
    %m = arith.sitofp %n : tensor<4xi32> to tensor<4xf32>
    %2 = arith.mulf %a, %m : tensor<4xf32>
    return %0, %1, %2 : tensor<4xf32>, tensor<4xi32>, tensor<4xf32>
  }
  func.func @g(%a: tensor<2x3xf32>, %c: tensor<3x4xf32>) -> tensor<2x4xf32> {
    %b = util.global.load @b : tensor<4xi32>
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<2x4xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4xf32>) -> tensor<2x4xf32>
    %m = linalg.matmul ins(%a, %c : tensor<2x3xf32>, tensor<3x4xf32>) outs(%z : tensor<2x4xf32>) -> tensor<2x4xf32>
    %f = arith.sitofp %b : tensor<4xi32> to tensor<4xf32>
    %s = linalg.broadcast ins(%f : tensor<4xf32>) outs(%e : tensor<2x4xf32>) dimensions = [0]
    %r = arith.addf %m, %s : tensor<2x4xf32>
    return %r : tensor<2x4xf32>
  }
  func.func @h(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %q = util.global.load @q : tensor<4x8xi4>
    %f = arith.sitofp %q : tensor<4x8xi4> to tensor<4x8xf32>
    %r = arith.mulf %a, %f : tensor<4x8xf32>
    return %r : tensor<4x8xf32>
  }
}
