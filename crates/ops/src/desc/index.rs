//! Descriptors of the ops that make an index of keys other than clusters, and the query that is
//! compared with it.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, grouped, reads, writes};
use crate::buffer::{Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// What a block of keys is summarised by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum BlockSummary {
    /// Their mean (KTransformers' MEAN, InfLLM's with one landmark for all).
    #[default]
    Mean = 0,
    /// Their largest value in every channel (KTransformers' MAX, without its floor of 0).
    Max = 1,
    /// `[largest; smallest]` in every channel: with a query of [`SplitSigns`] the upper bound of
    /// Quest (Tang et al., ICML 2024).
    MinMax = 2,
    /// The mean of every `block / n_top`-th key (KTransformers' FIXED).
    Strided = 3,
    /// The mean of the `n_top` keys of the largest mass (KTransformers' DYNAMIC, InfLLM's
    /// representatives).
    Top = 4,
}

impl BlockSummary {
    /// All of them, by number.
    pub const ALL: [BlockSummary; 5] =
        [Self::Mean, Self::Max, Self::MinMax, Self::Strided, Self::Top];

    /// Numbers that describe a block of keys of width `head_dim`.
    pub fn width(self, head_dim: usize) -> usize {
        match self {
            BlockSummary::MinMax => 2 * head_dim,
            _ => head_dim,
        }
    }
}

/// Parameters of [`BlockReduce`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockReduceParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Points.
    pub n_points: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Keys of a block; the last block may have fewer.
    pub block: u32,
    /// [`BlockSummary`] as a number.
    pub summary: u32,
    /// Keys that stand for a block, for [`BlockSummary::Strided`] and [`BlockSummary::Top`]; a
    /// block of fewer keys is stood for by all of them. At most [`BlockReduceParams::MAX_TOP`].
    pub n_top: u32,
}

impl BlockReduceParams {
    /// Most keys that stand for a block.
    pub const MAX_TOP: u32 = 32;

    /// Blocks of one head.
    pub fn n_blocks(&self) -> usize {
        self.n_points.div_ceil(self.block.max(1)) as usize
    }

    /// Numbers that describe a block.
    pub fn width(&self) -> usize {
        let doubled = self.summary == BlockSummary::MinMax as u32;
        self.head_dim as usize * (1 + usize::from(doubled))
    }

    /// Whether the mass of keys counts.
    pub fn uses_mass(&self) -> bool {
        self.summary == BlockSummary::Top as u32
    }

    /// Distance of the keys that [`BlockSummary::Strided`] takes.
    pub fn stride(&self) -> u32 {
        (self.block / self.n_top.max(1)).max(1)
    }
}

/// One landmark for each block of keys.
pub struct BlockReduce<'a, B: Storage> {
    /// Sizes.
    pub p: BlockReduceParams,
    /// F32 `[Hkv, N, Dh]`.
    pub points: View<'a, B>,
    /// F32 `[Hkv, N]`: how much each key counts; ties go to the lowest index. Of no elements where
    /// [`BlockReduceParams::uses_mass`] is false.
    pub mass: View<'a, B>,
    /// F32 `[Hkv, blocks, width]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> BlockReduce<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::BlockReduce, &self.p);
        ensure(op, p.block > 0, || "blocks of 0 keys".into())?;
        ensure(op, p.summary <= BlockSummary::Top as u32, || format!("summary {}", p.summary))?;
        let picks = p.summary >= BlockSummary::Strided as u32;
        ensure(op, !picks || (1..=BlockReduceParams::MAX_TOP).contains(&p.n_top), || {
            format!("{} keys of a block: 1 to {}", p.n_top, BlockReduceParams::MAX_TOP)
        })?;
        let keys = p.n_kv_heads as usize * p.n_points as usize;
        reads(op, "points", &self.points, DType::F32, keys * p.head_dim as usize)?;
        let mass = if p.uses_mass() { keys } else { 0 };
        reads(op, "mass", &self.mass, DType::F32, mass)?;
        let out = p.n_kv_heads as usize * p.n_blocks() * p.width();
        writes(op, "out", &self.out, DType::F32, out)
    }
}

/// Parameters of [`ProjectHeads`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ProjectHeadsParams {
    /// Query tokens.
    pub n_tokens: u32,
    /// KV heads whose rows are projected, H.
    pub n_heads: u32,
    /// Heads that share a matrix; divides H.
    pub group: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Numbers of a projected row, r.
    pub rank: u32,
    /// 1: vectors lie head by head, `[H, T, ..]`; 0: token by token, `[T, H, ..]`.
    pub head_major: u32,
}

/// Keys or queries in the low-rank space of their KV head.
pub struct ProjectHeads<'a, B: Storage> {
    /// Sizes.
    pub p: ProjectHeadsParams,
    /// F32 `[T, H, Dh]` or `[H, T, Dh]`.
    pub x: View<'a, B>,
    /// F32 `[H / group, Dh, r]`.
    pub w: View<'a, B>,
    /// F32 `[T, H, r]` or `[H, T, r]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> ProjectHeads<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::ProjectHeads, &self.p);
        grouped(op, p.n_heads, p.n_heads / p.group.max(1), p.head_dim)?;
        ensure(op, p.n_heads.is_multiple_of(p.group.max(1)), || {
            format!("{} heads in groups of {}", p.n_heads, p.group)
        })?;
        ensure(op, p.head_major <= 1, || format!("layout {}", p.head_major))?;
        let (d, r) = (p.head_dim as usize, p.rank as usize);
        let vectors = p.n_tokens as usize * p.n_heads as usize;
        reads(op, "x", &self.x, DType::F32, vectors * d)?;
        let matrices = (p.n_heads / p.group.max(1)) as usize;
        reads(op, "w", &self.w, DType::F32, matrices * d * r)?;
        writes(op, "out", &self.out, DType::F32, vectors * r)
    }
}

/// Parameters of [`SplitSigns`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SplitSignsParams {
    /// Vectors to split.
    pub n_vectors: u32,
    /// Elements of a vector.
    pub width: u32,
}

/// `out = [max(x, 0); min(x, 0)]`: against `[largest; smallest]` of a block of keys, the inner
/// product is the largest that any key of the block can have with x.
pub struct SplitSigns<'a, B: Storage> {
    /// Sizes.
    pub p: SplitSignsParams,
    /// F32 `[n, width]`.
    pub x: View<'a, B>,
    /// F32 `[n, 2 * width]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> SplitSigns<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, len) = (Op::SplitSigns, self.p.n_vectors as usize * self.p.width as usize);
        reads(op, "x", &self.x, DType::F32, len)?;
        writes(op, "out", &self.out, DType::F32, 2 * len)
    }
}
