// Models for perf/models.py: loops of small dispatches, mid-sized nets, independent branches, dynamic shapes.
module @models {

  // 200 turns at most; the host reads the sum after each to see whether to go on.
  func.func @host_loop(%x: tensor<16xf32>, %limit: tensor<f32>) -> (tensor<16xf32>, tensor<i32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<200> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%v = %x, %i = %first) : tensor<16xf32>, tensor<i32>
    cond {
      %sum = stablehlo.reduce(%v init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
      %small = stablehlo.compare LT, %sum, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %more = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %go = stablehlo.and %small, %more : tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %s = stablehlo.sine %v : tensor<16xf32>
      %w = stablehlo.add %v, %s : tensor<16xf32>
      %n = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %w, %n : tensor<16xf32>, tensor<i32>
    }
    return %r#0, %r#1 : tensor<16xf32>, tensor<i32>
  }

  // A gated recurrent unit of 96 cells over 128 steps.
  func.func @gru(%xs: tensor<128x96xf32>, %w: tensor<96x288xf32>, %u: tensor<96x288xf32>, %b: tensor<288xf32>)
      -> tensor<96xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<96xf32>
    %ones = stablehlo.constant dense<1.0> : tensor<96xf32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<128> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%h = %zero, %i = %first) : tensor<96xf32>, tensor<i32>
    cond {
      %more = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %row = stablehlo.dynamic_slice %xs, %i, %first, sizes = [1, 96]
        : (tensor<128x96xf32>, tensor<i32>, tensor<i32>) -> tensor<1x96xf32>
      %x = stablehlo.reshape %row : (tensor<1x96xf32>) -> tensor<96xf32>
      %wx = stablehlo.dot_general %x, %w, contracting_dims = [0] x [0]
        : (tensor<96xf32>, tensor<96x288xf32>) -> tensor<288xf32>
      %uh = stablehlo.dot_general %h, %u, contracting_dims = [0] x [0]
        : (tensor<96xf32>, tensor<96x288xf32>) -> tensor<288xf32>
      %g = stablehlo.add %wx, %b : tensor<288xf32>
      %g0 = stablehlo.slice %g [0:96] : (tensor<288xf32>) -> tensor<96xf32>
      %g1 = stablehlo.slice %g [96:192] : (tensor<288xf32>) -> tensor<96xf32>
      %g2 = stablehlo.slice %g [192:288] : (tensor<288xf32>) -> tensor<96xf32>
      %u0 = stablehlo.slice %uh [0:96] : (tensor<288xf32>) -> tensor<96xf32>
      %u1 = stablehlo.slice %uh [96:192] : (tensor<288xf32>) -> tensor<96xf32>
      %u2 = stablehlo.slice %uh [192:288] : (tensor<288xf32>) -> tensor<96xf32>
      %z0 = stablehlo.add %g0, %u0 : tensor<96xf32>
      %z = stablehlo.logistic %z0 : tensor<96xf32>
      %q0 = stablehlo.add %g1, %u1 : tensor<96xf32>
      %q = stablehlo.logistic %q0 : tensor<96xf32>
      %c0 = stablehlo.multiply %q, %u2 : tensor<96xf32>
      %c1 = stablehlo.add %g2, %c0 : tensor<96xf32>
      %c = stablehlo.tanh %c1 : tensor<96xf32>
      %k = stablehlo.subtract %ones, %z : tensor<96xf32>
      %a = stablehlo.multiply %k, %c : tensor<96xf32>
      %d = stablehlo.multiply %z, %h : tensor<96xf32>
      %next = stablehlo.add %a, %d : tensor<96xf32>
      %n = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %n : tensor<96xf32>, tensor<i32>
    }
    return %r#0 : tensor<96xf32>
  }

  // 100 steps of heat on a grid.
  func.func @heat(%grid: tensor<128x128xf32>) -> tensor<128x128xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %rate = stablehlo.constant dense<0.2> : tensor<128x128xf32>
    %four = stablehlo.constant dense<4.0> : tensor<128x128xf32>
    %first = stablehlo.constant dense<0> : tensor<i32>
    %last = stablehlo.constant dense<100> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%t = %grid, %i = %first) : tensor<128x128xf32>, tensor<i32>
    cond {
      %more = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.pad %t, %zero, low = [1, 1], high = [1, 1], interior = [0, 0]
        : (tensor<128x128xf32>, tensor<f32>) -> tensor<130x130xf32>
      %n = stablehlo.slice %p [0:128, 1:129] : (tensor<130x130xf32>) -> tensor<128x128xf32>
      %s = stablehlo.slice %p [2:130, 1:129] : (tensor<130x130xf32>) -> tensor<128x128xf32>
      %w = stablehlo.slice %p [1:129, 0:128] : (tensor<130x130xf32>) -> tensor<128x128xf32>
      %e = stablehlo.slice %p [1:129, 2:130] : (tensor<130x130xf32>) -> tensor<128x128xf32>
      %a = stablehlo.add %n, %s : tensor<128x128xf32>
      %b = stablehlo.add %w, %e : tensor<128x128xf32>
      %c = stablehlo.add %a, %b : tensor<128x128xf32>
      %d = stablehlo.multiply %t, %four : tensor<128x128xf32>
      %f = stablehlo.subtract %c, %d : tensor<128x128xf32>
      %g = stablehlo.multiply %f, %rate : tensor<128x128xf32>
      %h = stablehlo.add %t, %g : tensor<128x128xf32>
      %m = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %h, %m : tensor<128x128xf32>, tensor<i32>
    }
    return %r#0 : tensor<128x128xf32>
  }

  // An autoencoder on a batch of 64.
  func.func @autoencoder(%x: tensor<64x512xf32>, %w0: tensor<512x128xf32>, %w1: tensor<128x32xf32>,
      %w2: tensor<32x128xf32>, %w3: tensor<128x512xf32>) -> tensor<64x512xf32> {
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
      : (tensor<64x512xf32>, tensor<512x128xf32>) -> tensor<64x128xf32>
    %1 = stablehlo.tanh %0 : tensor<64x128xf32>
    %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0]
      : (tensor<64x128xf32>, tensor<128x32xf32>) -> tensor<64x32xf32>
    %3 = stablehlo.tanh %2 : tensor<64x32xf32>
    %4 = stablehlo.dot_general %3, %w2, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
    %5 = stablehlo.tanh %4 : tensor<64x128xf32>
    %6 = stablehlo.dot_general %5, %w3, contracting_dims = [1] x [0]
      : (tensor<64x128xf32>, tensor<128x512xf32>) -> tensor<64x512xf32>
    return %6 : tensor<64x512xf32>
  }

  // Depthwise and pointwise convolutions.
  func.func @separable(%x: tensor<1x56x56x32xf32>, %d0: tensor<3x3x1x32xf32>, %p0: tensor<1x1x32x64xf32>,
      %d1: tensor<3x3x1x64xf32>, %p1: tensor<1x1x64x128xf32>) -> tensor<1x14x14x128xf32> {
    %zero0 = stablehlo.constant dense<0.0> : tensor<1x28x28x64xf32>
    %zero1 = stablehlo.constant dense<0.0> : tensor<1x14x14x128xf32>
    %0 = stablehlo.convolution(%x, %d0) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = [[0, 1], [0, 1]]} {batch_group_count = 1 : i64, feature_group_count = 32 : i64}
      : (tensor<1x56x56x32xf32>, tensor<3x3x1x32xf32>) -> tensor<1x28x28x32xf32>
    %1 = stablehlo.convolution(%0, %p0) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x28x28x32xf32>, tensor<1x1x32x64xf32>) -> tensor<1x28x28x64xf32>
    %2 = stablehlo.maximum %1, %zero0 : tensor<1x28x28x64xf32>
    %3 = stablehlo.convolution(%2, %d1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = [[0, 1], [0, 1]]} {batch_group_count = 1 : i64, feature_group_count = 64 : i64}
      : (tensor<1x28x28x64xf32>, tensor<3x3x1x64xf32>) -> tensor<1x14x14x64xf32>
    %4 = stablehlo.convolution(%3, %p1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x14x14x64xf32>, tensor<1x1x64x128xf32>) -> tensor<1x14x14x128xf32>
    %5 = stablehlo.maximum %4, %zero1 : tensor<1x14x14x128xf32>
    return %5 : tensor<1x14x14x128xf32>
  }

  // Two layers on a batch whose size is known when the call is made.
  func.func @dynamic(%x: tensor<?x128xf32>, %w0: tensor<128x256xf32>, %w1: tensor<256x64xf32>) -> tensor<?x64xf32> {
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
      : (tensor<?x128xf32>, tensor<128x256xf32>) -> tensor<?x256xf32>
    %1 = stablehlo.tanh %0 : tensor<?x256xf32>
    %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0]
      : (tensor<?x256xf32>, tensor<256x64xf32>) -> tensor<?x64xf32>
    return %2 : tensor<?x64xf32>
  }

  // Four experts that do not depend on one another.
  func.func @experts(%x: tensor<32x256xf32>, %w: tensor<4x256x256xf32>) -> tensor<32x256xf32> {
    %w0 = stablehlo.slice %w [0:1, 0:256, 0:256] : (tensor<4x256x256xf32>) -> tensor<1x256x256xf32>
    %w1 = stablehlo.slice %w [1:2, 0:256, 0:256] : (tensor<4x256x256xf32>) -> tensor<1x256x256xf32>
    %w2 = stablehlo.slice %w [2:3, 0:256, 0:256] : (tensor<4x256x256xf32>) -> tensor<1x256x256xf32>
    %w3 = stablehlo.slice %w [3:4, 0:256, 0:256] : (tensor<4x256x256xf32>) -> tensor<1x256x256xf32>
    %m0 = stablehlo.reshape %w0 : (tensor<1x256x256xf32>) -> tensor<256x256xf32>
    %m1 = stablehlo.reshape %w1 : (tensor<1x256x256xf32>) -> tensor<256x256xf32>
    %m2 = stablehlo.reshape %w2 : (tensor<1x256x256xf32>) -> tensor<256x256xf32>
    %m3 = stablehlo.reshape %w3 : (tensor<1x256x256xf32>) -> tensor<256x256xf32>
    %0 = stablehlo.dot_general %x, %m0, contracting_dims = [1] x [0]
      : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
    %1 = stablehlo.dot_general %x, %m1, contracting_dims = [1] x [0]
      : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
    %2 = stablehlo.dot_general %x, %m2, contracting_dims = [1] x [0]
      : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
    %3 = stablehlo.dot_general %x, %m3, contracting_dims = [1] x [0]
      : (tensor<32x256xf32>, tensor<256x256xf32>) -> tensor<32x256xf32>
    %e0 = stablehlo.tanh %0 : tensor<32x256xf32>
    %e1 = stablehlo.logistic %1 : tensor<32x256xf32>
    %e2 = stablehlo.sine %2 : tensor<32x256xf32>
    %e3 = stablehlo.cosine %3 : tensor<32x256xf32>
    %s0 = stablehlo.add %e0, %e1 : tensor<32x256xf32>
    %s1 = stablehlo.add %e2, %e3 : tensor<32x256xf32>
    %s = stablehlo.add %s0, %s1 : tensor<32x256xf32>
    return %s : tensor<32x256xf32>
  }
}
