// iree-compile (3.13.0) --iree-hal-target-device=local --iree-hal-local-target-device-backends=vmvx
// Self-checking functions for `jitree check`; those named fails_* have two failing expectations.

func.func @passes() {
  %value = util.unfoldable_constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %double = arith.addf %value, %value : tensor<4xf32>
  check.expect_almost_eq_const(%double, dense<[2.0, 4.0, 6.0, 8.00001]> : tensor<4xf32>) : tensor<4xf32>
  %true = util.unfoldable_constant 1 : i32
  check.expect_true(%true) : i32
  return
}

func.func @fails_twice() {
  %value = util.unfoldable_constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>
  check.expect_eq_const(%value, dense<[[1, 2], [0, 4]]> : tensor<2x2xi32>) : tensor<2x2xi32>
  %one = util.unfoldable_constant 1 : i32
  check.expect_false(%one) : i32
  return
}
