// iree-compile sorted_parameter.mlir -o sorted_parameter.vmfb --iree-hal-target-device=local --iree-hal-local-target-device-backends=vmvx --iree-vm-bytecode-module-strip-source-map
// As sorted.mlir, of a parameter.
util.global private @numbers = #flow.parameter.named<"s"::"numbers"> : tensor<2x2xi32>
func.func @sorted() -> tensor<2x2xi32> {
  %numbers = util.global.load immutable @numbers : tensor<2x2xi32>
  %seen = util.optimization_barrier %numbers : tensor<2x2xi32>
  %0 = iree_linalg_ext.sort dimension(0) outs(%seen : tensor<2x2xi32>) {
    ^bb0(%one: i32, %other: i32):
      %is_before = arith.cmpi slt, %one, %other : i32
      iree_linalg_ext.yield %is_before : i1
    } -> tensor<2x2xi32>
  return %0 : tensor<2x2xi32>
}
