// A product with integers of four bits in rows of an odd number: IREE 3.13.0 reads them from other places than it writes them to.
func.func @product(%a: tensor<4x7xi8>, %b8: tensor<20x7xi8>) -> tensor<4x20xi32> {
  %eb = tensor.empty() : tensor<20x7xi4>
  %b = arith.trunci %b8 : tensor<20x7xi8> to tensor<20x7xi4>
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<4x20xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<4x20xi32>) -> tensor<4x20xi32>
  %r = linalg.generic {indexing_maps=[affine_map<(d0,d1,d2)->(d0,d2)>, affine_map<(d0,d1,d2)->(d1,d2)>, affine_map<(d0,d1,d2)->(d0,d1)>], iterator_types=["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<4x7xi8>, tensor<20x7xi4>) outs(%f : tensor<4x20xi32>) {
  ^bb0(%x: i8, %y: i4, %o: i32):
    %xc = arith.extsi %x : i8 to i32
    %yc = arith.extsi %y : i4 to i32
    %p = arith.muli %xc, %yc : i32
    %q = arith.addi %o, %p : i32
    linalg.yield %q : i32
  } -> tensor<4x20xi32>
  return %r : tensor<4x20xi32>
}
