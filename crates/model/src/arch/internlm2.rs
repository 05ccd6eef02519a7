//! InternLM2 and InternLM2.5: Llama with other names, and q, k and v in one tensor by KV head.

use longview_ops::Activation;

use super::layout::{GateUpLayout, Layout, QkvLayout, RotaryPairs};
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// InternLM2 and InternLM2.5. Checkpoints that were converted to Llama's layout are Llama.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "InternLM2ForCausalLM",
    model_type: "internlm2",
    layout: Layout {
        embedding: "model.tok_embeddings.weight",
        lm_head: "output.weight",
        input_norm: "attention_norm",
        qkv: QkvLayout::ByKvHead("attention.wqkv"),
        pairs: RotaryPairs::Halves,
        o: "attention.wo",
        o_norm: None,
        post_norm: "ffn_norm",
        gate_up: GateUpLayout::Apart(["feed_forward.w1", "feed_forward.w3"]),
        down: "feed_forward.w2",
        down_norm: None,
    },
    qkv_bias: BiasRule::Bias(true),
    o_bias: BiasRule::Bias(true),
    mlp_bias: BiasRule::Never,
    qk_norm: false,
    sliding: SlidingRule::Never,
    activation: Activation::Silu,
    scales_embedding: false,
    norm_plus_one: false,
    default_tied: false,
    default_rope_theta: 10_000.0,
    partial_rotary: None,
    default_head_dim: None,
    default_n_kv_heads: None,
    default_max_positions: 2048,
    default_rms_norm_eps: 1e-6,
};
