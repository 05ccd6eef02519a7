//! Decoded tokens of several sequences in one layer. What one of them needs of the device is asked
//! for all of them together, so that a step waits as often as that of one sequence.

use std::sync::Arc;
use std::time::Duration;

use longview_core::LayerId;
use longview_ops::{
    AttendChunk, AttendList, Backend, ChunkSpan, KvView, ListSpan, OpResult, View, ViewMut,
};
use smallvec::SmallVec;

use super::decode::{Recalling, Token};
use super::kv_sequence::Sequence;
use super::layer_state::LayerState;
use super::scratch::TokenScratch;
use crate::error::SchedulerError;
use crate::layout::{KvShape, LayerTensors, attend_params, segment_rows};
use crate::recall::RESIDUAL_PARTS;
use crate::store::ReadParts;

/// A decoded token of a step.
pub(super) struct Decoded<'s, B: Backend> {
    pub sequence: &'s mut Sequence<B>,
    /// Among the step's tokens.
    pub index: usize,
    /// The selection of the layer in progress, until its rows are listed.
    pub recalling: Option<Recalling>,
}

/// Decoded tokens of several sequences, one of each, that attend together.
pub(super) struct Round<'s, B: Backend> {
    pub tokens: SmallVec<[Decoded<'s, B>; 4]>,
    pub scratch: &'s mut TokenScratch<B>,
}

/// A sequence with its selection.
type Selecting<'a, B> = (Token, &'a mut Sequence<B>, &'a Recalling);

impl<B: Backend> Round<'_, B> {
    /// Stores the tokens' rows, chooses what they attend, and attends it.
    pub async fn attend(
        &mut self,
        layer: LayerId,
        round: usize,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let place = |index: usize| Token { layer, index, round };
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).begin(sequence).await?;
        }
        self.store(layer, round, t)?;
        for Decoded { sequence, index, recalling } in &mut self.tokens {
            *recalling = place(*index).list(sequence, t).await?;
        }
        self.recall(layer, round, t).await?;
        self.attend_tokens(layer, t)?;
        self.attend_misses(layer, t)?;
        let lse = &mut self.scratch.lse;
        // What the host attends comes first, since every later part is merged with all before.
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).attend_on_host(sequence, t, lse)?;
        }
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).measure(sequence, t, lse)?;
        }
        self.bound_attention(layer, round, t.q).await?;
        let lse = &mut self.scratch.lse;
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).attend_rotated_sinks(sequence, t, lse)?;
        }
        self.attend_residual(layer, round, t)?;
        self.attend_sampled(layer, round, t).await?;
        for Decoded { sequence, index, .. } in &mut self.tokens {
            let Sequence { trace, backend, .. } = &mut **sequence;
            trace.record(&**backend, layer, *index, t).await?;
        }
        Ok(())
    }

    /// Counts bounds of the attention that tokens left out, where their policies ask for them: one
    /// wait brings the queries of all of them.
    async fn bound_attention(
        &mut self,
        layer: LayerId,
        round: usize,
        q: View<'_, B>,
    ) -> Result<(), SchedulerError> {
        let place = |index: usize| Token { layer, index, round };
        let tokens = self.tokens.iter_mut();
        let mut bounded: SmallVec<[&mut Decoded<'_, B>; 4]> =
            tokens.filter_map(|t| place(t.index).is_bounded(t.sequence).then_some(t)).collect();
        let Some(first) = bounded.first() else { return Ok(()) };
        let (backend, shape) = (Arc::clone(&first.sequence.backend), first.sequence.shape.clone());
        let (hq, own) = (shape.n_q_heads, shape.n_q_heads * shape.head_dim);
        let mut numbers = vec![0.0f32; bounded.len() * (own + hq)];
        let mut parts = ReadParts::<B>::new();
        for (token, numbers) in bounded.iter().zip(numbers.chunks_exact_mut(own + hq)) {
            let views = place(token.index).query_and_sums(&shape, q, &self.scratch.lse);
            let (q, sums) = numbers.split_at_mut(own);
            parts.extend(views.into_iter().zip([q, sums].map(bytemuck::cast_slice_mut)));
        }
        read_parts(&*backend, parts).await?;
        for (token, numbers) in bounded.iter_mut().zip(numbers.chunks_exact(own + hq)) {
            let (q, sums) = numbers.split_at(own);
            place(token.index).bound_attention(token.sequence, q, sums);
        }
        Ok(())
    }

    /// Adds tokens that the host draws from those that were not chosen, where policies ask for
    /// them: one wait brings the queries of all of them.
    async fn attend_sampled(
        &mut self,
        layer: LayerId,
        round: usize,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let place = |index: usize| Token { layer, index, round };
        let Some(first) = self.tokens.first() else { return Ok(()) };
        let backend = Arc::clone(&first.sequence.backend);
        let mut parts = ReadParts::<B>::new();
        for Decoded { sequence, index, .. } in &mut self.tokens {
            parts.extend(place(*index).sample_parts(sequence, t.q, &self.scratch.lse));
        }
        read_parts(&*backend, parts).await?;
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).attend_sampled(sequence, t, &mut self.scratch.lse)?;
        }
        Ok(())
    }

    /// Writes the tokens' rows: where they go is told for all of them at once.
    fn store(
        &mut self,
        layer: LayerId,
        round: usize,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Some(first) = self.tokens.first() else { return Ok(()) };
        let backend = Arc::clone(&first.sequence.backend);
        let place = |index: usize| Token { layer, index, round };
        let rows = self.tokens.iter().flat_map(|token| place(token.index).rows(token.sequence));
        self.scratch.set_rows(&*backend, rows)?;
        for (i, Decoded { sequence, index, .. }) in self.tokens.iter_mut().enumerate() {
            place(*index).store(sequence, self.scratch, i, t)?;
        }
        Ok(())
    }

    /// The sequences that select, by whether the device looks up what they have selected.
    fn selecting(
        &mut self,
        layer: LayerId,
        round: usize,
        on_device: bool,
    ) -> impl Iterator<Item = Selecting<'_, B>> {
        let tokens = self.tokens.iter_mut();
        tokens.filter_map(move |Decoded { sequence, index, recalling }| {
            let is_wanted = sequence.chooses_on_device() == on_device;
            let recalling = recalling.as_ref().filter(|_| is_wanted)?;
            Some((Token { layer, index: *index, round }, &mut **sequence, recalling))
        })
    }

    /// Lists what the tokens recall. One wait brings the selections of all of them.
    async fn recall(
        &mut self,
        layer: LayerId,
        round: usize,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let recalls = |token: &&Decoded<'_, B>| token.recalling.is_some();
        let n = self.tokens.iter().filter(recalls).count() as u32;
        let Some(first) = self.tokens.iter().find(recalls) else { return Ok(()) };
        let backend = Arc::clone(&first.sequence.backend);
        let begin = backend.now();
        for on_device in [true, false] {
            for (token, sequence, recalling) in self.selecting(layer, round, on_device) {
                token.select(sequence, recalling, t)?;
            }
        }
        for (token, sequence, recalling) in self.selecting(layer, round, true) {
            token.look_up_on_device(sequence, recalling)?;
        }
        let looked_up = backend.now();
        let mut parts = ReadParts::<B>::new();
        for (token, sequence, recalling) in self.selecting(layer, round, false) {
            parts.extend(token.selection_parts(sequence, recalling, t.q));
        }
        read_parts(&*backend, parts).await?;
        for (token, sequence, recalling) in self.selecting(layer, round, false) {
            token.take_selection(sequence, recalling);
        }
        let selected = backend.now();
        for (token, sequence, recalling) in self.selecting(layer, round, false) {
            token.list_selected(sequence, recalling)?;
        }
        let fetched = backend.now();
        for (token, sequence, recalling) in self.selecting(layer, round, false) {
            token.select_for_next(sequence, recalling, t)?;
        }
        let end = backend.now();
        for Decoded { sequence, recalling, .. } in &mut self.tokens {
            if recalling.take().is_none() {
                continue;
            }
            // What is done for all of them together is divided among them.
            let spent = |from: Duration, to: Duration| to.saturating_sub(from) / n;
            let (on_device, stats) = (sequence.chooses_on_device(), &mut sequence.stats);
            if on_device {
                stats.fetch += spent(begin, looked_up);
            } else {
                stats.select += spent(begin, selected) + spent(fetched, end);
                stats.fetch += spent(selected, fetched);
            }
        }
        Ok(())
    }

    /// Selects by predicted queries `q`, F32 `[T, Hq, Dh]`, with one wait for all of them.
    pub async fn prefetch(&mut self, layer: LayerId, q: View<'_, B>) -> Result<(), SchedulerError> {
        let place = |index: usize| Token { layer, index, round: 0 };
        let n = self.tokens.len() as u32;
        let Some(first) = self.tokens.first() else { return Ok(()) };
        let backend = Arc::clone(&first.sequence.backend);
        let begin = backend.now();
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).prefetch(sequence, q).await?;
        }
        let mut parts = ReadParts::<B>::new();
        for Decoded { sequence, index, .. } in &mut self.tokens {
            parts.extend(place(*index).prefetched_parts(sequence));
        }
        read_parts(&*backend, parts).await?;
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).note_prefetched(sequence);
            sequence.stats.select += backend.now().saturating_sub(begin) / n;
        }
        Ok(())
    }

    /// Adds the estimates of what the last selections left unread: of each estimate's parts one
    /// launch for all tokens.
    fn attend_residual(
        &mut self,
        layer: LayerId,
        round: usize,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let place = |index: usize| Token { layer, index, round };
        for Decoded { sequence, index, .. } in &mut self.tokens {
            place(*index).prepare_residual(sequence)?;
        }
        let Some(first) = self.tokens.first() else { return Ok(()) };
        let (backend, shape) = (Arc::clone(&first.sequence.backend), first.sequence.shape.clone());
        for part in 0..RESIDUAL_PARTS {
            let spans = self.tokens.iter();
            let spans: SmallVec<[ListSpan<'_, B>; 4]> = spans
                .filter_map(|token| place(token.index).residual_span(token.sequence, part))
                .collect();
            attend_lists(&*backend, &shape, &spans, true, t, &mut self.scratch.lse)?;
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
        attend_lists(&*backend, &shape, &lists, true, t, &mut self.scratch.lse)?;
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
                        order: None,
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
                    let slots = sequence.slots(layer);
                    let mut slots = slots.map(|(lists, rows)| lists.first(rows, token.index));
                    if let (LayerState::Recall(recall), Some(path)) = (state, &sequence.recall) {
                        let looked_up = slots.as_mut().unwrap_or(&mut list);
                        if let Some(n_rows) = path.n_rows(recall.selection) {
                            looked_up.n_rows = n_rows;
                        }
                    }
                    if sequence.layers[layer].device.is_none()
                        && let Some(exact) = sequence.exact_list(layer, token.index)
                    {
                        rounded.lists.push(std::mem::replace(&mut list, exact));
                    }
                    rounded.lists.extend(slots);
                    lists.push(list);
                }
            }
        }
        let lse = &mut self.scratch.lse;
        attend_lists(&**backend, &shape, &lists, false, t, lse)?;
        attend_runs(&**backend, &shape, &runs, false, t, lse)?;
        for spans in &later {
            attend_runs(&**backend, &shape, spans, true, t, lse)?;
        }
        // Merged with what is attended, by log-sum-exp.
        attend_lists(&**backend, &shape, &rounded.lists, true, t, lse)?;
        attend_runs(&**backend, &shape, &rounded.runs, true, t, lse)?;
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

/// Attends lists of rows, if there are any; merged with what was attended before if `accumulate`.
fn attend_lists<B: Backend>(
    backend: &B,
    shape: &KvShape,
    spans: &[ListSpan<'_, B>],
    accumulate: bool,
    t: &mut LayerTensors<'_, B>,
    lse: &mut B::Buffer,
) -> OpResult<()> {
    if spans.is_empty() {
        return Ok(());
    }
    let n_tokens = t.n_tokens(shape);
    let p = attend_params(shape, n_tokens, accumulate);
    let (q, lse) = (t.q, ViewMut::part(lse, 0, n_tokens * shape.n_q_heads));
    backend.attend_list(AttendList { p, q, spans, out: t.out_mut(), lse })
}

/// The same of runs of rows.
fn attend_runs<B: Backend>(
    backend: &B,
    shape: &KvShape,
    spans: &[ChunkSpan<'_, B>],
    accumulate: bool,
    t: &mut LayerTensors<'_, B>,
    lse: &mut B::Buffer,
) -> OpResult<()> {
    if spans.is_empty() {
        return Ok(());
    }
    let n_tokens = t.n_tokens(shape);
    let p = attend_params(shape, n_tokens, accumulate);
    let (q, lse) = (t.q, ViewMut::part(lse, 0, n_tokens * shape.n_q_heads));
    backend.attend_chunk(AttendChunk { p, q, spans, out: t.out_mut(), lse })
}

/// Reads parts with one wait, if there are any.
async fn read_parts<B: Backend>(backend: &B, mut parts: ReadParts<'_, B>) -> OpResult<()> {
    if parts.is_empty() { Ok(()) } else { backend.read_all(&mut parts).await }
}
