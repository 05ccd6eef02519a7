//! Qwen3: no q/k/v bias, an RMS norm over each head of q and k instead, heads of 128 by default.

use longview_ops::Activation;

use super::layout::LLAMA;
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// Qwen3, the dense models.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    layout: LLAMA,
    qkv_bias: BiasRule::AttentionBias(false),
    o_bias: BiasRule::AttentionBias(false),
    mlp_bias: BiasRule::Never,
    qk_norm: true,
    sliding: SlidingRule::WhenEnabled,
    activation: Activation::Silu,
    scales_embedding: false,
    norm_plus_one: false,
    default_tied: false,
    default_rope_theta: 10_000.0,
    partial_rotary: None,
    default_head_dim: Some(128),
    default_n_kv_heads: Some(32),
    default_max_positions: 32_768,
    default_rms_norm_eps: 1e-6,
};
