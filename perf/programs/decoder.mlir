// A decoder of 6 layers that computes the next token: the position comes as a tensor, so programs read it from the device.
module @decoder {
  func.func private @norm(%x: tensor<1x384xf32>, %g: tensor<384xf32>) -> tensor<1x384xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %n = stablehlo.constant dense<2.604166667e-03> : tensor<1xf32>
    %e = stablehlo.constant dense<1.0e-5> : tensor<1xf32>
    %s = stablehlo.multiply %x, %x : tensor<1x384xf32>
    %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<1x384xf32>, tensor<f32>) -> tensor<1xf32>
    %m = stablehlo.multiply %r, %n : tensor<1xf32>
    %a = stablehlo.add %m, %e : tensor<1xf32>
    %q = stablehlo.rsqrt %a : tensor<1xf32>
    %b = stablehlo.broadcast_in_dim %q, dims = [0] : (tensor<1xf32>) -> tensor<1x384xf32>
    %gb = stablehlo.broadcast_in_dim %g, dims = [1] : (tensor<384xf32>) -> tensor<1x384xf32>
    %y = stablehlo.multiply %x, %b : tensor<1x384xf32>
    %z = stablehlo.multiply %y, %gb : tensor<1x384xf32>
    return %z : tensor<1x384xf32>
  }
  func.func private @layer(%x: tensor<1x384xf32>, %pos: tensor<i32>, %k: tensor<256x384xf32>, %v: tensor<256x384xf32>,
      %g: tensor<384xf32>, %wqkv: tensor<384x1152xf32>, %wo: tensor<384x384xf32>, %w1: tensor<384x1536xf32>, %w2: tensor<1536x384xf32>)
      -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>) {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %low = stablehlo.constant dense<-1.0e30> : tensor<f32>
    %h = call @norm(%x, %g) : (tensor<1x384xf32>, tensor<384xf32>) -> tensor<1x384xf32>
    %qkv = stablehlo.dot_general %h, %wqkv, contracting_dims = [1] x [0] : (tensor<1x384xf32>, tensor<384x1152xf32>) -> tensor<1x1152xf32>
    %q = stablehlo.slice %qkv [0:1, 0:384] : (tensor<1x1152xf32>) -> tensor<1x384xf32>
    %kn = stablehlo.slice %qkv [0:1, 384:768] : (tensor<1x1152xf32>) -> tensor<1x384xf32>
    %vn = stablehlo.slice %qkv [0:1, 768:1152] : (tensor<1x1152xf32>) -> tensor<1x384xf32>
    %k1 = stablehlo.dynamic_update_slice %k, %kn, %pos, %c0 : (tensor<256x384xf32>, tensor<1x384xf32>, tensor<i32>, tensor<i32>) -> tensor<256x384xf32>
    %v1 = stablehlo.dynamic_update_slice %v, %vn, %pos, %c0 : (tensor<256x384xf32>, tensor<1x384xf32>, tensor<i32>, tensor<i32>) -> tensor<256x384xf32>
    %qh = stablehlo.reshape %q : (tensor<1x384xf32>) -> tensor<6x64xf32>
    %kh = stablehlo.reshape %k1 : (tensor<256x384xf32>) -> tensor<256x6x64xf32>
    %vh = stablehlo.reshape %v1 : (tensor<256x384xf32>) -> tensor<256x6x64xf32>
    %sc = stablehlo.dot_general %qh, %kh, batching_dims = [0] x [1], contracting_dims = [1] x [2] : (tensor<6x64xf32>, tensor<256x6x64xf32>) -> tensor<6x256xf32>
    %it = stablehlo.iota dim = 1 : tensor<6x256xi32>
    %pb = stablehlo.broadcast_in_dim %pos, dims = [] : (tensor<i32>) -> tensor<6x256xi32>
    %vis = stablehlo.compare LE, %it, %pb : (tensor<6x256xi32>, tensor<6x256xi32>) -> tensor<6x256xi1>
    %f = stablehlo.constant dense<1.250000000e-01> : tensor<6x256xf32>
    %lows = stablehlo.broadcast_in_dim %low, dims = [] : (tensor<f32>) -> tensor<6x256xf32>
    %ss = stablehlo.multiply %sc, %f : tensor<6x256xf32>
    %sm = stablehlo.select %vis, %ss, %lows : (tensor<6x256xi1>, tensor<6x256xf32>, tensor<6x256xf32>) -> tensor<6x256xf32>
    %mx = stablehlo.reduce(%sm init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<6x256xf32>, tensor<f32>) -> tensor<6xf32>
    %mb = stablehlo.broadcast_in_dim %mx, dims = [0] : (tensor<6xf32>) -> tensor<6x256xf32>
    %df = stablehlo.subtract %sm, %mb : tensor<6x256xf32>
    %ex = stablehlo.exponential %df : tensor<6x256xf32>
    %su = stablehlo.reduce(%ex init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<6x256xf32>, tensor<f32>) -> tensor<6xf32>
    %sb = stablehlo.broadcast_in_dim %su, dims = [0] : (tensor<6xf32>) -> tensor<6x256xf32>
    %pr = stablehlo.divide %ex, %sb : tensor<6x256xf32>
    %at = stablehlo.dot_general %pr, %vh, batching_dims = [0] x [1], contracting_dims = [1] x [0] : (tensor<6x256xf32>, tensor<256x6x64xf32>) -> tensor<6x64xf32>
    %ar = stablehlo.reshape %at : (tensor<6x64xf32>) -> tensor<1x384xf32>
    %ao = stablehlo.dot_general %ar, %wo, contracting_dims = [1] x [0] : (tensor<1x384xf32>, tensor<384x384xf32>) -> tensor<1x384xf32>
    %x1 = stablehlo.add %x, %ao : tensor<1x384xf32>
    %h2 = call @norm(%x1, %g) : (tensor<1x384xf32>, tensor<384xf32>) -> tensor<1x384xf32>
    %u = stablehlo.dot_general %h2, %w1, contracting_dims = [1] x [0] : (tensor<1x384xf32>, tensor<384x1536xf32>) -> tensor<1x1536xf32>
    %zf = stablehlo.constant dense<0.0> : tensor<1x1536xf32>
    %re = stablehlo.maximum %u, %zf : tensor<1x1536xf32>
    %dn = stablehlo.dot_general %re, %w2, contracting_dims = [1] x [0] : (tensor<1x1536xf32>, tensor<1536x384xf32>) -> tensor<1x384xf32>
    %x2 = stablehlo.add %x1, %dn : tensor<1x384xf32>
    return %x2, %k1, %v1 : tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>
  }

  func.func @step(%token: tensor<1xi32>, %pos: tensor<i32>, %table: tensor<2048x384xf32>, %g: tensor<384xf32>, %wqkv: tensor<384x1152xf32>, %wo: tensor<384x384xf32>, %w1: tensor<384x1536xf32>, %w2: tensor<1536x384xf32>,
      %k0: tensor<256x384xf32>, %v0: tensor<256x384xf32>, %k1: tensor<256x384xf32>, %v1: tensor<256x384xf32>, %k2: tensor<256x384xf32>, %v2: tensor<256x384xf32>, %k3: tensor<256x384xf32>, %v3: tensor<256x384xf32>, %k4: tensor<256x384xf32>, %v4: tensor<256x384xf32>, %k5: tensor<256x384xf32>, %v5: tensor<256x384xf32>)
      -> (tensor<1x2048xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>) {
    %row = stablehlo.reshape %token : (tensor<1xi32>) -> tensor<1x1xi32>
    %x0 = "stablehlo.gather"(%table, %row) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 384>} : (tensor<2048x384xf32>, tensor<1x1xi32>) -> tensor<1x384xf32>
    %y0:3 = call @layer(%x0, %pos, %k0, %v0, %g, %wqkv, %wo, %w1, %w2) : (tensor<1x384xf32>, tensor<i32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<384xf32>, tensor<384x1152xf32>, tensor<384x384xf32>, tensor<384x1536xf32>, tensor<1536x384xf32>) -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>)
    %y1:3 = call @layer(%y0#0, %pos, %k1, %v1, %g, %wqkv, %wo, %w1, %w2) : (tensor<1x384xf32>, tensor<i32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<384xf32>, tensor<384x1152xf32>, tensor<384x384xf32>, tensor<384x1536xf32>, tensor<1536x384xf32>) -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>)
    %y2:3 = call @layer(%y1#0, %pos, %k2, %v2, %g, %wqkv, %wo, %w1, %w2) : (tensor<1x384xf32>, tensor<i32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<384xf32>, tensor<384x1152xf32>, tensor<384x384xf32>, tensor<384x1536xf32>, tensor<1536x384xf32>) -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>)
    %y3:3 = call @layer(%y2#0, %pos, %k3, %v3, %g, %wqkv, %wo, %w1, %w2) : (tensor<1x384xf32>, tensor<i32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<384xf32>, tensor<384x1152xf32>, tensor<384x384xf32>, tensor<384x1536xf32>, tensor<1536x384xf32>) -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>)
    %y4:3 = call @layer(%y3#0, %pos, %k4, %v4, %g, %wqkv, %wo, %w1, %w2) : (tensor<1x384xf32>, tensor<i32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<384xf32>, tensor<384x1152xf32>, tensor<384x384xf32>, tensor<384x1536xf32>, tensor<1536x384xf32>) -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>)
    %y5:3 = call @layer(%y4#0, %pos, %k5, %v5, %g, %wqkv, %wo, %w1, %w2) : (tensor<1x384xf32>, tensor<i32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<384xf32>, tensor<384x1152xf32>, tensor<384x384xf32>, tensor<384x1536xf32>, tensor<1536x384xf32>) -> (tensor<1x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>)
    %h = call @norm(%y5#0, %g) : (tensor<1x384xf32>, tensor<384xf32>) -> tensor<1x384xf32>
    %lo = stablehlo.dot_general %h, %table, contracting_dims = [1] x [1] : (tensor<1x384xf32>, tensor<2048x384xf32>) -> tensor<1x2048xf32>
    return %lo, %y0#1, %y0#2, %y1#1, %y1#2, %y2#1, %y2#2, %y3#1, %y3#2, %y4#1, %y4#2, %y5#1, %y5#2 : tensor<1x2048xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>, tensor<256x384xf32>
  }
}
