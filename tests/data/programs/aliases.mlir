// Programs that write to memory of their caller, said and unsaid.
module @aliases {
  func.func @into(%x: tensor<16384xf32>, %out: tensor<16384xf32> {iree.abi.output = 0 : index}) -> tensor<16384xf32> {
    %0 = arith.addf %x, %x : tensor<16384xf32>
    return %0 : tensor<16384xf32>
  }
  func.func @double(%x: tensor<16384xf32>) -> tensor<16384xf32> {
    %0 = arith.addf %x, %x : tensor<16384xf32>
    return %0 : tensor<16384xf32>
  }
  func.func @replace(%x: tensor<16384xf32> {iree.abi.consume}, %y: tensor<4xf32>) -> tensor<16384xf32> {
    %0 = tensor.insert_slice %y into %x[0] [4] [1] : tensor<4xf32> into tensor<16384xf32>
    return %0 : tensor<16384xf32>
  }
  func.func @same(%x: tensor<16384xf32>) -> tensor<16384xf32> {
    return %x : tensor<16384xf32>
  }
  func.func @update(%x: tensor<16384xf32>, %y: tensor<4xf32>) -> tensor<16384xf32> {
    %0 = tensor.insert_slice %y into %x[0] [4] [1] : tensor<4xf32> into tensor<16384xf32>
    return %0 : tensor<16384xf32>
  }
  func.func @accumulate(%x: tensor<128x128xf32>, %y: tensor<128x8xf32>) -> tensor<128x128xf32> {
    %transposed = tensor.empty() : tensor<8x128xf32>
    %0 = linalg.transpose ins(%y : tensor<128x8xf32>) outs(%transposed : tensor<8x128xf32>) permutation = [1, 0]
    %1 = linalg.matmul ins(%y, %0 : tensor<128x8xf32>, tensor<8x128xf32>) outs(%x : tensor<128x128xf32>) -> tensor<128x128xf32>
    return %1 : tensor<128x128xf32>
  }
  util.func public @put_into(%x: !hal.buffer_view, %out: !hal.buffer_view) -> !hal.buffer_view {
    %0 = hal.tensor.import %x : !hal.buffer_view -> tensor<16384xf32>
    %1 = arith.addf %0, %0 : tensor<16384xf32>
    %2 = hal.tensor.alias %1 : tensor<16384xf32> to %out : !hal.buffer_view
    %3 = hal.tensor.export %2 : tensor<16384xf32> -> !hal.buffer_view
    util.return %3 : !hal.buffer_view
  }
  util.func public @set_first(%x: !hal.buffer_view, %first: f32) -> !hal.buffer_view {
    %zero = arith.constant 0 : index
    %0 = hal.tensor.import consume %x : !hal.buffer_view -> tensor<16384xf32>
    %1 = tensor.insert %first into %0[%zero] : tensor<16384xf32>
    %2 = hal.tensor.export %1 : tensor<16384xf32> -> !hal.buffer_view
    util.return %2 : !hal.buffer_view
  }
  util.func public @into_view$async(%x: !hal.buffer_view, %out: !hal.buffer_view, %wait: !hal.fence, %done: !hal.fence)
      -> !hal.buffer_view attributes {iree.abi.stub} {
    %0 = hal.tensor.import wait(%wait) => %x : !hal.buffer_view -> tensor<16384xf32>
    %1 = arith.addf %0, %0 : tensor<16384xf32>
    %2 = hal.tensor.alias wait(%wait) => %1 : tensor<16384xf32> to %out : !hal.buffer_view
    %3 = hal.tensor.barrier join(%2 : tensor<16384xf32>) => %done : !hal.fence
    %4 = hal.tensor.export %3 : tensor<16384xf32> -> !hal.buffer_view
    util.return %4 : !hal.buffer_view
  }
}
