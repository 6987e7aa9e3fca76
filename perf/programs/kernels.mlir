// Kernels that are timed through the vmvx and llvm-cpu targets: `perf/kernels.py`.
// Compile with: iree-compile --iree-hal-target-device=local --iree-hal-local-target-device-backends=TARGET
//   kernels.mlir -o kernels_TARGET.vmfb (llvm-cpu with --iree-llvmcpu-target-cpu=host on the machine at hand)

// gelu by the error function
func.func @gelu(%x: tensor<65536xf32>) -> tensor<65536xf32> {
  %half = arith.constant 0.5 : f32
  %one = arith.constant 1.0 : f32
  %root = arith.constant 0.70710678 : f32
  %e = tensor.empty() : tensor<65536xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]} ins(%x : tensor<65536xf32>) outs(%e : tensor<65536xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.mulf %a, %root : f32
    %f = math.erf %s : f32
    %g = arith.addf %f, %one : f32
    %h = arith.mulf %a, %half : f32
    %r = arith.mulf %h, %g : f32
    linalg.yield %r : f32
  } -> tensor<65536xf32>
  return %0 : tensor<65536xf32>
}

// x * sigmoid(x)
func.func @silu(%x: tensor<65536xf32>) -> tensor<65536xf32> {
  %one = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<65536xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]} ins(%x : tensor<65536xf32>) outs(%e : tensor<65536xf32>) {
  ^bb0(%a: f32, %o: f32):
    %n = arith.negf %a : f32
    %p = math.exp %n : f32
    %q = arith.addf %p, %one : f32
    %r = arith.divf %a, %q : f32
    linalg.yield %r : f32
  } -> tensor<65536xf32>
  return %0 : tensor<65536xf32>
}

func.func @matvec(%a: tensor<512x512xf32>, %x: tensor<512xf32>) -> tensor<512xf32> {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512xf32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : tensor<512xf32>) -> tensor<512xf32>
  %0 = linalg.matvec ins(%a, %x : tensor<512x512xf32>, tensor<512xf32>) outs(%z : tensor<512xf32>) -> tensor<512xf32>
  return %0 : tensor<512xf32>
}

func.func @batch_matmul(%a: tensor<8x64x64xf32>, %b: tensor<8x64x64xf32>) -> tensor<8x64x64xf32> {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x64x64xf32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
  %0 = linalg.batch_matmul ins(%a, %b : tensor<8x64x64xf32>, tensor<8x64x64xf32>) outs(%z : tensor<8x64x64xf32>) -> tensor<8x64x64xf32>
  return %0 : tensor<8x64x64xf32>
}

// the second operand's rows are columns of the product: dot products of rows
func.func @matmul_transposed(%a: tensor<96x128xf32>, %b: tensor<80x128xf32>) -> tensor<96x80xf32> {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<96x80xf32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : tensor<96x80xf32>) -> tensor<96x80xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i,j,k)->(i,k)>, affine_map<(i,j,k)->(j,k)>, affine_map<(i,j,k)->(i,j)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<96x128xf32>, tensor<80x128xf32>) outs(%z : tensor<96x80xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<96x80xf32>
  return %0 : tensor<96x80xf32>
}

func.func @depthwise_conv(%x: tensor<1x34x34x32xf32>, %w: tensor<3x3x32xf32>) -> tensor<1x32x32x32xf32> {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x32x32x32xf32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : tensor<1x32x32x32xf32>) -> tensor<1x32x32x32xf32>
  %0 = linalg.depthwise_conv_2d_nhwc_hwc {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>} ins(%x, %w : tensor<1x34x34x32xf32>, tensor<3x3x32xf32>) outs(%z : tensor<1x32x32x32xf32>) -> tensor<1x32x32x32xf32>
  return %0 : tensor<1x32x32x32xf32>
}

func.func @max_pool(%x: tensor<1x64x64x32xf32>) -> tensor<1x32x32x32xf32> {
  %low = arith.constant 0xFF800000 : f32
  %w = tensor.empty() : tensor<2x2xf32>
  %e = tensor.empty() : tensor<1x32x32x32xf32>
  %z = linalg.fill ins(%low : f32) outs(%e : tensor<1x32x32x32xf32>) -> tensor<1x32x32x32xf32>
  %0 = linalg.pooling_nhwc_max {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%x, %w : tensor<1x64x64x32xf32>, tensor<2x2xf32>) outs(%z : tensor<1x32x32x32xf32>) -> tensor<1x32x32x32xf32>
  return %0 : tensor<1x32x32x32xf32>
}

func.func @column_sum(%a: tensor<512x512xf32>) -> tensor<512xf32> {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512xf32>
  %z = linalg.fill ins(%c0 : f32) outs(%e : tensor<512xf32>) -> tensor<512xf32>
  %0 = linalg.reduce ins(%a : tensor<512x512xf32>) outs(%z : tensor<512xf32>) dimensions = [0] (%x: f32, %y: f32) { %s = arith.addf %x, %y : f32 linalg.yield %s : f32 }
  return %0 : tensor<512xf32>
}

// 8-bit accumulators scaled, rounded and clamped to 8 bits again
func.func @requantize(%x: tensor<65536xi32>) -> tensor<65536xi8> {
  %scale = arith.constant 0.0123 : f32
  %low = arith.constant -128.0 : f32
  %high = arith.constant 127.0 : f32
  %e = tensor.empty() : tensor<65536xi8>
  %0 = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]} ins(%x : tensor<65536xi32>) outs(%e : tensor<65536xi8>) {
  ^bb0(%a: i32, %o: i8):
    %f = arith.sitofp %a : i32 to f32
    %s = arith.mulf %f, %scale : f32
    %l = arith.maximumf %s, %low : f32
    %h = arith.minimumf %l, %high : f32
    %n = math.round %h : f32
    %i = arith.fptosi %n : f32 to i8
    linalg.yield %i : i8
  } -> tensor<65536xi8>
  return %0 : tensor<65536xi8>
}

func.func @axpy_dynamic(%a: tensor<?xf32>, %b: tensor<?xf32>, %s: f32) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<?xf32>, tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %m = arith.mulf %x, %s : f32
    %r = arith.addf %m, %y : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// rows of a table picked by number
func.func @gather(%table: tensor<1024x64xf32>, %rows: tensor<512xi32>) -> tensor<512x64xf32> {
  %e = tensor.empty() : tensor<512x64xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i,j)->(i)>, affine_map<(i,j)->(i,j)>], iterator_types = ["parallel", "parallel"]} ins(%rows : tensor<512xi32>) outs(%e : tensor<512x64xf32>) {
  ^bb0(%row: i32, %o: f32):
    %j = linalg.index 1 : index
    %i = arith.index_cast %row : i32 to index
    %v = tensor.extract %table[%i, %j] : tensor<1024x64xf32>
    linalg.yield %v : f32
  } -> tensor<512x64xf32>
  return %0 : tensor<512x64xf32>
}

// a filter over planes of a padded image, whose rows fill no vectors
func.func @conv_planes(%image: tensor<1x96x22x22xf32>, %filter: tensor<24x96x3x3xf32>) -> tensor<1x24x20x20xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x24x20x20xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x24x20x20xf32>) -> tensor<1x24x20x20xf32>
  %0 = linalg.conv_2d_nchw_fchw ins(%image, %filter : tensor<1x96x22x22xf32>, tensor<24x96x3x3xf32>) outs(%f : tensor<1x24x20x20xf32>) -> tensor<1x24x20x20xf32>
  return %0 : tensor<1x24x20x20xf32>
}
