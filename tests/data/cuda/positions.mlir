// Compiled by iree-compile 3.13.0 --iree-hal-target-device=cuda --iree-cuda-target=sm_80. Copies only: the host
// reads positions, which say where from or where to, and kernels have nothing to do.
module @positions {
  func.func @put(%rows: tensor<8x8xf32>, %row: tensor<1x8xf32>, %position: tensor<i32>) -> tensor<8x8xf32> {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %r = stablehlo.dynamic_update_slice %rows, %row, %position, %c0 : (tensor<8x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x8xf32>
    return %r : tensor<8x8xf32>
  }
  func.func @put_twice(%rows: tensor<8x8xf32>, %row: tensor<1x8xf32>, %first: tensor<i32>, %second: tensor<i32>) -> tensor<8x8xf32> {
    %a = call @put(%rows, %row, %first) : (tensor<8x8xf32>, tensor<1x8xf32>, tensor<i32>) -> tensor<8x8xf32>
    %b = call @put(%a, %row, %second) : (tensor<8x8xf32>, tensor<1x8xf32>, tensor<i32>) -> tensor<8x8xf32>
    return %b : tensor<8x8xf32>
  }
  func.func @get(%rows: tensor<8x8xf32>, %position: tensor<i32>) -> tensor<1x8xf32> {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %r = stablehlo.dynamic_slice %rows, %position, %c0, sizes = [1, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    return %r : tensor<1x8xf32>
  }
}
