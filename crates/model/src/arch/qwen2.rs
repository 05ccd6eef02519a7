//! Qwen2 and Qwen2.5: Llama with a bias on q, k and v, and a window that is nearly always off.

use longview_ops::Activation;

use super::layout::LLAMA;
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// Qwen2 and Qwen2.5.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "Qwen2ForCausalLM",
    model_type: "qwen2",
    layout: LLAMA,
    qkv_bias: BiasRule::Always,
    o_bias: BiasRule::Never,
    mlp_bias: BiasRule::Never,
    qk_norm: false,
    sliding: SlidingRule::WhenEnabled,
    activation: Activation::Silu,
    scales_embedding: false,
    norm_plus_one: false,
    default_tied: false,
    default_rope_theta: 10_000.0,
    partial_rotary: None,
    default_head_dim: None,
    default_n_kv_heads: Some(32),
    default_max_positions: 32_768,
    default_rms_norm_eps: 1e-6,
};
