// Made by program.py: a token of each request goes through the layers and into the cache.
module @decoder {
  func.func @decode_bs4(%tokens: tensor<4xi32>, %positions: tensor<4xi32>, %rows: tensor<4x32xi32>, %place0: index, %place1: index, %place2: index, %place3: index, %embedding: tensor<32x32xf32>, %norm_0: tensor<32xf32>, %q_0: tensor<32x32xf32>, %k_0: tensor<32x16xf32>, %v_0: tensor<32x16xf32>, %o_0: tensor<32x32xf32>, %hidden_norm_0: tensor<32xf32>, %gate_0: tensor<32x64xf32>, %up_0: tensor<32x64xf32>, %down_0: tensor<64x32xf32>, %norm_1: tensor<32xf32>, %q_1: tensor<32x32xf32>, %k_1: tensor<32x16xf32>, %v_1: tensor<32x16xf32>, %o_1: tensor<32x32xf32>, %hidden_norm_1: tensor<32xf32>, %gate_1: tensor<32x64xf32>, %up_1: tensor<32x64xf32>, %down_1: tensor<64x32xf32>, %last_norm: tensor<32xf32>, %head: tensor<32x32xf32>, %cache: tensor<136x2x2x16xf32> {iree.abi.output = 1 : index}) -> (tensor<4x32xf32>, tensor<136x2x2x16xf32>) {
    %zero = arith.constant 0.0 : f32
    %lowest = arith.constant 0xFF800000 : f32
    %t1 = tensor.empty() : tensor<4x32xf32>
    %t2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} outs(%t1 : tensor<4x32xf32>) {
    ^bb0(%sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %token = tensor.extract %tokens[%i0] : tensor<4xi32>
      %at = arith.index_cast %token : i32 to index
      %r = tensor.extract %embedding[%at, %i1] : tensor<32x32xf32>
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t3 = tensor.empty() : tensor<4xf32>
    %t4 = linalg.fill ins(%zero : f32) outs(%t3 : tensor<4xf32>) -> tensor<4xf32>
    %t5 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%t2 : tensor<4x32xf32>) outs(%t4 : tensor<4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %p = arith.mulf %x0, %x0 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %t6 = tensor.empty() : tensor<4x32xf32>
    %t7 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t2, %norm_0, %t5 : tensor<4x32xf32>, tensor<32xf32>, tensor<4xf32>) outs(%t6 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %x2: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %width = arith.constant 32.0 : f32
      %epsilon = arith.constant 1.000000000e-05 : f32
      %mean = arith.divf %x2, %width : f32
      %moved = arith.addf %mean, %epsilon : f32
      %root = math.rsqrt %moved : f32
      %scaled = arith.mulf %x0, %root : f32
      %r = arith.mulf %scaled, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t8 = tensor.empty() : tensor<4x32xf32>
    %t9 = linalg.fill ins(%zero : f32) outs(%t8 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t10 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t7, %q_0 : tensor<4x32xf32>, tensor<32x32xf32>) outs(%t9 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t11 = tensor.empty() : tensor<4x32xf32>
    %t12 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t10 : tensor<4x32xf32>) outs(%t11 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %size = arith.constant 8 : index
      %half = arith.constant 4 : index
      %rate = arith.constant -2.302585093e+00 : f32
      %at = arith.remui %i1, %size : index
      %pair = arith.remui %at, %half : index
      %lower = arith.cmpi ult, %at, %half : index
      %up = arith.addi %i1, %half : index
      %down = arith.subi %i1, %half : index
      %other = arith.select %lower, %up, %down : index
      %number = arith.index_cast %pair : index to i32
      %n = arith.sitofp %number : i32 to f32
      %power = arith.mulf %n, %rate : f32
      %speed = math.exp %power : f32
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %time = arith.sitofp %p : i32 to f32
      %angle = arith.mulf %time, %speed : f32
      %cos = math.cos %angle : f32
      %sin = math.sin %angle : f32
      %y = tensor.extract %t10[%i0, %other] : tensor<4x32xf32>
      %minus = arith.negf %y : f32
      %signed = arith.select %lower, %minus, %y : f32
      %a = arith.mulf %x0, %cos : f32
      %b = arith.mulf %signed, %sin : f32
      %r = arith.addf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t13 = tensor.empty() : tensor<4x16xf32>
    %t14 = linalg.fill ins(%zero : f32) outs(%t13 : tensor<4x16xf32>) -> tensor<4x16xf32>
    %t15 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t7, %k_0 : tensor<4x32xf32>, tensor<32x16xf32>) outs(%t14 : tensor<4x16xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x16xf32>
    %t16 = tensor.empty() : tensor<4x16xf32>
    %t17 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t15 : tensor<4x16xf32>) outs(%t16 : tensor<4x16xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %size = arith.constant 8 : index
      %half = arith.constant 4 : index
      %rate = arith.constant -2.302585093e+00 : f32
      %at = arith.remui %i1, %size : index
      %pair = arith.remui %at, %half : index
      %lower = arith.cmpi ult, %at, %half : index
      %up = arith.addi %i1, %half : index
      %down = arith.subi %i1, %half : index
      %other = arith.select %lower, %up, %down : index
      %number = arith.index_cast %pair : index to i32
      %n = arith.sitofp %number : i32 to f32
      %power = arith.mulf %n, %rate : f32
      %speed = math.exp %power : f32
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %time = arith.sitofp %p : i32 to f32
      %angle = arith.mulf %time, %speed : f32
      %cos = math.cos %angle : f32
      %sin = math.sin %angle : f32
      %y = tensor.extract %t15[%i0, %other] : tensor<4x16xf32>
      %minus = arith.negf %y : f32
      %signed = arith.select %lower, %minus, %y : f32
      %a = arith.mulf %x0, %cos : f32
      %b = arith.mulf %signed, %sin : f32
      %r = arith.addf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4x16xf32>
    %t18 = tensor.empty() : tensor<4x16xf32>
    %t19 = linalg.fill ins(%zero : f32) outs(%t18 : tensor<4x16xf32>) -> tensor<4x16xf32>
    %t20 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t7, %v_0 : tensor<4x32xf32>, tensor<32x16xf32>) outs(%t19 : tensor<4x16xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x16xf32>
    %t21 = tensor.empty() : tensor<4x2x16xf32>
    %t22 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%t17, %t20 : tensor<4x16xf32>, tensor<4x16xf32>) outs(%t21 : tensor<4x2x16xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %none = arith.constant 0 : index
      %is_key = arith.cmpi eq, %i1, %none : index
      %r = arith.select %is_key, %x0, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x2x16xf32>
    %t23 = tensor.extract_slice %t22[0, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t24 = tensor.expand_shape %t23 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t25 = tensor.insert_slice %t24 into %cache[%place0, 0, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t26 = tensor.extract_slice %t22[1, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t27 = tensor.expand_shape %t26 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t28 = tensor.insert_slice %t27 into %t25[%place1, 0, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t29 = tensor.extract_slice %t22[2, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t30 = tensor.expand_shape %t29 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t31 = tensor.insert_slice %t30 into %t28[%place2, 0, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t32 = tensor.extract_slice %t22[3, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t33 = tensor.expand_shape %t32 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t34 = tensor.insert_slice %t33 into %t31[%place3, 0, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t35 = tensor.expand_shape %t12 [[0], [1, 2]] output_shape [4, 4, 8] : tensor<4x32xf32> into tensor<4x4x8xf32>
    %t36 = tensor.empty() : tensor<4x4x32xf32>
    %t37 = linalg.fill ins(%zero : f32) outs(%t36 : tensor<4x4x32xf32>) -> tensor<4x4x32xf32>
    %t38 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%t35 : tensor<4x4x8xf32>) outs(%t37 : tensor<4x4x32xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %i3 = linalg.index 3 : index
      %shared = arith.constant 2 : index
      %size = arith.constant 8 : index
      %layer = arith.constant 0 : index
      %which = arith.constant 0 : index
      %row = tensor.extract %rows[%i0, %i2] : tensor<4x32xi32>
      %at = arith.index_cast %row : i32 to index
      %group = arith.divui %i1, %shared : index
      %begin = arith.muli %group, %size : index
      %end = arith.addi %begin, %i3 : index
      %c = tensor.extract %t34[%at, %layer, %which, %end] : tensor<136x2x2x16xf32>
      %scale = arith.constant 3.535533906e-01 : f32
      %b = arith.mulf %x0, %scale : f32
      %m = arith.mulf %b, %c : f32
      %r = arith.addf %sum, %m : f32
      linalg.yield %r : f32
    } -> tensor<4x4x32xf32>
    %t39 = tensor.empty() : tensor<4x4xf32>
    %t40 = linalg.fill ins(%lowest : f32) outs(%t39 : tensor<4x4xf32>) -> tensor<4x4xf32>
    %t41 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t38 : tensor<4x4x32xf32>) outs(%t40 : tensor<4x4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %position = arith.index_cast %p : i32 to index
      %is_seen = arith.cmpi ule, %i2, %position : index
      %known = arith.select %is_seen, %x0, %lowest : f32
      %r = arith.maximumf %sum, %known : f32
      linalg.yield %r : f32
    } -> tensor<4x4xf32>
    %t42 = tensor.empty() : tensor<4x4x32xf32>
    %t43 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%t38, %t41 : tensor<4x4x32xf32>, tensor<4x4xf32>) outs(%t42 : tensor<4x4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %position = arith.index_cast %p : i32 to index
      %is_seen = arith.cmpi ule, %i2, %position : index
      %distance = arith.subf %x0, %x1 : f32
      %e = math.exp %distance : f32
      %r = arith.select %is_seen, %e, %zero : f32
      linalg.yield %r : f32
    } -> tensor<4x4x32xf32>
    %t44 = tensor.empty() : tensor<4x4xf32>
    %t45 = linalg.fill ins(%zero : f32) outs(%t44 : tensor<4x4xf32>) -> tensor<4x4xf32>
    %t46 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t43 : tensor<4x4x32xf32>) outs(%t45 : tensor<4x4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %r = arith.addf %sum, %x0 : f32
      linalg.yield %r : f32
    } -> tensor<4x4xf32>
    %t47 = tensor.empty() : tensor<4x4x8xf32>
    %t48 = linalg.fill ins(%zero : f32) outs(%t47 : tensor<4x4x8xf32>) -> tensor<4x4x8xf32>
    %t49 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%t43, %t46 : tensor<4x4x32xf32>, tensor<4x4xf32>) outs(%t48 : tensor<4x4x8xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %i3 = linalg.index 3 : index
      %shared = arith.constant 2 : index
      %size = arith.constant 8 : index
      %layer = arith.constant 0 : index
      %which = arith.constant 1 : index
      %row = tensor.extract %rows[%i0, %i3] : tensor<4x32xi32>
      %at = arith.index_cast %row : i32 to index
      %group = arith.divui %i1, %shared : index
      %begin = arith.muli %group, %size : index
      %end = arith.addi %begin, %i2 : index
      %c = tensor.extract %t34[%at, %layer, %which, %end] : tensor<136x2x2x16xf32>
      %part = arith.divf %x0, %x1 : f32
      %m = arith.mulf %part, %c : f32
      %r = arith.addf %sum, %m : f32
      linalg.yield %r : f32
    } -> tensor<4x4x8xf32>
    %t50 = tensor.collapse_shape %t49 [[0], [1, 2]] : tensor<4x4x8xf32> into tensor<4x32xf32>
    %t51 = tensor.empty() : tensor<4x32xf32>
    %t52 = linalg.fill ins(%zero : f32) outs(%t51 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t53 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t50, %o_0 : tensor<4x32xf32>, tensor<32x32xf32>) outs(%t52 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t54 = tensor.empty() : tensor<4x32xf32>
    %t55 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t2, %t53 : tensor<4x32xf32>, tensor<4x32xf32>) outs(%t54 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %r = arith.addf %x0, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t56 = tensor.empty() : tensor<4xf32>
    %t57 = linalg.fill ins(%zero : f32) outs(%t56 : tensor<4xf32>) -> tensor<4xf32>
    %t58 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%t55 : tensor<4x32xf32>) outs(%t57 : tensor<4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %p = arith.mulf %x0, %x0 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %t59 = tensor.empty() : tensor<4x32xf32>
    %t60 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t55, %hidden_norm_0, %t58 : tensor<4x32xf32>, tensor<32xf32>, tensor<4xf32>) outs(%t59 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %x2: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %width = arith.constant 32.0 : f32
      %epsilon = arith.constant 1.000000000e-05 : f32
      %mean = arith.divf %x2, %width : f32
      %moved = arith.addf %mean, %epsilon : f32
      %root = math.rsqrt %moved : f32
      %scaled = arith.mulf %x0, %root : f32
      %r = arith.mulf %scaled, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t61 = tensor.empty() : tensor<4x64xf32>
    %t62 = linalg.fill ins(%zero : f32) outs(%t61 : tensor<4x64xf32>) -> tensor<4x64xf32>
    %t63 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t60, %gate_0 : tensor<4x32xf32>, tensor<32x64xf32>) outs(%t62 : tensor<4x64xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x64xf32>
    %t64 = tensor.empty() : tensor<4x64xf32>
    %t65 = linalg.fill ins(%zero : f32) outs(%t64 : tensor<4x64xf32>) -> tensor<4x64xf32>
    %t66 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t60, %up_0 : tensor<4x32xf32>, tensor<32x64xf32>) outs(%t65 : tensor<4x64xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x64xf32>
    %t67 = tensor.empty() : tensor<4x64xf32>
    %t68 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t63, %t66 : tensor<4x64xf32>, tensor<4x64xf32>) outs(%t67 : tensor<4x64xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %one = arith.constant 1.0 : f32
      %minus = arith.negf %x0 : f32
      %e = math.exp %minus : f32
      %more = arith.addf %e, %one : f32
      %open = arith.divf %x0, %more : f32
      %r = arith.mulf %open, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x64xf32>
    %t69 = tensor.empty() : tensor<4x32xf32>
    %t70 = linalg.fill ins(%zero : f32) outs(%t69 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t71 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t68, %down_0 : tensor<4x64xf32>, tensor<64x32xf32>) outs(%t70 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t72 = tensor.empty() : tensor<4x32xf32>
    %t73 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t55, %t71 : tensor<4x32xf32>, tensor<4x32xf32>) outs(%t72 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %r = arith.addf %x0, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t74 = tensor.empty() : tensor<4xf32>
    %t75 = linalg.fill ins(%zero : f32) outs(%t74 : tensor<4xf32>) -> tensor<4xf32>
    %t76 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%t73 : tensor<4x32xf32>) outs(%t75 : tensor<4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %p = arith.mulf %x0, %x0 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %t77 = tensor.empty() : tensor<4x32xf32>
    %t78 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t73, %norm_1, %t76 : tensor<4x32xf32>, tensor<32xf32>, tensor<4xf32>) outs(%t77 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %x2: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %width = arith.constant 32.0 : f32
      %epsilon = arith.constant 1.000000000e-05 : f32
      %mean = arith.divf %x2, %width : f32
      %moved = arith.addf %mean, %epsilon : f32
      %root = math.rsqrt %moved : f32
      %scaled = arith.mulf %x0, %root : f32
      %r = arith.mulf %scaled, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t79 = tensor.empty() : tensor<4x32xf32>
    %t80 = linalg.fill ins(%zero : f32) outs(%t79 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t81 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t78, %q_1 : tensor<4x32xf32>, tensor<32x32xf32>) outs(%t80 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t82 = tensor.empty() : tensor<4x32xf32>
    %t83 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t81 : tensor<4x32xf32>) outs(%t82 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %size = arith.constant 8 : index
      %half = arith.constant 4 : index
      %rate = arith.constant -2.302585093e+00 : f32
      %at = arith.remui %i1, %size : index
      %pair = arith.remui %at, %half : index
      %lower = arith.cmpi ult, %at, %half : index
      %up = arith.addi %i1, %half : index
      %down = arith.subi %i1, %half : index
      %other = arith.select %lower, %up, %down : index
      %number = arith.index_cast %pair : index to i32
      %n = arith.sitofp %number : i32 to f32
      %power = arith.mulf %n, %rate : f32
      %speed = math.exp %power : f32
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %time = arith.sitofp %p : i32 to f32
      %angle = arith.mulf %time, %speed : f32
      %cos = math.cos %angle : f32
      %sin = math.sin %angle : f32
      %y = tensor.extract %t81[%i0, %other] : tensor<4x32xf32>
      %minus = arith.negf %y : f32
      %signed = arith.select %lower, %minus, %y : f32
      %a = arith.mulf %x0, %cos : f32
      %b = arith.mulf %signed, %sin : f32
      %r = arith.addf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t84 = tensor.empty() : tensor<4x16xf32>
    %t85 = linalg.fill ins(%zero : f32) outs(%t84 : tensor<4x16xf32>) -> tensor<4x16xf32>
    %t86 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t78, %k_1 : tensor<4x32xf32>, tensor<32x16xf32>) outs(%t85 : tensor<4x16xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x16xf32>
    %t87 = tensor.empty() : tensor<4x16xf32>
    %t88 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t86 : tensor<4x16xf32>) outs(%t87 : tensor<4x16xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %size = arith.constant 8 : index
      %half = arith.constant 4 : index
      %rate = arith.constant -2.302585093e+00 : f32
      %at = arith.remui %i1, %size : index
      %pair = arith.remui %at, %half : index
      %lower = arith.cmpi ult, %at, %half : index
      %up = arith.addi %i1, %half : index
      %down = arith.subi %i1, %half : index
      %other = arith.select %lower, %up, %down : index
      %number = arith.index_cast %pair : index to i32
      %n = arith.sitofp %number : i32 to f32
      %power = arith.mulf %n, %rate : f32
      %speed = math.exp %power : f32
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %time = arith.sitofp %p : i32 to f32
      %angle = arith.mulf %time, %speed : f32
      %cos = math.cos %angle : f32
      %sin = math.sin %angle : f32
      %y = tensor.extract %t86[%i0, %other] : tensor<4x16xf32>
      %minus = arith.negf %y : f32
      %signed = arith.select %lower, %minus, %y : f32
      %a = arith.mulf %x0, %cos : f32
      %b = arith.mulf %signed, %sin : f32
      %r = arith.addf %a, %b : f32
      linalg.yield %r : f32
    } -> tensor<4x16xf32>
    %t89 = tensor.empty() : tensor<4x16xf32>
    %t90 = linalg.fill ins(%zero : f32) outs(%t89 : tensor<4x16xf32>) -> tensor<4x16xf32>
    %t91 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t78, %v_1 : tensor<4x32xf32>, tensor<32x16xf32>) outs(%t90 : tensor<4x16xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x16xf32>
    %t92 = tensor.empty() : tensor<4x2x16xf32>
    %t93 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%t88, %t91 : tensor<4x16xf32>, tensor<4x16xf32>) outs(%t92 : tensor<4x2x16xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %none = arith.constant 0 : index
      %is_key = arith.cmpi eq, %i1, %none : index
      %r = arith.select %is_key, %x0, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x2x16xf32>
    %t94 = tensor.extract_slice %t93[0, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t95 = tensor.expand_shape %t94 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t96 = tensor.insert_slice %t95 into %t34[%place0, 1, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t97 = tensor.extract_slice %t93[1, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t98 = tensor.expand_shape %t97 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t99 = tensor.insert_slice %t98 into %t96[%place1, 1, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t100 = tensor.extract_slice %t93[2, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t101 = tensor.expand_shape %t100 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t102 = tensor.insert_slice %t101 into %t99[%place2, 1, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t103 = tensor.extract_slice %t93[3, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<4x2x16xf32> to tensor<1x2x16xf32>
    %t104 = tensor.expand_shape %t103 [[0, 1], [2], [3]] output_shape [1, 1, 2, 16] : tensor<1x2x16xf32> into tensor<1x1x2x16xf32>
    %t105 = tensor.insert_slice %t104 into %t102[%place3, 1, 0, 0] [1, 1, 2, 16] [1, 1, 1, 1] : tensor<1x1x2x16xf32> into tensor<136x2x2x16xf32>
    %t106 = tensor.expand_shape %t83 [[0], [1, 2]] output_shape [4, 4, 8] : tensor<4x32xf32> into tensor<4x4x8xf32>
    %t107 = tensor.empty() : tensor<4x4x32xf32>
    %t108 = linalg.fill ins(%zero : f32) outs(%t107 : tensor<4x4x32xf32>) -> tensor<4x4x32xf32>
    %t109 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%t106 : tensor<4x4x8xf32>) outs(%t108 : tensor<4x4x32xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %i3 = linalg.index 3 : index
      %shared = arith.constant 2 : index
      %size = arith.constant 8 : index
      %layer = arith.constant 1 : index
      %which = arith.constant 0 : index
      %row = tensor.extract %rows[%i0, %i2] : tensor<4x32xi32>
      %at = arith.index_cast %row : i32 to index
      %group = arith.divui %i1, %shared : index
      %begin = arith.muli %group, %size : index
      %end = arith.addi %begin, %i3 : index
      %c = tensor.extract %t105[%at, %layer, %which, %end] : tensor<136x2x2x16xf32>
      %scale = arith.constant 3.535533906e-01 : f32
      %b = arith.mulf %x0, %scale : f32
      %m = arith.mulf %b, %c : f32
      %r = arith.addf %sum, %m : f32
      linalg.yield %r : f32
    } -> tensor<4x4x32xf32>
    %t110 = tensor.empty() : tensor<4x4xf32>
    %t111 = linalg.fill ins(%lowest : f32) outs(%t110 : tensor<4x4xf32>) -> tensor<4x4xf32>
    %t112 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t109 : tensor<4x4x32xf32>) outs(%t111 : tensor<4x4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %position = arith.index_cast %p : i32 to index
      %is_seen = arith.cmpi ule, %i2, %position : index
      %known = arith.select %is_seen, %x0, %lowest : f32
      %r = arith.maximumf %sum, %known : f32
      linalg.yield %r : f32
    } -> tensor<4x4xf32>
    %t113 = tensor.empty() : tensor<4x4x32xf32>
    %t114 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%t109, %t112 : tensor<4x4x32xf32>, tensor<4x4xf32>) outs(%t113 : tensor<4x4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = tensor.extract %positions[%i0] : tensor<4xi32>
      %position = arith.index_cast %p : i32 to index
      %is_seen = arith.cmpi ule, %i2, %position : index
      %distance = arith.subf %x0, %x1 : f32
      %e = math.exp %distance : f32
      %r = arith.select %is_seen, %e, %zero : f32
      linalg.yield %r : f32
    } -> tensor<4x4x32xf32>
    %t115 = tensor.empty() : tensor<4x4xf32>
    %t116 = linalg.fill ins(%zero : f32) outs(%t115 : tensor<4x4xf32>) -> tensor<4x4xf32>
    %t117 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t114 : tensor<4x4x32xf32>) outs(%t116 : tensor<4x4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %r = arith.addf %sum, %x0 : f32
      linalg.yield %r : f32
    } -> tensor<4x4xf32>
    %t118 = tensor.empty() : tensor<4x4x8xf32>
    %t119 = linalg.fill ins(%zero : f32) outs(%t118 : tensor<4x4x8xf32>) -> tensor<4x4x8xf32>
    %t120 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%t114, %t117 : tensor<4x4x32xf32>, tensor<4x4xf32>) outs(%t119 : tensor<4x4x8xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %i3 = linalg.index 3 : index
      %shared = arith.constant 2 : index
      %size = arith.constant 8 : index
      %layer = arith.constant 1 : index
      %which = arith.constant 1 : index
      %row = tensor.extract %rows[%i0, %i3] : tensor<4x32xi32>
      %at = arith.index_cast %row : i32 to index
      %group = arith.divui %i1, %shared : index
      %begin = arith.muli %group, %size : index
      %end = arith.addi %begin, %i2 : index
      %c = tensor.extract %t105[%at, %layer, %which, %end] : tensor<136x2x2x16xf32>
      %part = arith.divf %x0, %x1 : f32
      %m = arith.mulf %part, %c : f32
      %r = arith.addf %sum, %m : f32
      linalg.yield %r : f32
    } -> tensor<4x4x8xf32>
    %t121 = tensor.collapse_shape %t120 [[0], [1, 2]] : tensor<4x4x8xf32> into tensor<4x32xf32>
    %t122 = tensor.empty() : tensor<4x32xf32>
    %t123 = linalg.fill ins(%zero : f32) outs(%t122 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t124 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t121, %o_1 : tensor<4x32xf32>, tensor<32x32xf32>) outs(%t123 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t125 = tensor.empty() : tensor<4x32xf32>
    %t126 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t73, %t124 : tensor<4x32xf32>, tensor<4x32xf32>) outs(%t125 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %r = arith.addf %x0, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t127 = tensor.empty() : tensor<4xf32>
    %t128 = linalg.fill ins(%zero : f32) outs(%t127 : tensor<4xf32>) -> tensor<4xf32>
    %t129 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%t126 : tensor<4x32xf32>) outs(%t128 : tensor<4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %p = arith.mulf %x0, %x0 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %t130 = tensor.empty() : tensor<4x32xf32>
    %t131 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t126, %hidden_norm_1, %t129 : tensor<4x32xf32>, tensor<32xf32>, tensor<4xf32>) outs(%t130 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %x2: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %width = arith.constant 32.0 : f32
      %epsilon = arith.constant 1.000000000e-05 : f32
      %mean = arith.divf %x2, %width : f32
      %moved = arith.addf %mean, %epsilon : f32
      %root = math.rsqrt %moved : f32
      %scaled = arith.mulf %x0, %root : f32
      %r = arith.mulf %scaled, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t132 = tensor.empty() : tensor<4x64xf32>
    %t133 = linalg.fill ins(%zero : f32) outs(%t132 : tensor<4x64xf32>) -> tensor<4x64xf32>
    %t134 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t131, %gate_1 : tensor<4x32xf32>, tensor<32x64xf32>) outs(%t133 : tensor<4x64xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x64xf32>
    %t135 = tensor.empty() : tensor<4x64xf32>
    %t136 = linalg.fill ins(%zero : f32) outs(%t135 : tensor<4x64xf32>) -> tensor<4x64xf32>
    %t137 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t131, %up_1 : tensor<4x32xf32>, tensor<32x64xf32>) outs(%t136 : tensor<4x64xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x64xf32>
    %t138 = tensor.empty() : tensor<4x64xf32>
    %t139 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t134, %t137 : tensor<4x64xf32>, tensor<4x64xf32>) outs(%t138 : tensor<4x64xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %one = arith.constant 1.0 : f32
      %minus = arith.negf %x0 : f32
      %e = math.exp %minus : f32
      %more = arith.addf %e, %one : f32
      %open = arith.divf %x0, %more : f32
      %r = arith.mulf %open, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x64xf32>
    %t140 = tensor.empty() : tensor<4x32xf32>
    %t141 = linalg.fill ins(%zero : f32) outs(%t140 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t142 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t139, %down_1 : tensor<4x64xf32>, tensor<64x32xf32>) outs(%t141 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t143 = tensor.empty() : tensor<4x32xf32>
    %t144 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t126, %t142 : tensor<4x32xf32>, tensor<4x32xf32>) outs(%t143 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %r = arith.addf %x0, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t145 = tensor.empty() : tensor<4xf32>
    %t146 = linalg.fill ins(%zero : f32) outs(%t145 : tensor<4xf32>) -> tensor<4xf32>
    %t147 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%t144 : tensor<4x32xf32>) outs(%t146 : tensor<4xf32>) {
    ^bb0(%x0: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %p = arith.mulf %x0, %x0 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4xf32>
    %t148 = tensor.empty() : tensor<4x32xf32>
    %t149 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t144, %last_norm, %t147 : tensor<4x32xf32>, tensor<32xf32>, tensor<4xf32>) outs(%t148 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %x2: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %width = arith.constant 32.0 : f32
      %epsilon = arith.constant 1.000000000e-05 : f32
      %mean = arith.divf %x2, %width : f32
      %moved = arith.addf %mean, %epsilon : f32
      %root = math.rsqrt %moved : f32
      %scaled = arith.mulf %x0, %root : f32
      %r = arith.mulf %scaled, %x1 : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    %t150 = tensor.empty() : tensor<4x32xf32>
    %t151 = linalg.fill ins(%zero : f32) outs(%t150 : tensor<4x32xf32>) -> tensor<4x32xf32>
    %t152 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%t149, %head : tensor<4x32xf32>, tensor<32x32xf32>) outs(%t151 : tensor<4x32xf32>) {
    ^bb0(%x0: f32, %x1: f32, %sum: f32):
      %i0 = linalg.index 0 : index
      %i1 = linalg.index 1 : index
      %i2 = linalg.index 2 : index
      %p = arith.mulf %x0, %x1 : f32
      %r = arith.addf %sum, %p : f32
      linalg.yield %r : f32
    } -> tensor<4x32xf32>
    return %t152, %t105 : tensor<4x32xf32>, tensor<136x2x2x16xf32>
  }
}
