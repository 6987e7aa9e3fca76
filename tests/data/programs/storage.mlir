// Arguments that programs write to: storage of a result, and tensors that they may overwrite.
func.func @into(%x: tensor<16xf32>, %out: tensor<16xf32> {iree.abi.output = 0 : index}) -> tensor<16xf32> {
  %0 = arith.addf %x, %x : tensor<16xf32>
  return %0 : tensor<16xf32>
}
func.func @second(%x: tensor<16xf32>, %out: tensor<16xf32> {iree.abi.output = 1 : index})
    -> (i32, tensor<16xf32>) {
  %0 = arith.addf %x, %x : tensor<16xf32>
  %c7 = arith.constant 7 : i32
  return %c7, %0 : i32, tensor<16xf32>
}
func.func @replace(%x: tensor<16xf32> {iree.abi.consume}, %y: tensor<4xf32>) -> tensor<16xf32> {
  %0 = tensor.insert_slice %y into %x[4] [4] [1] : tensor<4xf32> into tensor<16xf32>
  return %0 : tensor<16xf32>
}
