// A loop that divides by a number that falls, and shows the host each quotient: a division by zero is a
// dispatch that fails in the middle of a loop, and an error of the host one of an import.
module @module {
  func.func private @host.check(%quotient: i32) -> i32
  func.func @divide(%first: tensor<8xi32>, %count: i32) -> tensor<8xi32> {
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %end = arith.index_cast %count : i32 to index
    %empty = tensor.empty() : tensor<8xi32>
    %last = scf.for %i = %zero to %end step %one iter_args(%by = %first) -> tensor<8xi32> {
      %quotients = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
          iterator_types = ["parallel"]} ins(%by : tensor<8xi32>) outs(%empty : tensor<8xi32>) {
        ^bb0(%x: i32, %y: i32):
          %hundred = arith.constant 100 : i32
          %quotient = arith.divsi %hundred, %x : i32
          linalg.yield %quotient : i32
      } -> tensor<8xi32>
      %shown = tensor.extract %quotients[%zero] : tensor<8xi32>
      %step = func.call @host.check(%shown) : (i32) -> i32
      %next = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
          iterator_types = ["parallel"]} ins(%by : tensor<8xi32>) outs(%empty : tensor<8xi32>) {
        ^bb0(%x: i32, %y: i32):
          %less = arith.subi %x, %step : i32
          linalg.yield %less : i32
      } -> tensor<8xi32>
      scf.yield %next : tensor<8xi32>
    }
    return %last : tensor<8xi32>
  }
}
