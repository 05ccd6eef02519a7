//! Gemma 3, its text models: windows in five of six layers, with a rotary embedding of their own,
//! norms before and behind each half of a layer, and a gate that goes through a Gaussian.

use longview_ops::Activation;

use super::layout::LLAMA;
use super::layout::Layout;
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// Gemma 3 of 270M and 1B, and the text model alone of the others.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    layout: Layout {
        o_norm: Some("post_attention_layernorm"),
        post_norm: "pre_feedforward_layernorm",
        down_norm: Some("post_feedforward_layernorm"),
        ..LLAMA
    },
    qkv_bias: BiasRule::AttentionBias(false),
    o_bias: BiasRule::AttentionBias(false),
    mlp_bias: BiasRule::Never,
    qk_norm: true,
    sliding: SlidingRule::Alternating { window: 4096, pattern: 6 },
    activation: Activation::GeluTanh,
    scales_embedding: true,
    norm_plus_one: true,
    default_tied: true,
    default_rope_theta: 1e6,
    partial_rotary: None,
    default_head_dim: Some(256),
    default_n_kv_heads: Some(4),
    default_max_positions: 131_072,
    default_rms_norm_eps: 1e-6,
};
