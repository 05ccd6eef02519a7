//! Cases of the ops that say which keys queries attended to.

use std::fmt;

use longview_core::{DType, SplitMix64};

use super::case::{OpCase, lacks};
use super::data::{EDGES, FLOATS, HEAD_DIMS, HEADS, exactly, kv_rows, normals};
use super::plan::{Buffers, Input, OutputPlan, Plan, Values};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::desc::{
    ColumnMass, ColumnMassParams, PoolKind, PoolScores, PoolScoresParams, QuerySums,
    QuerySumsParams,
};
use crate::error::OpResult;
use crate::op::Op;

/// Which rows the queries of a [`ColumnMassCase`] see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MassMask {
    /// All: a tile of the past.
    All,
    /// Up to their own.
    Causal,
    /// Their own and a few before it.
    Window,
}

/// A case of [`Op::ColumnMass`]. A third of the tokens in `q` do not count; later heads list fewer
/// rows; one query attended nothing.
#[derive(Clone, Debug)]
pub struct ColumnMassCase {
    /// Query tokens that count.
    pub t: u32,
    /// Rows that the first head lists.
    pub rows: u32,
    /// Hq and Hkv.
    pub heads: (u32, u32),
    /// Width of a head.
    pub dh: u32,
    /// Of the rows.
    pub kv: DType,
    /// Who sees what.
    pub mask: MassMask,
    /// Whether all heads share one numbering of rows.
    pub pool: bool,
}

impl ColumnMassCase {
    pub(super) fn all() -> Vec<Self> {
        use MassMask::{All, Causal, Window};
        let mut all = Vec::new();
        for kv in FLOATS {
            let base =
                Self { t: 5, rows: 40, heads: (4, 2), dh: 20, kv, mask: Causal, pool: false };
            EDGES.iter().for_each(|rows| all.push(Self { rows: *rows, ..base.clone() }));
            EDGES.iter().for_each(|t| all.push(Self { t: *t, rows: 33, ..base.clone() }));
            for (i, heads) in HEADS.into_iter().enumerate() {
                for (j, mask) in [All, Causal, Window].into_iter().enumerate() {
                    let (dh, pool) = (HEAD_DIMS[(i + j) % 5], (i + j) % 2 == 1);
                    all.push(Self { heads, dh, mask, pool, ..base.clone() });
                }
            }
            all.push(Self { rows: 0, ..base.clone() });
            all.push(Self { t: 1, rows: 300, mask: All, pool: true, ..base.clone() });
            all.push(Self { t: 32, rows: 700, dh: 64, mask: Window, ..base });
        }
        all
    }

    /// Tokens in `q`, and the first that counts.
    fn tokens(&self) -> (u32, u32) {
        (self.t + self.t / 2 + 1, self.t / 3)
    }

    fn counts(&self) -> Vec<u32> {
        (0..self.heads.1).map(|h| self.rows - h % 3 * self.rows / 3).collect()
    }

    fn list_stride(&self) -> u32 {
        self.rows + 3
    }

    fn out_stride(&self) -> u32 {
        self.rows + 8
    }

    /// Rows of a head, or of all where they share them.
    fn stride(&self) -> u32 {
        self.rows + 11
    }

    fn mask(&self) -> (i32, u32) {
        match self.mask {
            MassMask::All => (i32::MAX, 0),
            MassMask::Causal => (self.rows as i32 / 2, 0),
            MassMask::Window => (self.rows as i32 * 2 / 3, 1 + self.rows / 4),
        }
    }

    fn params(&self) -> ColumnMassParams {
        let ((n_tokens, q_start), (diagonal, window)) = (self.tokens(), self.mask());
        ColumnMassParams {
            n_tokens,
            n_q_heads: self.heads.0,
            n_kv_heads: self.heads.1,
            head_dim: self.dh,
            scale: 1.0 / (self.dh as f32).sqrt(),
            q_start,
            q_len: self.t,
            list_stride: self.list_stride(),
            out_stride: self.out_stride(),
            diagonal,
            window,
        }
    }
}

impl fmt::Display for ColumnMassCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, rows, heads: (hq, hkv), dh, kv, mask, pool } = self;
        let pool = if *pool { ",pool" } else { "" };
        write!(f, "column_mass[t={t},rows={rows},hq={hq},hkv={hkv},dh={dh},kv={kv}")?;
        write!(f, ",{mask:?}{pool}]")
    }
}

impl OpCase for ColumnMassCase {
    fn op(&self) -> Op {
        Op::ColumnMass
    }

    fn dtype(&self) -> DType {
        self.kv
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.kv_dtypes, self.kv, "KV rows")
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (hq, hkv) = self.heads;
        let (tokens, _) = self.tokens();
        let q = normals(rng, (tokens * hq * self.dh) as usize, 1.0);
        // About the log-sum-exp that this many rows would have.
        let around = (1.0 + self.rows as f32).ln();
        let mut lse: Vec<f32> =
            (0..tokens * hq).map(|_| around + 0.5 * rng.next_normal()).collect();
        let middle = lse.len() / 2;
        lse[middle] = f32::NEG_INFINITY;
        let (mut rows, counts) = (Vec::new(), self.counts());
        for n in &counts {
            rows.extend(rng.distinct(self.stride() as usize, *n as usize));
            rows.resize(rows.len() + (self.list_stride() - n) as usize, u32::MAX);
        }
        let n_heads = if self.pool { 1 } else { hkv };
        let used = |head: u32, row: u32| {
            let lists = rows.chunks_exact(self.list_stride() as usize).zip(0..);
            lists.filter(|(_, h)| self.pool || *h == head).any(|(list, _)| list.contains(&row))
        };
        let kv = kv_rows(rng, n_heads, self.stride(), self.dh, used);
        let len = (hq * self.out_stride()) as usize;
        let before = (0..len).map(|_| rng.next_f32()).collect();
        let group = hq / hkv;
        let written = |head: u32| {
            let at = (head * self.out_stride()) as usize;
            at..at + counts[(head / group) as usize] as usize
        };
        Plan {
            inputs: vec![
                Input::floats("q", q),
                Input::floats("lse", lse),
                Input::kv("kv", self.kv, self.dh as usize, kv),
                Input::ints("rows", rows.clone()),
                Input::ints("n_rows", counts.clone()),
            ],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::floats("out", len)
                    .holding(Values::Floats(before))
                    .only((0..hq).map(written).collect()),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        let stride = if self.pool { 0 } else { self.stride() as usize };
        backend.column_mass(ColumnMass {
            p: self.params(),
            q: b.inputs[0].view(),
            lse: b.inputs[1].view(),
            kv: b.inputs[2].kv(stride),
            rows: b.inputs[3].view(),
            n_rows: b.inputs[4].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::PoolScores`].
#[derive(Clone, Debug)]
pub struct PoolScoresCase {
    /// Scores of a head.
    pub n: u32,
    /// Hq and Hkv.
    pub heads: (u32, u32),
    /// Neighbours.
    pub kernel: u32,
    /// Mean or maximum of these.
    pub pool: PoolKind,
    /// Whether a group's scores become their maximum.
    pub group_max: bool,
    /// Whether neighbours are pooled before groups.
    pub pool_first: bool,
}

impl PoolScoresCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (i, pool) in [PoolKind::Average, PoolKind::Max].into_iter().enumerate() {
            for flags in 0..4usize {
                let (group_max, pool_first) = (flags & 1 == 1, flags & 2 == 2);
                let mut add = |n, heads, kernel| {
                    all.push(Self { n, heads, kernel, pool, group_max, pool_first });
                };
                EDGES.iter().for_each(|n| add(*n, (4, 2), 7));
                [1, 3, 5, 21].into_iter().for_each(|kernel| add(300, (6, 2), kernel));
                HEADS.into_iter().for_each(|heads| add(61 + i as u32, heads, 5));
                add(0, (2, 1), 7);
                add(1030, (8, 1), 7);
            }
        }
        all
    }

    fn strides(&self) -> (u32, u32) {
        (self.n + 3, self.n + 5)
    }
}

impl fmt::Display for PoolScoresCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, heads: (hq, hkv), kernel, pool, group_max, pool_first } = self;
        let group = if *group_max { "max" } else { "mean" };
        let order = if *pool_first { "pool-first" } else { "group-first" };
        write!(f, "pool_scores[n={n},hq={hq},hkv={hkv},kernel={kernel},{pool:?}")?;
        write!(f, ",group={group},{order}]")
    }
}

impl OpCase for PoolScoresCase {
    fn op(&self) -> Op {
        Op::PoolScores
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (hq, hkv) = self.heads;
        let (from, to) = self.strides();
        let mut x = Vec::new();
        for _ in 0..hq {
            x.extend((0..self.n).map(|_| rng.next_f32()));
            x.extend([f32::NAN; 3]);
        }
        assert_eq!(x.len(), (hq * from) as usize);
        let written = |head: u32| (head * to) as usize..(head * to + self.n) as usize;
        let out = OutputPlan::floats("out", (hkv * to) as usize);
        Plan {
            inputs: vec![Input::floats("x", x)],
            weights: Vec::new(),
            outputs: vec![out.only((0..hkv).map(written).collect())],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        let ((hq, hkv), (in_stride, out_stride)) = (self.heads, self.strides());
        backend.pool_scores(PoolScores {
            p: PoolScoresParams {
                n_kv_heads: hkv,
                group: hq / hkv,
                n: self.n,
                in_stride,
                out_stride,
                kernel: self.kernel,
                pool: self.pool as u32,
                group_max: self.group_max.into(),
                pool_first: self.pool_first.into(),
                scale: 0.25,
            },
            x: b.inputs[0].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::QuerySums`]. Some tokens in `q` do not count; sums are added to.
#[derive(Clone, Debug)]
pub struct QuerySumsCase {
    /// Query tokens that count.
    pub t: u32,
    /// Hq and Hkv.
    pub heads: (u32, u32),
    /// Width of a head.
    pub dh: u32,
    /// Position of the first.
    pub position: u32,
    /// Positions of a block.
    pub block: u32,
}

impl QuerySumsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add =
            |t, heads, dh, position, block| all.push(Self { t, heads, dh, position, block });
        EDGES.iter().for_each(|t| add(*t, (4, 2), 20, 5, 16));
        EDGES.iter().for_each(|block| add(70, (4, 2), 20, 33, *block));
        for (i, heads) in HEADS.into_iter().enumerate() {
            HEAD_DIMS.into_iter().for_each(|dh| add(40, heads, dh, 64 * i as u32, 64));
        }
        [(0, (2, 1), 20, 7, 16), (1, (1, 1), 1, 0, 1), (1, (8, 2), 64, 1023, 64)]
            .into_iter()
            .for_each(|(t, heads, dh, position, block)| add(t, heads, dh, position, block));
        all
    }

    fn params(&self) -> QuerySumsParams {
        QuerySumsParams {
            n_tokens: self.t + 3,
            n_q_heads: self.heads.0,
            n_kv_heads: self.heads.1,
            head_dim: self.dh,
            q_start: 2,
            q_len: self.t,
            position: self.position,
            block: self.block,
            n_blocks: (self.position + self.t).div_ceil(self.block) + 1,
        }
    }
}

impl fmt::Display for QuerySumsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, heads: (hq, hkv), dh, position, block } = self;
        write!(f, "query_sums[t={t},hq={hq},hkv={hkv},dh={dh},position={position},block={block}]")
    }
}

impl OpCase for QuerySumsCase {
    fn op(&self) -> Op {
        Op::QuerySums
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (p, width) = (self.params(), self.dh as usize);
        let mut q = normals(rng, (p.n_tokens * p.n_q_heads) as usize * width, 1.0);
        let counted = p.n_q_heads as usize * width;
        q[..2 * counted].fill(f32::NAN);
        let end = q.len() - counted;
        q[end..].fill(f32::NAN);
        let len = (p.n_kv_heads * p.n_blocks) as usize * width;
        let before = normals(rng, len, 1.0);
        // Blocks without tokens stay as they are.
        let touched = self.position / self.block..(self.position + self.t).div_ceil(self.block);
        let touched = if self.t == 0 { 0..0 } else { touched };
        let written = |head: u32| {
            let at = |block: u32| (head * p.n_blocks + block) as usize * width;
            at(touched.start)..at(touched.end)
        };
        let out = OutputPlan::floats("out", len).holding(Values::Floats(before));
        Plan {
            inputs: vec![Input::floats("q", q)],
            weights: Vec::new(),
            outputs: vec![out.only((0..p.n_kv_heads).map(written).collect())],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.query_sums(QuerySums {
            p: self.params(),
            q: b.inputs[0].view(),
            out: out.view_mut(),
        })
    }
}
