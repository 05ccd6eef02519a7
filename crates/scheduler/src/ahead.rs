//! Choosing one layer ahead (InfiniGen): what a layer recalls is chosen by its query as the input
//! of the layer before predicts it.
//!
//! Inputs of neighbouring layers are near, because each layer adds little to the residual stream,
//! so the layer's own norm and projection of the input before give nearly its query. The choice is
//! there before the layer before attends, in the layer's own slot, and the layer itself does not
//! wait for it. A layer whose predicted query nobody hands over, as the first one's, chooses by its
//! own.

use longview_ops::{Backend, View};

use crate::error::SchedulerError;
use crate::layer::LayerMode;
use crate::select::Query;
use crate::sequence::Sequence;
use crate::step::{SpanMode, Step};

impl<B: Backend> Step<'_, '_, B> {
    /// Whether a span of this step chooses for `layer` by a predicted query.
    pub fn wants_ahead(&self, layer: usize) -> bool {
        let wants = |sequence: &Sequence<B>| sequence.chooses_ahead(layer);
        self.spans.iter().any(|span| span.mode == SpanMode::Policy && wants(span.sequence))
    }

    /// Chooses what `layer` recalls by predicted queries `q`, F32 `[T, Hq, Dh]` after RoPE. To be
    /// called before the attention of the layer before; `q` is free again afterwards.
    pub async fn ahead(&mut self, layer: usize, q: View<'_, B>) -> Result<(), SchedulerError> {
        for span in self.spans.iter_mut().filter(|span| span.mode == SpanMode::Policy) {
            if span.sequence.chooses_ahead(layer) {
                span.sequence.choose_ahead(layer, q, span.start).await?;
            }
        }
        Ok(())
    }
}

impl<B: Backend> Sequence<B> {
    fn chooses_ahead(&self, layer: usize) -> bool {
        let recalls = |layer: usize| self.layers[layer].mode == LayerMode::Recall;
        self.policy.ahead && layer > 0 && layer < self.layers.len() && recalls(layer)
    }

    /// Chooses for `layer` by the query of token `index` of `q`.
    async fn choose_ahead(
        &mut self,
        layer: usize,
        q: View<'_, B>,
        index: usize,
    ) -> Result<(), SchedulerError> {
        let begin = self.backend.now();
        // What becomes part of the index in this step may be chosen.
        self.apply_window(layer).await?;
        let n_rows = self.n_tokens + 1;
        let always = self.layout.sinks.min(n_rows) + n_rows - self.window_start(layer, n_rows);
        let budgets = self.left_to_recall(layer, always);
        let n_tokens = q.len / (self.shape.n_q_heads * self.shape.head_dim);
        let slot = self.selection_slot(layer);
        self.choose(layer, &Query { q, n_tokens, index, slot }, &budgets)?;
        if self.resolver.is_none() {
            let selector = self.selector.as_mut().expect("a recall policy has a selector");
            selector.read(&*self.backend, slot, None).await?;
            self.trim_choice(layer, slot);
        }
        self.layers[layer].ahead = Some(self.n_tokens);
        self.stats.select += self.backend.now().saturating_sub(begin);
        Ok(())
    }

    /// Whether what `layer` recalls in this step was chosen ahead.
    pub(crate) fn take_ahead(&mut self, layer: usize) -> bool {
        self.layers[layer].ahead.take() == Some(self.n_tokens)
    }
}
