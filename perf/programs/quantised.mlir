// Products of bytes that are added up to i32, as in quantised models: `perf/quantised.py`.
// Compile with: iree-compile --iree-hal-target-device=local --iree-hal-local-target-device-backends=TARGET
//   quantised.mlir -o quantised_TARGET.vmfb (llvm-cpu with --iree-llvmcpu-target-cpu=host on the machine at hand)

func.func @square(%a: tensor<512x512xi8>, %b: tensor<512x512xi8>) -> tensor<512x512xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<512x512xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<512x512xi32>) -> tensor<512x512xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<512x512xi8>, tensor<512x512xi8>) outs(%f : tensor<512x512xi32>) {
  ^bb0(%x: i8, %y: i8, %s: i32):
    %l = arith.extsi %x : i8 to i32
    %r = arith.extsi %y : i8 to i32
    %p = arith.muli %l, %r : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<512x512xi32>
  return %0 : tensor<512x512xi32>
}

func.func @square_u8_s8(%a: tensor<512x512xi8>, %b: tensor<512x512xi8>) -> tensor<512x512xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<512x512xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<512x512xi32>) -> tensor<512x512xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<512x512xi8>, tensor<512x512xi8>) outs(%f : tensor<512x512xi32>) {
  ^bb0(%x: i8, %y: i8, %s: i32):
    %l = arith.extui %x : i8 to i32
    %r = arith.extsi %y : i8 to i32
    %p = arith.muli %l, %r : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<512x512xi32>
  return %0 : tensor<512x512xi32>
}

func.func @transposed(%a: tensor<512x512xi8>, %b: tensor<512x512xi8>) -> tensor<512x512xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<512x512xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<512x512xi32>) -> tensor<512x512xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<512x512xi8>, tensor<512x512xi8>) outs(%f : tensor<512x512xi32>) {
  ^bb0(%x: i8, %y: i8, %s: i32):
    %l = arith.extsi %x : i8 to i32
    %r = arith.extsi %y : i8 to i32
    %p = arith.muli %l, %r : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<512x512xi32>
  return %0 : tensor<512x512xi32>
}

func.func @skinny(%a: tensor<16x512xi8>, %b: tensor<512x1024xi8>) -> tensor<16x1024xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<16x1024xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<16x1024xi32>) -> tensor<16x1024xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<16x512xi8>, tensor<512x1024xi8>) outs(%f : tensor<16x1024xi32>) {
  ^bb0(%x: i8, %y: i8, %s: i32):
    %l = arith.extsi %x : i8 to i32
    %r = arith.extsi %y : i8 to i32
    %p = arith.muli %l, %r : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<16x1024xi32>
  return %0 : tensor<16x1024xi32>
}

func.func @vector(%a: tensor<1x1024xi8>, %b: tensor<1024x1024xi8>) -> tensor<1x1024xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<1x1024xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1x1024xi32>) -> tensor<1x1024xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<1x1024xi8>, tensor<1024x1024xi8>) outs(%f : tensor<1x1024xi32>) {
  ^bb0(%x: i8, %y: i8, %s: i32):
    %l = arith.extsi %x : i8 to i32
    %r = arith.extsi %y : i8 to i32
    %p = arith.muli %l, %r : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<1x1024xi32>
  return %0 : tensor<1x1024xi32>
}

func.func @vector_transposed(%a: tensor<1x1024xi8>, %b: tensor<1024x1024xi8>) -> tensor<1x1024xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<1x1024xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1x1024xi32>) -> tensor<1x1024xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<1x1024xi8>, tensor<1024x1024xi8>) outs(%f : tensor<1x1024xi32>) {
  ^bb0(%x: i8, %y: i8, %s: i32):
    %l = arith.extsi %x : i8 to i32
    %r = arith.extsi %y : i8 to i32
    %p = arith.muli %l, %r : i32
    %t = arith.addi %s, %p : i32
    linalg.yield %t : i32
  } -> tensor<1x1024xi32>
  return %0 : tensor<1x1024xi32>
}

func.func @conv_1x1(%a: tensor<1x28x28x128xi8>, %b: tensor<1x1x128x128xi8>) -> tensor<1x28x28x128xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<1x28x28x128xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1x28x28x128xi32>) -> tensor<1x28x28x128xi32>
  %0 = linalg.conv_2d_nhwc_hwcf ins(%a, %b : tensor<1x28x28x128xi8>, tensor<1x1x128x128xi8>) outs(%f : tensor<1x28x28x128xi32>) -> tensor<1x28x28x128xi32>
  return %0 : tensor<1x28x28x128xi32>
}

func.func @conv_3x3(%a: tensor<1x30x30x64xi8>, %b: tensor<3x3x64x64xi8>) -> tensor<1x28x28x64xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<1x28x28x64xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1x28x28x64xi32>) -> tensor<1x28x28x64xi32>
  %0 = linalg.conv_2d_nhwc_hwcf ins(%a, %b : tensor<1x30x30x64xi8>, tensor<3x3x64x64xi8>) outs(%f : tensor<1x28x28x64xi32>) -> tensor<1x28x28x64xi32>
  return %0 : tensor<1x28x28x64xi32>
}

func.func @conv_3x3_planes(%a: tensor<1x64x30x30xi8>, %b: tensor<64x64x3x3xi8>) -> tensor<1x64x28x28xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<1x64x28x28xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1x64x28x28xi32>) -> tensor<1x64x28x28xi32>
  %0 = linalg.conv_2d_nchw_fchw ins(%a, %b : tensor<1x64x30x30xi8>, tensor<64x64x3x3xi8>) outs(%f : tensor<1x64x28x28xi32>) -> tensor<1x64x28x28xi32>
  return %0 : tensor<1x64x28x28xi32>
}
