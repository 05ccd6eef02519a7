//! Mistral: Llama without biases, and with a window over the past in its first version.

use longview_ops::Activation;

use super::layout::LLAMA;
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// Mistral 7B and Nemo. v0.1 slides over 4096 tokens; later ones say `null`.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "MistralForCausalLM",
    model_type: "mistral",
    layout: LLAMA,
    qkv_bias: BiasRule::Never,
    o_bias: BiasRule::Never,
    mlp_bias: BiasRule::Never,
    qk_norm: false,
    sliding: SlidingRule::Everywhere(Some(4096)),
    activation: Activation::Silu,
    scales_embedding: false,
    norm_plus_one: false,
    default_tied: false,
    default_rope_theta: 10_000.0,
    partial_rotary: None,
    default_head_dim: None,
    default_n_kv_heads: Some(8),
    default_max_positions: 131_072,
    default_rms_norm_eps: 1e-6,
};
