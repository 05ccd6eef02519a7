//! How checkpoints name and arrange their tensors, as data.
//!
//! The transformer knows one arrangement: q, k, v, gate and up apart, and heads whose halves rotate
//! against each other. A layout says which rows of which stored tensor those are, so that other
//! arrangements are a matter of loading and cost nothing afterwards.

/// Names and arrangement of a checkpoint's tensors. The parts of a layer stand without
/// `model.layers.N.` in front and without `.weight` or `.bias` behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The embedding, `[V, D]`, by its full name.
    pub embedding: &'static str,
    /// The output projection of an untied model, `[V, D]`, by its full name.
    pub lm_head: &'static str,
    /// The norm before attention, `[D]`.
    pub input_norm: &'static str,
    /// The projections to queries, keys and values.
    pub qkv: QkvLayout,
    /// Which components of a head the stored rows of q and k rotate together.
    pub pairs: RotaryPairs,
    /// Attention's output projection, `[D, Hq * Dh]`.
    pub o: &'static str,
    /// A norm of what attention adds to the residual stream, `[D]`, where there is one.
    pub o_norm: Option<&'static str>,
    /// The norm before the MLP, `[D]`.
    pub post_norm: &'static str,
    /// The MLP's first half.
    pub gate_up: GateUpLayout,
    /// The MLP's output projection, `[D, F]`.
    pub down: &'static str,
    /// A norm of what the MLP adds to the residual stream, `[D]`, where there is one.
    pub down_norm: Option<&'static str>,
}

/// Where the rows of q, k and v are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvLayout {
    /// In three tensors: q, k, v.
    Apart([&'static str; 3]),
    /// In one: all rows of q, then of k, then of v.
    Stacked(&'static str),
    /// In one, by KV head: its G query heads, its key head, its value head,
    /// `[Hkv, G + 2, Dh, D]`.
    ByKvHead(&'static str),
}

/// Where the rows of gate and up are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUpLayout {
    /// In two tensors: gate, up.
    Apart([&'static str; 2]),
    /// In one: all rows of the gate, then of up.
    Stacked(&'static str),
}

/// Which two components of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `(i, i + rotary_dim / 2)`, as the `rope` op does.
    Halves,
    /// `(2 i, 2 i + 1)`. Rows of q and k are put into the other order at loading, which changes no
    /// product of a query and a key: both are permuted alike.
    Neighbours,
}

/// Llama's, which most others share.
pub(super) const LLAMA: Layout = Layout {
    embedding: "model.embed_tokens.weight",
    lm_head: "lm_head.weight",
    input_norm: "input_layernorm",
    qkv: QkvLayout::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    pairs: RotaryPairs::Halves,
    o: "self_attn.o_proj",
    o_norm: None,
    post_norm: "post_attention_layernorm",
    gate_up: GateUpLayout::Apart(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    down_norm: None,
};
