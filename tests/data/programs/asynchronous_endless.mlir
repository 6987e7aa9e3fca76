// As endless.mlir, by --iree-execution-model=async-external.
func.func @f(%a: tensor<4096xi32>, %n: tensor<i32>) -> tensor<4096xi32> {
  %c = arith.constant 0 : index
  %e = tensor.empty() : tensor<4096xi32>
  %r = linalg.generic {indexing_maps=[affine_map<(i)->(i)>, affine_map<(i)->()>, affine_map<(i)->(i)>], iterator_types=["parallel"]} ins(%a, %n: tensor<4096xi32>, tensor<i32>) outs(%e: tensor<4096xi32>) {
   ^bb0(%x: i32, %m: i32, %o: i32):
     %z = scf.while (%i = %x) : (i32) -> i32 {
        %k = arith.cmpi ne, %i, %m : i32
        scf.condition(%k) %i : i32
     } do { ^bb0(%i: i32):
        %two = arith.constant 2 : i32
        %one = arith.constant 1 : i32
        %j0 = arith.muli %i, %two : i32
        %j = arith.ori %j0, %one : i32
        scf.yield %j : i32
     }
     linalg.yield %z : i32
  } -> tensor<4096xi32>
  return %r : tensor<4096xi32>
}
