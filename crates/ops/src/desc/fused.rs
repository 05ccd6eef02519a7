//! Descriptors of fused calls: several ops that a backend may do in one launch.
//!
//! Each has a default in [`crate::Backend`] that makes the single calls, so a backend that has
//! nothing to gain does nothing. What a fused call leaves in a buffer named `scratch` is
//! unspecified.

use longview_core::DType;

use super::checks::{ensure, reads, writes};
use super::cluster::{CentroidScoresParams, ScoreSpan, SelectClustersParams, SelectSpan};
use super::dense::{Linear, LinearParams, RmsNormParams, RopeParams};
use crate::buffer::{Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// One linear layer of a fused call.
pub struct LinearOut<'a, B: Storage> {
    /// `[n_out, D]`.
    pub weight: &'a B::Weight,
    /// `[1, n_out]`.
    pub bias: Option<&'a B::Weight>,
    /// Rows of the weight.
    pub n_out: u32,
    /// F32 `[T, n_out]`.
    pub out: ViewMut<'a, B>,
}

/// Linear layers that read the same rows.
pub struct LinearGroup<'l, 'a, B: Storage> {
    /// Rows of x.
    pub n_rows: u32,
    /// Elements of a row.
    pub n_in: u32,
    /// F32 `[T, n_in]`.
    pub x: View<'l, B>,
    /// Each written to a buffer of its own.
    pub layers: &'l mut [LinearOut<'a, B>],
}

/// What the gate of an MLP goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// As [`crate::Backend::silu_mul`].
    Silu,
    /// As [`crate::Backend::gelu_mul`].
    GeluTanh,
}

/// A norm and a gated MLP's first half: `activation(gate(norm(x))) * up(norm(x))`.
pub struct NormGated<'a, B: Storage> {
    /// T rows of D elements; `accumulate` is not used.
    pub p: RmsNormParams,
    /// F32 `[T, D]`.
    pub x: View<'a, B>,
    /// `[1, D]`.
    pub norm: &'a B::Weight,
    /// F32 `[T, D]`.
    pub scratch: ViewMut<'a, B>,
    /// Of the gate.
    pub activation: Activation,
    /// The gate; its `out` is scratch, `[T, F]`.
    pub gate: LinearOut<'a, B>,
    /// The up projection; its `out` is scratch, `[T, F]`.
    pub up: LinearOut<'a, B>,
    /// F32 `[T, F]`.
    pub out: ViewMut<'a, B>,
}

/// Everything from the residual stream to queries, keys and values that attention can use: norm,
/// linear layers, norm per head where the model has one, RoPE of q and k.
pub struct Project<'a, B: Storage> {
    /// T rows of D elements; `accumulate` is not used.
    pub p: RmsNormParams,
    /// F32 `[T, D]`.
    pub x: View<'a, B>,
    /// `[1, D]`.
    pub norm: &'a B::Weight,
    /// F32 `[T, D]`.
    pub scratch: ViewMut<'a, B>,
    /// q, k and v; where the first two are written is scratch.
    pub layers: [LinearOut<'a, B>; 3],
    /// Sizes of the rotation; `n_heads` is not used.
    pub rope: RopeParams,
    /// F32 `[T, rotary_dim]`, as [`crate::Rope::table`].
    pub table: View<'a, B>,
    /// Norms of each head of q and k before the rotation.
    pub head_norms: [Option<&'a B::Weight>; 2],
    /// F32 `[T, heads, Dh]` of q and k.
    pub out: [ViewMut<'a, B>; 2],
    /// F32, as long as q.
    pub head_scratch: ViewMut<'a, B>,
}

/// [`crate::CentroidScores`] and [`crate::SelectClusters`] of the same clusters.
pub struct ScoreSelect<'a, B: Storage> {
    /// Sizes of scoring.
    pub p: CentroidScoresParams,
    /// Sizes of selection.
    pub select: SelectClustersParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// One entry per sequence.
    pub score_spans: &'a [ScoreSpan<'a, B>],
    /// One entry per sequence.
    pub select_spans: &'a [SelectSpan<'a, B>],
    /// F32 `[sequences, Hq, score_stride]`.
    pub scratch: ViewMut<'a, B>,
    /// As [`crate::SelectClusters::clusters`].
    pub clusters: ViewMut<'a, B>,
    /// As [`crate::SelectClusters::takes`].
    pub takes: ViewMut<'a, B>,
    /// As [`crate::SelectClusters::n_selected`].
    pub n_selected: ViewMut<'a, B>,
}

impl<B: Storage> LinearOut<'_, B> {
    fn check(&self, norm: RmsNormParams) -> OpResult<()> {
        let len = norm.n_rows as usize * self.n_out as usize;
        writes(Op::Matvec, "out", &self.out, DType::F32, len)
    }
}

impl<'a, B: Storage> LinearGroup<'_, 'a, B> {
    /// One of the layers as a call of its own.
    pub fn layer(&mut self, i: usize) -> Linear<'_, B> {
        let LinearOut { weight, bias, n_out, ref mut out } = self.layers[i];
        let p = LinearParams { n_rows: self.n_rows, n_in: self.n_in, n_out, accumulate: 0 };
        let x = View { buffer: self.x.buffer, offset: self.x.offset, len: self.x.len };
        let out = ViewMut { buffer: out.buffer, offset: out.offset, len: out.len };
        Linear { p, x, weight, bias, out }
    }
}

impl<B: Storage> Project<'_, B> {
    /// Checks lengths and types of what is read and of results; the single calls check the rest.
    pub fn check(&self) -> OpResult<()> {
        let n = self.p.n_rows as usize;
        reads(Op::RmsNorm, "x", &self.x, DType::F32, n * self.p.width as usize)?;
        let RopeParams { head_dim, rotary_dim, n_tokens, .. } = self.rope;
        ensure(
            Op::Rope,
            rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim && n_tokens == self.p.n_rows,
            || format!("rotary_dim {rotary_dim} of head width {head_dim}, {n_tokens} tokens"),
        )?;
        reads(Op::Rope, "table", &self.table, DType::F32, n * rotary_dim as usize)?;
        for (layer, out) in self.layers.iter().zip(&self.out) {
            let n_out = layer.n_out;
            ensure(Op::Rope, head_dim > 0 && n_out.is_multiple_of(head_dim), || {
                format!("{n_out} rows in heads of {head_dim}")
            })?;
            writes(Op::Rope, "out", out, DType::F32, n * n_out as usize)?;
        }
        self.layers.iter().try_for_each(|layer| layer.check(self.p))
    }
}

impl<B: Storage> NormGated<'_, B> {
    /// Checks lengths and types of what is read and of the result; the single calls check the rest.
    pub fn check(&self) -> OpResult<()> {
        let n = self.p.n_rows as usize;
        reads(Op::RmsNorm, "x", &self.x, DType::F32, n * self.p.width as usize)?;
        ensure(Op::SiluMul, self.gate.n_out == self.up.n_out, || {
            format!("a gate of {} rows and {} rows to gate", self.gate.n_out, self.up.n_out)
        })?;
        writes(Op::SiluMul, "out", &self.out, DType::F32, n * self.up.n_out as usize)?;
        self.gate.check(self.p)?;
        self.up.check(self.p)
    }
}

impl<B: Storage> ScoreSelect<'_, B> {
    /// Checks that the scratch holds the scores of every query head.
    pub fn check(&self) -> OpResult<()> {
        let needed =
            self.score_spans.len() * self.p.n_q_heads as usize * self.p.score_stride as usize;
        ensure(Op::CentroidScores, self.scratch.len >= needed, || {
            format!("scratch of {} elements, needs {needed}", self.scratch.len)
        })
    }
}
