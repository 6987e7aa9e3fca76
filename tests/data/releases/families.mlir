// Calls that every ABI family words differently: constants of a dispatch, several bindings, barriers, fills, copies,
// constants of the module, state between calls, a value read back to decide.
module @families {
  util.global private mutable @total = dense<0> : tensor<4xi32>

  // A dynamic shape and a scalar travel as constants of the dispatch.
  func.func @scale_add(%x: tensor<?xf32>, %y: tensor<?xf32>, %a: f32) -> tensor<?xf32> {
    %c0 = arith.constant 0 : index
    %n = tensor.dim %x, %c0 : tensor<?xf32>
    %empty = tensor.empty(%n) : tensor<?xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x, %y : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
    ^bb0(%in: f32, %in2: f32, %out: f32):
      %p = arith.mulf %in, %a : f32
      %s = arith.addf %p, %in2 : f32
      linalg.yield %s : f32
    } -> tensor<?xf32>
    return %r : tensor<?xf32>
  }

  // A fill, a matrix product with a constant, and a sum over rows: several dispatches with barriers.
  func.func @layers(%x: tensor<4x8xf32>) -> tensor<4xf32> {
    %zero = arith.constant 0.0 : f32
    %w = arith.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [2.0, 2.0, 2.0], [3.0, 1.0, 4.0], [1.0, 5.0, 9.0]]> : tensor<8x3xf32>
    %e = tensor.empty() : tensor<4x3xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x3xf32>) -> tensor<4x3xf32>
    %m = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x3xf32>) outs(%f : tensor<4x3xf32>) -> tensor<4x3xf32>
    %e1 = tensor.empty() : tensor<4xf32>
    %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%m : tensor<4x3xf32>) outs(%f1 : tensor<4xf32>) {
    ^bb0(%in: f32, %out: f32):
      %s = arith.addf %in, %out : f32
      linalg.yield %s : f32
    } -> tensor<4xf32>
    return %r : tensor<4xf32>
  }

  // Copies into a filled tensor.
  func.func @patch(%x: tensor<2xi32>) -> tensor<8xi32> {
    %c7 = arith.constant 7 : i32
    %e = tensor.empty() : tensor<8xi32>
    %f = linalg.fill ins(%c7 : i32) outs(%e : tensor<8xi32>) -> tensor<8xi32>
    %r = tensor.insert_slice %x into %f[3] [2] [1] : tensor<2xi32> into tensor<8xi32>
    return %r : tensor<8xi32>
  }

  // State of the session.
  func.func @add_to_total(%x: tensor<4xi32>) -> tensor<4xi32> {
    %t = util.global.load @total : tensor<4xi32>
    %e = tensor.empty() : tensor<4xi32>
    %s = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%t, %x : tensor<4xi32>, tensor<4xi32>) outs(%e : tensor<4xi32>) {
    ^bb0(%in: i32, %in2: i32, %out: i32):
      %a = arith.addi %in, %in2 : i32
      linalg.yield %a : i32
    } -> tensor<4xi32>
    util.global.store %s, @total : tensor<4xi32>
    return %s : tensor<4xi32>
  }

  // The host reads the largest element back to choose a branch.
  func.func @choose(%x: tensor<4xi32>) -> tensor<i32> {
    %lowest = arith.constant -2147483648 : i32
    %limit = arith.constant 10 : i32
    %hundred = arith.constant dense<100> : tensor<i32>
    %e = tensor.empty() : tensor<i32>
    %f = linalg.fill ins(%lowest : i32) outs(%e : tensor<i32>) -> tensor<i32>
    %m = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]} ins(%x : tensor<4xi32>) outs(%f : tensor<i32>) {
    ^bb0(%in: i32, %out: i32):
      %a = arith.maxsi %in, %out : i32
      linalg.yield %a : i32
    } -> tensor<i32>
    %value = tensor.extract %m[] : tensor<i32>
    %big = arith.cmpi sgt, %value, %limit : i32
    %r = scf.if %big -> (tensor<i32>) {
      %d = tensor.empty() : tensor<i32>
      %s = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []} ins(%m, %hundred : tensor<i32>, tensor<i32>) outs(%d : tensor<i32>) {
      ^bb0(%in: i32, %in2: i32, %out: i32):
        %a = arith.addi %in, %in2 : i32
        linalg.yield %a : i32
      } -> tensor<i32>
      scf.yield %s : tensor<i32>
    } else {
      scf.yield %m : tensor<i32>
    }
    return %r : tensor<i32>
  }
}
