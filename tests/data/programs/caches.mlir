// Steps that put a token into a cache at a position and give the sums over the cache's rows, in every way in which programs
// update caches of their callers or their own; and entry points that take their scratch memory from the caller.
module @caches {
  util.func private @sums(%cache: tensor<16x8xf32>) -> tensor<8xf32> attributes {inlining_policy = #util.inline.always} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<8xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<8xf32>) -> tensor<8xf32>
    %sums = linalg.reduce ins(%cache : tensor<16x8xf32>) outs(%start : tensor<8xf32>) dimensions = [0]
      (%value: f32, %sum: f32) {
        %next = arith.addf %sum, %value : f32
        linalg.yield %next : f32
      }
    util.return %sums : tensor<8xf32>
  }
  // The cache is the storage of the result.
  util.func public @into(%token: tensor<8xf32>, %position: index, %cache: tensor<16x8xf32> {iree.abi.output = 1 : index}) -> (tensor<8xf32>, tensor<16x8xf32>) {
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %updated = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    util.return %sums, %updated : tensor<8xf32>, tensor<16x8xf32>
  }
  // The new cache goes where the caller says, which may be where the old one is.
  util.func public @to(%token: tensor<8xf32>, %position: index, %cache: tensor<16x8xf32>,
      %storage: tensor<16x8xf32> {iree.abi.output = 1 : index}) -> (tensor<8xf32>, tensor<16x8xf32>) {
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %updated = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    util.return %sums, %updated : tensor<8xf32>, tensor<16x8xf32>
  }
  // The caller gives the cache away.
  util.func public @donated(%token: tensor<8xf32>, %position: index, %cache: tensor<16x8xf32> {iree.abi.consume}) -> (tensor<8xf32>, tensor<16x8xf32>) {
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %updated = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    util.return %sums, %updated : tensor<8xf32>, tensor<16x8xf32>
  }
  // Nothing is said.
  util.func public @unsaid(%token: tensor<8xf32>, %position: index, %cache: tensor<16x8xf32>) -> (tensor<8xf32>, tensor<16x8xf32>) {
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %updated = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    util.return %sums, %updated : tensor<8xf32>, tensor<16x8xf32>
  }
  // The argument is changed, and no result: as exported models with mutable tensors do.
  util.func public @view(%token_view: !hal.buffer_view, %position: index, %cache_view: !hal.buffer_view) -> !hal.buffer_view {
    %token = hal.tensor.import %token_view : !hal.buffer_view -> tensor<8xf32>
    %cache = hal.tensor.import %cache_view : !hal.buffer_view -> tensor<16x8xf32>
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %inserted = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    %updated = hal.tensor.alias %inserted : tensor<16x8xf32> to %cache_view : !hal.buffer_view
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    %result = hal.tensor.export %sums : tensor<8xf32> -> !hal.buffer_view
    util.return %result : !hal.buffer_view
  }
  // The program keeps the cache.
  util.global private mutable @kept = dense<0.0> : tensor<16x8xf32>
  util.func public @own(%token: tensor<8xf32>, %position: index) -> tensor<8xf32> {
    %cache = util.global.load @kept : tensor<16x8xf32>
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %updated = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    util.global.store %updated, @kept : tensor<16x8xf32>
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    util.return %sums : tensor<8xf32>
  }
  // Without waiting.
  util.func public @later(%token: tensor<8xf32>, %position: index, %cache: tensor<16x8xf32> {iree.abi.output = 1 : index}) -> (tensor<8xf32>, tensor<16x8xf32>)
      attributes {iree.abi.model = "coarse-fences"} {
    %row = tensor.expand_shape %token [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>
    %updated = tensor.insert_slice %row into %cache[%position, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<16x8xf32>
    %sums = util.call @sums(%updated) : (tensor<16x8xf32>) -> tensor<8xf32>
    util.return %sums, %updated : tensor<8xf32>, tensor<16x8xf32>
  }
  // Scratch memory of the caller, of one size.
  util.func public @scratch(%x: tensor<64xf32>, %scratch: !hal.buffer {iree.abi.transients}) -> tensor<64xf32> {
    %twice = flow.dispatch.region -> (tensor<64xf32>) {
      %r = arith.addf %x, %x : tensor<64xf32>
      flow.return %r : tensor<64xf32>
    }
    %square = flow.dispatch.region -> (tensor<64xf32>) {
      %r = arith.mulf %twice, %twice : tensor<64xf32>
      flow.return %r : tensor<64xf32>
    }
    %result = flow.dispatch.region -> (tensor<64xf32>) {
      %r = arith.addf %square, %twice : tensor<64xf32>
      flow.return %r : tensor<64xf32>
    }
    util.return %result : tensor<64xf32>
  }
  // Of a size that depends on the shape, beside storage for the result and a number.
  util.func public @scratch_of_shape(%x: tensor<?xf32>, %n: i32, %out: tensor<?xf32> {iree.abi.output = 0 : index},
      %scratch: !hal.buffer {iree.abi.transients}) -> tensor<?xf32> {
    %c0 = arith.constant 0 : index
    %size = tensor.dim %x, %c0 : tensor<?xf32>
    %twice = flow.dispatch.region -> (tensor<?xf32>{%size}) {
      %r = arith.addf %x, %x : tensor<?xf32>
      flow.return %r : tensor<?xf32>
    }
    %square = flow.dispatch.region -> (tensor<?xf32>{%size}) {
      %r = arith.mulf %twice, %twice : tensor<?xf32>
      flow.return %r : tensor<?xf32>
    }
    %result = flow.dispatch.region -> (tensor<?xf32>{%size}) {
      %r = arith.addf %square, %twice : tensor<?xf32>
      flow.return %r : tensor<?xf32>
    }
    util.return %result : tensor<?xf32>
  }
  util.func public @scratch_later(%x: tensor<64xf32>, %scratch: !hal.buffer {iree.abi.transients}) -> tensor<64xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %twice = flow.dispatch.region -> (tensor<64xf32>) {
      %r = arith.addf %x, %x : tensor<64xf32>
      flow.return %r : tensor<64xf32>
    }
    %square = flow.dispatch.region -> (tensor<64xf32>) {
      %r = arith.mulf %twice, %twice : tensor<64xf32>
      flow.return %r : tensor<64xf32>
    }
    %result = flow.dispatch.region -> (tensor<64xf32>) {
      %r = arith.addf %square, %twice : tensor<64xf32>
      flow.return %r : tensor<64xf32>
    }
    util.return %result : tensor<64xf32>
  }
}
