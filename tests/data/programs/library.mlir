// Imported by program.mlir.
module @library {
  func.func @double(%a: tensor<?xf32>) -> tensor<?xf32> {
    %0 = arith.addf %a, %a : tensor<?xf32>
    return %0 : tensor<?xf32>
  }
  func.func @bump(%a: i32) -> i32 {
    %c = arith.constant 100 : i32
    %0 = arith.addi %a, %c : i32
    return %0 : i32
  }
}
