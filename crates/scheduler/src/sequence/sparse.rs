//! Sparse prefill: a tile of queries attends to the blocks of the past that have a share of its
//! attention, and to the means of all others.

use std::ops::Range;

use longview_ops::{
    AttendBlocks, AttendBlocksParams, Attended, Backend, KvView, OpResult, ScoreBlocks,
    ScoreBlocksParams, TileParams, View, ViewMut,
};

use super::kv_sequence::Sequence;
use super::past_stream::PastStream;
use super::prefill::Chunk;
use super::scratch::{StreamBuffers, TokenScratch};
use super::sparse_means::{
    BLOCK, BlockCounts, FIRST_BLOCKS, LAST_TOKENS, PART, PARTS, RECENT_BLOCKS, RowsRead,
    SparsePrefill, tile_tokens,
};
use crate::error::SchedulerError;
use crate::layout::{KvShape, LayerTensors, PrefillMode, attend_params};

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

    /// Blocks that every tile attends, at the start and before its own: with them all rows that are
    /// attended as they were written, where others are rounded.
    pub(super) fn kept_blocks(&self) -> [usize; 2] {
        let Some(exact) = &self.exact else { return [FIRST_BLOCKS, RECENT_BLOCKS] };
        let sinks = self.layout.sinks.div_ceil(BLOCK);
        [FIRST_BLOCKS.max(sinks), RECENT_BLOCKS.max(exact.recent.div_ceil(BLOCK))]
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

/// The blocks of the past that the tiles of a chunk attend in a layer.
pub(super) struct Blocks<'a, B: Backend> {
    /// Tokens of the step.
    n_tokens: usize,
    tiles: TileParams,
    threshold: f32,
    shares: View<'a, B>,
}

/// A run of rows of which blocks are attended.
pub(super) struct BlockRun<'a, B: Backend> {
    pub kv: KvView<'a, B>,
    /// The row of `kv` that is the first of `rows`.
    pub row_start: usize,
    /// Rows of the sequence.
    pub rows: Range<usize>,
    /// A query sees rows that are so many before it, or more: whole blocks.
    pub behind: usize,
    /// Merge with what the output has, by log-sum-exp.
    pub accumulate: bool,
}

impl<B: Backend> Blocks<'_, B> {
    /// Attends the run's rows in blocks that count.
    pub fn attend(
        &self,
        backend: &B,
        shape: &KvShape,
        (lse, t): (&mut B::Buffer, &mut LayerTensors<'_, B>),
        run: BlockRun<'_, B>,
    ) -> OpResult<()> {
        let p = AttendBlocksParams {
            attend: attend_params(shape, self.n_tokens, run.accumulate),
            // Tiles and blocks are cut where they were: they are shifted by whole ones.
            tiles: TileParams { position: self.tiles.position - run.behind as u32, ..self.tiles },
            threshold: self.threshold,
            attended: Attended::Kept as u32,
            rows_per_block: BLOCK as u32,
            row_start: run.row_start as u32,
            first_row: run.rows.start as u32,
            n_rows: run.rows.len() as u32,
        };
        self.launch(backend, shape, (lse, t), (p, run.kv))
    }

    /// Merges the means of all other blocks.
    fn attend_means(
        &self,
        backend: &B,
        shape: &KvShape,
        (lse, t): (&mut B::Buffer, &mut LayerTensors<'_, B>),
        means: KvView<'_, B>,
    ) -> OpResult<()> {
        let last_block = self.tiles.own_block(self.tiles.n_tiles() - 1);
        let p = AttendBlocksParams {
            attend: attend_params(shape, self.n_tokens, true),
            tiles: self.tiles,
            threshold: self.threshold,
            attended: Attended::Left as u32,
            rows_per_block: PARTS as u32,
            row_start: 0,
            first_row: 0,
            n_rows: (last_block * PARTS) as u32,
        };
        self.launch(backend, shape, (lse, t), (p, means))
    }

    fn launch(
        &self,
        backend: &B,
        shape: &KvShape,
        (lse, t): (&mut B::Buffer, &mut LayerTensors<'_, B>),
        (p, kv): (AttendBlocksParams, KvView<'_, B>),
    ) -> OpResult<()> {
        backend.attend_blocks(AttendBlocks {
            p,
            q: t.q,
            kv,
            shares: self.shares,
            out: t.out_mut(),
            lse: ViewMut::part(lse, 0, self.n_tokens * shape.n_q_heads),
        })
    }
}

impl Chunk {
    /// Tokens from the chunk's first on that are read sparsely in this layer; 0 where everything
    /// would be attended anyway.
    pub(super) fn n_sparse<B: Backend>(&self, sequence: &Sequence<B>) -> usize {
        let is_exact = sequence.options.prefill.is_exact()
            || !self.attends
            || sequence.shape.window(self.layer).is_some();
        let n_recent = sequence.exact.as_ref().map_or(0, |exact| exact.recent);
        let state = &sequence.layers[self.layer];
        // A mean has rows of one buffer.
        let cuts_means = !state.device_rest.is_empty() && !state.device_rows.is_multiple_of(PART);
        if is_exact || cuts_means || !n_recent.is_multiple_of(BLOCK) {
            return 0;
        }
        let len = (self.len + self.remaining).saturating_sub(LAST_TOKENS).min(self.len);
        let last_block = (sequence.n_tokens + len).saturating_sub(1) / BLOCK;
        let [first, recent] = sequence.kept_blocks();
        if last_block > first + recent { len } else { 0 }
    }

    /// The tokens over the blocks that count and the means of the others. The rows are stored; they
    /// are streamed from the host where there is a `stream`, which has the chunk's own.
    pub(super) async fn attend_sparsely<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &mut LayerTensors<'_, B>,
        stream: Option<&mut StreamBuffers<B>>,
    ) -> Result<(), SchedulerError> {
        let PrefillMode::Sparse { threshold } = sequence.options.prefill else { return Ok(()) };
        let mut sparse = match sequence.sparse.take() {
            Some(sparse) => sparse,
            None => {
                SparsePrefill::new(&*sequence.backend, &sequence.shape, sequence.options.chunk)?
            }
        };
        let result = self.sparse_part(sequence, (scratch, t), (&mut sparse, stream), threshold);
        let result = result.await;
        sequence.sparse = Some(sparse);
        let counted = result?;
        sequence.block_counts.all += counted.all;
        sequence.block_counts.attended += counted.attended;
        sequence.was_read = sequence.was_read.with(sequence.options.prefill);
        Ok(())
    }

    async fn sparse_part<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        (scratch, t): (&mut TokenScratch<B>, &mut LayerTensors<'_, B>),
        (sparse, mut stream): (&mut SparsePrefill<B>, Option<&mut StreamBuffers<B>>),
        threshold: f32,
    ) -> OpResult<BlockCounts> {
        self.average(sequence, sparse, stream.as_deref_mut())?;
        let tiles = self.score(sequence, t, sparse)?;
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let counts = sparse.count(backend, shape.n_kv_heads, &tiles, threshold).await?;
        let n_shares = tiles.share_len(shape.n_kv_heads as u32);
        let shares = View::part(&sparse.shares, 0, n_shares);
        let blocks = Blocks { n_tokens: t.n_tokens(shape), tiles, threshold, shares };
        if let Some(stream) = stream {
            let kept = |head: usize, row: usize| sparse.is_kept(head, row / BLOCK);
            self.stream_blocks(sequence, (scratch, t), stream, (&blocks, &kept))?;
        } else if sequence.exact.is_some() {
            self.attend_forms(sequence, (scratch, t), Some(&blocks))?;
        } else {
            let rows = 0..self.position(sequence) + self.len;
            for (i, piece) in sequence.pieces(self.layer, rows).enumerate() {
                let run = BlockRun {
                    kv: piece.kv,
                    row_start: piece.rows.start,
                    rows: piece.first..piece.first + piece.rows.len(),
                    behind: 0,
                    accumulate: i > 0,
                };
                blocks.attend(backend, shape, (&mut scratch.lse, t), run)?;
            }
        }
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let means = sparse.means(self.layer, shape);
        blocks.attend_means(backend, shape, (&mut scratch.lse, t), means)?;
        Ok(counts)
    }

    /// Makes the means of all rows up to the chunk's last.
    fn average<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        sparse: &mut SparsePrefill<B>,
        stream: Option<&mut StreamBuffers<B>>,
    ) -> OpResult<()> {
        let (n, end) = (sequence.n_tokens, self.position(sequence) + self.len);
        let permuted_to = sequence.layers[self.layer].permuted_to;
        let rows = RowsRead { n_before: n, n_rows: end, permuted_to };
        let missing = sparse.missing(&*sequence.backend, &sequence.shape, self.layer, rows)?;
        let rows = missing.start * PART..missing.end * PART;
        let Some(stream) = stream else {
            let (backend, shape) = (&*sequence.backend, &sequence.shape);
            let rounded = sequence.rounded_rows(self.layer).filter(|_| sequence.exact.is_some());
            if let Some(kv) = rounded {
                return sparse.add(backend, shape, self.layer, (kv, rows.start), missing);
            }
            for piece in sequence.pieces(self.layer, rows) {
                let first = piece.first / PART;
                let means = first..first + piece.rows.len() / PART;
                sparse.add(backend, shape, self.layer, (piece.kv, piece.rows.start), means)?;
            }
            return Ok(());
        };
        let most = (sequence.options.tile / PART).max(1) * PART;
        let mut past = PastStream::new(sequence, self.layer, &mut stream.tiles);
        let shape = past.rows.shape;
        past.each(
            (rows, most),
            |_, _| true,
            |backend, kv, piece| {
                let means = piece.start / PART..piece.end / PART;
                sparse.add(backend, shape, self.layer, (kv, 0), means)
            },
        )
    }

    /// The shares of all blocks before the chunk's last token.
    fn score<B: Backend>(
        &self,
        sequence: &Sequence<B>,
        t: &LayerTensors<'_, B>,
        sparse: &mut SparsePrefill<B>,
    ) -> OpResult<TileParams> {
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let position = self.position(sequence);
        let n_tokens = t.n_tokens(shape);
        let tiles = TileParams {
            q_start: self.start as u32,
            q_len: self.len as u32,
            position: position as u32,
            tile: tile_tokens(shape) as u32,
            block: BLOCK as u32,
            share_stride: (position + self.len).div_ceil(BLOCK) as u32,
        };
        let [n_first, n_recent] = sequence.kept_blocks();
        let (means, shares) = sparse.parts(self.layer, shape);
        backend.score_blocks(ScoreBlocks {
            p: ScoreBlocksParams {
                n_tokens: n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                scale: attend_params(shape, n_tokens, false).scale,
                n_first: n_first as u32,
                n_recent: n_recent as u32,
                n_parts: PARTS as u32,
                tiles,
            },
            q: t.q,
            means,
            shares: ViewMut::part(shares, 0, tiles.share_len(shape.n_kv_heads as u32)),
        })?;
        Ok(tiles)
    }

    /// The blocks that count are carried from the host, each head's own, and attended.
    fn stream_blocks<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        (scratch, t): (&mut TokenScratch<B>, &mut LayerTensors<'_, B>),
        stream: &mut StreamBuffers<B>,
        (blocks, kept): (&Blocks<'_, B>, &dyn Fn(usize, usize) -> bool),
    ) -> OpResult<()> {
        let (n, end) = (sequence.n_tokens, self.position(sequence) + self.len);
        let mut past = PastStream::new(sequence, self.layer, &mut stream.tiles);
        let shape = past.rows.shape;
        let mut accumulate = false;
        past.each(
            (0..n, usize::MAX),
            |head, row| kept(head.index(), row),
            |backend, kv, rows| {
                let run = BlockRun { kv, row_start: 0, rows, behind: 0, accumulate };
                accumulate = true;
                blocks.attend(backend, shape, (&mut scratch.lse, t), run)
            },
        )?;
        let kv = KvView::new(&stream.chunk, scratch.max_tokens);
        let run = BlockRun { kv, row_start: 0, rows: n..end, behind: 0, accumulate };
        blocks.attend(&*sequence.backend, &sequence.shape, (&mut scratch.lse, t), run)
    }
}
