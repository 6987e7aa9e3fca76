// Functions that return what they are given, for every element type and several ranks.
// iree-compile 3.13 --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu
//   --iree-llvmcpu-target-cpu=generic --iree-input-demote-f64-to-f32=false echo.mlir -o echo.vmfb
func.func @e1_i1(%a: tensor<?xi1>) -> tensor<?xi1> {
  return %a : tensor<?xi1>
}
func.func @e1_i4(%a: tensor<?xi4>) -> tensor<?xi4> {
  return %a : tensor<?xi4>
}
func.func @e1_i8(%a: tensor<?xi8>) -> tensor<?xi8> {
  return %a : tensor<?xi8>
}
func.func @e1_i16(%a: tensor<?xi16>) -> tensor<?xi16> {
  return %a : tensor<?xi16>
}
func.func @e1_i32(%a: tensor<?xi32>) -> tensor<?xi32> {
  return %a : tensor<?xi32>
}
func.func @e1_i64(%a: tensor<?xi64>) -> tensor<?xi64> {
  return %a : tensor<?xi64>
}
func.func @e1_f16(%a: tensor<?xf16>) -> tensor<?xf16> {
  return %a : tensor<?xf16>
}
func.func @e1_bf16(%a: tensor<?xbf16>) -> tensor<?xbf16> {
  return %a : tensor<?xbf16>
}
func.func @e1_f32(%a: tensor<?xf32>) -> tensor<?xf32> {
  return %a : tensor<?xf32>
}
func.func @e1_f64(%a: tensor<?xf64>) -> tensor<?xf64> {
  return %a : tensor<?xf64>
}
func.func @e1_f8E4M3FN(%a: tensor<?xf8E4M3FN>) -> tensor<?xf8E4M3FN> {
  return %a : tensor<?xf8E4M3FN>
}
func.func @e1_f8E5M2(%a: tensor<?xf8E5M2>) -> tensor<?xf8E5M2> {
  return %a : tensor<?xf8E5M2>
}
func.func @e1_f8E4M3FNUZ(%a: tensor<?xf8E4M3FNUZ>) -> tensor<?xf8E4M3FNUZ> {
  return %a : tensor<?xf8E4M3FNUZ>
}
func.func @e1_f8E5M2FNUZ(%a: tensor<?xf8E5M2FNUZ>) -> tensor<?xf8E5M2FNUZ> {
  return %a : tensor<?xf8E5M2FNUZ>
}
func.func @e1_complex_f32(%a: tensor<?xcomplex<f32>>) -> tensor<?xcomplex<f32>> {
  return %a : tensor<?xcomplex<f32>>
}
func.func @e1_complex_f64(%a: tensor<?xcomplex<f64>>) -> tensor<?xcomplex<f64>> {
  return %a : tensor<?xcomplex<f64>>
}
func.func @e1_si32(%a: tensor<?xsi32>) -> tensor<?xsi32> {
  return %a : tensor<?xsi32>
}
func.func @e1_ui8(%a: tensor<?xui8>) -> tensor<?xui8> {
  return %a : tensor<?xui8>
}
func.func @e1_ui32(%a: tensor<?xui32>) -> tensor<?xui32> {
  return %a : tensor<?xui32>
}
func.func @e1_f8E8M0FNU(%a: tensor<?xf8E8M0FNU>) -> tensor<?xf8E8M0FNU> {
  return %a : tensor<?xf8E8M0FNU>
}
func.func @e1_i2(%a: tensor<?xi2>) -> tensor<?xi2> {
  return %a : tensor<?xi2>
}
func.func @e0_f32(%a: tensor<f32>) -> tensor<f32> {
  return %a : tensor<f32>
}
func.func @e2_f32(%a: tensor<?x?xf32>) -> tensor<?x?xf32> {
  return %a : tensor<?x?xf32>
}
func.func @e3_f32(%a: tensor<?x?x?xf32>) -> tensor<?x?x?xf32> {
  return %a : tensor<?x?x?xf32>
}
func.func @e0_i32(%a: tensor<i32>) -> tensor<i32> {
  return %a : tensor<i32>
}
func.func @e2_i32(%a: tensor<?x?xi32>) -> tensor<?x?xi32> {
  return %a : tensor<?x?xi32>
}
func.func @e3_i32(%a: tensor<?x?x?xi32>) -> tensor<?x?x?xi32> {
  return %a : tensor<?x?x?xi32>
}
func.func @e0_i8(%a: tensor<i8>) -> tensor<i8> {
  return %a : tensor<i8>
}
func.func @e2_i8(%a: tensor<?x?xi8>) -> tensor<?x?xi8> {
  return %a : tensor<?x?xi8>
}
func.func @e3_i8(%a: tensor<?x?x?xi8>) -> tensor<?x?x?xi8> {
  return %a : tensor<?x?x?xi8>
}
func.func @s_i1(%a: i1) -> i1 {
  return %a : i1
}
func.func @s_i8(%a: i8) -> i8 {
  return %a : i8
}
func.func @s_i16(%a: i16) -> i16 {
  return %a : i16
}
func.func @s_i32(%a: i32) -> i32 {
  return %a : i32
}
func.func @s_i64(%a: i64) -> i64 {
  return %a : i64
}
func.func @s_f32(%a: f32) -> f32 {
  return %a : f32
}
func.func @s_f64(%a: f64) -> f64 {
  return %a : f64
}
func.func @s_index(%a: index) -> index {
  return %a : index
}
func.func @s_f16(%a: f16) -> f16 {
  return %a : f16
}
func.func @two(%a: tensor<4xf32>, %b: i32) -> (tensor<4xf32>, i32) {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0, %b : tensor<4xf32>, i32
}
func.func @buffer() -> !util.buffer {
  %c = util.buffer.constant : !util.buffer = dense<[1,2,3,4]> : vector<4xi8>
  return %c : !util.buffer
}
func.func @list(%a: tensor<2xi32>) -> !util.list<?> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %v = arith.constant 42 : i32
  %f = arith.constant 1.25 : f32
  %l = util.list.create %c3 : !util.list<?>
  util.list.resize %l, %c3 : !util.list<?>
  util.list.set %l[%c0], %v : i32 -> !util.list<?>
  util.list.set %l[%c1], %f : f32 -> !util.list<?>
  return %l : !util.list<?>
}
func.func @r_list(%a: !util.list<?>) -> !util.list<?> {
  return %a : !util.list<?>
}
func.func @r_buffer(%a: !hal.buffer) -> !hal.buffer {
  return %a : !hal.buffer
}
func.func @r_view(%a: !hal.buffer_view) -> !hal.buffer_view {
  return %a : !hal.buffer_view
}
