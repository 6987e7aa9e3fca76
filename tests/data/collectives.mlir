// Compiled by iree-compile 3.13.0 --iree-hal-target-backends=vmvx.
func.func @all_reduce(%a: tensor<1024xf32>) -> tensor<1024xf32> {
  %ch = flow.channel.default : !flow.channel
  %e = tensor.empty() : tensor<1024xf32>
  %r = flow.collective.all_reduce sum, f32, %e, %a, %ch : (tensor<1024xf32>, tensor<1024xf32>, !flow.channel) -> %e as tensor<1024xf32>
  return %r : tensor<1024xf32>
}
func.func @scaled_sum(%a: tensor<8xf32>) -> tensor<8xf32> {
  %ch = flow.channel.default : !flow.channel
  %e = tensor.empty() : tensor<8xf32>
  %b = arith.addf %a, %a : tensor<8xf32>
  %r = flow.collective.all_reduce sum, f32, %e, %b, %ch : (tensor<8xf32>, tensor<8xf32>, !flow.channel) -> %e as tensor<8xf32>
  %c = arith.mulf %r, %a : tensor<8xf32>
  return %c : tensor<8xf32>
}
func.func @largest(%a: tensor<8xi16>) -> tensor<8xi16> {
  %ch = flow.channel.default : !flow.channel
  %e = tensor.empty() : tensor<8xi16>
  %r = flow.collective.all_reduce maximum, si16, %e, %a, %ch : (tensor<8xi16>, tensor<8xi16>, !flow.channel) -> %e as tensor<8xi16>
  return %r : tensor<8xi16>
}
func.func @all_gather(%a: tensor<4xf32>) -> tensor<8xf32> {
  %ch = flow.channel.default "rows" : !flow.channel
  %e = tensor.empty() : tensor<8xf32>
  %r = flow.collective.all_gather f32, %e, %a, %ch : (tensor<8xf32>, tensor<4xf32>, !flow.channel) -> %e as tensor<8xf32>
  return %r : tensor<8xf32>
}
func.func @reduce_scatter(%a: tensor<8xf32>) -> tensor<4xf32> {
  %ch = flow.channel.default : !flow.channel
  %e = tensor.empty() : tensor<4xf32>
  %r = flow.collective.reduce_scatter sum, f32, %e, %a, %ch : (tensor<4xf32>, tensor<8xf32>, !flow.channel) -> %e as tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @all_to_all(%a: tensor<8xi32>) -> tensor<8xi32> {
  %ch = flow.channel.default : !flow.channel
  %e = tensor.empty() : tensor<8xi32>
  %r = flow.collective.all_to_all si32, %e, %a, %ch : (tensor<8xi32>, tensor<8xi32>, !flow.channel) -> %e as tensor<8xi32>
  return %r : tensor<8xi32>
}
func.func @exchange(%a: tensor<16xi32>, %color: index, %key: index, %to: index, %from: index) -> tensor<16xi32> {
  %ch = flow.channel.default : !flow.channel
  %sub = flow.channel.split %ch, %color, %key : !flow.channel -> !flow.channel
  %e = tensor.empty() : tensor<16xi32>
  %r = flow.collective.send_recv ui32, %e, %a, %sub, %to, %from : (tensor<16xi32>, tensor<16xi32>, !flow.channel, index, index) -> %e as tensor<16xi32>
  return %r : tensor<16xi32>
}
func.func @who() -> (index, index) {
  %ch = flow.channel.default : !flow.channel
  %rank = flow.channel.rank %ch : index
  %count = flow.channel.count %ch : index
  return %rank, %count : index, index
}
