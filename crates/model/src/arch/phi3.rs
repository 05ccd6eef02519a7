//! Phi-3, Phi-3.5 and Phi-4: fused projections, LongRoPE, and in Phi-4-mini a part of each head
//! that is not rotated.

use longview_ops::Activation;

use super::layout::Layout;
use super::layout::{GateUpLayout, LLAMA, QkvLayout};
use super::traits::{ArchTraits, BiasRule, SlidingRule};

/// Phi-3 mini and medium, Phi-3.5-mini, Phi-4 and Phi-4-mini.
pub(super) const TRAITS: ArchTraits = ArchTraits {
    class_name: "Phi3ForCausalLM",
    model_type: "phi3",
    layout: Layout {
        qkv: QkvLayout::Stacked("self_attn.qkv_proj"),
        gate_up: GateUpLayout::Stacked("mlp.gate_up_proj"),
        ..LLAMA
    },
    qkv_bias: BiasRule::Never,
    o_bias: BiasRule::Never,
    mlp_bias: BiasRule::Never,
    qk_norm: false,
    sliding: SlidingRule::Everywhere(None),
    activation: Activation::Silu,
    scales_embedding: false,
    norm_plus_one: false,
    default_tied: false,
    default_rope_theta: 10_000.0,
    partial_rotary: Some(1.0),
    default_head_dim: None,
    default_n_kv_heads: None,
    default_max_positions: 4096,
    default_rms_norm_eps: 1e-5,
};
