//! One decoder layer around its attention.

use longview_ops::{
    Backend, Linear, LinearParams, OpResult, RmsNorm, RmsNormParams, Rope, RopeParams, SiluMul,
    SiluMulParams, View, ViewMut,
};

use super::workspace::Workspace;
use crate::config::ModelConfig;

/// A linear layer's weights on the device.
pub(super) struct LinearWeights<B: Backend> {
    pub weight: B::Weight,
    pub bias: Option<B::Weight>,
    pub n_in: usize,
    pub n_out: usize,
}

impl<B: Backend> LinearWeights<B> {
    fn projection(&self) -> Projection<'_, B> {
        let bias = self.bias.as_ref();
        Projection { weight: &self.weight, bias, n_in: self.n_in, n_out: self.n_out }
    }
}

/// A linear layer, borrowed.
pub(super) struct Projection<'a, B: Backend> {
    pub weight: &'a B::Weight,
    pub bias: Option<&'a B::Weight>,
    pub n_in: usize,
    pub n_out: usize,
}

/// The weights of one layer.
pub(super) struct Layer<B: Backend> {
    pub input_norm: B::Weight,
    pub q: LinearWeights<B>,
    pub k: LinearWeights<B>,
    pub v: LinearWeights<B>,
    pub q_norm: Option<B::Weight>,
    pub k_norm: Option<B::Weight>,
    pub o: LinearWeights<B>,
    pub post_norm: B::Weight,
    pub gate: LinearWeights<B>,
    pub up: LinearWeights<B>,
    pub down: LinearWeights<B>,
}

/// What every op of a step needs.
pub(super) struct Pass<'a, B: Backend> {
    pub backend: &'a B,
    pub config: &'a ModelConfig,
    pub n_tokens: usize,
}

impl<B: Backend> Layer<B> {
    /// Norm, q, k and v with their norms and RoPE: from `ws.hidden` to `ws.q`, `ws.k`, `ws.v`.
    pub(super) fn project(&self, pass: &Pass<'_, B>, ws: &mut Workspace<B>) -> OpResult<()> {
        pass.rms_norm(&ws.hidden, &self.input_norm, &mut ws.normed, 1, pass.config.hidden_size)?;
        pass.linear(self.q.projection(), &ws.normed, &mut ws.q, false)?;
        pass.linear(self.k.projection(), &ws.normed, &mut ws.k, false)?;
        pass.linear(self.v.projection(), &ws.normed, &mut ws.v, false)?;
        let Workspace { q, q_scratch, k, k_scratch, rope, .. } = ws;
        let (n_q_heads, n_kv_heads) = (pass.config.n_q_heads, pass.config.n_kv_heads);
        pass.place_heads(q, q_scratch, self.q_norm.as_ref(), rope, n_q_heads)?;
        pass.place_heads(k, k_scratch, self.k_norm.as_ref(), rope, n_kv_heads)
    }

    /// Output projection and MLP, each added to `ws.hidden`.
    pub(super) fn finish(&self, pass: &Pass<'_, B>, ws: &mut Workspace<B>) -> OpResult<()> {
        pass.linear(self.o.projection(), &ws.attended, &mut ws.hidden, true)?;
        pass.rms_norm(&ws.hidden, &self.post_norm, &mut ws.normed, 1, pass.config.hidden_size)?;
        pass.linear(self.gate.projection(), &ws.normed, &mut ws.gate, false)?;
        pass.linear(self.up.projection(), &ws.normed, &mut ws.up, false)?;
        pass.silu_mul(ws)?;
        pass.linear(self.down.projection(), &ws.activated, &mut ws.hidden, true)
    }
}

impl<B: Backend> Pass<'_, B> {
    /// Norm per head where the model has one, then RoPE. Ops do not work in place, so each writes
    /// to the scratch buffer and the two change names; the result is in `x`.
    fn place_heads(
        &self,
        x: &mut B::Buffer,
        scratch: &mut B::Buffer,
        norm: Option<&B::Weight>,
        rope: &B::Buffer,
        n_heads: usize,
    ) -> OpResult<()> {
        if let Some(norm) = norm {
            self.rms_norm(x, norm, scratch, n_heads, self.config.head_dim)?;
            std::mem::swap(x, scratch);
        }
        let len = self.n_tokens * n_heads * self.config.head_dim;
        let rotary_dim = self.config.rope.rotary_dim;
        self.backend.rope(Rope {
            p: RopeParams {
                n_tokens: self.n_tokens as u32,
                n_heads: n_heads as u32,
                head_dim: self.config.head_dim as u32,
                rotary_dim: rotary_dim as u32,
            },
            x: View::part(x, 0, len),
            table: View::part(rope, 0, self.n_tokens * rotary_dim),
            out: ViewMut::part(scratch, 0, len),
        })?;
        std::mem::swap(x, scratch);
        Ok(())
    }

    /// Norm of `per_token` rows of `width` elements for each token, from the start of the buffers.
    fn rms_norm(
        &self,
        x: &B::Buffer,
        weight: &B::Weight,
        out: &mut B::Buffer,
        per_token: usize,
        width: usize,
    ) -> OpResult<()> {
        let n_rows = self.n_tokens * per_token;
        let len = n_rows * width;
        let (x, out) = (View::part(x, 0, len), ViewMut::part(out, 0, len));
        self.rms_norm_views(x, weight, out, n_rows, width)
    }

    /// Norm of given rows.
    pub(super) fn rms_norm_views(
        &self,
        x: View<'_, B>,
        weight: &B::Weight,
        out: ViewMut<'_, B>,
        n_rows: usize,
        width: usize,
    ) -> OpResult<()> {
        let eps = self.config.rms_norm_eps;
        let p = RmsNormParams { n_rows: n_rows as u32, width: width as u32, eps };
        self.backend.rms_norm(RmsNorm { p, x, weight, out })
    }

    /// A linear layer over the tokens, from the start of the buffers; `accumulate` adds to `out`.
    pub(super) fn linear(
        &self,
        layer: Projection<'_, B>,
        x: &B::Buffer,
        out: &mut B::Buffer,
        accumulate: bool,
    ) -> OpResult<()> {
        let descriptor = Linear {
            p: LinearParams {
                n_rows: self.n_tokens as u32,
                n_in: layer.n_in as u32,
                n_out: layer.n_out as u32,
                accumulate: accumulate.into(),
            },
            x: View::part(x, 0, self.n_tokens * layer.n_in),
            weight: layer.weight,
            bias: layer.bias,
            out: ViewMut::part(out, 0, self.n_tokens * layer.n_out),
        };
        if self.n_tokens <= self.backend.capabilities().matvec_max_rows {
            self.backend.matvec(descriptor)
        } else {
            self.backend.matmul(descriptor)
        }
    }

    fn silu_mul(&self, ws: &mut Workspace<B>) -> OpResult<()> {
        let n = self.n_tokens * self.config.intermediate_size;
        self.backend.silu_mul(SiluMul {
            p: SiluMulParams { n: n as u32 },
            gate: View::part(&ws.gate, 0, n),
            up: View::part(&ws.up, 0, n),
            out: ViewMut::part(&mut ws.activated, 0, n),
        })
    }
}
