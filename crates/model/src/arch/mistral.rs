//! Mistral: Llama without biases, and with a window over the past in its first version.

use super::{ArchTraits, BiasRule, SlidingRule};

/// Mistral 7B and Nemo. v0.1 slides over 4096 tokens; later ones say `null`.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "MistralForCausalLM",
    model_type: "mistral",
    qkv_bias: BiasRule::Never,
    o_bias: BiasRule::Never,
    mlp_bias: BiasRule::Never,
    qk_norm: false,
    sliding: SlidingRule::Everywhere(4096),
    default_head_dim: None,
    default_n_kv_heads: Some(8),
    default_max_positions: 131_072,
};
