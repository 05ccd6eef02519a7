//! One step of the model over a list of sequences: where each layer's attention happens.
//!
//! The model hands over queries, keys and values after RoPE; the scheduler stores the rows, chooses
//! what each KV head attends, and writes the attention's output. Prefill spans attend exactly;
//! decode spans follow their policy.

use longview_core::LayerId;
use longview_ops::{AttendChunk, Backend, ChunkSpan, View, ViewMut};

use super::decode::Token;
use super::kv_sequence::Sequence;
use super::prefill::Chunk;
use super::round::{Decoded, Round};
use super::scratch::StepScratch;
use crate::error::SchedulerError;
use crate::layout::{LayerTensors, attend_params};

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
            if span.start + span.len > self.scratch.tokens.max_tokens {
                let len = span.start + span.len;
                return Err(SchedulerError::Chunk { len, chunk: self.scratch.tokens.max_tokens });
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
                token.prepare_exact(sequence, &mut self.scratch.tokens, t).await?;
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
                order: None,
            };
            backend.attend_chunk(AttendChunk {
                p: attend_params(shape, n_tokens, false),
                q: t.q,
                spans: &[run],
                out: t.out_mut(),
                lse: ViewMut::part(&mut self.scratch.tokens.lse, 0, n_tokens * shape.n_q_heads),
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
            let index = span.start + round;
            Decoded { sequence: &mut *span.sequence, index, recalling: None }
        });
        Round { tokens: tokens.collect(), scratch: &mut self.scratch.tokens }
    }

    /// Whether a span of this step selects for `layer` by a predicted query.
    pub fn wants_prefetch(&self, layer: LayerId) -> bool {
        let wants = |sequence: &Sequence<B>| sequence.prefetches(layer);
        self.spans.iter().any(|span| span.mode == SpanMode::Policy && wants(span.sequence))
    }

    /// Selects what `layer` recalls by predicted queries `q`, F32 `[T, Hq, Dh]` after RoPE. To be
    /// called before the attention of the layer before; `q` is free again afterwards.
    pub async fn prefetch(&mut self, layer: LayerId, q: View<'_, B>) -> Result<(), SchedulerError> {
        let spans = decode_spans(self.spans).filter(|span| span.sequence.prefetches(layer));
        let tokens = spans.map(|span| {
            let index = span.start;
            Decoded { sequence: &mut *span.sequence, index, recalling: None }
        });
        let mut round = Round { tokens: tokens.collect(), scratch: &mut self.scratch.tokens };
        round.prefetch(layer, q).await
    }

    /// Ends the step: the tokens count but for drafted ones, and full windows go to the clustering
    /// worker. Where the host store is not mapped, new rows are still on the device until somebody
    /// reads [`Sequence::writeback_parts`]; the next step does so if nobody else has. With
    /// [`crate::RecallMode::Speculative`] the caller must, and look at the verdict.
    pub fn finish(self) {
        for span in self.spans.iter_mut() {
            let sequence = &mut *span.sequence;
            match span.mode {
                SpanMode::Exact { .. } => {
                    sequence.known.read(sequence.n_tokens, span.len);
                    sequence.n_tokens += span.len;
                }
                SpanMode::Policy => {
                    sequence.know_decoded();
                    sequence.n_tokens += 1;
                    sequence.n_drafted = span.len - 1;
                    sequence.stats.steps += span.len as u64;
                    sequence.end_token();
                }
            }
        }
    }
}

/// The spans that follow their policy.
fn decode_spans<'s, 'a, B: Backend>(
    spans: &'s mut [StepSpan<'a, B>],
) -> impl Iterator<Item = &'s mut StepSpan<'a, B>> {
    spans.iter_mut().filter(|span| span.mode == SpanMode::Policy)
}
