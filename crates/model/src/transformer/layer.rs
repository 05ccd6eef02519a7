//! One decoder layer around its attention.

use longview_ops::{
    Backend, Linear, LinearOut, LinearParams, NormGated, OpResult, Project, RmsNorm, RmsNormParams,
    Rope, RopeParams, View, ViewMut,
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

    /// This layer as a part of a fused call that writes `n_tokens` rows to the start of `out`.
    fn of<'a>(&'a self, out: &'a mut B::Buffer, n_tokens: usize) -> LinearOut<'a, B> {
        LinearOut {
            weight: &self.weight,
            bias: self.bias.as_ref(),
            n_out: self.n_out as u32,
            out: ViewMut::part(out, 0, n_tokens * self.n_out),
        }
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
    /// Whether it sees the last tokens alone, and has the rotary embedding of such layers.
    pub is_local: bool,
    pub input_norm: B::Weight,
    pub q: LinearWeights<B>,
    pub k: LinearWeights<B>,
    pub v: LinearWeights<B>,
    pub q_norm: Option<B::Weight>,
    pub k_norm: Option<B::Weight>,
    pub o: LinearWeights<B>,
    pub o_norm: Option<B::Weight>,
    pub post_norm: B::Weight,
    pub gate: LinearWeights<B>,
    pub up: LinearWeights<B>,
    pub down: LinearWeights<B>,
    pub down_norm: Option<B::Weight>,
}

/// What every op of a step needs.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a, B: Backend> {
    pub backend: &'a B,
    pub config: &'a ModelConfig,
    pub n_tokens: usize,
}

impl<B: Backend> Layer<B> {
    /// Components of each head that rotate.
    fn rotary_dim(&self, config: &ModelConfig) -> usize {
        let local = config.local.as_ref().filter(|_| self.is_local);
        local.map_or(&config.rope, |local| &local.rope).rotary_dim
    }

    /// Norm, q, k and v with their norms and RoPE: from `ws.hidden` to `ws.q`, `ws.k`, `ws.v`. Ops
    /// do not work in place, so queries and keys end in the scratch buffers, and each pair changes
    /// names.
    pub(super) fn project(&self, pass: &Pass<'_, B>, ws: &mut Workspace<B>) -> OpResult<()> {
        let (config, n) = (pass.config, pass.n_tokens);
        let rotary_dim = self.rotary_dim(config);
        let Workspace { hidden, normed, q, q_scratch, k, k_scratch, v, attended, .. } = ws;
        let table = ws.rope.of(self.is_local);
        let (q_len, k_len) = (n * config.q_width(), n * config.kv_width());
        pass.backend.project(Project {
            p: pass.norm_params(),
            x: View::part(hidden, 0, n * config.hidden_size),
            norm: &self.input_norm,
            scratch: ViewMut::part(normed, 0, n * config.hidden_size),
            layers: [self.q.of(q, n), self.k.of(k, n), self.v.of(v, n)],
            rope: RopeParams {
                n_tokens: n as u32,
                n_heads: 0,
                head_dim: config.head_dim as u32,
                rotary_dim: rotary_dim as u32,
            },
            table: View::part(table, 0, n * rotary_dim),
            head_norms: [self.q_norm.as_ref(), self.k_norm.as_ref()],
            out: [ViewMut::part(q_scratch, 0, q_len), ViewMut::part(k_scratch, 0, k_len)],
            // Attention writes it later; until then it is free.
            head_scratch: ViewMut::part(attended, 0, q_len),
        })?;
        std::mem::swap(q, q_scratch);
        std::mem::swap(k, k_scratch);
        Ok(())
    }

    /// The queries that this layer would have if the layer before added nothing: from `ws.hidden`
    /// to `ws.q_scratch`, between the projection of the layer before and its attention.
    pub(super) fn project_early(&self, pass: &Pass<'_, B>, ws: &mut Workspace<B>) -> OpResult<()> {
        let (config, n) = (pass.config, pass.n_tokens);
        let Workspace { hidden, normed, q_scratch, attended, .. } = ws;
        let table = ws.rope.of(self.is_local);
        let (width, q_len) = (n * config.hidden_size, n * config.q_width());
        let (hidden, norm) = (View::part(hidden, 0, width), ViewMut::part(normed, 0, width));
        pass.rms_norm_views(hidden, &self.input_norm, norm, n, config.hidden_size)?;
        match &self.q_norm {
            None => {
                let (x, out) = (View::part(normed, 0, width), ViewMut::part(attended, 0, q_len));
                pass.linear(self.q.projection(), x, out, false)?;
            }
            Some(weight) => {
                let (x, out) = (View::part(normed, 0, width), ViewMut::part(q_scratch, 0, q_len));
                pass.linear(self.q.projection(), x, out, false)?;
                let (x, out) = (View::part(q_scratch, 0, q_len), ViewMut::part(attended, 0, q_len));
                pass.rms_norm_views(x, weight, out, n * config.n_q_heads, config.head_dim)?;
            }
        }
        let rotary_dim = self.rotary_dim(config);
        pass.backend.rope(Rope {
            p: RopeParams {
                n_tokens: n as u32,
                n_heads: config.n_q_heads as u32,
                head_dim: config.head_dim as u32,
                rotary_dim: rotary_dim as u32,
            },
            x: View::part(attended, 0, q_len),
            table: View::part(table, 0, n * rotary_dim),
            out: ViewMut::part(q_scratch, 0, q_len),
        })
    }

    /// Output projection and MLP of the pass's tokens, the first of which is token `first` of the
    /// step; each is added to `ws.hidden`, normed first where the model does so.
    pub(super) fn finish(
        &self,
        pass: &Pass<'_, B>,
        ws: &mut Workspace<B>,
        first: usize,
    ) -> OpResult<()> {
        let (n, config) = (pass.n_tokens, pass.config);
        let (at, width) = (first * config.hidden_size, n * config.hidden_size);
        let Workspace { hidden, normed, attended, gate, up, activated, .. } = ws;
        let x = View::part(attended, first * config.q_width(), n * config.q_width());
        let out = ViewMut::part(hidden, at, width);
        pass.add(self.o.projection(), self.o_norm.as_ref(), x, normed, out)?;
        pass.backend.norm_gated(NormGated {
            p: pass.norm_params(),
            x: View::part(hidden, at, width),
            norm: &self.post_norm,
            scratch: ViewMut::part(normed, 0, width),
            activation: config.activation,
            gate: self.gate.of(gate, n),
            up: self.up.of(up, n),
            out: ViewMut::part(activated, 0, n * config.intermediate_size),
        })?;
        let x = View::part(activated, 0, n * config.intermediate_size);
        let out = ViewMut::part(hidden, at, width);
        pass.add(self.down.projection(), self.down_norm.as_ref(), x, normed, out)
    }
}

impl<B: Backend> Pass<'_, B> {
    fn norm_params(&self) -> RmsNormParams {
        RmsNormParams {
            n_rows: self.n_tokens as u32,
            width: self.config.hidden_size as u32,
            eps: self.config.rms_norm_eps,
            accumulate: 0,
        }
    }

    /// Adds `norm(layer(x))`, or without a norm `layer(x)`, to `out`. `scratch` has as much room.
    fn add(
        &self,
        layer: Projection<'_, B>,
        norm: Option<&B::Weight>,
        x: View<'_, B>,
        scratch: &mut B::Buffer,
        out: ViewMut<'_, B>,
    ) -> OpResult<()> {
        let Some(weight) = norm else {
            return self.linear(layer, x, out, true);
        };
        let len = self.n_tokens * self.config.hidden_size;
        self.linear(layer, x, ViewMut::part(scratch, 0, len), false)?;
        self.backend.rms_norm(RmsNorm {
            p: RmsNormParams { accumulate: 1, ..self.norm_params() },
            x: View::part(scratch, 0, len),
            weight,
            out,
        })
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
        let p = RmsNormParams { n_rows: n_rows as u32, width: width as u32, ..self.norm_params() };
        self.backend.rms_norm(RmsNorm { p, x, weight, out })
    }

    /// A linear layer over the tokens; `accumulate` adds to `out`.
    pub(super) fn linear(
        &self,
        layer: Projection<'_, B>,
        x: View<'_, B>,
        out: ViewMut<'_, B>,
        accumulate: bool,
    ) -> OpResult<()> {
        let descriptor = Linear {
            p: LinearParams {
                n_rows: self.n_tokens as u32,
                n_in: layer.n_in as u32,
                n_out: layer.n_out as u32,
                accumulate: accumulate.into(),
            },
            x,
            weight: layer.weight,
            bias: layer.bias,
            out,
        };
        if self.n_tokens <= self.backend.capabilities().matvec_max_rows {
            self.backend.matvec(descriptor)
        } else {
            self.backend.matmul(descriptor)
        }
    }
}
