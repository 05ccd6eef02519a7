//! Descriptors of fused calls: several ops that a backend may do in one launch.
//!
//! Each has a default in [`Backend`] that makes the single calls, so a backend that has nothing to gain
//! does nothing. What a fused call leaves in a buffer named `scratch` is unspecified.

use super::{
    CentroidScores, CentroidScoresParams, Linear, LinearParams, RmsNorm,
    RmsNormParams, Rope, RopeParams, ScoreSpan, SelectClusters, SelectClustersParams, SelectSpan,
    SiluMul, SiluMulParams,
};
use crate::{Backend, Op, OpResult, View, ViewMut};

/// One linear layer of a fused call.
pub struct LinearOut<'a, B: Backend> {
    /// `[n_out, D]`.
    pub weight: &'a B::Weight,
    /// `[1, n_out]`.
    pub bias: Option<&'a B::Weight>,
    /// Rows of the weight.
    pub n_out: u32,
    /// F32 `[T, n_out]`.
    pub out: ViewMut<'a, B>,
}

/// A norm and linear layers of its result: q, k and v.
pub struct NormLinears<'a, B: Backend> {
    /// T rows of D elements.
    pub p: RmsNormParams,
    /// F32 `[T, D]`.
    pub x: View<'a, B>,
    /// `[1, D]`.
    pub norm: &'a B::Weight,
    /// F32 `[T, D]`.
    pub scratch: ViewMut<'a, B>,
    /// What is computed from the norm.
    pub layers: &'a mut [LinearOut<'a, B>],
}

/// A norm and a gated MLP's first half: `silu(gate(norm(x))) * up(norm(x))`.
pub struct NormGated<'a, B: Backend> {
    /// T rows of D elements.
    pub p: RmsNormParams,
    /// F32 `[T, D]`.
    pub x: View<'a, B>,
    /// `[1, D]`.
    pub norm: &'a B::Weight,
    /// F32 `[T, D]`.
    pub scratch: ViewMut<'a, B>,
    /// The gate; its `out` is scratch, `[T, F]`.
    pub gate: LinearOut<'a, B>,
    /// The up projection; its `out` is scratch, `[T, F]`.
    pub up: LinearOut<'a, B>,
    /// F32 `[T, F]`.
    pub out: ViewMut<'a, B>,
}

/// The heads of one tensor of a [`PlaceHeads`].
pub struct Heads<'a, B: Backend> {
    /// Heads.
    pub n_heads: u32,
    /// F32 `[T, heads, Dh]`.
    pub x: View<'a, B>,
    /// `[1, Dh]`: a norm of each head before the rotation.
    pub norm: Option<&'a B::Weight>,
    /// F32 `[T, heads, Dh]`.
    pub out: ViewMut<'a, B>,
}

/// RoPE of queries and keys, with the norm per head that some models have before it.
pub struct PlaceHeads<'a, B: Backend> {
    /// Sizes; `n_heads` is not used.
    pub p: RopeParams,
    /// Of the norms.
    pub eps: f32,
    /// F32 `[T, rotary_dim]`, as [`Rope::table`].
    pub table: View<'a, B>,
    /// Queries and keys.
    pub heads: [Heads<'a, B>; 2],
    /// F32, as long as the longer of the two.
    pub scratch: ViewMut<'a, B>,
}

/// [`CentroidScores`] and [`SelectClusters`] of the same clusters.
pub struct ScoreSelect<'a, B: Backend> {
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
    /// As [`SelectClusters::clusters`].
    pub clusters: ViewMut<'a, B>,
    /// As [`SelectClusters::takes`].
    pub takes: ViewMut<'a, B>,
    /// As [`SelectClusters::n_selected`].
    pub n_selected: ViewMut<'a, B>,
}

/// The same part of a buffer, borrowed for less long.
fn again<'b, B: Backend>(view: &'b mut ViewMut<'_, B>) -> ViewMut<'b, B> {
    ViewMut { buffer: view.buffer, offset: view.offset, len: view.len }
}

/// What was written, to be read.
fn written<'b, B: Backend>(view: &'b ViewMut<'_, B>) -> View<'b, B> {
    View { buffer: view.buffer, offset: view.offset, len: view.len }
}

fn linear<B: Backend>(
    backend: &B,
    norm: RmsNormParams,
    x: View<'_, B>,
    layer: &mut LinearOut<'_, B>,
) -> OpResult<()> {
    let descriptor = Linear {
        p: LinearParams {
            n_rows: norm.n_rows,
            n_in: norm.width,
            n_out: layer.n_out,
            accumulate: 0,
        },
        x,
        weight: layer.weight,
        bias: layer.bias,
        out: again(&mut layer.out),
    };
    match norm.n_rows as usize <= backend.capabilities().matvec_max_rows {
        true => backend.matvec(descriptor),
        false => backend.matmul(descriptor),
    }
}

impl<B: Backend> NormLinears<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let out = again(&mut self.scratch);
        backend.rms_norm(RmsNorm { p: self.p, x: self.x, weight: self.norm, out })?;
        for layer in self.layers.iter_mut() {
            linear(backend, self.p, written(&self.scratch), layer)?;
        }
        Ok(())
    }
}

impl<B: Backend> NormGated<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let out = again(&mut self.scratch);
        backend.rms_norm(RmsNorm { p: self.p, x: self.x, weight: self.norm, out })?;
        linear(backend, self.p, written(&self.scratch), &mut self.gate)?;
        linear(backend, self.p, written(&self.scratch), &mut self.up)?;
        backend.silu_mul(SiluMul {
            p: SiluMulParams { n: self.out.len as u32 },
            gate: written(&self.gate.out),
            up: written(&self.up.out),
            out: self.out,
        })
    }
}

impl<B: Backend> PlaceHeads<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        for heads in &mut self.heads {
            let p = RopeParams { n_heads: heads.n_heads, ..self.p };
            let mut x = heads.x;
            let scratch;
            if let Some(weight) = heads.norm {
                let mut out = again(&mut self.scratch);
                out.len = x.len;
                let norm = RmsNormParams {
                    n_rows: p.n_tokens * p.n_heads,
                    width: p.head_dim,
                    eps: self.eps,
                };
                backend.rms_norm(RmsNorm { p: norm, x, weight, out: again(&mut out) })?;
                scratch = out;
                x = written(&scratch);
            }
            backend.rope(Rope { p, x, table: self.table, out: again(&mut heads.out) })?;
        }
        Ok(())
    }
}

impl<B: Backend> ScoreSelect<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let len = self.score_spans.len()
            * self.p.n_kv_heads as usize
            * self.p.score_stride as usize;
        let mut scores = again(&mut self.scratch);
        scores.len = len;
        backend.centroid_scores(CentroidScores {
            p: self.p,
            q: self.q,
            spans: self.score_spans,
            scores: again(&mut scores),
        })?;
        backend.select_clusters(SelectClusters {
            p: self.select,
            scores: written(&scores),
            spans: self.select_spans,
            clusters: self.clusters,
            takes: self.takes,
            n_selected: self.n_selected,
        })
    }

    /// Checks that the scratch holds the scores of every query head.
    pub fn check(&self) -> OpResult<()> {
        let needed =
            self.score_spans.len() * self.p.n_q_heads as usize * self.p.score_stride as usize;
        super::ensure(Op::CentroidScores, self.scratch.len >= needed, || {
            format!("scratch of {} elements, needs {needed}", self.scratch.len)
        })
    }
}
