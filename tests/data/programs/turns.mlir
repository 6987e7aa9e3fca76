// Calls that read and write memory of their caller and wait for %gate, a tensor that is computed late.
module @turns {
  util.func public @sum(%a: tensor<64xf32>, %gate: tensor<64xf32>) -> tensor<64xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %r = arith.addf %a, %gate : tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  util.func public @over(%gate: tensor<64xf32>, %out: tensor<64xf32> {iree.abi.output = 0 : index}) -> tensor<64xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %r = arith.addf %gate, %gate : tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  util.func public @spoil(%a: tensor<64xf32> {iree.abi.consume}, %gate: tensor<64xf32>) -> tensor<64xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %part = tensor.extract_slice %gate[0] [4] [1] : tensor<64xf32> to tensor<4xf32>
    %r = tensor.insert_slice %part into %a[8] [4] [1] : tensor<4xf32> into tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  util.func public @mutate(%view: !hal.buffer_view, %gate: tensor<64xf32>) -> tensor<64xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %a = hal.tensor.import %view : !hal.buffer_view -> tensor<64xf32>
    %r = arith.addf %gate, %a : tensor<64xf32>
    %s = hal.tensor.alias %r : tensor<64xf32> to %view : !hal.buffer_view
    util.return %s : tensor<64xf32>
  }
  util.func public @plain_sum(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
    %r = arith.addf %a, %b : tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  util.func public @plain_over(%a: tensor<64xf32>, %out: tensor<64xf32> {iree.abi.output = 0 : index}) -> tensor<64xf32> {
    %r = arith.addf %a, %a : tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  util.func public @plain_spoil(%a: tensor<64xf32> {iree.abi.consume}, %b: tensor<64xf32>) -> tensor<64xf32> {
    %part = tensor.extract_slice %b[0] [4] [1] : tensor<64xf32> to tensor<4xf32>
    %r = tensor.insert_slice %part into %a[8] [4] [1] : tensor<4xf32> into tensor<64xf32>
    util.return %r : tensor<64xf32>
  }
  // Enough work for a device to go on with when the call returns.
  util.func public @cube(%a: tensor<384x384xf32>) -> tensor<384x384xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<384x384xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<384x384xf32>) -> tensor<384x384xf32>
    %r = linalg.matmul ins(%a, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    %s = linalg.matmul ins(%r, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    util.return %s : tensor<384x384xf32>
  }
  util.func public @cube_into(%a: tensor<384x384xf32>, %out: tensor<384x384xf32> {iree.abi.output = 0 : index}) -> tensor<384x384xf32>
      attributes {iree.abi.model = "coarse-fences"} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<384x384xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<384x384xf32>) -> tensor<384x384xf32>
    %r = linalg.matmul ins(%a, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    %s = linalg.matmul ins(%r, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    util.return %s : tensor<384x384xf32>
  }
  util.func public @twice(%a: tensor<384x384xf32>) -> tensor<384x384xf32> {
    %r = arith.addf %a, %a : tensor<384x384xf32>
    util.return %r : tensor<384x384xf32>
  }
  util.func public @twice_into(%a: tensor<384x384xf32>, %out: tensor<384x384xf32> {iree.abi.output = 0 : index}) -> tensor<384x384xf32> {
    %r = arith.addf %a, %a : tensor<384x384xf32>
    util.return %r : tensor<384x384xf32>
  }
  util.func public @plain_cube(%a: tensor<384x384xf32>) -> tensor<384x384xf32> {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<384x384xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<384x384xf32>) -> tensor<384x384xf32>
    %r = linalg.matmul ins(%a, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    %s = linalg.matmul ins(%r, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    util.return %s : tensor<384x384xf32>
  }
  util.func public @plain_cube_into(%a: tensor<384x384xf32>, %out: tensor<384x384xf32> {iree.abi.output = 0 : index}) -> tensor<384x384xf32> {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<384x384xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<384x384xf32>) -> tensor<384x384xf32>
    %r = linalg.matmul ins(%a, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    %s = linalg.matmul ins(%r, %a : tensor<384x384xf32>, tensor<384x384xf32>)
        outs(%start : tensor<384x384xf32>) -> tensor<384x384xf32>
    util.return %s : tensor<384x384xf32>
  }
}
