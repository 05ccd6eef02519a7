//! Llama: the plain decoder the others differ from. Biases only where the config asks for them.

use longview_ops::Activation;

use super::layout::LLAMA;
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// Llama 2 to 3.2; the RoPE scaling between them is config, not architecture.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "LlamaForCausalLM",
    model_type: "llama",
    layout: LLAMA,
    qkv_bias: BiasRule::AttentionBias(false),
    o_bias: BiasRule::AttentionBias(false),
    mlp_bias: BiasRule::MlpBias,
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
