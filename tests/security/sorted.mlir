// iree-compile sorted.mlir -o sorted.vmfb --iree-hal-target-device=local --iree-hal-local-target-device-backends=vmvx --iree-vm-bytecode-module-strip-source-map
// The compiler (3.13.0) has the kernel sort the constant itself, then copies that.
func.func @sorted() -> tensor<2x2xi32> {
  %numbers = util.unfoldable_constant dense<[[5, 6], [3, 7]]> : tensor<2x2xi32>
  %0 = iree_linalg_ext.sort dimension(0) outs(%numbers : tensor<2x2xi32>) {
    ^bb0(%one: i32, %other: i32):
      %is_before = arith.cmpi slt, %one, %other : i32
      iree_linalg_ext.yield %is_before : i1
    } -> tensor<2x2xi32>
  return %0 : tensor<2x2xi32>
}
