//! Cases of the ops that make landmarks of keys, and the queries to compare with them.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::{EDGES, HEAD_DIMS, HEADS, exactly, normals};
use super::plan::{Buffers, Input, OutputPlan, Plan};
use crate::backend::Backend;
use crate::desc::{
    BlockReduce, BlockReduceParams, BlockSummary, ProjectHeads, ProjectHeadsParams, SplitSigns,
    SplitSignsParams,
};
use crate::error::OpResult;
use crate::op::Op;

/// A case of [`Op::BlockReduce`]. Masses come in eighths, so that there are ties.
#[derive(Clone, Debug)]
pub struct BlockReduceCase {
    /// Points.
    pub n: u32,
    /// Keys of a block.
    pub block: u32,
    /// KV heads.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// What stands for a block.
    pub summary: BlockSummary,
    /// Of how many keys.
    pub top: u32,
}

impl BlockReduceCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for summary in BlockSummary::ALL {
            let mut add = |n, block, heads, dh, top| {
                all.push(Self { n, block, heads, dh, summary, top });
            };
            EDGES.iter().for_each(|n| add(*n, 16, 2, 20, 4));
            EDGES.iter().for_each(|block| add(150, *block, 2, 20, 3));
            for dh in HEAD_DIMS {
                [1, 2, 8].into_iter().for_each(|heads| add(100, 32, heads, dh, 4));
            }
            [1, 2, 7, 16, 32].into_iter().for_each(|top| add(300, 128, 2, 64, top));
            // Fewer keys in a block than stand for it; one key; none.
            [(33, 4, 2, 20, 8), (1, 16, 1, 1, 1), (0, 16, 2, 20, 1), (1030, 128, 2, 64, 4)]
                .into_iter()
                .for_each(|(n, block, heads, dh, top)| add(n, block, heads, dh, top));
        }
        all
    }

    fn params(&self) -> BlockReduceParams {
        BlockReduceParams {
            n_kv_heads: self.heads,
            n_points: self.n,
            head_dim: self.dh,
            block: self.block,
            summary: self.summary as u32,
            n_top: self.top,
        }
    }
}

impl fmt::Display for BlockReduceCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, block, heads, dh, summary, top } = self;
        write!(f, "block_reduce[n={n},block={block},hkv={heads},dh={dh},{summary:?},top={top}]")
    }
}

impl OpCase for BlockReduceCase {
    fn op(&self) -> Op {
        Op::BlockReduce
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (p, keys) = (self.params(), (self.heads * self.n) as usize);
        let points = normals(rng, keys * self.dh as usize, 1.0);
        let n_mass = if p.uses_mass() { keys } else { 0 };
        let mass = (0..n_mass).map(|_| rng.below(8) as f32 / 8.0).collect();
        let len = self.heads as usize * p.n_blocks() * p.width();
        Plan {
            inputs: vec![Input::floats("points", points), Input::floats("mass", mass)],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", len)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.block_reduce(BlockReduce {
            p: self.params(),
            points: b.inputs[0].view(),
            mass: b.inputs[1].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::ProjectHeads`].
#[derive(Clone, Debug)]
pub struct ProjectHeadsCase {
    /// Query tokens.
    pub t: u32,
    /// H and the number of matrices.
    pub heads: (u32, u32),
    /// Width of a head.
    pub dh: u32,
    /// Numbers of a projected key, r.
    pub rank: u32,
    /// Whether vectors lie head by head.
    pub head_major: bool,
}

impl ProjectHeadsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for head_major in [false, true] {
            let mut add = |t, heads, dh, rank| all.push(Self { t, heads, dh, rank, head_major });
            EDGES.iter().for_each(|t| add(*t, (4, 2), 20, 8));
            EDGES.iter().for_each(|rank| add(3, (4, 2), 20, *rank));
            for (i, heads) in HEADS.into_iter().enumerate() {
                add(5, heads, HEAD_DIMS[i % 5], 16);
                add(1, heads, HEAD_DIMS[(i + 2) % 5], 32);
            }
            [(0, (2, 2), 20, 8), (1, (1, 1), 1, 1), (257, (2, 2), 64, 32)]
                .into_iter()
                .for_each(|(t, heads, dh, rank)| add(t, heads, dh, rank));
        }
        all
    }
}

impl fmt::Display for ProjectHeadsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, heads: (h, w), dh, rank, head_major } = self;
        let layout = if *head_major { "head-major" } else { "token-major" };
        write!(f, "project_heads[t={t},h={h},w={w},dh={dh},rank={rank},{layout}]")
    }
}

impl OpCase for ProjectHeadsCase {
    fn op(&self) -> Op {
        Op::ProjectHeads
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (h, matrices) = self.heads;
        let x = normals(rng, (self.t * h * self.dh) as usize, 1.0);
        let w = normals(rng, (matrices * self.dh * self.rank) as usize, 1.0);
        let out = OutputPlan::floats("out", (self.t * h * self.rank) as usize);
        Plan {
            inputs: vec![Input::floats("x", x), Input::floats("w", w)],
            weights: Vec::new(),
            outputs: vec![out],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.project_heads(ProjectHeads {
            p: ProjectHeadsParams {
                n_tokens: self.t,
                n_heads: self.heads.0,
                group: self.heads.0 / self.heads.1,
                head_dim: self.dh,
                rank: self.rank,
                head_major: self.head_major.into(),
            },
            x: b.inputs[0].view(),
            w: b.inputs[1].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::SplitSigns`]. Every fifth element is 0.
#[derive(Clone, Debug)]
pub struct SplitSignsCase {
    /// Vectors.
    pub n: u32,
    /// Elements of a vector.
    pub width: u32,
}

impl SplitSignsCase {
    pub(super) fn all() -> Vec<Self> {
        let by_n = EDGES.into_iter().chain([0]).map(|n| Self { n, width: 20 });
        by_n.chain(EDGES.into_iter().map(|width| Self { n: 6, width })).collect()
    }
}

impl fmt::Display for SplitSignsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "split_signs[n={},width={}]", self.n, self.width)
    }
}

impl OpCase for SplitSignsCase {
    fn op(&self) -> Op {
        Op::SplitSigns
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let len = (self.n * self.width) as usize;
        let mut x = normals(rng, len, 1.0);
        x.iter_mut().step_by(5).for_each(|x| *x = 0.0);
        Plan {
            inputs: vec![Input::floats("x", x)],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", 2 * len)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.split_signs(SplitSigns {
            p: SplitSignsParams { n_vectors: self.n, width: self.width },
            x: b.inputs[0].view(),
            out: out.view_mut(),
        })
    }
}
