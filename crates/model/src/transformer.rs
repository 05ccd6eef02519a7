//! The decoder, as calls on ops: generic over the device and over how attention is done.
//!
//! A step runs all tokens of all its sequences through every layer and leaves the last hidden
//! states in the workspace; logits are a second call, for the rows somebody wants, because the
//! output projection of a 150,000-word vocabulary costs as much as several layers. Neither
//! allocates: buffers are made once, in the [`Workspace`].

mod layer;
mod load;
mod options;
mod workspace;

use longview_core::LayerId;
use longview_ops::{Backend, Embed, EmbedParams, OpError, OpResult, View, ViewMut};

use self::layer::{Layer, Pass, Projection};
pub use self::options::LoadOptions;
pub use self::workspace::Workspace;
use crate::attention::{Attention, AttentionTensors};
use crate::batch::{Batch, BatchError};
use crate::config::ModelConfig;
use crate::rope::RopeTable;
pub use crate::weights::LoadError;

/// A model on a device.
pub struct Model<B: Backend> {
    config: ModelConfig,
    rope: RopeTable,
    /// That of layers that see the last tokens alone, where there are such.
    local_rope: Option<RopeTable>,
    planned_context: usize,
    embedding: B::Weight,
    layers: Vec<Layer<B>>,
    final_norm: B::Weight,
    /// `None` where the output projection is the embedding.
    lm_head: Option<B::Weight>,
}

/// How far tokens have come that go through the layers in several calls.
#[derive(Clone, Debug, Default)]
pub struct Halfway {
    n_layers: usize,
    /// The residual stream behind these layers, `[T, D]`.
    hidden: Vec<f32>,
}

impl Halfway {
    /// Layers that they have passed.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }
}

/// A step that did not happen or did not end. `E` is what attention may say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError<E: std::error::Error + 'static> {
    /// The device refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The batch does not fit; nothing was computed.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Attention refused.
    #[error(transparent)]
    Attention(E),
}

/// Logits that were not computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogitsError {
    /// The device refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The rows do not exist or do not fit.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl<B: Backend> Model<B> {
    /// Dimensions and choices.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Tokens that a sequence may have.
    pub fn planned_context(&self) -> usize {
        self.planned_context
    }

    /// Fails if this model cannot run `batch`: ids beyond the vocabulary, positions beyond the
    /// planned context, spans that do not cover the tokens.
    ///
    /// # Errors
    /// What is wrong with the batch, with its numbers.
    pub fn check(&self, batch: &Batch<'_>) -> Result<(), BatchError> {
        batch.check(self.config.vocab_size, self.planned_context)
    }

    /// Runs the tokens of `batch` through all layers. The final hidden states of those that are
    /// wanted stay in `ws` for [`Model::logits`] until the next step. An empty batch does nothing.
    pub async fn forward<A: Attention<B>>(
        &self,
        backend: &B,
        ws: &mut Workspace<B>,
        batch: &Batch<'_>,
        attention: &mut A,
    ) -> Result<(), ForwardError<A::Error>> {
        let mut way = Halfway::default();
        self.forward_to(backend, ws, (batch, &mut way), attention, self.layers.len()).await
    }

    /// [`Model::forward`] through the layers before `end`, from where `way` says that the same
    /// tokens came last: for a sequence whose layers come one by one. Other steps may run in
    /// between. What a call that failed leaves in `way` is of no use.
    pub async fn forward_to<A: Attention<B>>(
        &self,
        backend: &B,
        ws: &mut Workspace<B>,
        (batch, way): (&Batch<'_>, &mut Halfway),
        attention: &mut A,
        end: usize,
    ) -> Result<(), ForwardError<A::Error>> {
        let n_tokens = batch.n_tokens();
        self.check(batch)?;
        ws.begin(batch)?;
        if n_tokens == 0 || way.n_layers >= end {
            return Ok(());
        }
        ws.upload(backend, [Some(&self.rope), self.local_rope.as_ref()], batch)?;
        let n_hidden = n_tokens * self.config.hidden_size;
        if way.n_layers == 0 {
            self.embed(backend, ws, n_tokens)?;
        } else {
            let hidden = ViewMut::part(&mut ws.hidden, 0, n_hidden);
            backend.write(hidden, bytemuck::cast_slice(&way.hidden))?;
        }
        let pass = Pass { backend, config: &self.config, n_tokens };
        for (index, layer) in self.layers.iter().enumerate().take(end).skip(way.n_layers) {
            layer.project(&pass, ws)?;
            let next = LayerId(index as u32 + 1);
            if let Some(layer) = self.layers.get(next.index())
                && attention.wants_prefetch(next)
            {
                layer.project_early(&pass, ws)?;
                let q = View::part(&ws.q_scratch, 0, n_tokens * self.config.q_width());
                attention.prefetch(next, batch, q).await.map_err(ForwardError::Attention)?;
            }
            let tensors = self.attention_tensors(ws, n_tokens);
            let attended = attention.attend(LayerId(index as u32), batch, tensors).await;
            attended.map_err(ForwardError::Attention)?;
            if next.index() < self.layers.len() {
                layer.finish(&pass, ws, 0)?;
            } else {
                self.finish_wanted(&pass, layer, ws)?;
            }
        }
        way.n_layers = end;
        if end >= self.layers.len() {
            return Ok(backend.submit()?);
        }
        way.hidden.resize(n_hidden, 0.0);
        let hidden = View::part(&ws.hidden, 0, n_hidden);
        Ok(backend.read(hidden, bytemuck::cast_slice_mut(&mut way.hidden)).await?)
    }

    /// The rest of the last layer, for tokens whose logits are read.
    fn finish_wanted(
        &self,
        pass: &Pass<'_, B>,
        layer: &Layer<B>,
        ws: &mut Workspace<B>,
    ) -> OpResult<()> {
        for i in 0..ws.wanted.len() {
            let rows = ws.wanted[i].clone();
            layer.finish(&Pass { n_tokens: rows.len(), ..*pass }, ws, rows.start)?;
        }
        Ok(())
    }

    /// Logits `[rows, V]` of wanted tokens of the last step, given by their places in the batch.
    ///
    /// The view stays valid until the next call with this workspace.
    pub fn logits<'w>(
        &self,
        backend: &B,
        ws: &'w mut Workspace<B>,
        rows: &[usize],
    ) -> Result<View<'w, B>, LogitsError> {
        ws.check_rows(rows)?;
        let (d, vocab_size) = (self.config.hidden_size, self.config.vocab_size);
        let pass = Pass { backend, config: &self.config, n_tokens: rows.len() };
        if !rows.is_empty() {
            self.norm_rows(&pass, ws, rows)?;
            let head = Projection {
                weight: self.lm_head.as_ref().unwrap_or(&self.embedding),
                bias: None,
                n_in: d,
                n_out: vocab_size,
            };
            let (n, ws) = (rows.len(), &mut *ws);
            let x = View::part(&ws.normed, 0, n * d);
            pass.linear(head, x, ViewMut::part(&mut ws.logits, 0, n * vocab_size), false)?;
            backend.submit()?;
        }
        Ok(View::part(&ws.logits, 0, rows.len() * vocab_size))
    }

    /// The final norm of the wanted rows, written one after the other: the norm is the gather.
    fn norm_rows(&self, pass: &Pass<'_, B>, ws: &mut Workspace<B>, rows: &[usize]) -> OpResult<()> {
        let d = self.config.hidden_size;
        let mut done = 0;
        // Neighbours go together; for evaluation all rows are one call.
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            let len = run.len() * d;
            let x = View::part(&ws.hidden, run[0] * d, len);
            let out = ViewMut::part(&mut ws.normed, done * d, len);
            pass.rms_norm_views(x, &self.final_norm, out, run.len(), d)?;
            done += run.len();
        }
        Ok(())
    }

    fn embed(&self, backend: &B, ws: &mut Workspace<B>, n_tokens: usize) -> OpResult<()> {
        let width = self.config.hidden_size;
        backend.embed(Embed {
            p: EmbedParams {
                n_tokens: n_tokens as u32,
                width: width as u32,
                scale: self.config.embedding_scale,
            },
            ids: View::part(&ws.ids, 0, n_tokens),
            table: &self.embedding,
            out: ViewMut::part(&mut ws.hidden, 0, n_tokens * width),
        })
    }

    fn attention_tensors<'w>(
        &self,
        ws: &'w mut Workspace<B>,
        n_tokens: usize,
    ) -> AttentionTensors<'w, B> {
        let q_len = n_tokens * self.config.q_width();
        let kv_len = n_tokens * self.config.kv_width();
        AttentionTensors {
            q: View::part(&ws.q, 0, q_len),
            k: View::part(&ws.k, 0, kv_len),
            v: View::part(&ws.v, 0, kv_len),
            out: ViewMut::part(&mut ws.attended, 0, q_len),
        }
    }
}

#[cfg(test)]
mod tests;
