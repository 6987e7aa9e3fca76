// A loop whose condition is computed on the device and read by the host in every step.
func.func @newton(%start: tensor<256xf32>, %steps: tensor<i32>) -> tensor<256xf32> {
  %zero = arith.constant dense<0> : tensor<i32>
  %one = arith.constant dense<1> : tensor<i32>
  %result:2 = scf.while (%i = %zero, %x = %start) : (tensor<i32>, tensor<256xf32>) -> (tensor<i32>, tensor<256xf32>) {
    %more = arith.cmpi slt, %i, %steps : tensor<i32>
    %condition = tensor.extract %more[] : tensor<i1>
    scf.condition(%condition) %i, %x : tensor<i32>, tensor<256xf32>
  } do {
  ^bb0(%i: tensor<i32>, %x: tensor<256xf32>):
    %next = arith.addi %i, %one : tensor<i32>
    %half = arith.constant dense<0.5> : tensor<256xf32>
    %two = arith.constant dense<2.0> : tensor<256xf32>
    %quotient = arith.divf %two, %x : tensor<256xf32>
    %sum = arith.addf %x, %quotient : tensor<256xf32>
    %root = arith.mulf %sum, %half : tensor<256xf32>
    scf.yield %next, %root : tensor<i32>, tensor<256xf32>
  }
  return %result#1 : tensor<256xf32>
}
