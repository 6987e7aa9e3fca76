// Made by program.py, which compiles it with layers.mlir.
// One process: device i has shard i of each weight. Each device makes the sum of all parts.
util.global private @attn_norm_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"attn_norm.weight.shard.0"> : tensor<32xf32>
util.global private @attn_norm_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"attn_norm.weight.shard.1"> : tensor<32xf32>
util.global private @attn_q_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"attn_q.weight.shard.0"> : tensor<16x32xf32>
util.global private @attn_q_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"attn_q.weight.shard.1"> : tensor<16x32xf32>
util.global private @attn_k_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"attn_k.weight.shard.0"> : tensor<16x32xf32>
util.global private @attn_k_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"attn_k.weight.shard.1"> : tensor<16x32xf32>
util.global private @attn_v_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"attn_v.weight.shard.0"> : tensor<16x32xf32>
util.global private @attn_v_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"attn_v.weight.shard.1"> : tensor<16x32xf32>
util.global private @attn_output_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"attn_output.weight.shard.0"> : tensor<32x16xf32>
util.global private @attn_output_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"attn_output.weight.shard.1"> : tensor<32x16xf32>
util.global private @ffn_norm_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"ffn_norm.weight.shard.0"> : tensor<32xf32>
util.global private @ffn_norm_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"ffn_norm.weight.shard.1"> : tensor<32xf32>
util.global private @ffn_gate_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"ffn_gate.weight.shard.0"> : tensor<16x32xf32>
util.global private @ffn_gate_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"ffn_gate.weight.shard.1"> : tensor<16x32xf32>
util.global private @ffn_up_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"ffn_up.weight.shard.0"> : tensor<16x32xf32>
util.global private @ffn_up_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"ffn_up.weight.shard.1"> : tensor<16x32xf32>
util.global private @ffn_down_0 {stream.affinity = #hal.device.promise<@__device_0>} = #flow.parameter.named<"model"::"ffn_down.weight.shard.0"> : tensor<32x16xf32>
util.global private @ffn_down_1 {stream.affinity = #hal.device.promise<@__device_1>} = #flow.parameter.named<"model"::"ffn_down.weight.shard.1"> : tensor<32x16xf32>
util.func public @block(%x: tensor<8x32xf32>) -> tensor<8x32xf32> {
%x_0 = flow.tensor.transfer %x : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%x_1 = flow.tensor.transfer %x : tensor<8x32xf32> to #hal.device.promise<@__device_1>
%attn_norm_0 = util.global.load @attn_norm_0 : tensor<32xf32>
%attn_q_0 = util.global.load @attn_q_0 : tensor<16x32xf32>
%attn_k_0 = util.global.load @attn_k_0 : tensor<16x32xf32>
%attn_v_0 = util.global.load @attn_v_0 : tensor<16x32xf32>
%attn_output_0 = util.global.load @attn_output_0 : tensor<32x16xf32>
%y_attention_0 = util.call @norm(%x_0, %attn_norm_0) : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
%part_attention_0 = util.call @attention(%y_attention_0, %attn_q_0, %attn_k_0, %attn_v_0, %attn_output_0) : (tensor<8x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
%attn_norm_1 = util.global.load @attn_norm_1 : tensor<32xf32>
%attn_q_1 = util.global.load @attn_q_1 : tensor<16x32xf32>
%attn_k_1 = util.global.load @attn_k_1 : tensor<16x32xf32>
%attn_v_1 = util.global.load @attn_v_1 : tensor<16x32xf32>
%attn_output_1 = util.global.load @attn_output_1 : tensor<32x16xf32>
%y_attention_1 = util.call @norm(%x_1, %attn_norm_1) : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
%part_attention_1 = util.call @attention(%y_attention_1, %attn_q_1, %attn_k_1, %attn_v_1, %attn_output_1) : (tensor<8x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
%from_attention_0_0 = flow.tensor.transfer %part_attention_0 : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%sum_attention_0_0 = arith.addf %x_0, %from_attention_0_0 : tensor<8x32xf32>
%from_attention_0_1 = flow.tensor.transfer %part_attention_1 : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%sum_attention_0_1 = arith.addf %sum_attention_0_0, %from_attention_0_1 : tensor<8x32xf32>
%after_attention_0 = flow.tensor.transfer %sum_attention_0_1 : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%from_attention_1_0 = flow.tensor.transfer %part_attention_0 : tensor<8x32xf32> to #hal.device.promise<@__device_1>
%sum_attention_1_0 = arith.addf %x_1, %from_attention_1_0 : tensor<8x32xf32>
%from_attention_1_1 = flow.tensor.transfer %part_attention_1 : tensor<8x32xf32> to #hal.device.promise<@__device_1>
%sum_attention_1_1 = arith.addf %sum_attention_1_0, %from_attention_1_1 : tensor<8x32xf32>
%after_attention_1 = flow.tensor.transfer %sum_attention_1_1 : tensor<8x32xf32> to #hal.device.promise<@__device_1>
%ffn_norm_0 = util.global.load @ffn_norm_0 : tensor<32xf32>
%ffn_gate_0 = util.global.load @ffn_gate_0 : tensor<16x32xf32>
%ffn_up_0 = util.global.load @ffn_up_0 : tensor<16x32xf32>
%ffn_down_0 = util.global.load @ffn_down_0 : tensor<32x16xf32>
%y_feed_forward_0 = util.call @norm(%after_attention_0, %ffn_norm_0) : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
%part_feed_forward_0 = util.call @feed_forward(%y_feed_forward_0, %ffn_gate_0, %ffn_up_0, %ffn_down_0) : (tensor<8x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
%ffn_norm_1 = util.global.load @ffn_norm_1 : tensor<32xf32>
%ffn_gate_1 = util.global.load @ffn_gate_1 : tensor<16x32xf32>
%ffn_up_1 = util.global.load @ffn_up_1 : tensor<16x32xf32>
%ffn_down_1 = util.global.load @ffn_down_1 : tensor<32x16xf32>
%y_feed_forward_1 = util.call @norm(%after_attention_1, %ffn_norm_1) : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
%part_feed_forward_1 = util.call @feed_forward(%y_feed_forward_1, %ffn_gate_1, %ffn_up_1, %ffn_down_1) : (tensor<8x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
%from_feed_forward_0_0 = flow.tensor.transfer %part_feed_forward_0 : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%sum_feed_forward_0_0 = arith.addf %after_attention_0, %from_feed_forward_0_0 : tensor<8x32xf32>
%from_feed_forward_0_1 = flow.tensor.transfer %part_feed_forward_1 : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%sum_feed_forward_0_1 = arith.addf %sum_feed_forward_0_0, %from_feed_forward_0_1 : tensor<8x32xf32>
%after_feed_forward_0 = flow.tensor.transfer %sum_feed_forward_0_1 : tensor<8x32xf32> to #hal.device.promise<@__device_0>
%from_feed_forward_1_0 = flow.tensor.transfer %part_feed_forward_0 : tensor<8x32xf32> to #hal.device.promise<@__device_1>
%sum_feed_forward_1_0 = arith.addf %after_attention_1, %from_feed_forward_1_0 : tensor<8x32xf32>
%from_feed_forward_1_1 = flow.tensor.transfer %part_feed_forward_1 : tensor<8x32xf32> to #hal.device.promise<@__device_1>
%sum_feed_forward_1_1 = arith.addf %sum_feed_forward_1_0, %from_feed_forward_1_1 : tensor<8x32xf32>
%after_feed_forward_1 = flow.tensor.transfer %sum_feed_forward_1_1 : tensor<8x32xf32> to #hal.device.promise<@__device_1>
util.return %after_feed_forward_0 : tensor<8x32xf32>
}
