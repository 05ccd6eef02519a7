//! Prefill: a chunk of a prompt attends exactly to everything before it and to itself.

use std::ops::Range;

use longview_core::LayerId;
use longview_ops::{AttendChunk, Backend, ChunkSpan, KvView, OpResult, View, ViewMut};

use super::kv_sequence::Sequence;
use super::scratch::{StepScratch, StreamBuffers};
use crate::error::SchedulerError;
use crate::index::RecordedChunk;
use crate::layout::{KvShape, LayerMode, LayerTensors, attend_params, segment_rows};
use crate::store::{DeviceRows, LayerRows, NewRows, RowReader, scatter};

/// A prefill chunk in one layer.
pub(super) struct Chunk {
    pub layer: LayerId,
    /// Its first token among the step's tokens.
    pub start: usize,
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
        if self.layer == LayerId(0) {
            sequence.bring_rows().await?;
        }
        sequence.copies.join(&sequence.backend)?;
        let n = sequence.n_tokens;
        let mode = sequence.layers[self.layer].mode();
        if mode != LayerMode::Local {
            self.record(sequence, t).await?;
        }
        sequence.layers[self.layer].push_positions(n, self.len);
        if sequence.exact.is_some() {
            self.attend_two_forms(sequence, scratch, t)?;
        } else if sequence.in_place() {
            self.attend_in_place(sequence, scratch, t).await?;
        } else if mode == LayerMode::Dense {
            self.attend_resident(sequence, scratch, t).await?;
        } else {
            self.attend_streamed(sequence, scratch, t).await?;
        }
        if sequence.records_mass(self.layer) {
            sequence.copies.join(&sequence.backend)?;
            let len = t.n_tokens(&sequence.shape) * sequence.shape.n_q_heads;
            let lse = View::part(&scratch.lse, 0, len);
            sequence.record_mass(self.layer, t, lse, self.start..self.start + self.len)?;
        }
        sequence.keep_prompt_keys(self.layer, n..n + self.len);
        sequence.submit_segments(self.layer, n + self.len).await
    }

    /// The chunk's rows, as many as the scratch has numbers for.
    fn new_rows<'a, B: Backend>(&self, scratch: &'a StepScratch<B>) -> NewRows<'a, B> {
        NewRows { start: self.start, len: self.len, row_ids: scratch.rows(0, self.len) }
    }

    /// The rows are stored and attended where they are.
    async fn attend_in_place<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape, backend) = (sequence.n_tokens, &sequence.shape, &*sequence.backend);
        let first = sequence.first_visible(self.layer, n + 1);
        scratch.set_rows(backend, n..n + self.len)?;
        let new = self.new_rows(scratch);
        let buffer = sequence.store.buffer_mut(self.layer, n..n + self.len);
        let buffer = buffer.expect("in place: kernels read the store");
        scatter(backend, shape, t, &new, DeviceRows { buffer, head_stride: shape.capacity })?;
        if !self.attends {
            return Ok(());
        }
        let n_sparse = self.n_sparse(sequence);
        if n_sparse > 0 {
            return self.attend_sparsely(sequence, scratch, t, n_sparse).await;
        }
        let run = Run {
            kv: sequence.attended_rows(self.layer),
            rows: first..n + self.len,
            diagonal: (n - first) as i32,
            window: shape.window(self.layer),
            accumulate: false,
        };
        Ok(self.attend_run(backend, shape, &mut scratch.lse, t, run)?)
    }

    /// Dense layers on a device: stored and attended there, and copied to the host.
    async fn attend_resident<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
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
        let all = segment_rows(0..n + self.len, stride).zip(state.segments());
        for (part, buffer) in all.filter(|_| self.attends) {
            let run = Run {
                kv: KvView::new(buffer, stride),
                diagonal: n as i32 - (part.segment * stride) as i32,
                rows: part.rows,
                window: shape.window(self.layer),
                accumulate: part.segment > 0,
            };
            self.attend_run(backend, shape, &mut scratch.lse, t, run)?;
        }
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
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let mut stream =
            scratch.stream.take().expect("device placement has buffers to stream through");
        let result = self.stream(sequence, scratch, t, &mut stream).await;
        scratch.stream = Some(stream);
        result
    }

    async fn stream<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
        stream: &mut StreamBuffers<B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape) = (sequence.n_tokens, &sequence.shape);
        let (backend, tile) = (&sequence.backend, sequence.options.tile);
        let first = if self.attends { sequence.first_visible(self.layer, n + 1) } else { n };
        let past = first..n;
        let window = shape.window(self.layer);
        scratch.set_rows(backend, 0..self.len)?;
        let StreamBuffers { chunk, tiles } = stream;
        let chunk_stride = scratch.max_tokens;
        let new = self.new_rows(scratch);
        let dst = DeviceRows { buffer: &mut *chunk, head_stride: chunk_stride };
        scatter(&**backend, shape, t, &new, dst)?;

        // Tile i + 1 is fetched while tile i is attended, and the chunk goes to the host while the
        // layer is computed to its end.
        let copies = sequence.copies.queue.as_ref();
        let side = copies.unwrap_or(backend);
        let after = |later: &B, earlier: &B| match copies {
            Some(_) => later.after(earlier),
            None => Ok(()),
        };
        let mut reader = RowReader {
            backend: side,
            rows: LayerRows { shape, store: &*sequence.store, layer: self.layer },
            mover: &mut sequence.mover,
            tile,
        };
        let mut fetch = |i: usize, buffer: &mut B::Buffer| {
            let start = past.start + i * tile;
            let rows = start..n.min(start + tile);
            reader.load(rows, DeviceRows { buffer, head_stride: tile })
        };
        let n_tiles = past.len().div_ceil(tile);
        after(side, backend)?;
        if n_tiles > 0 {
            fetch(0, &mut tiles[0])?;
        }
        for i in 0..n_tiles {
            after(backend, side)?;
            if i + 1 < n_tiles {
                // Tile i - 1, whose place it takes, was attended.
                after(side, backend)?;
                fetch(i + 1, &mut tiles[(i + 1) % 2])?;
            }
            let kv = KvView::new(&tiles[i % 2], tile);
            let before = past.len() - i * tile;
            let rows = 0..tile.min(before);
            let run = Run { kv, rows, diagonal: before as i32, window, accumulate: i > 0 };
            self.attend_run(&**backend, shape, &mut scratch.lse, t, run)?;
        }
        let kv = KvView::new(&*chunk, chunk_stride);
        let run = Run { kv, rows: 0..self.len, diagonal: 0, window, accumulate: n_tiles > 0 };
        if self.attends {
            self.attend_run(&**backend, shape, &mut scratch.lse, t, run)?;
        }
        let mover = &mut sequence.mover;
        mover.clear();
        for head in shape.heads() {
            (0..self.len).for_each(|r| mover.push(head, r, n + r));
        }
        after(side, backend)?;
        mover.store(&**side, shape, &mut *sequence.store, self.layer, kv).await?;
        sequence.copies.is_busy = sequence.copies.queue.is_some();
        if self.layer.index() + 1 == sequence.shape.n_layers {
            // Who waits for the step knows that all rows are with the host.
            sequence.copies.join(&sequence.backend)?;
        }
        Ok(())
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
        let chunk = RecordedChunk { start, len, n_before: sequence.n_tokens, remaining };
        let recorded = &mut sequence.layers[layer].recorded;
        Ok(recorded.add_chunk(&*sequence.backend, &sequence.shape, t, chunk).await?)
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
}
