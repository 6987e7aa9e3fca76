// Dispatches over arrays of many element types, of any size; an array of rank 10 comes back.
module @kinds {
  func.func @double_i8(%a: tensor<?xi8>) -> tensor<?xi8> {
    %r = arith.addi %a, %a : tensor<?xi8>
    return %r : tensor<?xi8>
  }
  func.func @double_i64(%a: tensor<?x?xi64>) -> tensor<?x?xi64> {
    %r = arith.addi %a, %a : tensor<?x?xi64>
    return %r : tensor<?x?xi64>
  }
  func.func @double_f64(%a: tensor<?xf64>) -> tensor<?xf64> {
    %r = arith.addf %a, %a : tensor<?xf64>
    return %r : tensor<?xf64>
  }
  func.func @double_f16(%a: tensor<?xf16>) -> tensor<?xf16> {
    %r = arith.addf %a, %a : tensor<?xf16>
    return %r : tensor<?xf16>
  }
  func.func @double_bf16(%a: tensor<?xbf16>) -> tensor<?xbf16> {
    %r = arith.addf %a, %a : tensor<?xbf16>
    return %r : tensor<?xbf16>
  }
  func.func @less(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xi1> {
    %r = arith.cmpf olt, %a, %b : tensor<?xf32>
    return %r : tensor<?xi1>
  }
  func.func @differ(%a: tensor<?xi1>, %b: tensor<?xi1>) -> tensor<?xi1> {
    %r = arith.xori %a, %b : tensor<?xi1>
    return %r : tensor<?xi1>
  }
  func.func @rank10(%a: tensor<?x?x?x?x?x?x?x?x?x?xi32>) -> tensor<?x?x?x?x?x?x?x?x?x?xi32> {
    return %a : tensor<?x?x?x?x?x?x?x?x?x?xi32>
  }
}
