//! Prefill: a chunk of a prompt attends to everything before it and to itself.

use std::ops::Range;

use longview_core::LayerId;
use longview_ops::{AttendChunk, Backend, ChunkSpan, KvView, OpResult, RowOrder, View, ViewMut};

use super::kv_sequence::Sequence;
use super::past_stream::PastStream;
use super::scratch::{StepScratch, StreamBuffers, TokenScratch};
use super::token_order::TokenOrder;
use crate::error::SchedulerError;
use crate::index::{EarlierPlaces, RecordedChunk};
use crate::layout::{KvShape, LayerMode, LayerTensors, attend_params, segment_rows};
use crate::store::{DeviceRows, NewRows, scatter};

/// A prefill chunk in one layer, or a part of one.
pub(super) struct Chunk {
    pub layer: LayerId,
    /// Its first token among the step's tokens.
    pub start: usize,
    /// Tokens of the chunk before a part.
    pub before: usize,
    pub len: usize,
    /// Tokens of the same prompt that follow.
    pub remaining: usize,
    /// Whether its attention is wanted: without it rows are stored and recorded alone.
    pub attends: bool,
}

impl Chunk {
    /// Attention of the layer, causal and exact; over its window, where it has one.
    pub async fn attend<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        // Borrowed apart, never taken out: a step may be left at any wait.
        let StepScratch { tokens: scratch, stream } = scratch;
        if self.layer == LayerId(0) {
            sequence.bring_rows().await?;
        }
        sequence.copies.join(&sequence.backend)?;
        sequence.leave_old_order(self.layer);
        let n = sequence.n_tokens;
        // Of all layers, before the first row is written: pages lie across their seams.
        sequence.store.expect(n + self.len + self.remaining);
        // Of the rows before: whoever has others to serve hands them over first, in pieces.
        sequence.submit_segments(self.layer, n).await?;
        let mode = sequence.layers[self.layer].mode();
        if mode != LayerMode::Local {
            self.record(sequence, t).await?;
        }
        sequence.layers[self.layer].push_positions(n, self.len);
        if sequence.exact.is_some() {
            self.attend_two_forms(sequence, scratch, t).await?;
        } else if sequence.in_place() {
            self.attend_in_place(sequence, scratch, t).await?;
        } else if mode == LayerMode::Dense || sequence.layers[self.layer].resident.is_some() {
            sequence.load_stale(self.layer)?;
            self.attend_resident(sequence, scratch, t).await?;
        } else {
            let stream = stream.as_mut().expect("device placement has buffers to stream through");
            self.attend_streamed(sequence, scratch, t, stream).await?;
        }
        if sequence.records_mass(self.layer) {
            sequence.copies.join(&sequence.backend)?;
            let len = t.n_tokens(&sequence.shape) * sequence.shape.n_q_heads;
            let lse = View::part(&scratch.lse, 0, len);
            sequence.record_mass(self.layer, t, lse, self.start..self.start + self.len)?;
        }
        sequence.keep_prompt_keys(self.layer, n..n + self.len);
        Ok(())
    }

    /// The chunk's rows, as many as the scratch has numbers for.
    fn new_rows<'a, B: Backend>(&self, scratch: &'a TokenScratch<B>) -> NewRows<'a, B> {
        NewRows { start: self.start, len: self.len, row_ids: scratch.rows(0, self.len) }
    }

    /// The rows are stored and attended where they are.
    async fn attend_in_place<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape, backend) = (sequence.n_tokens, &sequence.shape, &*sequence.backend);
        scratch.set_rows(backend, n..n + self.len)?;
        let new = self.new_rows(scratch);
        let buffer = sequence.store.buffer_mut(self.layer, n..n + self.len);
        let buffer = buffer.expect("in place: kernels read the store");
        scatter(backend, shape, t, &new, DeviceRows { buffer, head_stride: shape.capacity })?;
        self.attend_rows(sequence, scratch, t).await
    }

    /// Attention over rows that kernels read where they lie. The chunk's are stored.
    async fn attend_rows<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        if !self.attends {
            return Ok(());
        }
        let n_sparse = self.n_sparse(sequence);
        if n_sparse > 0 {
            self.part(0..n_sparse).attend_sparsely(sequence, scratch, t, None).await?;
        }
        let rest = self.part(n_sparse..self.len);
        if rest.len == 0 {
            return Ok(());
        }
        let (n, shape) = (sequence.n_tokens, &sequence.shape);
        let order = sequence.token_order(self.layer, &mut scratch.order)?;
        let first = sequence.first_visible(self.layer, rest.position(sequence) + 1);
        for (i, piece) in sequence.pieces(self.layer, first..n + self.len).enumerate() {
            let run = Run {
                kv: piece.kv,
                diagonal: rest.position(sequence) as i32 - piece.first as i32,
                rows: piece.rows,
                window: shape.window(self.layer),
                accumulate: i > 0,
                order: order.map(TokenOrder::view),
            };
            rest.attend_run(&*sequence.backend, shape, &mut scratch.lse, t, run)?;
        }
        Ok(())
    }

    /// Layers whose rows all lie on the device: stored and attended there, and copied to the host.
    async fn attend_resident<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape) = (sequence.n_tokens, &sequence.shape);
        let backend = &*sequence.backend;
        let state = &mut sequence.layers[self.layer];
        let stride = state.device_rows;
        scratch.set_rows(backend, (n..n + self.len).map(|row| state.place_of(row).1))?;
        let parts = segment_rows(n..n + self.len, stride);
        for part in parts.clone() {
            let (start, len) = (self.start + part.before, part.rows.len());
            let new = NewRows { start, len, row_ids: scratch.rows(part.before, len) };
            let device = state.segment_mut(part.segment);
            scatter(backend, shape, t, &new, device.expect("device placement has device rows"))?;
        }
        self.attend_rows(sequence, scratch, t).await?;
        let (shape, backend) = (&sequence.shape, &*sequence.backend);
        let state = &sequence.layers[self.layer];
        for part in parts {
            let Some(buffer) = state.segments().nth(part.segment) else { continue };
            sequence.mover.clear();
            for head in shape.heads() {
                for (i, row) in part.rows.clone().enumerate() {
                    sequence.mover.push(head, row, n + part.before + i);
                }
            }
            let (kv, store) = (KvView::new(buffer, stride), &mut *sequence.store);
            sequence.mover.store(backend, shape, store, self.layer, kv).await?;
        }
        Ok(())
    }

    /// The past, as far as the layer sees it, is streamed from the host in tiles and merged by
    /// log-sum-exp; the chunk goes to the host.
    async fn attend_streamed<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
        stream: &mut StreamBuffers<B>,
    ) -> Result<(), SchedulerError> {
        scratch.set_rows(&*sequence.backend, 0..self.len)?;
        let head_stride = scratch.max_tokens;
        let new = self.new_rows(scratch);
        let dst = DeviceRows { buffer: &mut stream.chunk, head_stride };
        scatter(&*sequence.backend, &sequence.shape, t, &new, dst)?;
        let n_sparse = self.n_sparse(sequence);
        if n_sparse > 0 {
            // The means are made of rows that the host has.
            self.store(sequence, KvView::new(&stream.chunk, head_stride)).await?;
            let part = self.part(0..n_sparse);
            part.attend_sparsely(sequence, scratch, t, Some(&mut *stream)).await?;
        }
        if self.attends && n_sparse < self.len {
            self.part(n_sparse..self.len).attend_past(sequence, scratch, t, stream)?;
        }
        if n_sparse == 0 {
            // While the layer is computed to its end.
            self.store(sequence, KvView::new(&stream.chunk, head_stride)).await?;
        }
        sequence.copies.is_busy = sequence.copies.queue.is_some();
        if self.layer.index() + 1 == sequence.shape.n_layers {
            // Who waits for the step knows that all rows are with the host.
            sequence.copies.join(&sequence.backend)?;
        }
        Ok(())
    }

    /// The chunk's rows go to the host.
    async fn store<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        chunk: KvView<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape, backend) = (sequence.n_tokens, &sequence.shape, &sequence.backend);
        let mover = &mut sequence.mover;
        mover.clear();
        for head in shape.heads() {
            (0..self.len).for_each(|r| mover.push(head, r, n + r));
        }
        let side = sequence.copies.queue.as_ref().unwrap_or(backend);
        if sequence.copies.queue.is_some() {
            side.after(backend)?;
        }
        mover.store(&**side, shape, &mut *sequence.store, self.layer, chunk).await?;
        Ok(())
    }

    /// Over the past, and over the chunk up to the part's last token.
    fn attend_past<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
        stream: &mut StreamBuffers<B>,
    ) -> OpResult<()> {
        let (n, position) = (sequence.n_tokens, self.position(sequence));
        let past = sequence.first_visible(self.layer, position + 1)..n;
        let window = sequence.shape.window(self.layer);
        let mut past_rows = PastStream::new(sequence, self.layer, &mut stream.tiles);
        let shape = past_rows.rows.shape;
        let mut accumulate = false;
        past_rows.each(
            (past, usize::MAX),
            |_, _| true,
            |backend, kv, piece| {
                let diagonal = (position - piece.start) as i32;
                let (rows, order) = (0..piece.len(), None);
                let run = Run { kv, rows, diagonal, window, accumulate, order };
                accumulate = true;
                self.attend_run(backend, shape, &mut scratch.lse, t, run)
            },
        )?;
        let kv = KvView::new(&stream.chunk, scratch.max_tokens);
        let (rows, diagonal) = (0..self.before + self.len, self.before as i32);
        let run = Run { kv, rows, diagonal, window, accumulate, order: None };
        self.attend_run(&*sequence.backend, &sequence.shape, &mut scratch.lse, t, run)
    }

    /// Some tokens of the chunk.
    pub(super) fn part(&self, tokens: Range<usize>) -> Self {
        Self {
            start: self.start + tokens.start,
            before: self.before + tokens.start,
            len: tokens.len(),
            ..*self
        }
    }

    /// Where the first token is in the sequence.
    pub(super) fn position<B: Backend>(&self, sequence: &Sequence<B>) -> usize {
        sequence.n_tokens + self.before
    }

    pub(super) fn attend_run<B: Backend>(
        &self,
        backend: &B,
        shape: &KvShape,
        lse: &mut B::Buffer,
        t: &mut LayerTensors<'_, B>,
        run: Run<'_, B>,
    ) -> OpResult<()> {
        let n_tokens = t.n_tokens(shape);
        backend.attend_chunk(AttendChunk {
            p: attend_params(shape, n_tokens, run.accumulate),
            q: t.q,
            spans: &[ChunkSpan {
                q_start: self.start as u32,
                q_len: self.len as u32,
                kv: run.kv,
                row_start: run.rows.start as u32,
                n_rows: run.rows.len() as u32,
                diagonal: run.diagonal,
                window: run.window.map_or(ChunkSpan::<B>::ALL, |n| n as u32),
                order: run.order,
            }],
            out: t.out_mut(),
            lse: ViewMut::part(lse, 0, n_tokens * shape.n_q_heads),
        })
    }

    /// Records what later policies need of the chunk.
    async fn record<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Chunk { layer, start, len, remaining, .. } = *self;
        let n_before = sequence.n_tokens;
        let earlier = if !sequence.policy.needs_sums() {
            EarlierPlaces::None
        } else if sequence.backend.capabilities().chunk_rows_are_alike {
            EarlierPlaces::Near
        } else {
            // Nobody goes on from there to the bit.
            EarlierPlaces::Few
        };
        let chunk = RecordedChunk { start, len, n_before, remaining, earlier };
        let recorded = &mut sequence.layers[layer].recorded;
        Ok(recorded.add_chunk(&*sequence.backend, &sequence.shape, t, chunk).await?)
    }
}

/// Rows of a layer that lie in one buffer.
pub(super) struct Piece<'a, B: Backend> {
    pub kv: KvView<'a, B>,
    /// Where in it.
    pub rows: Range<usize>,
    /// The row of the sequence that is the first of them.
    pub first: usize,
}

impl<B: Backend> Sequence<B> {
    /// Where tokens of a layer lie if clusters have put them out of order; `None` if they have not,
    /// and where kernels attend rows as they lie. `made` is memory to use again.
    fn token_order<'a>(
        &self,
        layer: LayerId,
        made: &'a mut Option<TokenOrder<B>>,
    ) -> OpResult<Option<&'a TokenOrder<B>>> {
        let (backend, state) = (&*self.backend, &self.layers[layer]);
        // First tokens stay where they are.
        let is_ordered = state.permuted_to <= self.policy.sinks;
        if is_ordered || !self.in_place() || !backend.capabilities().orders_chunk_rows {
            return Ok(None);
        }
        let n_rows = state.positions.iter().map(Vec::len).max().unwrap_or(0);
        if made.as_ref().is_none_or(|order| order.room() < n_rows) {
            // The old one is freed first.
            *made = None;
            let room = (n_rows, self.shape.capacity);
            *made = Some(TokenOrder::new(backend, self.shape.n_kv_heads, room)?);
        }
        if let Some(order) = made.as_mut() {
            order.set(backend, &state.positions)?;
        }
        Ok(made.as_ref())
    }

    /// Where rows of a layer lie that kernels read in their places.
    pub(super) fn pieces(
        &self,
        layer: LayerId,
        rows: Range<usize>,
    ) -> impl Iterator<Item = Piece<'_, B>> {
        let state = &self.layers[layer];
        let is_one = state.device_rest.is_empty();
        let one = is_one.then(|| Piece {
            kv: self.attended_rows(layer),
            first: rows.start,
            rows: rows.clone(),
        });
        let cut = segment_rows(if is_one { 0..0 } else { rows.clone() }, state.device_rows);
        let several = cut.filter_map(move |part| {
            let kv = KvView::new(state.segments().nth(part.segment)?, state.device_rows);
            Some(Piece { kv, first: rows.start + part.before, rows: part.rows })
        });
        one.into_iter().chain(several)
    }
}

/// A run of rows to attend.
pub(super) struct Run<'a, B: Backend> {
    pub kv: KvView<'a, B>,
    pub rows: Range<usize>,
    /// The first query sees rows of the run up to this one.
    pub diagonal: i32,
    /// And of these the last so many.
    pub window: Option<usize>,
    /// Merge with what the output has, by log-sum-exp.
    pub accumulate: bool,
    /// Where the rows lie, if not one behind the other.
    pub order: Option<RowOrder<'a, B>>,
}
