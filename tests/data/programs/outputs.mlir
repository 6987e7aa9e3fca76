// Several results put into storage of the caller, in another order than the arguments, beside others, and of any size;
// tensors of any size that may be overwritten.
module @outputs {
  func.func @split(%x: tensor<?xf32>, %sum: tensor<?xf32> {iree.abi.output = 0 : index},
      %product: tensor<?xf32> {iree.abi.output = 1 : index}) -> (tensor<?xf32>, tensor<?xf32>) {
    %0 = arith.addf %x, %x : tensor<?xf32>
    %1 = arith.mulf %x, %x : tensor<?xf32>
    return %0, %1 : tensor<?xf32>, tensor<?xf32>
  }
  func.func @swapped(%first: tensor<4xi32> {iree.abi.output = 1 : index}, %x: tensor<4xi32>,
      %second: tensor<4xi32> {iree.abi.output = 0 : index}) -> (tensor<4xi32>, tensor<4xi32>) {
    %0 = arith.addi %x, %x : tensor<4xi32>
    %1 = arith.muli %x, %x : tensor<4xi32>
    return %0, %1 : tensor<4xi32>, tensor<4xi32>
  }
  func.func @one_of_two(%x: tensor<4xi32>, %out: tensor<4xi32> {iree.abi.output = 1 : index})
      -> (tensor<4xi32>, tensor<4xi32>) {
    %0 = arith.addi %x, %x : tensor<4xi32>
    %1 = arith.muli %x, %x : tensor<4xi32>
    return %0, %1 : tensor<4xi32>, tensor<4xi32>
  }
  func.func @double(%x: tensor<?xi32> {iree.abi.consume}) -> tensor<?xi32> {
    %0 = arith.addi %x, %x : tensor<?xi32>
    return %0 : tensor<?xi32>
  }
  func.func @double_first(%x: tensor<?xi32> {iree.abi.consume}, %y: tensor<?xi32>) -> tensor<?xi32> {
    %0 = arith.addi %x, %x : tensor<?xi32>
    return %0 : tensor<?xi32>
  }
  func.func @double_both(%x: tensor<?xi32> {iree.abi.consume}, %y: tensor<?xi32> {iree.abi.consume})
      -> (tensor<?xi32>, tensor<?xi32>) {
    %0 = arith.addi %x, %x : tensor<?xi32>
    %1 = arith.addi %y, %y : tensor<?xi32>
    return %0, %1 : tensor<?xi32>, tensor<?xi32>
  }
  func.func @in_place(%x: tensor<4xi32> {iree.abi.output = 0 : index}) -> tensor<4xi32> {
    %0 = arith.addi %x, %x : tensor<4xi32>
    return %0 : tensor<4xi32>
  }
  util.func public @asynchronous(%x: tensor<4xi32>, %out: tensor<4xi32> {iree.abi.output = 0 : index}) -> tensor<4xi32>
      attributes {iree.abi.model = "coarse-fences"} {
    %0 = arith.addi %x, %x : tensor<4xi32>
    util.return %0 : tensor<4xi32>
  }
}
