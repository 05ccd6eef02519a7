//! Prefill: a chunk of a prompt attends exactly to everything before it and to itself.

use longview_ops::{
    AttendChunk, Backend, ChunkSpan, Gram, GramParams, KvView, OpResult, View, ViewMut,
};

use crate::error::SchedulerError;
use crate::layer::{LAST_QUERIES, LayerMode};
use crate::rows::DeviceRows;
use crate::sequence::{Placement, Sequence};
use crate::shape::KvShape;
use crate::step::{LayerTensors, StepScratch, attend_params, reborrow, scatter};

/// A prefill chunk in one layer.
pub(crate) struct Chunk {
    pub layer: usize,
    /// Its first token among the step's tokens.
    pub start: usize,
    pub len: usize,
    /// Tokens of the same prompt that follow.
    pub remaining: usize,
}

impl Chunk {
    /// Attention of the layer, causal and exact.
    pub async fn attend<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        if self.layer == 0 {
            sequence.bring_rows().await?;
        }
        sequence.join_side()?;
        let n = sequence.n_tokens;
        self.record(sequence, t).await?;
        sequence.layers[self.layer].push_positions(n, self.len);
        if sequence.options.placement == Placement::InPlace {
            self.attend_in_place(sequence, scratch, t)?;
        } else if sequence.layers[self.layer].mode == LayerMode::Dense {
            self.attend_resident(sequence, scratch, t).await?;
        } else {
            self.attend_streamed(sequence, scratch, t).await?;
        }
        if sequence.records_mass(self.layer) {
            sequence.join_side()?;
            let tokens = t.q.len / (sequence.shape.n_q_heads * sequence.shape.head_dim);
            let lse = View::part(&scratch.lse, 0, tokens * sequence.shape.n_q_heads);
            sequence.record_mass(self.layer, t.q, lse, (self.start, self.len))?;
        }
        sequence.submit_segments(self.layer, n + self.len).await
    }

    /// The rows are stored and attended where they are.
    fn attend_in_place<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape, backend) = (sequence.n_tokens, &sequence.shape, &*sequence.backend);
        scratch.set_rows(backend, n..n + self.len)?;
        let buffer = sequence.tier.buffer_mut(self.layer).expect("in place: kernels read the tier");
        let dst = DeviceRows { buffer, head_stride: shape.capacity };
        scatter(backend, shape, t, (self.start, self.len), scratch.rows(0, self.len), dst)?;
        let buffer = sequence.tier.buffer(self.layer).expect("in place: kernels read the tier");
        let run = Run {
            kv: KvView::new(buffer, shape.capacity),
            n_rows: n + self.len,
            diagonal: n as i32,
        };
        self.attend_run(backend, shape, scratch, t, run, false)?;
        Ok(())
    }

    /// Dense layers on a device: stored and attended there, mirrored to the host.
    async fn attend_resident<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (n, shape) = (sequence.n_tokens, &sequence.shape);
        let backend = &*sequence.backend;
        scratch.set_rows(backend, n..n + self.len)?;
        let state = &mut sequence.layers[self.layer];
        let buffer = state.device.as_mut().expect("dense layers have device rows");
        let dst = DeviceRows { buffer, head_stride: state.device_rows };
        scatter(backend, shape, t, (self.start, self.len), scratch.rows(0, self.len), dst)?;
        let buffer = state.device.as_ref().expect("dense layers have device rows");
        let kv = KvView::new(buffer, state.device_rows);
        self.attend_run(
            backend,
            shape,
            scratch,
            t,
            Run { kv, n_rows: n + self.len, diagonal: n as i32 },
            false,
        )?;
        sequence.mover.clear();
        for head in 0..shape.n_kv_heads {
            (n..n + self.len).for_each(|row| sequence.mover.push(head, row, row));
        }
        sequence.mover.store(backend, shape, &mut *sequence.tier, self.layer, kv).await?;
        Ok(())
    }

    /// The past is streamed from the host in tiles and merged by log-sum-exp; the chunk goes to the
    /// host.
    async fn attend_streamed<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let mut chunk = scratch.chunk.take().expect("device placement has a chunk buffer");
        let mut tiles = scratch.tiles.take().expect("device placement has tiles");
        let result = self.stream(sequence, scratch, t, &mut chunk, &mut tiles).await;
        scratch.chunk = Some(chunk);
        scratch.tiles = Some(tiles);
        result
    }

    async fn stream<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
        chunk: &mut B::Buffer,
        tiles: &mut [B::Buffer; 2],
    ) -> Result<(), SchedulerError> {
        let (n, shape) = (sequence.n_tokens, &sequence.shape);
        let (backend, tile) = (&*sequence.backend, sequence.options.tile);
        scratch.set_rows(backend, 0..self.len)?;
        let chunk_stride = scratch.max_tokens;
        let dst = DeviceRows { buffer: &mut *chunk, head_stride: chunk_stride };
        scatter(backend, shape, t, (self.start, self.len), scratch.rows(0, self.len), dst)?;

        // Tile i + 1 is fetched while tile i is attended, and the chunk goes to the host while the
        // layer is computed to its end.
        let side = sequence.side.as_deref().unwrap_or(backend);
        let after = |later: &B, earlier: &B| match sequence.side {
            Some(_) => later.after(earlier),
            None => Ok(()),
        };
        let (tier, mover) = (&mut *sequence.tier, &mut sequence.mover);
        let mut fetch = |i: usize, buffer: &mut B::Buffer| {
            let rows = i * tile..n.min((i + 1) * tile);
            mover.clear();
            for head in 0..shape.n_kv_heads {
                rows.clone().enumerate().for_each(|(to, from)| mover.push(head, from, to));
            }
            let dst = DeviceRows { buffer, head_stride: tile };
            mover.load(side, shape, tier, self.layer, dst)
        };
        let n_tiles = n.div_ceil(tile);
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
            let run = Run { kv, n_rows: tile.min(n - i * tile), diagonal: i32::MAX };
            self.attend_run(backend, shape, scratch, t, run, i > 0)?;
        }
        let kv = KvView::new(&*chunk, chunk_stride);
        let run = Run { kv, n_rows: self.len, diagonal: 0 };
        self.attend_run(backend, shape, scratch, t, run, n > 0)?;
        mover.clear();
        for head in 0..shape.n_kv_heads {
            (0..self.len).for_each(|r| mover.push(head, r, n + r));
        }
        after(side, backend)?;
        mover.store(side, shape, tier, self.layer, kv).await?;
        sequence.side_is_busy = sequence.side.is_some();
        if self.layer + 1 == sequence.shape.n_layers {
            // Who waits for the step knows that all rows are with the host.
            sequence.join_side()?;
        }
        Ok(())
    }

    fn attend_run<B: Backend>(
        &self,
        backend: &B,
        shape: &KvShape,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
        run: Run<'_, B>,
        accumulate: bool,
    ) -> OpResult<()> {
        let n_tokens = t.q.len / (shape.n_q_heads * shape.head_dim);
        backend.attend_chunk(AttendChunk {
            p: attend_params(shape, n_tokens, accumulate),
            q: t.q,
            spans: &[ChunkSpan {
                q_start: self.start as u32,
                q_len: self.len as u32,
                kv: run.kv,
                row_start: 0,
                n_rows: run.n_rows as u32,
                diagonal: run.diagonal,
            }],
            out: reborrow(&mut t.out),
            lse: ViewMut::part(&mut scratch.lse, 0, n_tokens * shape.n_q_heads),
        })
    }

    /// Adds to the Gram sums and keeps the prompt's last queries.
    async fn record<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (shape, backend) = (&sequence.shape, &*sequence.backend);
        let recorded = &mut sequence.layers[self.layer].recorded;
        let (hq, hkv, d) = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim);
        let gram = |n_heads: usize, group: usize| GramParams {
            n_tokens: self.len as u32,
            n_heads: n_heads as u32,
            group: group as u32,
            head_dim: d as u32,
        };
        let part = |view: &View<'_, B>, heads: usize, skip: usize| {
            let at = view.offset + (self.start + skip) * heads * d;
            (at, (self.len - skip) * heads * d)
        };
        let (at, len) = part(&t.q, hq, 0);
        backend.gram(Gram {
            p: gram(hq, hq / hkv),
            x: View::part(t.q.buffer, at, len),
            out: ViewMut::all(&mut recorded.gram_q),
        })?;
        let (at, len) = part(&t.k, hkv, 0);
        backend.gram(Gram {
            p: gram(hkv, 1),
            x: View::part(t.k.buffer, at, len),
            out: ViewMut::all(&mut recorded.gram_k),
        })?;
        if let Some(queries) = &mut recorded.queries {
            queries.record(backend, shape, t.q, (self.start, self.len), sequence.n_tokens)?;
        }
        if self.remaining < LAST_QUERIES {
            let keep = (LAST_QUERIES - self.remaining).min(self.len);
            if recorded.last_end != sequence.n_tokens {
                // Tokens were decoded since: the queries would not follow each other.
                recorded.last_queries.clear();
            }
            let (at, len) = part(&t.q, hq, self.len - keep);
            let old = recorded.last_queries.len();
            recorded.last_queries.resize(old + len, 0.0);
            let out = bytemuck::cast_slice_mut(&mut recorded.last_queries[old..]);
            backend.read(View::part(t.q.buffer, at, len), out).await?;
            recorded.last_end = sequence.n_tokens + self.len;
            let excess = recorded.last_queries.len().saturating_sub(LAST_QUERIES * hq * d);
            recorded.last_queries.drain(..excess);
        }
        Ok(())
    }
}

/// A run of rows to attend.
struct Run<'a, B: Backend> {
    kv: KvView<'a, B>,
    n_rows: usize,
    diagonal: i32,
}
