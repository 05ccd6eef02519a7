//! Tokens that the host draws from those that a step did not choose: for the attention of a decoded
//! token, and for those who look at it.

use longview_core::{HeadId, LayerId};
use longview_ops::{Backend, View};

use super::decode::Token;
use super::kv_sequence::Sequence;
use crate::error::SchedulerError;
use crate::layout::{KvShape, LayerTensors};
use crate::policy::AttentionBound;
use crate::recall::{Choice, DrawPlace, Purpose, RecallPath, SampledBound};
use crate::store::{LayerRows, ReadParts};

impl Token {
    /// Whether bounds of the attention that the token left out are counted, for which the host
    /// needs its query. Where it left nothing out they are counted here.
    pub fn is_bounded<B: Backend>(&self, sequence: &mut Sequence<B>) -> bool {
        let bound = sequence.policy.attention_bound;
        if bound == AttentionBound::Off || sequence.layers[self.layer].recall().is_none() {
            return false;
        }
        let attends_all = sequence.attends_all(self.layer, sequence.n_tokens + 1);
        if attends_all {
            sequence.count_bounds(self.layer, &vec![0.0; sequence.shape.n_q_heads]);
        }
        !attends_all
    }

    /// Counts bounds of the attention that the token left out. `q` is its query `[Hq, Dh]`, `sums`
    /// the log-sum-exp of what it attended `[Hq]`.
    pub fn bound_attention<B: Backend>(&self, sequence: &mut Sequence<B>, q: &[f32], sums: &[f32]) {
        let bounds = if sequence.policy.attention_bound == AttentionBound::Sampled {
            let sampled = sequence.sampled_bound(self.layer, sequence.n_tokens);
            sampled.map(|sampled| sampled.ratios(&*sequence.backend, q, sums))
        } else {
            sequence.bounds(self.layer, q, sums)
        };
        sequence.count_bounds(self.layer, &bounds.unwrap_or_default());
    }

    /// The token's query in `q`, and its log-sum-exp in `lse`.
    pub fn query_and_sums<'a, B: Backend>(
        &self,
        shape: &KvShape,
        q: View<'a, B>,
        lse: &'a B::Buffer,
    ) -> [View<'a, B>; 2] {
        let (hq, own) = (shape.n_q_heads, shape.n_q_heads * shape.head_dim);
        let q = View::part(q.buffer, q.offset + self.index * own, own);
        [q, View::part(lse, self.index * hq, hq)]
    }

    /// Draws tokens from those that the layer did not choose and adds their attention to the
    /// token's, each as often as it stands for others. The host has read [`Token::sample_parts`].
    pub fn attend_sampled<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> Result<(), SchedulerError> {
        let (residual, heads) = (sequence.policy.residual, sequence.shape.n_kv_heads);
        if !residual.draws() || sequence.layers[self.layer].recall().is_none() {
            return Ok(());
        }
        // Taken out, because it reads the sequence's rows meanwhile.
        let path = sequence.recall.as_mut();
        let Some(mut sampled) = path.and_then(|path| path.sampled.take()) else { return Ok(()) };
        let merged = match sequence.choice(self.layer, sequence.n_tokens) {
            Some(choice) => {
                sampled.merge(&*sequence.backend, &choice, (residual, self.index), t, lse)
            }
            None => Ok(()),
        };
        for head in sequence.shape.heads() {
            let drawn = sampled.n_drawn(self.layer, head);
            sequence.stats.attended_last[self.layer.index() * heads + head.index()] += drawn as u32;
            sequence.stats.attended_rows += drawn as u64;
        }
        if let Some(path) = &mut sequence.recall {
            path.sampled = Some(sampled);
        }
        Ok(merged?)
    }

    /// What draws tokens needs the token's query, and the log-sum-exp of what it attended.
    pub fn sample_parts<'a, B: Backend>(
        &self,
        sequence: &'a mut Sequence<B>,
        q: View<'a, B>,
        lse: &'a B::Buffer,
    ) -> ReadParts<'a, B> {
        if !sequence.policy.residual.draws() || sequence.layers[self.layer].recall().is_none() {
            return ReadParts::new();
        }
        let Sequence { shape, recall: path, .. } = sequence;
        let Some(RecallPath { sampled: Some(sampled), .. }) = path else {
            return ReadParts::new();
        };
        let to = [&mut sampled.q, &mut sampled.lse];
        let to = to.map(|numbers| bytemuck::cast_slice_mut(numbers.as_mut_slice()));
        self.query_and_sums(shape, q, lse).into_iter().zip(to).collect()
    }
}

impl<B: Backend> Sequence<B> {
    /// Counts a layer's bounds of U / Z, and notes them for those who look.
    fn count_bounds(&mut self, layer: LayerId, bounds: &[f64]) {
        bounds.iter().for_each(|bound| self.stats.bounds.add(*bound));
        self.trace.note_bounds(layer, bounds);
    }

    /// The rows from which the token at `position` could choose in `layer`, and its choice; `None`
    /// in a layer that does not recall, and where the host knows no selection.
    pub(super) fn choice(&self, layer: LayerId, position: usize) -> Option<Choice<'_, B>> {
        let (recall, path) = (self.layers[layer].recall()?, self.recall.as_ref()?);
        if path.device_cache.is_some() {
            return None;
        }
        let n_rows = position + 1;
        let end = self.window_start(layer, n_rows);
        let place = DrawPlace { seed: self.policy.seed, layer, position };
        Some(Choice {
            rows: LayerRows { shape: &self.shape, store: &*self.store, layer },
            heads: recall.selected_index().heads(),
            selector: &path.selector,
            selection: self.attended_selection(recall.selection),
            choosable: self.layout.sinks.min(end)..end,
            place,
        })
    }

    fn sampled_bound(&self, layer: LayerId, position: usize) -> Option<SampledBound<'_, B>> {
        let choice = self.choice(layer, position)?;
        let index = &self.layers[layer].recall()?.index;
        Some(SampledBound { choice, kind: self.policy.index?.kind, index })
    }

    /// For each query head of a layer, an upper limit of U / Z after a decode step as
    /// `--attention-bound sampled` counts it: of the mass that it did not attend over the mass that
    /// it did, with a confidence of 95 %. `q` is the step's query `[Hq, Dh]`, `lse` the log-sum-exp
    /// of what it attended `[Hq]`. `None` in a layer that does not recall, and where the device
    /// looks rows up.
    pub fn sampled_bounds(&self, layer: LayerId, q: &[f32], lse: &[f32]) -> Option<Vec<f64>> {
        let last = self.n_tokens.checked_sub(1)?;
        Some(self.sampled_bound(layer, last)?.ratios(&*self.backend, q, lse))
    }

    /// The tokens that a KV head drew and attended in the last decode step, with how many tokens
    /// each stood for; none where the policy draws none.
    pub fn drawn_tokens(&self, layer: LayerId, head: HeadId) -> Vec<(u32, usize)> {
        let sampled = self.recall.as_ref().and_then(|path| path.sampled.as_ref());
        let choice = self.n_tokens.checked_sub(1).and_then(|last| self.choice(layer, last));
        let (Some(sampled), Some(choice)) = (sampled, choice) else { return Vec::new() };
        let positions = &self.layers[layer].positions[head];
        let (drawn, _) = choice.drawn(head, sampled.n_drawn(layer, head), Purpose::Attend);
        drawn.into_iter().map(|drawn| (positions[drawn.row], drawn.weight)).collect()
    }
}
