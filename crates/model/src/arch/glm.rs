//! GLM-4 in the layout of Hugging Face: half of each head is rotated, in pairs of neighbours; its
//! second version norms what each half of a layer adds to the residual stream.

use longview_ops::Activation;

use super::layout::Layout;
use super::layout::{GateUpLayout, LLAMA, RotaryPairs};
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// GLM-4-9B (`glm-4-9b-chat-hf`, `glm-4-9b-chat-1m-hf`).
pub(super) const GLM: ArchTraits = ArchTraits {
    class_name: "GlmForCausalLM",
    model_type: "glm",
    layout: Layout {
        pairs: RotaryPairs::Neighbours,
        gate_up: GateUpLayout::Stacked("mlp.gate_up_proj"),
        ..LLAMA
    },
    qkv_bias: BiasRule::AttentionBias(true),
    o_bias: BiasRule::Never,
    mlp_bias: BiasRule::Never,
    qk_norm: false,
    sliding: SlidingRule::Never,
    activation: Activation::Silu,
    scales_embedding: false,
    norm_plus_one: false,
    default_tied: false,
    default_rope_theta: 10_000.0,
    partial_rotary: Some(0.5),
    default_head_dim: Some(128),
    default_n_kv_heads: Some(2),
    default_max_positions: 131_072,
    default_rms_norm_eps: 1.5625e-7,
};

/// GLM-4-0414 and GLM-Z1: with norms behind attention and MLP, too.
pub(super) const GLM4: ArchTraits = ArchTraits {
    class_name: "Glm4ForCausalLM",
    model_type: "glm4",
    layout: Layout {
        o_norm: Some("post_self_attn_layernorm"),
        down_norm: Some("post_mlp_layernorm"),
        ..GLM.layout
    },
    ..GLM
};
