// Compiled by iree-compile 3.13.0 --iree-hal-target-backends=cuda --iree-cuda-target=sm_80.
func.func @all_reduce(%a: tensor<1024xf32>) -> tensor<1024xf32> {
  %ch = flow.channel.default : !flow.channel
  %e = tensor.empty() : tensor<1024xf32>
  %r = flow.collective.all_reduce sum, f32, %e, %a, %ch : (tensor<1024xf32>, tensor<1024xf32>, !flow.channel) -> %e as tensor<1024xf32>
  return %r : tensor<1024xf32>
}
func.func @all_gather(%a: tensor<256xf32>) -> tensor<512xf32> {
  %ch = flow.channel.default "rows" : !flow.channel
  %e = tensor.empty() : tensor<512xf32>
  %r = flow.collective.all_gather f32, %e, %a, %ch : (tensor<512xf32>, tensor<256xf32>, !flow.channel) -> %e as tensor<512xf32>
  return %r : tensor<512xf32>
}
func.func @exchange(%a: tensor<64xi32>, %color: index, %key: index, %to: index, %from: index) -> tensor<64xi32> {
  %ch = flow.channel.default : !flow.channel
  %sub = flow.channel.split %ch, %color, %key : !flow.channel -> !flow.channel
  %e = tensor.empty() : tensor<64xi32>
  %r = flow.collective.send_recv ui32, %e, %a, %sub, %to, %from : (tensor<64xi32>, tensor<64xi32>, !flow.channel, index, index) -> %e as tensor<64xi32>
  return %r : tensor<64xi32>
}
func.func @who() -> (index, index) {
  %ch = flow.channel.default : !flow.channel
  %rank = flow.channel.rank %ch : index
  %count = flow.channel.count %ch : index
  return %rank, %count : index, index
}
