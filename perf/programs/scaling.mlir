// Programs for perf/scaling.py: work that many threads can share, in one dispatch or in several that are independent.
module @scaling {

  func.func @matmul(%a: tensor<768x768xf32>, %b: tensor<768x768xf32>) -> tensor<768x768xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<768x768xf32>, tensor<768x768xf32>) -> tensor<768x768xf32>
    return %0 : tensor<768x768xf32>
  }

  func.func @convolution(%x: tensor<1x66x66x32xf32>, %k: tensor<3x3x32x32xf32>) -> tensor<1x64x64x32xf32> {
    %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x66x66x32xf32>, tensor<3x3x32x32xf32>) -> tensor<1x64x64x32xf32>
    return %0 : tensor<1x64x64x32xf32>
  }

  // Bound by exp.
  func.func @softmax(%x: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
      : (tensor<1024x1024xf32>, tensor<f32>) -> tensor<1024xf32>
    %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<1024xf32>) -> tensor<1024x1024xf32>
    %d = stablehlo.subtract %x, %mb : tensor<1024x1024xf32>
    %e = stablehlo.exponential %d : tensor<1024x1024xf32>
    %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<1024x1024xf32>, tensor<f32>) -> tensor<1024xf32>
    %sb = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<1024xf32>) -> tensor<1024x1024xf32>
    %r = stablehlo.divide %e, %sb : tensor<1024x1024xf32>
    return %r : tensor<1024x1024xf32>
  }

  // Bound by memory: 48 MiB are read or written.
  func.func @add(%a: tensor<4194304xf32>, %b: tensor<4194304xf32>) -> tensor<4194304xf32> {
    %0 = stablehlo.add %a, %b : tensor<4194304xf32>
    return %0 : tensor<4194304xf32>
  }

  // Dispatches of 20 to 50 us on one thread, each after the other.
  func.func @layers(%x: tensor<64x256xf32>, %w: tensor<256x256xf32>) -> tensor<64x256xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
    %1 = stablehlo.tanh %0 : tensor<64x256xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
    %3 = stablehlo.tanh %2 : tensor<64x256xf32>
    %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
    %5 = stablehlo.tanh %4 : tensor<64x256xf32>
    %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
    return %6 : tensor<64x256xf32>
  }

  // One row at a time: nothing to share, no thread is worth waking.
  func.func @row(%x: tensor<1x64xf32>, %w: tensor<64x64xf32>) -> tensor<1x64xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<1x64xf32>, tensor<64x64xf32>) -> tensor<1x64xf32>
    return %0 : tensor<1x64xf32>
  }
}
