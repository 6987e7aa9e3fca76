// Dimensions that the program itself ties: by import with a shared one, by an assertion, by several at once.
module @tied {
func.func @shared(%a: !hal.buffer_view, %b: !hal.buffer_view) -> !hal.buffer_view {
  %n = hal.buffer_view.dim<%a : !hal.buffer_view>[0] : index
  %x = hal.tensor.import %a "left" : !hal.buffer_view -> tensor<?xf32>{%n}
  %y = hal.tensor.import %b "right" : !hal.buffer_view -> tensor<?x2xf32>{%n}
  %z = tensor.extract_slice %y[0, 0] [%n, 1] [1, 1] : tensor<?x2xf32> to tensor<?xf32>
  %0 = arith.addf %x, %z : tensor<?xf32>
  %r = hal.tensor.export %0 : tensor<?xf32>{%n} -> !hal.buffer_view
  return %r : !hal.buffer_view
}
func.func @product(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %a, %c0 : tensor<?x?xf32>
  %k = tensor.dim %a, %c1 : tensor<?x?xf32>
  %l = tensor.dim %b, %c0 : tensor<?x?xf32>
  %n = tensor.dim %b, %c1 : tensor<?x?xf32>
  %same = arith.cmpi eq, %k, %l : index
  cf.assert %same, "the factors do not fit"
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%m, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%f : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
func.func @both(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %a, %c0 : tensor<?x?xf32>
  %k = tensor.dim %a, %c1 : tensor<?x?xf32>
  %l = tensor.dim %b, %c0 : tensor<?x?xf32>
  %n = tensor.dim %b, %c1 : tensor<?x?xf32>
  %rows = arith.cmpi eq, %m, %l : index
  %columns = arith.cmpi eq, %k, %n : index
  %same = arith.andi %rows, %columns : i1
  cf.assert %same, "the shapes differ"
  %0 = arith.addf %a, %b : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @even(%a: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %rest = arith.remui %n, %c2 : index
  %is = arith.cmpi eq, %rest, %c0 : index
  cf.assert %is, "an odd size"
  %0 = arith.addf %a, %a : tensor<?xf32>
  return %0 : tensor<?xf32>
}
}
