//! The flags of an architecture.

use longview_ops::Activation;

use super::layout::Layout;

/// Whether a projection carries a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasRule {
    /// There is none, whatever the config says.
    Never,
    /// There always is one.
    Always,
    /// `attention_bias` of the config decides; the value is what an absent field means.
    AttentionBias(bool),
    /// `bias` of the config decides; the value is what an absent field means.
    Bias(bool),
    /// `mlp_bias` of the config decides.
    MlpBias,
}

/// Which config fields switch a sliding attention window on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingRule {
    /// The architecture has no such window.
    Never,
    /// `sliding_window` alone, on every layer; the value is what an absent field means.
    Everywhere(Option<usize>),
    /// `use_sliding_window` and then `layer_types` or `max_window_layers`.
    WhenEnabled,
    /// `sliding_window` on the layers that `layer_types` names, else on all but every n-th by
    /// `sliding_window_pattern`; the values are what absent fields mean. These layers have a rotary
    /// embedding of their own.
    Alternating {
        /// Tokens that such a layer sees.
        window: usize,
        /// The last of so many layers sees all.
        pattern: usize,
    },
}

/// The flags of one architecture, with the defaults transformers gives to absent fields.
#[derive(Clone, Copy, Debug)]
pub struct ArchTraits {
    /// The class in `architectures`.
    pub class_name: &'static str,
    /// The `model_type` beside it.
    pub model_type: &'static str,
    /// What its checkpoints call their tensors, and how these are arranged.
    pub layout: Layout,
    /// Bias of the q, k and v projections.
    pub qkv_bias: BiasRule,
    /// Bias of the output projection.
    pub o_bias: BiasRule,
    /// Bias of the gate, up and down projections.
    pub mlp_bias: BiasRule,
    /// An RMS norm over each head of q and k before RoPE.
    pub qk_norm: bool,
    /// How a sliding window is declared.
    pub sliding: SlidingRule,
    /// What the gate of the MLP goes through.
    pub activation: Activation,
    /// Embeddings are multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    /// Checkpoints hold the weights of norms less 1.
    pub norm_plus_one: bool,
    /// Whether the output projection is the embedding where `tie_word_embeddings` is absent.
    pub default_tied: bool,
    /// Base of the rotary embedding where `rope_theta` is absent.
    pub default_rope_theta: f64,
    /// The part of each head that rotates where `partial_rotary_factor` is absent; `None`: the
    /// field may not say less than all of it.
    pub partial_rotary: Option<f64>,
    /// Head width where `head_dim` is absent; `None` divides the hidden size by the heads.
    pub default_head_dim: Option<usize>,
    /// KV heads where `num_key_value_heads` is absent; `None` means as many as query heads.
    pub default_n_kv_heads: Option<usize>,
    /// Positions where `max_position_embeddings` is absent.
    pub default_max_positions: usize,
    /// Epsilon of the norms where `rms_norm_eps` is absent.
    pub default_rms_norm_eps: f64,
}
