// Entry points that take their scratch memory from the caller: none of it, and as much as shapes say.
module @workspaces {
  util.func public @no_bytes(%x: tensor<64xf32>, %scratch: !hal.buffer {iree.abi.transients}) -> tensor<64xf32> {
    %result = arith.addf %x, %x : tensor<64xf32>
    util.return %result : tensor<64xf32>
  }
  // Twice the square of every element, plus the number.
  util.func public @of_shape(%x: tensor<?xf32>, %n: f32, %scratch: !hal.buffer {iree.abi.transients}) -> tensor<?xf32> {
    %c0 = arith.constant 0 : index
    %size = tensor.dim %x, %c0 : tensor<?xf32>
    %square = flow.dispatch.region -> (tensor<?xf32>{%size}) {
      %r = arith.mulf %x, %x : tensor<?xf32>
      flow.return %r : tensor<?xf32>
    }
    %twice = flow.dispatch.region -> (tensor<?xf32>{%size}) {
      %r = arith.addf %square, %square : tensor<?xf32>
      flow.return %r : tensor<?xf32>
    }
    %empty = tensor.empty(%size) : tensor<?xf32>
    %result = flow.dispatch.region -> (tensor<?xf32>{%size}) {
      %all = linalg.fill ins(%n : f32) outs(%empty : tensor<?xf32>) -> tensor<?xf32>
      %r = arith.addf %twice, %all : tensor<?xf32>
      flow.return %r : tensor<?xf32>
    }
    util.return %result : tensor<?xf32>
  }
  // The number says how much is computed in between.
  util.func public @of_number(%x: tensor<4xf32>, %rows: index, %scratch: !hal.buffer {iree.abi.transients}) -> tensor<?x4xf32> {
    %empty = tensor.empty(%rows) : tensor<?x4xf32>
    %many = flow.dispatch.region -> (tensor<?x4xf32>{%rows}) {
      %r = linalg.broadcast ins(%x : tensor<4xf32>) outs(%empty : tensor<?x4xf32>) dimensions = [0]
      flow.return %r : tensor<?x4xf32>
    }
    %twice = flow.dispatch.region -> (tensor<?x4xf32>{%rows}) {
      %r = arith.addf %many, %many : tensor<?x4xf32>
      flow.return %r : tensor<?x4xf32>
    }
    util.return %twice : tensor<?x4xf32>
  }
}
