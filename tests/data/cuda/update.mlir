// A program that updates its argument where it lies, undeclared.
module @updates {
  func.func @update(%x: tensor<64xf32>, %y: tensor<4xf32>) -> tensor<64xf32> {
    %0 = tensor.insert_slice %y into %x[0] [4] [1] : tensor<4xf32> into tensor<64xf32>
    return %0 : tensor<64xf32>
  }
}
