// Compiled by iree-compile 3.13.0 --iree-hal-target-backends=cuda --iree-cuda-target=sm_80; elementwise kernels only, which
// tests state again in numpy.
func.func @scale(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %two = arith.constant dense<2.0> : tensor<8xf32>
  %a = arith.mulf %x, %two : tensor<8xf32>
  %b = util.optimization_barrier %a : tensor<8xf32>
  %c = arith.addf %b, %y : tensor<8xf32>
  return %b, %c : tensor<8xf32>, tensor<8xf32>
}
func.func @repeat(%x: tensor<8xf32>, %steps: tensor<i32>) -> tensor<8xf32> {
  %zero = arith.constant dense<0> : tensor<i32>
  %one = arith.constant dense<1> : tensor<i32>
  %half = arith.constant dense<0.5> : tensor<8xf32>
  %result:2 = scf.while (%i = %zero, %v = %x) : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>) {
    %less = arith.cmpi slt, %i, %steps : tensor<i32>
    %go = tensor.extract %less[] : tensor<i1>
    scf.condition(%go) %i, %v : tensor<i32>, tensor<8xf32>
  } do {
  ^bb0(%i: tensor<i32>, %v: tensor<8xf32>):
    %next = arith.addi %i, %one : tensor<i32>
    %w = arith.mulf %v, %half : tensor<8xf32>
    scf.yield %next, %w : tensor<i32>, tensor<8xf32>
  }
  return %result#1 : tensor<8xf32>
}
func.func @shift(%x: tensor<8xf32>) -> tensor<8xf32> {
  %c = arith.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> : tensor<8xf32>
  %constant = util.optimization_barrier %c : tensor<8xf32>
  %y = arith.addf %x, %constant : tensor<8xf32>
  return %y : tensor<8xf32>
}
