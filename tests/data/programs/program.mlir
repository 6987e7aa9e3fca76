// Imports from library.mlir, which has to be loaded first.
module @program {
  func.func private @library.double(%a: tensor<?xf32>) -> tensor<?xf32>
  func.func private @library.bump(%a: i32) -> i32
  func.func @quadruple(%a: tensor<?xf32>) -> tensor<?xf32> {
    %0 = call @library.double(%a) : (tensor<?xf32>) -> tensor<?xf32>
    %1 = call @library.double(%0) : (tensor<?xf32>) -> tensor<?xf32>
    return %1 : tensor<?xf32>
  }
  func.func @bump_twice(%a: i32) -> i32 {
    %0 = call @library.bump(%a) : (i32) -> i32
    %1 = call @library.bump(%0) : (i32) -> i32
    return %1 : i32
  }
}
