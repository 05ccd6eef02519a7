//! Cases of sparse attention of a prefill chunk.

use std::fmt;

use longview_core::{DType, SplitMix64};

use super::case::{OpCase, lacks, widened};
use super::data::{EDGES, HEAD_DIMS, HEADS, ROWS, exactly, kv_rows, normals};
use super::plan::{Buffers, Input, OutputPlan, Plan, Values};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::desc::{
    AttendBlocks, AttendBlocksParams, AttendParams, Attended, RowMeans, RowMeansParams,
    ScoreBlocks, ScoreBlocksParams, TileParams,
};
use crate::error::OpResult;
use crate::op::Op;

/// Tokens of the step before the chunk, and behind it.
const AROUND: u32 = 2;

/// A case of [`Op::RowMeans`].
#[derive(Clone, Debug)]
pub struct RowMeansCase {
    /// KV heads.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// Rows of a mean.
    pub averaged: u32,
    /// Means.
    pub means: u32,
    /// First row.
    pub start: u32,
    /// Of the rows.
    pub kv: DType,
}

impl RowMeansCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in ROWS {
            let mut add = |heads, dh, averaged, means, start| {
                all.push(Self { heads, dh, averaged, means, start, kv });
            };
            EDGES.iter().for_each(|averaged| add(2, 20, *averaged, 3, 5));
            EDGES.iter().for_each(|means| add(2, 20, 4, *means, 0));
            HEAD_DIMS.iter().for_each(|dh| add(3, *dh, 32, 2, 32));
            add(1, 64, 32, 0, 0);
        }
        all
    }

    fn params(&self) -> RowMeansParams {
        RowMeansParams {
            n_kv_heads: self.heads,
            head_dim: self.dh,
            n_averaged: self.averaged,
            n_means: self.means,
            row_start: self.start,
            first_mean: 1,
            out_stride: self.means + 3,
        }
    }

    fn stride(&self) -> u32 {
        self.start + self.means * self.averaged + 2
    }
}

impl fmt::Display for RowMeansCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, dh, averaged, means, start, kv } = self;
        write!(f, "row_means[hkv={heads},dh={dh},of={averaged},n={means},from={start},kv={kv}]")
    }
}

impl OpCase for RowMeansCase {
    fn op(&self) -> Op {
        Op::RowMeans
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.kv_dtypes, self.kv, "KV rows")
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        widened(c, self.kv)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let p = self.params();
        let used = self.start..self.start + self.means * self.averaged;
        let rows = kv_rows(rng, self.heads, self.stride(), self.dh, |_, row| used.contains(&row));
        let width = 2 * self.dh as usize;
        let written = |head: u32| {
            let first = (head * p.out_stride + p.first_mean) as usize;
            first * width..(first + self.means as usize) * width
        };
        let out = OutputPlan::floats("out", (self.heads * p.out_stride) as usize * width);
        Plan {
            inputs: vec![Input::kv("kv", self.kv, self.dh as usize, rows)],
            weights: Vec::new(),
            outputs: vec![out.only((0..self.heads).map(written).collect())],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        let kv = b.inputs[0].kv(self.stride() as usize);
        backend.row_means(RowMeans { p: self.params(), kv, out: out.view_mut() })
    }
}

/// The sizes that cases of shares and of blocks have in common.
#[derive(Clone, Copy, Debug)]
pub struct TileSizes {
    /// Tokens of the chunk.
    pub t: u32,
    /// Position of the first.
    pub position: u32,
    /// Hq and Hkv.
    pub heads: (u32, u32),
    /// Width of a head.
    pub dh: u32,
    /// Tokens of a tile.
    pub tile: u32,
    /// Positions of a block.
    pub block: u32,
    /// Parts of a block.
    pub parts: u32,
}

impl TileSizes {
    const BASE: Self =
        Self { t: 21, position: 67, heads: (4, 2), dh: 20, tile: 8, block: 16, parts: 4 };

    fn all() -> Vec<Self> {
        let base = Self::BASE;
        let mut all = Vec::new();
        EDGES.iter().for_each(|t| all.push(Self { t: *t, ..base }));
        EDGES.iter().for_each(|position| all.push(Self { position: *position, ..base }));
        for (i, heads) in HEADS.into_iter().enumerate() {
            let of_dh = |dh: u32| Self { dh, heads, position: 50 + 16 * i as u32, ..base };
            HEAD_DIMS.into_iter().for_each(|dh| all.push(of_dh(dh)));
        }
        // As a model has them: 128 packed rows, blocks of 128 in four parts.
        let real =
            Self { t: 70, position: 700, heads: (6, 2), dh: 64, tile: 32, block: 128, parts: 4 };
        all.push(real);
        all.push(Self { position: 640, t: 128, heads: (1, 1), tile: 128, ..real });
        // The widest that kernels have.
        all.push(Self { t: 9, dh: 256, ..base });
        all.extend([1, 2, 8, 16].map(|parts| Self { parts, ..base }));
        all.extend([1, 3, 32, 64].map(|tile| Self { tile, ..base }));
        all.extend([Self { t: 0, ..base }, Self { position: 0, ..base }, Self { t: 1, ..base }]);
        all
    }

    fn n_tokens(&self) -> u32 {
        self.t + 2 * AROUND
    }

    fn tiles(&self) -> TileParams {
        let end = (self.position + self.t).div_ceil(self.block);
        TileParams {
            q_start: AROUND,
            q_len: self.t,
            position: self.position,
            tile: self.tile,
            block: self.block,
            share_stride: end + 3,
        }
    }

    /// Blocks that lie before the last tile's own.
    fn n_before(&self) -> u32 {
        let tiles = self.tiles();
        tiles.n_tiles().checked_sub(1).map_or(0, |last| tiles.own_block(last) as u32)
    }

    /// Queries, not-a-number where they are not the chunk's.
    fn queries(&self, rng: &mut SplitMix64) -> Vec<f32> {
        let token = (self.heads.0 * self.dh) as usize;
        let mut q = normals(rng, self.n_tokens() as usize * token, 1.0);
        let around = AROUND as usize * token;
        q[..around].fill(f32::NAN);
        let end = q.len() - around;
        q[end..].fill(f32::NAN);
        q
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, position, heads: (hq, hkv), dh, tile, block, parts } = self;
        write!(f, "t={t},at={position},hq={hq},hkv={hkv},dh={dh},tile={tile},")?;
        write!(f, "block={block},parts={parts}")
    }
}

/// A case of [`Op::ScoreBlocks`].
#[derive(Clone, Debug)]
pub struct ScoreBlocksCase {
    /// Chunk, tiles and blocks.
    pub sizes: TileSizes,
    /// Blocks that always count, at the start.
    pub first: u32,
    /// And before a tile's own.
    pub recent: u32,
}

impl ScoreBlocksCase {
    pub(super) fn all() -> Vec<Self> {
        let of = |sizes: &TileSizes| Self { sizes: *sizes, first: 1, recent: 1 };
        let mut all: Vec<_> = TileSizes::all().iter().map(of).collect();
        for (first, recent) in [(0, 0), (2, 3), (9, 0), (0, 9)] {
            all.push(Self { sizes: TileSizes::BASE, first, recent });
        }
        all
    }

    fn params(&self) -> ScoreBlocksParams {
        ScoreBlocksParams {
            n_tokens: self.sizes.n_tokens(),
            n_q_heads: self.sizes.heads.0,
            n_kv_heads: self.sizes.heads.1,
            head_dim: self.sizes.dh,
            scale: 1.0 / (self.sizes.dh as f32).sqrt(),
            n_first: self.first,
            n_recent: self.recent,
            n_parts: self.sizes.parts,
            tiles: self.sizes.tiles(),
        }
    }

    fn means(&self) -> u32 {
        self.sizes.n_before() * self.sizes.parts
    }
}

impl fmt::Display for ScoreBlocksCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("score_blocks[")?;
        self.sizes.write(f)?;
        write!(f, ",first={},recent={}]", self.first, self.recent)
    }
}

impl OpCase for ScoreBlocksCase {
    fn op(&self) -> Op {
        Op::ScoreBlocks
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (p, n) = (self.params(), self.means());
        let q = self.sizes.queries(rng);
        let means = kv_rows(rng, p.n_kv_heads, n + 2, p.head_dim, |_, row| row < n);
        let (tiles, stride) = (p.tiles.n_tiles(), p.tiles.share_stride as usize);
        let all = p.n_kv_heads as usize * tiles;
        let written = |i: usize| i * stride..i * stride + p.tiles.n_blocks();
        let shares = OutputPlan::floats("shares", all * stride);
        Plan {
            inputs: vec![
                Input::floats("q", q),
                Input::kv("means", DType::F32, p.head_dim as usize, means),
            ],
            weights: Vec::new(),
            outputs: vec![shares.only((0..all).map(written).collect())],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [shares] = exactly(&mut b.outputs);
        backend.score_blocks(ScoreBlocks {
            p: self.params(),
            q: b.inputs[0].view(),
            means: b.inputs[1].kv(self.means() as usize + 2),
            shares: shares.view_mut(),
        })
    }
}

/// A case of [`Op::AttendBlocks`].
#[derive(Clone, Debug)]
pub struct AttendBlocksCase {
    /// Chunk, tiles and blocks.
    pub sizes: TileSizes,
    /// Rows or means.
    pub attended: Attended,
    /// Of the rows.
    pub kv: DType,
    /// The sequence's row that the run begins with.
    pub first_row: u32,
    /// Blocks of this share are attended; shares are multiples of a quarter.
    pub threshold: f32,
    /// Whether the result is merged.
    pub accumulate: bool,
}

impl AttendBlocksCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kv in ROWS {
            for (i, sizes) in TileSizes::all().into_iter().enumerate() {
                let first_row = if i % 3 == 1 { 19.min(sizes.position) } else { 0 };
                let of = |attended, accumulate| Self {
                    sizes,
                    attended,
                    kv,
                    first_row,
                    threshold: 0.5,
                    accumulate,
                };
                all.push(of(Attended::Kept, i % 2 == 1));
                if kv == DType::F32 {
                    all.push(Self { first_row: 0, ..of(Attended::Left, i % 2 == 0) });
                }
            }
            for threshold in [0.0, 0.25, 1.0] {
                let sizes = TileSizes { position: 131, ..TileSizes::BASE };
                let attended = Attended::Kept;
                let accumulate = false;
                all.push(Self { sizes, attended, kv, first_row: 0, threshold, accumulate });
            }
        }
        all
    }

    fn rows_per_block(&self) -> u32 {
        match self.attended {
            Attended::Kept => self.sizes.block,
            Attended::Left => self.sizes.parts,
        }
    }

    fn n_rows(&self) -> u32 {
        match self.attended {
            Attended::Kept => self.sizes.position + self.sizes.t - self.first_row,
            Attended::Left => self.sizes.n_before() * self.sizes.parts,
        }
    }

    fn params(&self) -> AttendBlocksParams {
        AttendBlocksParams {
            attend: AttendParams {
                n_tokens: self.sizes.n_tokens(),
                n_q_heads: self.sizes.heads.0,
                n_kv_heads: self.sizes.heads.1,
                head_dim: self.sizes.dh,
                scale: 1.0 / (self.sizes.dh as f32).sqrt(),
                accumulate: self.accumulate.into(),
            },
            tiles: self.sizes.tiles(),
            threshold: self.threshold,
            attended: self.attended as u32,
            rows_per_block: self.rows_per_block(),
            row_start: 1,
            first_row: self.first_row,
            n_rows: self.n_rows(),
        }
    }

    fn stride(&self) -> u32 {
        self.n_rows() + 3
    }

    /// Shares in quarters; 1 from each tile's own block on, as the op that makes them says.
    fn shares(&self, rng: &mut SplitMix64) -> Vec<f32> {
        let (tiles, hkv) = (self.sizes.tiles(), self.sizes.heads.1);
        let mut shares = vec![f32::NAN; tiles.share_len(hkv)];
        let n_tiles = tiles.n_tiles().max(1);
        for (i, of_tile) in shares.chunks_exact_mut(tiles.share_stride as usize).enumerate() {
            let own = tiles.own_block(i % n_tiles);
            for (b, share) in of_tile[..tiles.n_blocks()].iter_mut().enumerate() {
                *share = if b < own { rng.below(5) as f32 / 4.0 } else { 1.0 };
            }
        }
        shares
    }
}

impl fmt::Display for AttendBlocksCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("attend_blocks[")?;
        self.sizes.write(f)?;
        let Self { attended, kv, first_row, threshold, .. } = self;
        write!(f, ",{attended:?},kv={kv},from={first_row},above={threshold}")?;
        f.write_str(if self.accumulate { ",accumulate]" } else { "]" })
    }
}

impl OpCase for AttendBlocksCase {
    fn op(&self) -> Op {
        Op::AttendBlocks
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.kv_dtypes, self.kv, "KV rows")
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        widened(c, self.kv)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (p, n) = (self.params(), self.n_rows());
        let (hkv, dh) = (p.attend.n_kv_heads, p.attend.head_dim);
        let q = self.sizes.queries(rng);
        let rows = kv_rows(rng, hkv, self.stride(), dh, |_, row| (1..n + 1).contains(&row));
        let shares = self.shares(rng);
        let token = p.attend.n_q_heads as usize;
        let named = |by: usize| {
            let (start, end) = (AROUND as usize, (AROUND + self.sizes.t) as usize);
            std::iter::once(start * by..end * by).collect()
        };
        let (n_rows, width) = (self.sizes.n_tokens() as usize * token, dh as usize);
        let mut out = OutputPlan::floats("out", n_rows * width);
        let mut lse = OutputPlan::floats("lse", n_rows);
        if self.accumulate {
            out = out.holding(Values::Floats(normals(rng, n_rows * width, 1.0)));
            lse = lse.holding(Values::Floats(normals(rng, n_rows, 1.0)));
        }
        Plan {
            inputs: vec![
                Input::floats("q", q),
                Input::kv("kv", self.kv, width, rows),
                Input::floats("shares", shares),
            ],
            weights: Vec::new(),
            outputs: vec![out.only(named(token * width)), lse.only(named(token))],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out, lse] = exactly(&mut b.outputs);
        backend.attend_blocks(AttendBlocks {
            p: self.params(),
            q: b.inputs[0].view(),
            kv: b.inputs[1].kv(self.stride() as usize),
            shares: b.inputs[2].view(),
            out: out.view_mut(),
            lse: lse.view_mut(),
        })
    }
}
