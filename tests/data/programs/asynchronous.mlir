// Entry points of the coarse-fences model beside synchronous ones, and one that waits for a fence of its caller.
module @asynchronous {
  util.func public @add(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %r = arith.addf %a, %b : tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  util.func public @two(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
      attributes {iree.abi.model = "coarse-fences"} {
    %r = arith.addf %a, %a : tensor<4xf32>
    %s = arith.mulf %a, %a : tensor<4xf32>
    util.return %r, %s : tensor<4xf32>, tensor<4xf32>
  }
  // Enough work for a device to go on with when the call returns.
  util.func public @product(%a: tensor<256x256xf32>) -> tensor<256x256xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<256x256xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<256x256xf32>) -> tensor<256x256xf32>
    %r = linalg.matmul ins(%a, %a : tensor<256x256xf32>, tensor<256x256xf32>)
        outs(%start : tensor<256x256xf32>) -> tensor<256x256xf32>
    util.return %r : tensor<256x256xf32>
  }
  util.func public @synchronous(%a: tensor<4xf32>) -> tensor<4xf32> {
    %r = arith.addf %a, %a : tensor<4xf32>
    util.return %r : tensor<4xf32>
  }
  util.func public @await_fence(%fence: !hal.fence, %timeout: i32) -> i32 attributes {iree.abi.stub} {
    %status = hal.fence.await until([%fence]) timeout_millis(%timeout) flags("None") : i32
    util.return %status : i32
  }
}
