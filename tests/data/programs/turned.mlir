// A result whose kernel reads elements of the argument after it has written others.
func.func @turned(%x: tensor<128x128xf32>, %out: tensor<128x128xf32> {iree.abi.output = 0 : index}) -> tensor<128x128xf32> {
  %empty = tensor.empty() : tensor<128x128xf32>
  %0 = linalg.transpose ins(%x : tensor<128x128xf32>) outs(%empty : tensor<128x128xf32>) permutation = [1, 0]
  return %0 : tensor<128x128xf32>
}
