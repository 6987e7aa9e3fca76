// Made by program.py, which compiles it with layers.mlir.
// Many processes: the program is the same, and each has its shard. The sum is a collective.
util.global private @attn_norm = #flow.parameter.named<"model"::"attn_norm.weight"> : tensor<32xf32>
util.global private @attn_q = #flow.parameter.named<"model"::"attn_q.weight"> : tensor<16x32xf32>
util.global private @attn_k = #flow.parameter.named<"model"::"attn_k.weight"> : tensor<16x32xf32>
util.global private @attn_v = #flow.parameter.named<"model"::"attn_v.weight"> : tensor<16x32xf32>
util.global private @attn_output = #flow.parameter.named<"model"::"attn_output.weight"> : tensor<32x16xf32>
util.global private @ffn_norm = #flow.parameter.named<"model"::"ffn_norm.weight"> : tensor<32xf32>
util.global private @ffn_gate = #flow.parameter.named<"model"::"ffn_gate.weight"> : tensor<16x32xf32>
util.global private @ffn_up = #flow.parameter.named<"model"::"ffn_up.weight"> : tensor<16x32xf32>
util.global private @ffn_down = #flow.parameter.named<"model"::"ffn_down.weight"> : tensor<32x16xf32>
util.func public @block(%x: tensor<8x32xf32>) -> tensor<8x32xf32> {
%channel = flow.channel.default : !flow.channel
%attn_norm = util.global.load @attn_norm : tensor<32xf32>
%attn_q = util.global.load @attn_q : tensor<16x32xf32>
%attn_k = util.global.load @attn_k : tensor<16x32xf32>
%attn_v = util.global.load @attn_v : tensor<16x32xf32>
%attn_output = util.global.load @attn_output : tensor<32x16xf32>
%y_attention = util.call @norm(%x, %attn_norm) : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
%part_attention = util.call @attention(%y_attention, %attn_q, %attn_k, %attn_v, %attn_output) : (tensor<8x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
%e_attention = tensor.empty() : tensor<8x32xf32>
%total_attention = flow.collective.all_reduce sum, f32, %e_attention, %part_attention, %channel : (tensor<8x32xf32>, tensor<8x32xf32>, !flow.channel) -> %e_attention as tensor<8x32xf32>
%after_attention = arith.addf %x, %total_attention : tensor<8x32xf32>
%ffn_norm = util.global.load @ffn_norm : tensor<32xf32>
%ffn_gate = util.global.load @ffn_gate : tensor<16x32xf32>
%ffn_up = util.global.load @ffn_up : tensor<16x32xf32>
%ffn_down = util.global.load @ffn_down : tensor<32x16xf32>
%y_feed_forward = util.call @norm(%after_attention, %ffn_norm) : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
%part_feed_forward = util.call @feed_forward(%y_feed_forward, %ffn_gate, %ffn_up, %ffn_down) : (tensor<8x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<8x32xf32>
%e_feed_forward = tensor.empty() : tensor<8x32xf32>
%total_feed_forward = flow.collective.all_reduce sum, f32, %e_feed_forward, %part_feed_forward, %channel : (tensor<8x32xf32>, tensor<8x32xf32>, !flow.channel) -> %e_feed_forward as tensor<8x32xf32>
%after_feed_forward = arith.addf %after_attention, %total_feed_forward : tensor<8x32xf32>
util.return %after_feed_forward : tensor<8x32xf32>
}
