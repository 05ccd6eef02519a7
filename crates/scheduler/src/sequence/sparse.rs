//! Sparse prefill: a tile of queries attends to the blocks of the past that have a share of its
//! attention, and to the means of all others.

use longview_ops::{
    AttendBlocks, AttendBlocksParams, Attended, Backend, KvView, OpResult, ScoreBlocks,
    ScoreBlocksParams, TileParams, View, ViewMut,
};

use super::kv_sequence::Sequence;
use super::prefill::{Chunk, Run};
use super::scratch::StepScratch;
use super::sparse_means::{
    BLOCK, BlockCounts, FIRST_BLOCKS, FIRST_LAYERS, LAST_TOKENS, PART, PARTS, RECENT_BLOCKS,
    RowsRead, SparsePrefill, tile_tokens,
};
use crate::error::SchedulerError;
use crate::layout::{LayerTensors, PrefillMode, attend_params};

impl<B: Backend> Sequence<B> {
    /// How prompts are read from now on.
    pub fn prefill_mode(&self) -> PrefillMode {
        self.options.prefill
    }

    /// How the tokens of the sequence were read: the least exact way of any of them.
    pub fn was_read(&self) -> PrefillMode {
        self.was_read
    }

    /// What sparse prefill attended so far.
    pub fn block_counts(&self) -> BlockCounts {
        self.block_counts
    }

    /// A chunk of a prompt should end at a multiple of so many tokens of the sequence: queries of a
    /// tile choose blocks together, so where chunks cut tiles their length would change bits. 1
    /// where prompts are read exactly.
    pub fn chunk_unit(&self) -> usize {
        if self.options.prefill.is_exact() { 1 } else { tile_tokens(&self.shape) }
    }

    /// Lets go of the means of rows: they are made again when they are needed.
    pub(super) fn forget_means(&mut self) {
        self.sparse = None;
    }
}

impl Chunk {
    /// Tokens from the chunk's first on that are read sparsely in this layer; 0 where everything
    /// would be attended anyway.
    pub(super) fn n_sparse<B: Backend>(&self, sequence: &Sequence<B>) -> usize {
        let is_exact = sequence.options.prefill.is_exact()
            || self.layer.index() < FIRST_LAYERS
            || sequence.shape.window(self.layer).is_some();
        if is_exact {
            return 0;
        }
        let len = (self.len + self.remaining).saturating_sub(LAST_TOKENS).min(self.len);
        let last_block = (sequence.n_tokens + len).saturating_sub(1) / BLOCK;
        if last_block > FIRST_BLOCKS + RECENT_BLOCKS { len } else { 0 }
    }

    /// The first `n_sparse` tokens over the blocks that count and the means of the others; the rest
    /// as [`Chunk::attend_run`] does. The rows are stored.
    pub(super) async fn attend_sparsely<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
        n_sparse: usize,
    ) -> Result<(), SchedulerError> {
        let PrefillMode::Sparse { threshold } = sequence.options.prefill else { return Ok(()) };
        let mut sparse = match sequence.sparse.take() {
            Some(sparse) => sparse,
            None => {
                SparsePrefill::new(&*sequence.backend, &sequence.shape, sequence.options.chunk)?
            }
        };
        let result = self.sparse_part(sequence, scratch, t, &mut sparse, (n_sparse, threshold));
        let counted = match result {
            Ok(tiles) => {
                let heads = sequence.shape.n_kv_heads;
                sparse.count(&*sequence.backend, heads, &tiles, threshold).await
            }
            Err(error) => Err(error),
        };
        sequence.sparse = Some(sparse);
        let counted = counted?;
        sequence.block_counts.all += counted.all;
        sequence.block_counts.attended += counted.attended;
        sequence.was_read = sequence.was_read.with(sequence.options.prefill);
        let (n, shape) = (sequence.n_tokens, &sequence.shape);
        if n_sparse < self.len {
            let rest = Self { start: self.start + n_sparse, len: self.len - n_sparse, ..*self };
            let run = Run {
                kv: sequence.attended_rows(self.layer),
                rows: 0..n + self.len,
                diagonal: (n + n_sparse) as i32,
                window: None,
                accumulate: false,
            };
            rest.attend_run(&*sequence.backend, shape, &mut scratch.lse, t, run)?;
        }
        Ok(())
    }

    fn sparse_part<B: Backend>(
        &self,
        sequence: &Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &mut LayerTensors<'_, B>,
        sparse: &mut SparsePrefill<B>,
        (n_sparse, threshold): (usize, f32),
    ) -> OpResult<TileParams> {
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let n = sequence.n_tokens;
        let kv = sequence.attended_rows(self.layer);
        let permuted_to = sequence.layers[self.layer].permuted_to;
        let rows = RowsRead { kv, n_before: n, n_rows: n + n_sparse, permuted_to };
        sparse.average(backend, shape, self.layer, rows)?;
        let layer = sparse.layers[self.layer.index()].as_ref().expect("it was just averaged");
        let n_tokens = t.n_tokens(shape);
        let heads = shape.n_kv_heads;
        let tiles = TileParams {
            q_start: self.start as u32,
            q_len: n_sparse as u32,
            position: n as u32,
            tile: tile_tokens(shape) as u32,
            block: BLOCK as u32,
            share_stride: (n + n_sparse).div_ceil(BLOCK) as u32,
        };
        let n_shares = tiles.share_len(heads as u32);
        let means = KvView::new(&layer.means, shape.capacity / PART);
        backend.score_blocks(ScoreBlocks {
            p: ScoreBlocksParams {
                n_tokens: n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: heads as u32,
                head_dim: shape.head_dim as u32,
                scale: attend_params(shape, n_tokens, false).scale,
                n_first: FIRST_BLOCKS as u32,
                n_recent: RECENT_BLOCKS as u32,
                n_parts: PARTS as u32,
                tiles,
            },
            q: t.q,
            means,
            shares: ViewMut::part(&mut sparse.shares, 0, n_shares),
        })?;
        let last_block = tiles.own_block(tiles.n_tiles() - 1);
        let of = |attended: Attended| AttendBlocksParams {
            attend: attend_params(shape, n_tokens, attended == Attended::Left),
            tiles,
            threshold,
            attended: attended as u32,
            rows_per_block: if attended == Attended::Kept { BLOCK } else { PARTS } as u32,
            row_start: 0,
            first_row: 0,
            n_rows: match attended {
                Attended::Kept => n + n_sparse,
                Attended::Left => last_block * PARTS,
            } as u32,
        };
        for (attended, kv) in [(Attended::Kept, kv), (Attended::Left, means)] {
            backend.attend_blocks(AttendBlocks {
                p: of(attended),
                q: t.q,
                kv,
                shares: View::part(&sparse.shares, 0, n_shares),
                out: t.out_mut(),
                lse: ViewMut::part(&mut scratch.lse, 0, n_tokens * shape.n_q_heads),
            })?;
        }
        Ok(tiles)
    }
}
