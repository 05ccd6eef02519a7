//! Fused calls as the single calls that they stand for: what a backend does that gains nothing by
//! fusing them.

use crate::backend::Backend;
use crate::buffer::{View, ViewMut};
use crate::desc::{
    Activation, CentroidScores, GeluMul, GeluMulParams, LinearGroup, NormGated, Project, RmsNorm,
    RmsNormParams, Rope, RopeParams, ScoreSelect, SelectClusters, SiluMul, SiluMulParams,
};
use crate::error::OpResult;

impl<B: Backend> Project<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let (p, out) = (overwriting(self.p), again(&mut self.scratch));
        backend.rms_norm(RmsNorm { p, x: self.x, weight: self.norm, out })?;
        let (n_rows, n_in, x) = (self.p.n_rows, self.p.width, written(&self.scratch));
        backend.linear_group(LinearGroup { n_rows, n_in, x, layers: &mut self.layers })?;
        for i in 0..self.out.len() {
            self.place(backend, i)?;
        }
        Ok(())
    }

    /// Norm per head where there is one, then RoPE, of q or k.
    fn place(&mut self, backend: &B, which: usize) -> OpResult<()> {
        let layer = &self.layers[which];
        let p = RopeParams { n_heads: layer.n_out / self.rope.head_dim.max(1), ..self.rope };
        let mut x = written(&layer.out);
        let mut scratch = again(&mut self.head_scratch);
        if let Some(weight) = self.head_norms[which] {
            scratch.len = x.len;
            let norm = RmsNormParams {
                n_rows: p.n_tokens * p.n_heads,
                width: p.head_dim,
                eps: self.p.eps,
                accumulate: 0,
            };
            backend.rms_norm(RmsNorm { p: norm, x, weight, out: again(&mut scratch) })?;
            x = written(&scratch);
        }
        backend.rope(Rope { p, x, table: self.table, out: again(&mut self.out[which]) })
    }
}

impl<B: Backend> NormGated<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let (p, out) = (overwriting(self.p), again(&mut self.scratch));
        backend.rms_norm(RmsNorm { p, x: self.x, weight: self.norm, out })?;
        let (n_rows, n_in, x) = (self.p.n_rows, self.p.width, written(&self.scratch));
        let mut layers = [self.gate, self.up];
        backend.linear_group(LinearGroup { n_rows, n_in, x, layers: &mut layers })?;
        let [gate, up] = &layers;
        let (gate, up, out) = (written(&gate.out), written(&up.out), self.out);
        let n = out.len as u32;
        match self.activation {
            Activation::Silu => backend.silu_mul(SiluMul { p: SiluMulParams { n }, gate, up, out }),
            Activation::GeluTanh => {
                backend.gelu_mul(GeluMul { p: GeluMulParams { n }, gate, up, out })
            }
        }
    }
}

impl<B: Backend> ScoreSelect<'_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let len =
            self.score_spans.len() * self.p.n_kv_heads as usize * self.p.score_stride as usize;
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
}

/// The same part of a buffer, borrowed for less long.
fn again<'b, B: Backend>(view: &'b mut ViewMut<'_, B>) -> ViewMut<'b, B> {
    ViewMut { buffer: view.buffer, offset: view.offset, len: view.len }
}

/// What was written, to be read.
fn written<'b, B: Backend>(view: &'b ViewMut<'_, B>) -> View<'b, B> {
    View { buffer: view.buffer, offset: view.offset, len: view.len }
}

/// The norm into a scratch buffer, whatever that holds.
fn overwriting(p: RmsNormParams) -> RmsNormParams {
    RmsNormParams { accumulate: 0, ..p }
}

impl<B: Backend> LinearGroup<'_, '_, B> {
    /// The single calls.
    pub fn unfused(mut self, backend: &B) -> OpResult<()> {
        let is_vector = self.n_rows as usize <= backend.capabilities().matvec_max_rows;
        for i in 0..self.layers.len() {
            let layer = self.layer(i);
            if is_vector { backend.matvec(layer)? } else { backend.matmul(layer)? }
        }
        Ok(())
    }
}
