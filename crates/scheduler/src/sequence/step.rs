//! One step of the model over a list of sequences: where each layer's attention happens.
//!
//! The model hands over queries, keys and values after RoPE; the scheduler stores the rows, chooses
//! what each KV head attends, and writes the attention's output. Prefill spans attend exactly;
//! decode spans follow their policy.

use std::sync::Arc;

use longview_core::LayerId;
use longview_ops::{AttendChunk, AttendList, Backend, ChunkSpan, KvView, ListSpan, View, ViewMut};
use smallvec::SmallVec;

use super::decode::Token;
use super::kv_sequence::Sequence;
use super::layer_state::LayerState;
use super::prefill::Chunk;
use super::scratch::StepScratch;
use crate::error::SchedulerError;
use crate::layout::{KvShape, LayerTensors, attend_params, segment_rows};

/// How a span attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanMode {
    /// To everything before it and itself, causally; prefill. `remaining` tokens of the same prompt
    /// follow.
    Exact {
        /// Prompt tokens after this chunk.
        remaining: usize,
    },
    /// As the policy says, each token for itself: one that counts, and drafted ones behind it,
    /// which count when they are accepted ([`Sequence::accept_drafted`]).
    Policy,
}

/// One sequence's part of a step.
pub struct StepSpan<'a, B: Backend> {
    /// The sequence.
    pub sequence: &'a mut Sequence<B>,
    /// Its first token among the step's tokens.
    pub start: usize,
    /// Its tokens.
    pub len: usize,
    /// How it attends.
    pub mode: SpanMode,
    /// Whether the attention output of the last layer is used for any of its tokens. Under
    /// [`SpanMode::Exact`] it is not computed otherwise, and its part of the output is not written.
    pub is_read: bool,
}

impl<B: Backend> StepSpan<'_, B> {
    /// Whether its tokens attend to `layer` together, which gives each what it has alone.
    fn attends_run(&self, layer: LayerId) -> bool {
        self.mode == SpanMode::Policy && self.len > 1 && self.sequence.attends_run(layer, self.len)
    }
}

/// A step in progress.
pub struct Step<'s, 'a, B: Backend> {
    /// The step's sequences.
    pub spans: &'s mut [StepSpan<'a, B>],
    /// Shared buffers.
    pub scratch: &'s mut StepScratch<B>,
}

impl<B: Backend> Step<'_, '_, B> {
    /// Checks that all spans fit before anything is stored.
    pub fn check(&self) -> Result<(), SchedulerError> {
        for span in self.spans.iter() {
            span.sequence.check_room(span.len)?;
            if span.mode == SpanMode::Policy {
                let most = span.sequence.most_drafted(span.len - 1);
                assert!(span.len == 1 + most, "drafted tokens that the sequence does not allow");
            }
            if span.start + span.len > self.scratch.max_tokens {
                let len = span.start + span.len;
                return Err(SchedulerError::Chunk { len, chunk: self.scratch.max_tokens });
            }
        }
        Ok(())
    }

    /// Attention of `layer` for all spans.
    pub async fn attend(
        &mut self,
        layer: LayerId,
        mut t: LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        for span in self.spans.iter_mut() {
            if let SpanMode::Exact { remaining } = span.mode {
                let is_last = layer.index() + 1 == span.sequence.shape.n_layers;
                let attends = span.is_read || !is_last || span.sequence.records_mass(layer);
                let chunk = Chunk {
                    layer,
                    start: span.start,
                    before: 0,
                    len: span.len,
                    remaining,
                    attends,
                };
                chunk.attend(span.sequence, self.scratch, &mut t).await?;
            }
        }
        self.attend_runs(layer, &mut t).await?;
        let in_rounds = decode_spans(self.spans).filter(|span| !span.attends_run(layer));
        let n_rounds = in_rounds.map(|span| span.len).max().unwrap_or(0);
        for round in 0..n_rounds {
            self.round(layer, round).attend(layer, round, &mut t).await?;
        }
        for span in decode_spans(self.spans).filter(|span| !span.attends_run(layer)) {
            span.sequence.n_tokens -= span.len - 1;
        }
        Ok(())
    }

    /// Tokens that attend to all before them, with drafted ones behind: one call for a sequence, in
    /// which the past is read once for all of them.
    async fn attend_runs(
        &mut self,
        layer: LayerId,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        for span in decode_spans(self.spans).filter(|span| span.attends_run(layer)) {
            let sequence = &mut *span.sequence;
            let first = sequence.n_tokens;
            for round in 0..span.len {
                sequence.n_tokens = first + round;
                let token = Token { layer, index: span.start + round, round };
                token.prepare(sequence, self.scratch, t).await?;
            }
            sequence.n_tokens = first;
            let (backend, shape) = (&*sequence.backend, &sequence.shape);
            let begin = backend.now();
            let n_tokens = t.n_tokens(shape);
            let run = ChunkSpan {
                q_start: span.start as u32,
                q_len: span.len as u32,
                kv: sequence.attended_rows(layer),
                row_start: 0,
                n_rows: (first + span.len) as u32,
                diagonal: first as i32,
                window: ChunkSpan::<B>::ALL,
            };
            backend.attend_chunk(AttendChunk {
                p: attend_params(shape, n_tokens, false),
                q: t.q,
                spans: &[run],
                out: t.out_mut(),
                lse: ViewMut::part(&mut self.scratch.lse, 0, n_tokens * shape.n_q_heads),
            })?;
            let spent = backend.now().saturating_sub(begin);
            sequence.stats.attend += spent;
        }
        Ok(())
    }

    /// The tokens at place `round` of the spans that follow their policy, as if each of them were
    /// decoded alone: all before it in its span are tokens of its sequence.
    fn round(&mut self, layer: LayerId, round: usize) -> Round<'_, B> {
        let spans = decode_spans(self.spans);
        let spans = spans.filter(|span| span.len > round && !span.attends_run(layer));
        let tokens = spans.map(|span| {
            span.sequence.n_tokens += usize::from(round > 0);
            Decoded { sequence: &mut *span.sequence, index: span.start + round }
        });
        Round { tokens: tokens.collect(), scratch: &mut *self.scratch }
    }

    /// Whether a span of this step selects for `layer` by a predicted query.
    pub fn wants_prefetch(&self, layer: LayerId) -> bool {
        let wants = |sequence: &Sequence<B>| sequence.prefetches(layer);
        self.spans.iter().any(|span| span.mode == SpanMode::Policy && wants(span.sequence))
    }

    /// Selects what `layer` recalls by predicted queries `q`, F32 `[T, Hq, Dh]` after RoPE. To be
    /// called before the attention of the layer before; `q` is free again afterwards.
    pub async fn prefetch(&mut self, layer: LayerId, q: View<'_, B>) -> Result<(), SchedulerError> {
        for span in self.spans.iter_mut().filter(|span| span.mode == SpanMode::Policy) {
            if span.sequence.prefetches(layer) {
                let token = Token { layer, index: span.start, round: 0 };
                token.prefetch(span.sequence, q).await?;
            }
        }
        Ok(())
    }

    /// Ends the step: the tokens count but for drafted ones, and full windows go to the clustering
    /// worker. Where the host store is not mapped, new rows are still on the device until somebody
    /// reads [`Sequence::writeback_parts`]; the next step does so if nobody else has. With
    /// [`crate::RecallMode::Speculative`] the caller must, and look at the verdict.
    pub fn finish(self) {
        for span in self.spans.iter_mut() {
            let sequence = &mut *span.sequence;
            match span.mode {
                SpanMode::Exact { .. } => sequence.n_tokens += span.len,
                SpanMode::Policy => {
                    sequence.n_tokens += 1;
                    sequence.n_drafted = span.len - 1;
                    sequence.stats.steps += span.len as u64;
                    sequence.end_token();
                }
            }
        }
    }
}

/// A decoded token of a step.
struct Decoded<'s, B: Backend> {
    sequence: &'s mut Sequence<B>,
    /// Among the step's tokens.
    index: usize,
}

/// Decoded tokens of several sequences, one of each, that attend together.
struct Round<'s, B: Backend> {
    tokens: SmallVec<[Decoded<'s, B>; 4]>,
    scratch: &'s mut StepScratch<B>,
}

impl<B: Backend> Round<'_, B> {
    /// Stores the tokens' rows, chooses what they attend, and attends it.
    async fn attend(
        &mut self,
        layer: LayerId,
        round: usize,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let place = |index: usize| Token { layer, index, round };
        for Decoded { sequence, index } in &mut self.tokens {
            place(*index).prepare(sequence, self.scratch, t).await?;
        }
        self.attend_tokens(layer, t)?;
        self.attend_misses(layer, t)?;
        let lse = &mut self.scratch.lse;
        // What the host attends comes first, since every later part is merged with all before.
        for Decoded { sequence, index } in &mut self.tokens {
            place(*index).attend_on_host(sequence, t, lse)?;
        }
        for Decoded { sequence, index } in &mut self.tokens {
            place(*index).measure(sequence, t, lse)?;
        }
        for Decoded { sequence, index } in &mut self.tokens {
            let token = place(*index);
            token.bound_attention(sequence, t, lse).await?;
            token.attend_rotated_sinks(sequence, t, lse)?;
            token.attend_residual(sequence, t, lse)?;
            token.attend_sampled(sequence, t, lse).await?;
            let Sequence { trace, backend, .. } = &mut **sequence;
            trace.record(&**backend, layer, *index, t).await?;
        }
        Ok(())
    }

    /// Where a step speculates, rows that are on the device are attended first. While the device is
    /// busy with them the host collects the others, which are then attended and merged by
    /// log-sum-exp.
    fn attend_misses(
        &mut self,
        layer: LayerId,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Some(first) = self.tokens.iter().find(|token| token.sequence.speculates()) else {
            return Ok(());
        };
        let backend = Arc::clone(&first.sequence.backend);
        let shape = first.sequence.shape.clone();
        backend.submit()?;
        let begin = backend.now();
        for token in self.tokens.iter_mut().filter(|token| token.sequence.misses_wait) {
            let Sequence { lists, coded, layers, .. } = &mut *token.sequence;
            match coded.as_mut().filter(|_| layers[layer].slots.is_some()) {
                Some(coded) => coded.lists.upload_rest(&*backend)?,
                None => lists.upload_rest(&*backend)?,
            }
            Token { layer, index: token.index, round: 0 }.load_misses(token.sequence)?;
        }
        let missing = self.tokens.iter().filter(|token| token.sequence.misses_wait);
        let lists: SmallVec<[ListSpan<'_, B>; 4]> = missing
            .filter_map(|token| match token.sequence.slots(layer) {
                Some((lists, slots)) => lists.rest(slots, token.index),
                None => token.sequence.lists.rest(token.sequence.attended_rows(layer), token.index),
            })
            .collect();
        if !lists.is_empty() {
            let n_tokens = t.n_tokens(&shape);
            backend.attend_list(AttendList {
                p: attend_params(&shape, n_tokens, true),
                q: t.q,
                spans: &lists,
                out: t.out_mut(),
                lse: ViewMut::part(&mut self.scratch.lse, 0, n_tokens * shape.n_q_heads),
            })?;
        }
        drop(lists);
        let spent = backend.now().saturating_sub(begin);
        if let Some(token) = self.tokens.iter_mut().find(|token| token.sequence.speculates()) {
            token.sequence.stats.fetch += spent;
        }
        Ok(())
    }

    /// One launch for all decode spans with lists, one for those that attend to everything, or to
    /// everything that the layer's window shows.
    fn attend_tokens(
        &mut self,
        layer: LayerId,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Some(first) = self.tokens.first() else { return Ok(()) };
        let (backend, shape) = (&first.sequence.backend, first.sequence.shape.clone());
        let begin = backend.now();
        let mut lists: SmallVec<[ListSpan<'_, B>; 4]> = SmallVec::new();
        let mut runs: SmallVec<[ChunkSpan<'_, B>; 4]> = SmallVec::new();
        // Rows behind the first buffer's, by buffer.
        let mut later: SmallVec<[SmallVec<[ChunkSpan<'_, B>; 4]>; 1]> = SmallVec::new();
        // What is merged with these, where rows have two forms.
        let mut rounded = RoundedRows::<B>::default();
        for token in &self.tokens {
            let sequence = &*token.sequence;
            let kv = sequence.attended_rows(layer);
            match &sequence.layers[layer].state {
                LayerState::Dense | LayerState::Local if sequence.exact.is_some() => {
                    lists.extend(sequence.exact_list(layer, token.index));
                    rounded.runs.extend(sequence.rounded_span(layer, token.index));
                }
                state
                    if matches!(state, LayerState::Dense | LayerState::Local)
                        || sequence.attends_all(layer, sequence.n_tokens + 1) =>
                {
                    let n_rows = sequence.n_tokens + 1;
                    let first = sequence.first_visible(layer, n_rows);
                    let run = ChunkSpan {
                        q_start: token.index as u32,
                        q_len: 1,
                        kv,
                        // A ring holds the window alone, in an order that attention does not ask.
                        row_start: if sequence.in_place() { first as u32 } else { 0 },
                        n_rows: (n_rows - first) as u32,
                        diagonal: i32::MAX,
                        window: ChunkSpan::<B>::ALL,
                    };
                    let layer = &sequence.layers[layer];
                    if layer.device_rest.is_empty() {
                        runs.push(run);
                        continue;
                    }
                    let stride = layer.device_rows;
                    for (part, buffer) in segment_rows(0..n_rows, stride).zip(layer.segments()) {
                        let (kv, n_rows) = (KvView::new(buffer, stride), part.rows.len() as u32);
                        let run = ChunkSpan { kv, n_rows, ..run };
                        let Some(i) = part.segment.checked_sub(1) else {
                            runs.push(run);
                            continue;
                        };
                        if later.len() <= i {
                            later.push(SmallVec::new());
                        }
                        later[i].push(run);
                    }
                }
                state => {
                    let mut list = sequence.lists.first(kv, token.index);
                    let cache = sequence.recall.as_ref().and_then(|r| r.device_cache.as_ref());
                    if let (LayerState::Recall(recall), Some(cache)) = (state, cache) {
                        list.n_rows = cache.n_rows(recall.selection);
                    }
                    if sequence.layers[layer].device.is_none()
                        && let Some(exact) = sequence.exact_list(layer, token.index)
                    {
                        rounded.lists.push(std::mem::replace(&mut list, exact));
                    }
                    let slots = sequence.slots(layer);
                    rounded.lists.extend(slots.map(|(lists, rows)| lists.first(rows, token.index)));
                    lists.push(list);
                }
            }
        }
        let n_tokens = t.n_tokens(&shape);
        let p = attend_params(&shape, n_tokens, false);
        let lse_len = n_tokens * shape.n_q_heads;
        if !lists.is_empty() {
            backend.attend_list(AttendList {
                p,
                q: t.q,
                spans: &lists,
                out: t.out_mut(),
                lse: ViewMut::part(&mut self.scratch.lse, 0, lse_len),
            })?;
        }
        if !runs.is_empty() {
            backend.attend_chunk(AttendChunk {
                p,
                q: t.q,
                spans: &runs,
                out: t.out_mut(),
                lse: ViewMut::part(&mut self.scratch.lse, 0, lse_len),
            })?;
        }
        let p = attend_params(&shape, n_tokens, true);
        for spans in &later {
            let lse = ViewMut::part(&mut self.scratch.lse, 0, lse_len);
            backend.attend_chunk(AttendChunk { p, q: t.q, spans, out: t.out_mut(), lse })?;
        }
        rounded.attend(&**backend, &shape, t, &mut self.scratch.lse)?;
        let spent = backend.now().saturating_sub(begin);
        drop((lists, runs, later, rounded));
        if let Some(token) = self.tokens.first_mut() {
            token.sequence.stats.attend += spent;
        }
        Ok(())
    }
}

/// Rounded rows that decoded tokens attend to after those that are there as they were written.
struct RoundedRows<'a, B: Backend> {
    lists: SmallVec<[ListSpan<'a, B>; 4]>,
    runs: SmallVec<[ChunkSpan<'a, B>; 4]>,
}

impl<B: Backend> Default for RoundedRows<'_, B> {
    fn default() -> Self {
        Self { lists: SmallVec::new(), runs: SmallVec::new() }
    }
}

impl<B: Backend> RoundedRows<'_, B> {
    /// Merged with what is attended, by log-sum-exp.
    fn attend(
        &self,
        backend: &B,
        shape: &KvShape,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> Result<(), SchedulerError> {
        let n_tokens = t.n_tokens(shape);
        let (p, lse_len) = (attend_params(shape, n_tokens, true), n_tokens * shape.n_q_heads);
        if !self.lists.is_empty() {
            let lse = ViewMut::part(lse, 0, lse_len);
            let (q, spans, out) = (t.q, &self.lists[..], t.out_mut());
            backend.attend_list(AttendList { p, q, spans, out, lse })?;
        }
        if !self.runs.is_empty() {
            let lse = ViewMut::part(lse, 0, lse_len);
            let (q, spans, out) = (t.q, &self.runs[..], t.out_mut());
            backend.attend_chunk(AttendChunk { p, q, spans, out, lse })?;
        }
        Ok(())
    }
}

/// The spans that follow their policy.
fn decode_spans<'s, 'a, B: Backend>(
    spans: &'s mut [StepSpan<'a, B>],
) -> impl Iterator<Item = &'s mut StepSpan<'a, B>> {
    spans.iter_mut().filter(|span| span.mode == SpanMode::Policy)
}
