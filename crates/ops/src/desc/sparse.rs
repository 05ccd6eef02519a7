//! Descriptors of sparse attention of a prefill chunk: means of rows, the share that blocks of the
//! past have of each tile's attention, and attention over the blocks that count.
//!
//! The rule is FlashPrefill's (arXiv 2603.06199), with the correction by means of its second
//! version. Blocks are scored by the means of their parts, of which the largest counts: a mean over
//! a whole block of rotated keys hides what Prism (arXiv 2602.08426) shows.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::attention::AttendParams;
use super::checks::{ensure, grouped, of_rows, of_type, reads, writes};
use crate::buffer::{DeviceBuffer, KvView, Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`RowMeans`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RowMeansParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Rows of a mean.
    pub n_averaged: u32,
    /// Means to make.
    pub n_means: u32,
    /// First row of `kv`.
    pub row_start: u32,
    /// The mean in `out` that the first rows make.
    pub first_mean: u32,
    /// Means from one head to the next in `out`.
    pub out_stride: u32,
}

/// Means of neighbouring KV rows, keys and values alike.
pub struct RowMeans<'a, B: Storage> {
    /// Sizes.
    pub p: RowMeansParams,
    /// The rows.
    pub kv: KvView<'a, B>,
    /// F32 `[Hkv, out_stride, 2, Dh]`: mean `first_mean + i` of each head is that of rows
    /// `row_start + i * n_averaged` and the `n_averaged - 1` behind it. Other means are left as
    /// they are.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> RowMeans<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::RowMeans, &self.p);
        grouped(op, p.n_kv_heads, p.n_kv_heads, p.head_dim)?;
        of_rows(op, "kv", self.kv.buffer.dtype())?;
        ensure(op, p.n_averaged > 0, || "means of 0 rows".into())?;
        let (heads, width) = (p.n_kv_heads as usize, p.head_dim as usize);
        let end = p.row_start as usize + p.n_means as usize * p.n_averaged as usize;
        ensure(op, self.kv.holds(heads, width, end), || {
            format!("{end} rows of stride {} do not lie in the buffer", self.kv.head_stride)
        })?;
        let means = u64::from(p.first_mean) + u64::from(p.n_means);
        ensure(op, means <= u64::from(p.out_stride), || {
            format!("{means} means of {} of a head", p.out_stride)
        })?;
        writes(op, "out", &self.out, DType::F32, heads * p.out_stride as usize * 2 * width)
    }
}

/// How queries of a chunk are cut into tiles, and the rows before them into blocks. Both are cut at
/// fixed positions, whatever the chunk.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TileParams {
    /// The chunk's first token among the step's tokens.
    pub q_start: u32,
    /// Tokens of the chunk.
    pub q_len: u32,
    /// Position of the first one.
    pub position: u32,
    /// Tokens of a tile.
    pub tile: u32,
    /// Positions of a block.
    pub block: u32,
    /// Shares from one tile to the next.
    pub share_stride: u32,
}

impl TileParams {
    /// Tiles that have tokens of the chunk.
    pub fn n_tiles(&self) -> usize {
        match self.q_len {
            0 => 0,
            n => ((self.position + n - 1) / self.tile - self.position / self.tile + 1) as usize,
        }
    }

    /// Tokens of a tile among those of the chunk.
    pub fn tokens(&self, tile: usize) -> Range<usize> {
        let first = (self.position / self.tile) as usize + tile;
        let at = |tile: usize| (tile * self.tile as usize).saturating_sub(self.position as usize);
        at(first)..at(first + 1).min(self.q_len as usize)
    }

    /// The block that the first token of a tile lies in: all blocks before it are complete, and
    /// seen by every token of the tile.
    pub fn own_block(&self, tile: usize) -> usize {
        (self.position as usize + self.tokens(tile).start) / self.block as usize
    }

    /// Blocks up to the chunk's last token.
    pub fn n_blocks(&self) -> usize {
        (self.position as usize + self.q_len as usize).div_ceil(self.block as usize)
    }

    /// Elements of the shares of all heads.
    pub fn share_len(&self, n_kv_heads: u32) -> usize {
        n_kv_heads as usize * self.n_tiles() * self.share_stride as usize
    }

    fn check(&self, op: Op, n_tokens: u32) -> OpResult<()> {
        ensure(op, self.tile > 0 && self.block > 0, || {
            format!("tiles of {} tokens, blocks of {} rows", self.tile, self.block)
        })?;
        let end = u64::from(self.q_start) + u64::from(self.q_len);
        ensure(op, end <= u64::from(n_tokens), || {
            format!("tokens {}..{end} of {n_tokens}", self.q_start)
        })?;
        let last = self.position.checked_add(self.q_len);
        ensure(op, last.is_some(), || format!("{} tokens from {}", self.q_len, self.position))?;
        ensure(op, self.n_blocks() <= self.share_stride as usize, || {
            format!("{} blocks, shares of {}", self.n_blocks(), self.share_stride)
        })
    }
}

/// Parameters of [`ScoreBlocks`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ScoreBlocksParams {
    /// Query tokens of the step.
    pub n_tokens: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Multiplies q . k, usually `1 / sqrt(Dh)`.
    pub scale: f32,
    /// The first so many blocks always count.
    pub n_first: u32,
    /// And so do this many before the tile's own one.
    pub n_recent: u32,
    /// Means of a block.
    pub n_parts: u32,
    /// Tiles and blocks.
    pub tiles: TileParams,
}

/// What share of the attention of a tile of queries each block of the past has, estimated by the
/// means of its parts, relative to the block with the most.
///
/// Of a tile and KV head let `z[r, b]` be the largest `scale * q_r . mean` of the parts of block b,
/// for row r, a token and a query head of the group, and `m[r]` the largest `z[r, b]` over all
/// blocks before the tile's own. Then `s[b]` is the sum over rows of `e^(z[r, b] - m[r])`, and the
/// share is `s[b] / max s`. The first, the recent, the own and all later blocks have share 1.
pub struct ScoreBlocks<'a, B: Storage> {
    /// Sizes.
    pub p: ScoreBlocksParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 rows of [`RowMeans`]: mean `b * n_parts + i` is that of part i of block b.
    pub means: KvView<'a, B>,
    /// F32 `[Hkv, tiles, share_stride]`: of each tile the first [`TileParams::n_blocks`] are
    /// written.
    pub shares: ViewMut<'a, B>,
}

impl<B: Storage> ScoreBlocks<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::ScoreBlocks, &self.p);
        grouped(op, p.n_q_heads, p.n_kv_heads, p.head_dim)?;
        p.tiles.check(op, p.n_tokens)?;
        ensure(op, p.n_parts > 0, || "blocks of 0 parts".into())?;
        let width = p.head_dim as usize;
        reads(op, "q", &self.q, DType::F32, p.n_tokens as usize * p.n_q_heads as usize * width)?;
        of_type(op, "means", self.means.buffer.dtype(), DType::F32)?;
        let n_means = match p.tiles.n_tiles() {
            0 => 0,
            n => p.tiles.own_block(n - 1) * p.n_parts as usize,
        };
        ensure(op, self.means.holds(p.n_kv_heads as usize, width, n_means), || {
            format!("{n_means} means of stride {} are not there", self.means.head_stride)
        })?;
        writes(op, "shares", &self.shares, DType::F32, p.tiles.share_len(p.n_kv_heads))
    }
}

/// Which rows [`AttendBlocks`] attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Attended {
    /// Rows of the blocks whose share is at least the threshold, as far as a token sees them.
    Kept = 0,
    /// Means of the parts of all other blocks, each as often as it has rows.
    Left = 1,
}

/// Parameters of [`AttendBlocks`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct AttendBlocksParams {
    /// Sizes of the attention.
    pub attend: AttendParams,
    /// Tiles and blocks.
    pub tiles: TileParams,
    /// Blocks of at least this share are attended; at most 1.
    pub threshold: f32,
    /// [`Attended`] as a number.
    pub attended: u32,
    /// Rows (or means) of a block.
    pub rows_per_block: u32,
    /// The row of `kv` that is row `first_row` of the sequence.
    pub row_start: u32,
    /// The sequence's row that the run begins with.
    pub first_row: u32,
    /// Rows of the run.
    pub n_rows: u32,
}

impl AttendBlocksParams {
    /// How many keys a row stands for.
    pub fn weight(&self) -> u32 {
        if self.is_kept() { 1 } else { self.tiles.block / self.rows_per_block.max(1) }
    }

    /// Whether rows of kept blocks are attended, rather than means of the others.
    pub fn is_kept(&self) -> bool {
        self.attended == Attended::Kept as u32
    }
}

/// Attention of a chunk over a run of rows, of which each tile of queries attends the blocks that
/// count. Row j of the sequence is part of block `j / rows_per_block`. With [`Attended::Kept`] a
/// row is a token, and a query sees no later one; the means of [`Attended::Left`] all lie before
/// the tile. Tokens that the chunk does not have are left as they are.
pub struct AttendBlocks<'a, B: Storage> {
    /// Sizes.
    pub p: AttendBlocksParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// Rows, or means.
    pub kv: KvView<'a, B>,
    /// F32 `[Hkv, tiles, share_stride]` of [`ScoreBlocks`].
    pub shares: View<'a, B>,
    /// F32 `[T, Hq, Dh]`.
    pub out: ViewMut<'a, B>,
    /// F32 `[T, Hq]`, natural logarithm.
    pub lse: ViewMut<'a, B>,
}

impl<B: Storage> AttendBlocks<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::AttendBlocks, &self.p);
        p.attend.check(op, &self.q, &self.out, &self.lse)?;
        p.tiles.check(op, p.attend.n_tokens)?;
        of_rows(op, "kv", self.kv.buffer.dtype())?;
        ensure(op, p.attended <= Attended::Left as u32, || format!("attended {}", p.attended))?;
        ensure(op, p.threshold <= 1.0, || format!("a threshold of {}", p.threshold))?;
        let rows = if p.is_kept() { p.tiles.block } else { p.rows_per_block };
        let whole = rows > 0 && rows == p.rows_per_block && p.tiles.block.is_multiple_of(rows);
        ensure(op, whole, || format!("{} rows of blocks of {}", p.rows_per_block, p.tiles.block))?;
        let end = u64::from(p.first_row) + u64::from(p.n_rows);
        let limit = p.tiles.n_blocks() as u64 * u64::from(rows);
        ensure(op, end <= limit, || format!("rows up to {end} of {limit} in blocks"))?;
        let end = p.row_start as usize + p.n_rows as usize;
        let (heads, width) = (p.attend.n_kv_heads as usize, p.attend.head_dim as usize);
        ensure(op, self.kv.holds(heads, width, end), || {
            format!("{end} rows of stride {} do not lie in the buffer", self.kv.head_stride)
        })?;
        let shares = p.tiles.share_len(p.attend.n_kv_heads);
        reads(op, "shares", &self.shares, DType::F32, shares)
    }
}
