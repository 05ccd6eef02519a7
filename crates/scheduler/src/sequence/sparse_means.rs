//! What sparse prefill knows of the past: means of rows, and what share blocks of rows have of a
//! tile's attention.
//!
//! Blocks are runs of rows as the store has them: behind the first ones these may lie in the order
//! of clusters, which puts like keys into one block. All of them lie before the chunk either way.
//! The means are made of the rows again after these have moved.

use std::ops::Range;

use longview_core::{DType, LayerId};
use longview_ops::{
    Backend, DeviceBuffer, KvView, OpResult, RowMeans, RowMeansParams, TileParams, View, ViewMut,
};

use super::options::{Placement, SequenceOptions};
use crate::error::SchedulerError;
use crate::layout::KvShape;
use crate::policy::Policy;

/// Rows of a block.
pub(super) const BLOCK: usize = 128;
/// Means of a block: a mean of 128 rotated keys shows little of them (Prism, arXiv 2602.08426).
pub(super) const PARTS: usize = 4;
/// Rows of a mean.
pub(super) const PART: usize = BLOCK / PARTS;
/// Blocks at the start that are always attended.
pub(super) const FIRST_BLOCKS: usize = 2;
/// And before a tile's own one.
pub(super) const RECENT_BLOCKS: usize = 3;
/// So of the first tokens of a sequence each attends to all before it, whatever the threshold.
pub(super) const EXACT_TOKENS: usize = (FIRST_BLOCKS + RECENT_BLOCKS + 1) * BLOCK;
/// The last tokens of a prompt attend to everything: a question is among them as a rule.
pub(super) const LAST_TOKENS: usize = 256;
/// Packed rows (token, query head of a group) of a tile.
pub(super) const TILE_ROWS: usize = 128;

/// What sparse prefill needs beside the rows. It is made of them when it is missing, and let go of
/// when a prompt has ended.
pub(super) struct SparsePrefill<B: Backend> {
    layers: Vec<Option<LayerMeans<B>>>,
    /// F32 `[Hkv, tiles, blocks]`.
    pub shares: B::Buffer,
    /// `[Hkv, share_stride]`: blocks that any tile of the last chunk attends.
    kept: Vec<bool>,
    share_stride: usize,
}

/// Means of a layer's rows.
struct LayerMeans<B: Backend> {
    /// F32 rows `[Hkv, parts, 2, Dh]`.
    means: B::Buffer,
    /// Means that are there.
    n: usize,
    /// Rows below this may have been out of token order when they were made.
    permuted_to: usize,
}

/// Blocks that a tile could leave out, and those that it attended nevertheless, over all tiles,
/// heads and layers of sparse prefill so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Blocks before a tile, its own with them.
    pub all: u64,
    /// Attended ones of these.
    pub attended: u64,
}

impl BlockCounts {
    /// The part of all blocks that was attended; 1 where there were none.
    pub fn density(self) -> f64 {
        if self.all == 0 { 1.0 } else { self.attended as f64 / self.all as f64 }
    }
}

/// Tokens of a tile.
pub(super) fn tile_tokens(shape: &KvShape) -> usize {
    let group = shape.n_q_heads / shape.n_kv_heads;
    1 << (TILE_ROWS / group).max(1).ilog2()
}

/// Fails for policies that record the attention of all queries, which sparse prefill does not
/// compute, and where tiles of the past are too small for a mean.
pub(super) fn check(policy: &Policy, options: &SequenceOptions) -> Result<(), SchedulerError> {
    if options.prefill.is_exact() {
        return Ok(());
    }
    if policy.needs_all_queries() {
        return Err(SchedulerError::SparsePolicy { policy: policy.preset });
    }
    if options.placement == Placement::Device && options.tile < PART {
        return Err(SchedulerError::NoSparsePrefill { tile: options.tile, least: PART });
    }
    Ok(())
}

/// Bytes of the means of all rows, and of shares.
pub(super) fn planned_bytes(shape: &KvShape, chunk: usize) -> u64 {
    let (means, shares) = (means_len(shape), shares_len(shape, chunk));
    4 * (shape.n_layers * means + shares) as u64
}

fn means_len(shape: &KvShape) -> usize {
    shape.n_kv_heads * (shape.capacity / PART) * 2 * shape.head_dim
}

fn shares_len(shape: &KvShape, chunk: usize) -> usize {
    let n_tiles = chunk.div_ceil(tile_tokens(shape)) + 1;
    shape.n_kv_heads * n_tiles * shape.capacity.div_ceil(BLOCK)
}

/// The rows that a chunk attends in a layer.
pub(super) struct RowsRead {
    /// Before the chunk.
    pub n_before: usize,
    /// With those of the chunk, as far as it is read sparsely.
    pub n_rows: usize,
    /// Rows below this may be out of token order.
    pub permuted_to: usize,
}

impl<B: Backend> SparsePrefill<B> {
    pub fn new(backend: &B, shape: &KvShape, chunk: usize) -> OpResult<Self> {
        Ok(Self {
            layers: shape.layers().map(|_| None).collect(),
            shares: backend.alloc(DType::F32, shares_len(shape, chunk), "shares of blocks")?,
            kept: Vec::new(),
            share_stride: 0,
        })
    }

    /// The means of whole parts among the first `n_rows` rows of a layer that are missing or no
    /// longer right, to be [added](Self::add).
    pub fn missing(
        &mut self,
        backend: &B,
        shape: &KvShape,
        layer: LayerId,
        rows: RowsRead,
    ) -> OpResult<Range<usize>> {
        let slot = &mut self.layers[layer.index()];
        let state = match slot {
            Some(state) => state,
            None => {
                let means = backend.alloc(DType::F32, means_len(shape), "means of rows")?;
                slot.insert(LayerMeans { means, n: 0, permuted_to: 0 })
            }
        };
        let RowsRead { n_before, n_rows, permuted_to } = rows;
        if permuted_to != state.permuted_to {
            // Rows behind those that were in their places before have moved.
            state.n = state.n.min(permuted_to.min(state.permuted_to) / PART);
            state.permuted_to = permuted_to;
        }
        // Tokens that were taken back may be others by now.
        state.n = state.n.min(n_before / PART);
        Ok(state.n..state.n.max(n_rows / PART))
    }

    /// Makes the means `means`, the next ones of a layer, of rows of `kv` from `row_start` on.
    pub fn add(
        &mut self,
        backend: &B,
        shape: &KvShape,
        layer: LayerId,
        (kv, row_start): (KvView<'_, B>, usize),
        means: Range<usize>,
    ) -> OpResult<()> {
        let state = self.layers[layer.index()].as_mut().expect("it was asked what is missing");
        let len = state.means.len();
        backend.row_means(RowMeans {
            p: RowMeansParams {
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                n_averaged: PART as u32,
                n_means: means.len() as u32,
                row_start: row_start as u32,
                first_mean: means.start as u32,
                out_stride: (shape.capacity / PART) as u32,
            },
            kv,
            out: ViewMut::part(&mut state.means, 0, len),
        })?;
        state.n = means.end;
        Ok(())
    }

    /// The means of a layer's rows.
    pub fn means(&self, layer: LayerId, shape: &KvShape) -> KvView<'_, B> {
        let state = self.layers[layer.index()].as_ref().expect("they were made");
        KvView::new(&state.means, shape.capacity / PART)
    }

    /// The means of a layer's rows, and the place of shares.
    pub fn parts(&mut self, layer: LayerId, shape: &KvShape) -> (KvView<'_, B>, &mut B::Buffer) {
        let state = self.layers[layer.index()].as_ref().expect("they were made");
        (KvView::new(&state.means, shape.capacity / PART), &mut self.shares)
    }

    /// Counts what tiles attend, and keeps which blocks any of them does.
    pub async fn count(
        &mut self,
        backend: &B,
        n_kv_heads: usize,
        tiles: &TileParams,
        threshold: f32,
    ) -> OpResult<BlockCounts> {
        let n = tiles.share_len(n_kv_heads as u32);
        let mut shares = vec![0.0f32; n];
        let view = View::part(&self.shares, 0, n);
        backend.read(view, bytemuck::cast_slice_mut(&mut shares)).await?;
        let (stride, n_tiles) = (tiles.share_stride as usize, tiles.n_tiles());
        self.share_stride = stride;
        self.kept.clear();
        self.kept.resize(n_kv_heads * stride, false);
        let mut counts = BlockCounts::default();
        for (i, of_tile) in shares.chunks_exact(stride).enumerate() {
            let seen = &of_tile[..tiles.own_block(i % n_tiles) + 1];
            let kept = &mut self.kept[i / n_tiles * stride..][..stride];
            counts.all += seen.len() as u64;
            for (share, kept) in seen.iter().zip(kept) {
                let is_attended = *share >= threshold;
                counts.attended += u64::from(is_attended);
                *kept |= is_attended;
            }
        }
        Ok(counts)
    }

    /// Whether any tile that was [counted](Self::count) attends a block of a head.
    pub fn is_kept(&self, head: usize, block: usize) -> bool {
        self.kept[head * self.share_stride + block]
    }
}
