// More models for perf/models.py: loops that the host takes part in, networks of other kinds, many small tensors.
// iree-compile 3.13.0 with the flags of call.mlir and --iree-llvmcpu-debug-symbols=false.
module @further {

  // Convolutions with normalisation and pooling.
  func.func @convnet(%x: tensor<1x28x28x1xf32>, %k0: tensor<3x3x1x16xf32>, %g0: tensor<16xf32>,
    %b0: tensor<16xf32>, %k1: tensor<3x3x16x32xf32>, %g1: tensor<32xf32>, %b1: tensor<32xf32>,
      %w: tensor<1568x10xf32>) -> tensor<1x10xf32> {
    %z0 = stablehlo.constant dense<0.0> : tensor<1x28x28x16xf32>
    %z1 = stablehlo.constant dense<0.0> : tensor<1x14x14x32xf32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.convolution(%x, %k0) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x28x28x1xf32>, tensor<3x3x1x16xf32>) -> tensor<1x28x28x16xf32>
    %gb = stablehlo.broadcast_in_dim %g0, dims = [3] : (tensor<16xf32>) -> tensor<1x28x28x16xf32>
    %bb = stablehlo.broadcast_in_dim %b0, dims = [3] : (tensor<16xf32>) -> tensor<1x28x28x16xf32>
    %1 = stablehlo.multiply %0, %gb : tensor<1x28x28x16xf32>
    %2 = stablehlo.add %1, %bb : tensor<1x28x28x16xf32>
    %3 = stablehlo.maximum %2, %z0 : tensor<1x28x28x16xf32>
    %4 = "stablehlo.reduce_window"(%3, %low) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %m = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %m : tensor<f32>
    }) {window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}
      : (tensor<1x28x28x16xf32>, tensor<f32>) -> tensor<1x14x14x16xf32>
    %5 = stablehlo.convolution(%4, %k1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x14x14x16xf32>, tensor<3x3x16x32xf32>) -> tensor<1x14x14x32xf32>
    %gc = stablehlo.broadcast_in_dim %g1, dims = [3] : (tensor<32xf32>) -> tensor<1x14x14x32xf32>
    %bc = stablehlo.broadcast_in_dim %b1, dims = [3] : (tensor<32xf32>) -> tensor<1x14x14x32xf32>
    %6 = stablehlo.multiply %5, %gc : tensor<1x14x14x32xf32>
    %7 = stablehlo.add %6, %bc : tensor<1x14x14x32xf32>
    %8 = stablehlo.maximum %7, %z1 : tensor<1x14x14x32xf32>
    %9 = "stablehlo.reduce_window"(%8, %low) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %m = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %m : tensor<f32>
    }) {window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}
      : (tensor<1x14x14x32xf32>, tensor<f32>) -> tensor<1x7x7x32xf32>
    %10 = stablehlo.reshape %9 : (tensor<1x7x7x32xf32>) -> tensor<1x1568xf32>
    %11 = stablehlo.dot_general %10, %w, contracting_dims = [1] x [0]
      : (tensor<1x1568xf32>, tensor<1568x10xf32>) -> tensor<1x10xf32>
    return %11 : tensor<1x10xf32>
  }

  // Two layers of 8-bit integers.
  func.func @quantised(%x: tensor<32x256xi8>, %w0: tensor<256x256xi8>, %w1: tensor<256x64xi8>)
    -> tensor<32x64xi32> {
    %c7 = stablehlo.constant dense<7> : tensor<32x256xi32>
    %lo = stablehlo.constant dense<-128> : tensor<32x256xi32>
    %hi = stablehlo.constant dense<127> : tensor<32x256xi32>
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
      : (tensor<32x256xi8>, tensor<256x256xi8>) -> tensor<32x256xi32>
    %1 = stablehlo.shift_right_arithmetic %0, %c7 : tensor<32x256xi32>
    %2 = stablehlo.clamp %lo, %1, %hi : tensor<32x256xi32>
    %3 = stablehlo.convert %2 : (tensor<32x256xi32>) -> tensor<32x256xi8>
    %4 = stablehlo.dot_general %3, %w1, contracting_dims = [1] x [0]
      : (tensor<32x256xi8>, tensor<256x64xi8>) -> tensor<32x64xi32>
    return %4 : tensor<32x64xi32>
  }

  // A transformer block on a sequence whose length is known when the call is made.
  func.func @attention(%x: tensor<?x64xf32>, %wq: tensor<64x64xf32>, %wk: tensor<64x64xf32>,
    %wv: tensor<64x64xf32>, %wo: tensor<64x64xf32>, %w1: tensor<64x256xf32>,
      %w2: tensor<256x64xf32>) -> tensor<?x64xf32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = tensor.dim %x, %c0 : tensor<?x64xf32>
    %zero = arith.constant 0.0 : f32
    %low = arith.constant 0xFF800000 : f32
    %inv = arith.constant 0.015625 : f32
    %eps = arith.constant 1.0e-5 : f32
    %e = tensor.empty(%n) : tensor<?x64xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
    %er = tensor.empty(%n) : tensor<?xf32>
    %zr = linalg.fill ins(%zero : f32) outs(%er : tensor<?xf32>) -> tensor<?xf32>
    %sum = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>],
      iterator_types = ["parallel","reduction"]} ins(%x : tensor<?x64xf32>) outs(%zr : tensor<?xf32>) {
      ^bb0(%a: f32, %b: f32): %r = arith.addf %a, %b : f32
      linalg.yield %r : f32 } -> tensor<?xf32>
    %var = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>,
      affine_map<(i,j)->(i)>], iterator_types = ["parallel","reduction"]}
        ins(%x, %sum : tensor<?x64xf32>, tensor<?xf32>) outs(%zr : tensor<?xf32>) {
      ^bb0(%a: f32, %s: f32, %b: f32):
      %m = arith.mulf %s, %inv : f32
      %d = arith.subf %a, %m : f32
      %q = arith.mulf %d, %d : f32
      %r = arith.addf %q, %b : f32
      linalg.yield %r : f32 } -> tensor<?xf32>
    %ln = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>,
      affine_map<(i,j)->(i)>, affine_map<(i,j)->(i,j)>], iterator_types = ["parallel","parallel"]}
        ins(%x, %sum, %var : tensor<?x64xf32>, tensor<?xf32>, tensor<?xf32>) outs(%e : tensor<?x64xf32>) {
      ^bb0(%a: f32, %s: f32, %v: f32, %b: f32):
      %m = arith.mulf %s, %inv : f32
      %d = arith.subf %a, %m : f32
      %v1 = arith.mulf %v, %inv : f32
      %v2 = arith.addf %v1, %eps : f32
      %rs = math.rsqrt %v2 : f32
      %r = arith.mulf %d, %rs : f32
      linalg.yield %r : f32 } -> tensor<?x64xf32>
    %q = linalg.matmul ins(%ln, %wq : tensor<?x64xf32>, tensor<64x64xf32>)
      outs(%z : tensor<?x64xf32>) -> tensor<?x64xf32>
    %k = linalg.matmul ins(%ln, %wk : tensor<?x64xf32>, tensor<64x64xf32>)
      outs(%z : tensor<?x64xf32>) -> tensor<?x64xf32>
    %v = linalg.matmul ins(%ln, %wv : tensor<?x64xf32>, tensor<64x64xf32>)
      outs(%z : tensor<?x64xf32>) -> tensor<?x64xf32>
    %es = tensor.empty(%n, %n) : tensor<?x?xf32>
    %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<?x?xf32>) -> tensor<?x?xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(i,j,k)->(i,k)>, affine_map<(i,j,k)->(j,k)>,
      affine_map<(i,j,k)->(i,j)>], iterator_types = ["parallel","parallel","reduction"]}
        ins(%q, %k : tensor<?x64xf32>, tensor<?x64xf32>) outs(%zs : tensor<?x?xf32>) {
      ^bb0(%a: f32, %b: f32, %c: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %m, %c : f32
      linalg.yield %r : f32 } -> tensor<?x?xf32>
    %sm = linalg.softmax dimension(1) ins(%s : tensor<?x?xf32>) outs(%es : tensor<?x?xf32>) -> tensor<?x?xf32>
    %o = linalg.matmul ins(%sm, %v : tensor<?x?xf32>, tensor<?x64xf32>)
      outs(%z : tensor<?x64xf32>) -> tensor<?x64xf32>
    %p = linalg.matmul ins(%o, %wo : tensor<?x64xf32>, tensor<64x64xf32>)
      outs(%x : tensor<?x64xf32>) -> tensor<?x64xf32>
    %eh = tensor.empty(%n) : tensor<?x256xf32>
    %zh = linalg.fill ins(%zero : f32) outs(%eh : tensor<?x256xf32>) -> tensor<?x256xf32>
    %h = linalg.matmul ins(%p, %w1 : tensor<?x64xf32>, tensor<64x256xf32>)
      outs(%zh : tensor<?x256xf32>) -> tensor<?x256xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>],
      iterator_types = ["parallel","parallel"]} ins(%h : tensor<?x256xf32>) outs(%eh : tensor<?x256xf32>) {
      ^bb0(%a: f32, %b: f32): %r = math.tanh %a : f32
      linalg.yield %r : f32 } -> tensor<?x256xf32>
    %f = linalg.matmul ins(%g, %w2 : tensor<?x256xf32>, tensor<256x64xf32>)
      outs(%p : tensor<?x64xf32>) -> tensor<?x64xf32>
    return %f : tensor<?x64xf32>
  }

  // One step of decoding: a row of both caches is written in place, then attended to.
  func.func @cache_step(%kc: tensor<256x64xf32>, %vc: tensor<256x64xf32>, %x: tensor<1x64xf32>,
    %wq: tensor<64x64xf32>, %wk: tensor<64x64xf32>, %wv: tensor<64x64xf32>,
      %pos: tensor<i32>) -> (tensor<256x64xf32>, tensor<256x64xf32>, tensor<1x64xf32>) {
    %i0 = stablehlo.constant dense<0> : tensor<i32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %q = stablehlo.dot_general %x, %wq, contracting_dims = [1] x [0]
      : (tensor<1x64xf32>, tensor<64x64xf32>) -> tensor<1x64xf32>
    %k = stablehlo.dot_general %x, %wk, contracting_dims = [1] x [0]
      : (tensor<1x64xf32>, tensor<64x64xf32>) -> tensor<1x64xf32>
    %v = stablehlo.dot_general %x, %wv, contracting_dims = [1] x [0]
      : (tensor<1x64xf32>, tensor<64x64xf32>) -> tensor<1x64xf32>
    %kn = stablehlo.dynamic_update_slice %kc, %k, %pos, %i0
      : (tensor<256x64xf32>, tensor<1x64xf32>, tensor<i32>, tensor<i32>) -> tensor<256x64xf32>
    %vn = stablehlo.dynamic_update_slice %vc, %v, %pos, %i0
      : (tensor<256x64xf32>, tensor<1x64xf32>, tensor<i32>, tensor<i32>) -> tensor<256x64xf32>
    %s = stablehlo.dot_general %q, %kn, contracting_dims = [1] x [1]
      : (tensor<1x64xf32>, tensor<256x64xf32>) -> tensor<1x256xf32>
    %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1]
      : (tensor<1x256xf32>, tensor<f32>) -> tensor<1xf32>
    %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<1xf32>) -> tensor<1x256xf32>
    %d = stablehlo.subtract %s, %mb : tensor<1x256xf32>
    %e = stablehlo.exponential %d : tensor<1x256xf32>
    %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<1x256xf32>, tensor<f32>) -> tensor<1xf32>
    %tb = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<1xf32>) -> tensor<1x256xf32>
    %p = stablehlo.divide %e, %tb : tensor<1x256xf32>
    %o = stablehlo.dot_general %p, %vn, contracting_dims = [1] x [0]
      : (tensor<1x256xf32>, tensor<256x64xf32>) -> tensor<1x64xf32>
    return %kn, %vn, %o : tensor<256x64xf32>, tensor<256x64xf32>, tensor<1x64xf32>
  }

  // 100 tokens; the host reads each and looks up its row.
  func.func @decode(%table: tensor<256x64xf32>, %w: tensor<64x256xf32>, %start: i32) -> tensor<100xi32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c100 = arith.constant 100 : index
    %zero = arith.constant 0.0 : f32
    %low = arith.constant 0xFF800000 : f32
    %i0 = arith.constant 0 : i32
    %e = tensor.empty() : tensor<100xi32>
    %o0 = linalg.fill ins(%i0 : i32) outs(%e : tensor<100xi32>) -> tensor<100xi32>
    %r:2 = scf.for %i = %c0 to %c100 step %c1 iter_args(%t = %start, %o = %o0) -> (i32, tensor<100xi32>) {
      %ti = arith.index_cast %t : i32 to index
      %row = tensor.extract_slice %table[%ti, 0] [1, 64] [1, 1] : tensor<256x64xf32> to tensor<1x64xf32>
      %el = tensor.empty() : tensor<1x256xf32>
      %zl = linalg.fill ins(%zero : f32) outs(%el : tensor<1x256xf32>) -> tensor<1x256xf32>
      %l = linalg.matmul ins(%row, %w : tensor<1x64xf32>, tensor<64x256xf32>)
        outs(%zl : tensor<1x256xf32>) -> tensor<1x256xf32>
      %em = tensor.empty() : tensor<1xf32>
      %ei = tensor.empty() : tensor<1xi32>
      %m0 = linalg.fill ins(%low : f32) outs(%em : tensor<1xf32>) -> tensor<1xf32>
      %k0 = linalg.fill ins(%i0 : i32) outs(%ei : tensor<1xi32>) -> tensor<1xi32>
      %am:2 = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>,
        affine_map<(i,j)->(i)>], iterator_types = ["parallel","reduction"]} ins(%l : tensor<1x256xf32>)
          outs(%m0, %k0 : tensor<1xf32>, tensor<1xi32>) {
        ^bb0(%a: f32, %b: f32, %k: i32):
        %j = linalg.index 1 : index
        %ji = arith.index_cast %j : index to i32
        %c = arith.cmpf ogt, %a, %b : f32
        %v = arith.select %c, %a, %b : f32
        %n = arith.select %c, %ji, %k : i32
        linalg.yield %v, %n : f32, i32 } -> (tensor<1xf32>, tensor<1xi32>)
      %tok = tensor.extract %am#1[%c0] : tensor<1xi32>
      %o2 = tensor.insert %tok into %o[%i] : tensor<100xi32>
      scf.yield %tok, %o2 : i32, tensor<100xi32>
    }
    return %r#1 : tensor<100xi32>
  }

  // 200 turns of descending until the error, read by the host in each turn, is small.
  func.func @descent(%a: tensor<64x64xf32>, %b: tensor<64xf32>, %limit: tensor<f32>) -> (tensor<64xf32>,
    tensor<i32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %x0 = stablehlo.constant dense<0.0> : tensor<64xf32>
    %rate = stablehlo.constant dense<0.001> : tensor<64xf32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<200> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %big = stablehlo.constant dense<1.0e10> : tensor<f32>
    %r:3 = stablehlo.while(%x = %x0, %n = %big, %i = %first) : tensor<64xf32>, tensor<f32>, tensor<i32>
    cond {
      %c = stablehlo.compare GT, %n, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %d = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %go = stablehlo.and %c, %d : tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %ax = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0]
        : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64xf32>
      %e = stablehlo.subtract %ax, %b : tensor<64xf32>
      %g = stablehlo.dot_general %a, %e, contracting_dims = [0] x [0]
        : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64xf32>
      %s = stablehlo.multiply %g, %rate : tensor<64xf32>
      %y = stablehlo.subtract %x, %s : tensor<64xf32>
      %q = stablehlo.multiply %e, %e : tensor<64xf32>
      %m = stablehlo.reduce(%q init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %y, %m, %j : tensor<64xf32>, tensor<f32>, tensor<i32>
    }
    return %r#0, %r#2 : tensor<64xf32>, tensor<i32>
  }

  // 100 turns; the host reads a value in each and goes on with either half.
  func.func @bisect(%lo: tensor<f32>, %hi: tensor<f32>) -> tensor<f32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c100 = arith.constant 100 : index
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %zero = arith.constant 0.0 : f32
    %r:2 = scf.for %i = %c0 to %c100 step %c1 iter_args(%a = %lo, %b = %hi) -> (tensor<f32>, tensor<f32>) {
      %s = stablehlo.add %a, %b : tensor<f32>
      %m = stablehlo.multiply %s, %half : tensor<f32>
      %f = stablehlo.cosine %m : tensor<f32>
      %v = tensor.extract %f[] : tensor<f32>
      %c = arith.cmpf ogt, %v, %zero : f32
      %n:2 = scf.if %c -> (tensor<f32>, tensor<f32>) {
        scf.yield %m, %b : tensor<f32>, tensor<f32>
      } else {
        scf.yield %a, %m : tensor<f32>, tensor<f32>
      }
      scf.yield %n#0, %n#1 : tensor<f32>, tensor<f32>
    }
    return %r#0 : tensor<f32>
  }

  // 64 steps that write their outputs into one tensor.
  func.func @recurrent(%xs: tensor<64x1x48xf32>, %w: tensor<48x48xf32>) -> tensor<64x1x48xf32> {
    %h0 = stablehlo.constant dense<0.0> : tensor<1x48xf32>
    %o0 = stablehlo.constant dense<0.0> : tensor<64x1x48xf32>
    %i0 = stablehlo.constant dense<0> : tensor<i32>
    %i1 = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.constant dense<64> : tensor<i32>
    %r:3 = stablehlo.while(%h = %h0, %o = %o0, %i = %i0) : tensor<1x48xf32>, tensor<64x1x48xf32>, tensor<i32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %x = stablehlo.dynamic_slice %xs, %i, %i0, %i0, sizes = [1, 1, 48]
        : (tensor<64x1x48xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1x48xf32>
      %xr = stablehlo.reshape %x : (tensor<1x1x48xf32>) -> tensor<1x48xf32>
      %m = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0]
        : (tensor<1x48xf32>, tensor<48x48xf32>) -> tensor<1x48xf32>
      %s = stablehlo.add %m, %xr : tensor<1x48xf32>
      %t = stablehlo.tanh %s : tensor<1x48xf32>
      %tr = stablehlo.reshape %t : (tensor<1x48xf32>) -> tensor<1x1x48xf32>
      %q = stablehlo.dynamic_update_slice %o, %tr, %i, %i0, %i0
        : (tensor<64x1x48xf32>, tensor<1x1x48xf32>, tensor<i32>, tensor<i32>, tensor<i32>)
          -> tensor<64x1x48xf32>
      %j = stablehlo.add %i, %i1 : tensor<i32>
      stablehlo.return %t, %q, %j : tensor<1x48xf32>, tensor<64x1x48xf32>, tensor<i32>
    }
    return %r#1 : tensor<64x1x48xf32>
  }

  // 50 steps of conjugate gradients with everything on the device.
  func.func @gradients(%a: tensor<128x128xf32>, %b: tensor<128xf32>) -> tensor<128xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %x0 = stablehlo.constant dense<0.0> : tensor<128xf32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<50> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %rr0 = stablehlo.dot_general %b, %b, contracting_dims = [0] x [0]
      : (tensor<128xf32>, tensor<128xf32>) -> tensor<f32>
    %r:5 = stablehlo.while(%x = %x0, %res = %b, %p = %b, %rr = %rr0, %i = %first) : tensor<128xf32>,
      tensor<128xf32>, tensor<128xf32>, tensor<f32>, tensor<i32>
    cond {
      %d = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %d : tensor<i1>
    } do {
      %ap = stablehlo.dot_general %a, %p, contracting_dims = [1] x [0]
        : (tensor<128x128xf32>, tensor<128xf32>) -> tensor<128xf32>
      %pap = stablehlo.dot_general %p, %ap, contracting_dims = [0] x [0]
        : (tensor<128xf32>, tensor<128xf32>) -> tensor<f32>
      %eps = stablehlo.constant dense<1.0e-3> : tensor<f32>
      %pp = stablehlo.abs %pap : tensor<f32>
      %den = stablehlo.add %pp, %eps : tensor<f32>
      %al = stablehlo.divide %rr, %den : tensor<f32>
      %alb = stablehlo.broadcast_in_dim %al, dims = [] : (tensor<f32>) -> tensor<128xf32>
      %d0 = stablehlo.multiply %alb, %p : tensor<128xf32>
      %d1 = stablehlo.multiply %alb, %ap : tensor<128xf32>
      %xn = stablehlo.add %x, %d0 : tensor<128xf32>
      %rn = stablehlo.subtract %res, %d1 : tensor<128xf32>
      %rrn0 = stablehlo.dot_general %rn, %rn, contracting_dims = [0] x [0]
        : (tensor<128xf32>, tensor<128xf32>) -> tensor<f32>
      %cap = stablehlo.constant dense<1.0e3> : tensor<f32>
      %rrn = stablehlo.minimum %rrn0, %cap : tensor<f32>
      %den2 = stablehlo.add %rrn, %eps : tensor<f32>
      %be = stablehlo.divide %rrn, %den2 : tensor<f32>
      %beb = stablehlo.broadcast_in_dim %be, dims = [] : (tensor<f32>) -> tensor<128xf32>
      %d2 = stablehlo.multiply %beb, %p : tensor<128xf32>
      %s0 = stablehlo.add %rn, %d2 : tensor<128xf32>
      %pn = stablehlo.tanh %s0 : tensor<128xf32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %xn, %rn, %pn, %rrn, %j : tensor<128xf32>, tensor<128xf32>, tensor<128xf32>,
        tensor<f32>, tensor<i32>
    }
    return %r#1 : tensor<128xf32>
  }

  // 100 dispatches, each of another size.
  func.func @windows(%x: tensor<256xf32>) -> tensor<f32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c100 = arith.constant 100 : index
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = scf.for %i = %c1 to %c100 step %c1 iter_args(%acc = %zero) -> tensor<f32> {
      %s = tensor.extract_slice %x[0] [%i] [1] : tensor<256xf32> to tensor<?xf32>
      %q = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->()>],
        iterator_types = ["reduction"]} ins(%s : tensor<?xf32>) outs(%acc : tensor<f32>) {
        ^bb0(%a: f32, %b: f32):
        %e = arith.mulf %a, %a : f32
        %f = arith.addf %e, %b : f32
        linalg.yield %f : f32 } -> tensor<f32>
      scf.yield %q : tensor<f32>
    }
    return %r : tensor<f32>
  }

  // 12 independent reductions, and their sum.
  func.func @branches(%x0: tensor<48x16xf32>, %x1: tensor<48x16xf32>, %x2: tensor<48x16xf32>,
    %x3: tensor<48x16xf32>, %x4: tensor<48x16xf32>, %x5: tensor<48x16xf32>, %x6: tensor<48x16xf32>,
      %x7: tensor<48x16xf32>, %x8: tensor<48x16xf32>, %x9: tensor<48x16xf32>, %x10: tensor<48x16xf32>,
        %x11: tensor<48x16xf32>) -> tensor<16xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %e0 = stablehlo.tanh %x0 : tensor<48x16xf32>
    %r0 = stablehlo.reduce(%e0 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e1 = stablehlo.tanh %x1 : tensor<48x16xf32>
    %r1 = stablehlo.reduce(%e1 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e2 = stablehlo.tanh %x2 : tensor<48x16xf32>
    %r2 = stablehlo.reduce(%e2 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e3 = stablehlo.tanh %x3 : tensor<48x16xf32>
    %r3 = stablehlo.reduce(%e3 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e4 = stablehlo.tanh %x4 : tensor<48x16xf32>
    %r4 = stablehlo.reduce(%e4 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e5 = stablehlo.tanh %x5 : tensor<48x16xf32>
    %r5 = stablehlo.reduce(%e5 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e6 = stablehlo.tanh %x6 : tensor<48x16xf32>
    %r6 = stablehlo.reduce(%e6 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e7 = stablehlo.tanh %x7 : tensor<48x16xf32>
    %r7 = stablehlo.reduce(%e7 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e8 = stablehlo.tanh %x8 : tensor<48x16xf32>
    %r8 = stablehlo.reduce(%e8 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e9 = stablehlo.tanh %x9 : tensor<48x16xf32>
    %r9 = stablehlo.reduce(%e9 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e10 = stablehlo.tanh %x10 : tensor<48x16xf32>
    %r10 = stablehlo.reduce(%e10 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %e11 = stablehlo.tanh %x11 : tensor<48x16xf32>
    %r11 = stablehlo.reduce(%e11 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<48x16xf32>, tensor<f32>) -> tensor<16xf32>
    %s1 = stablehlo.add %r0, %r1 : tensor<16xf32>
    %s2 = stablehlo.add %s1, %r2 : tensor<16xf32>
    %s3 = stablehlo.add %s2, %r3 : tensor<16xf32>
    %s4 = stablehlo.add %s3, %r4 : tensor<16xf32>
    %s5 = stablehlo.add %s4, %r5 : tensor<16xf32>
    %s6 = stablehlo.add %s5, %r6 : tensor<16xf32>
    %s7 = stablehlo.add %s6, %r7 : tensor<16xf32>
    %s8 = stablehlo.add %s7, %r8 : tensor<16xf32>
    %s9 = stablehlo.add %s8, %r9 : tensor<16xf32>
    %s10 = stablehlo.add %s9, %r10 : tensor<16xf32>
    %s11 = stablehlo.add %s10, %r11 : tensor<16xf32>
    return %s11 : tensor<16xf32>
  }

  // 20 tensors in, 20 tensors out.
  func.func @outputs(%x0: tensor<16xf32>, %x1: tensor<16xf32>, %x2: tensor<16xf32>, %x3: tensor<16xf32>,
    %x4: tensor<16xf32>, %x5: tensor<16xf32>, %x6: tensor<16xf32>, %x7: tensor<16xf32>, %x8: tensor<16xf32>,
      %x9: tensor<16xf32>, %x10: tensor<16xf32>, %x11: tensor<16xf32>, %x12: tensor<16xf32>,
        %x13: tensor<16xf32>, %x14: tensor<16xf32>, %x15: tensor<16xf32>, %x16: tensor<16xf32>,
          %x17: tensor<16xf32>, %x18: tensor<16xf32>, %x19: tensor<16xf32>) -> (tensor<16xf32>,
            tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>,
              tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>,
                tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>,
                  tensor<16xf32>, tensor<16xf32>) {
    %r0 = stablehlo.tanh %x0 : tensor<16xf32>
    %r1 = stablehlo.sine %x1 : tensor<16xf32>
    %r2 = stablehlo.tanh %x2 : tensor<16xf32>
    %r3 = stablehlo.sine %x3 : tensor<16xf32>
    %r4 = stablehlo.tanh %x4 : tensor<16xf32>
    %r5 = stablehlo.sine %x5 : tensor<16xf32>
    %r6 = stablehlo.tanh %x6 : tensor<16xf32>
    %r7 = stablehlo.sine %x7 : tensor<16xf32>
    %r8 = stablehlo.tanh %x8 : tensor<16xf32>
    %r9 = stablehlo.sine %x9 : tensor<16xf32>
    %r10 = stablehlo.tanh %x10 : tensor<16xf32>
    %r11 = stablehlo.sine %x11 : tensor<16xf32>
    %r12 = stablehlo.tanh %x12 : tensor<16xf32>
    %r13 = stablehlo.sine %x13 : tensor<16xf32>
    %r14 = stablehlo.tanh %x14 : tensor<16xf32>
    %r15 = stablehlo.sine %x15 : tensor<16xf32>
    %r16 = stablehlo.tanh %x16 : tensor<16xf32>
    %r17 = stablehlo.sine %x17 : tensor<16xf32>
    %r18 = stablehlo.tanh %x18 : tensor<16xf32>
    %r19 = stablehlo.sine %x19 : tensor<16xf32>
    return %r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17,
      %r18, %r19 : tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>,
        tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>,
          tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>,
            tensor<16xf32>, tensor<16xf32>, tensor<16xf32>
  }

  util.global private mutable @past = dense<0.0> : tensor<64xf32>

  // A filter that keeps its state in the module.
  func.func @state(%x: tensor<64xf32>) -> tensor<64xf32> {
    %v = util.global.load @past : tensor<64xf32>
    %h = stablehlo.constant dense<0.5> : tensor<64xf32>
    %m = stablehlo.multiply %v, %h : tensor<64xf32>
    %n = stablehlo.add %m, %x : tensor<64xf32>
    util.global.store %n, @past : tensor<64xf32>
    return %n : tensor<64xf32>
  }

  // The sum of 64 rows of a table.
  func.func @bag(%t: tensor<5000x128xf32>, %ids: tensor<64xi32>) -> tensor<128xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = "stablehlo.gather"(%t, %ids)
      {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1,
          128>} : (tensor<5000x128xf32>, tensor<64xi32>) -> tensor<64x128xf32>
    %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<64x128xf32>, tensor<f32>) -> tensor<128xf32>
    return %1 : tensor<128xf32>
  }

  // Rows are added to rows of a table in place.
  func.func @scatter(%t: tensor<1000x64xf32>, %ids: tensor<128x1xi32>, %u: tensor<128x64xf32>)
    -> tensor<1000x64xf32> {
    %0 = "stablehlo.scatter"(%t, %ids, %u) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
        unique_indices = false}
          : (tensor<1000x64xf32>, tensor<128x1xi32>, tensor<128x64xf32>) -> tensor<1000x64xf32>
    return %0 : tensor<1000x64xf32>
  }

  // 40 layers on a sequence whose length is known when the call is made: recorded anew in every call.
  func.func @deep(%x: tensor<?x32xf32>, %w: tensor<32x32xf32>, %v: tensor<32x32xf32>) -> tensor<?x32xf32> {
    %d0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t0 = stablehlo.tanh %d0 : tensor<?x32xf32>
    %d1 = stablehlo.dot_general %t0, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t1 = stablehlo.tanh %d1 : tensor<?x32xf32>
    %d2 = stablehlo.dot_general %t1, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t2 = stablehlo.tanh %d2 : tensor<?x32xf32>
    %d3 = stablehlo.dot_general %t2, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t3 = stablehlo.tanh %d3 : tensor<?x32xf32>
    %d4 = stablehlo.dot_general %t3, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t4 = stablehlo.tanh %d4 : tensor<?x32xf32>
    %d5 = stablehlo.dot_general %t4, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t5 = stablehlo.tanh %d5 : tensor<?x32xf32>
    %d6 = stablehlo.dot_general %t5, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t6 = stablehlo.tanh %d6 : tensor<?x32xf32>
    %d7 = stablehlo.dot_general %t6, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t7 = stablehlo.tanh %d7 : tensor<?x32xf32>
    %d8 = stablehlo.dot_general %t7, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t8 = stablehlo.tanh %d8 : tensor<?x32xf32>
    %d9 = stablehlo.dot_general %t8, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t9 = stablehlo.tanh %d9 : tensor<?x32xf32>
    %d10 = stablehlo.dot_general %t9, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t10 = stablehlo.tanh %d10 : tensor<?x32xf32>
    %d11 = stablehlo.dot_general %t10, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t11 = stablehlo.tanh %d11 : tensor<?x32xf32>
    %d12 = stablehlo.dot_general %t11, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t12 = stablehlo.tanh %d12 : tensor<?x32xf32>
    %d13 = stablehlo.dot_general %t12, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t13 = stablehlo.tanh %d13 : tensor<?x32xf32>
    %d14 = stablehlo.dot_general %t13, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t14 = stablehlo.tanh %d14 : tensor<?x32xf32>
    %d15 = stablehlo.dot_general %t14, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t15 = stablehlo.tanh %d15 : tensor<?x32xf32>
    %d16 = stablehlo.dot_general %t15, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t16 = stablehlo.tanh %d16 : tensor<?x32xf32>
    %d17 = stablehlo.dot_general %t16, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t17 = stablehlo.tanh %d17 : tensor<?x32xf32>
    %d18 = stablehlo.dot_general %t17, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t18 = stablehlo.tanh %d18 : tensor<?x32xf32>
    %d19 = stablehlo.dot_general %t18, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t19 = stablehlo.tanh %d19 : tensor<?x32xf32>
    %d20 = stablehlo.dot_general %t19, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t20 = stablehlo.tanh %d20 : tensor<?x32xf32>
    %d21 = stablehlo.dot_general %t20, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t21 = stablehlo.tanh %d21 : tensor<?x32xf32>
    %d22 = stablehlo.dot_general %t21, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t22 = stablehlo.tanh %d22 : tensor<?x32xf32>
    %d23 = stablehlo.dot_general %t22, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t23 = stablehlo.tanh %d23 : tensor<?x32xf32>
    %d24 = stablehlo.dot_general %t23, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t24 = stablehlo.tanh %d24 : tensor<?x32xf32>
    %d25 = stablehlo.dot_general %t24, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t25 = stablehlo.tanh %d25 : tensor<?x32xf32>
    %d26 = stablehlo.dot_general %t25, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t26 = stablehlo.tanh %d26 : tensor<?x32xf32>
    %d27 = stablehlo.dot_general %t26, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t27 = stablehlo.tanh %d27 : tensor<?x32xf32>
    %d28 = stablehlo.dot_general %t27, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t28 = stablehlo.tanh %d28 : tensor<?x32xf32>
    %d29 = stablehlo.dot_general %t28, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t29 = stablehlo.tanh %d29 : tensor<?x32xf32>
    %d30 = stablehlo.dot_general %t29, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t30 = stablehlo.tanh %d30 : tensor<?x32xf32>
    %d31 = stablehlo.dot_general %t30, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t31 = stablehlo.tanh %d31 : tensor<?x32xf32>
    %d32 = stablehlo.dot_general %t31, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t32 = stablehlo.tanh %d32 : tensor<?x32xf32>
    %d33 = stablehlo.dot_general %t32, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t33 = stablehlo.tanh %d33 : tensor<?x32xf32>
    %d34 = stablehlo.dot_general %t33, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t34 = stablehlo.tanh %d34 : tensor<?x32xf32>
    %d35 = stablehlo.dot_general %t34, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t35 = stablehlo.tanh %d35 : tensor<?x32xf32>
    %d36 = stablehlo.dot_general %t35, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t36 = stablehlo.tanh %d36 : tensor<?x32xf32>
    %d37 = stablehlo.dot_general %t36, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t37 = stablehlo.tanh %d37 : tensor<?x32xf32>
    %d38 = stablehlo.dot_general %t37, %w, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t38 = stablehlo.tanh %d38 : tensor<?x32xf32>
    %d39 = stablehlo.dot_general %t38, %v, contracting_dims = [1] x [0]
      : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
    %t39 = stablehlo.tanh %d39 : tensor<?x32xf32>
    return %t39 : tensor<?x32xf32>
  }
}
