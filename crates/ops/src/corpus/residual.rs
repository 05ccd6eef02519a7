//! Cases of the ops that say what a selection left of clusters, and which rows it has.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::{EDGES, exactly};
use super::plan::{Buffers, Input, OutputPlan, Plan};
use crate::backend::Backend;
use crate::desc::{ClusterRest, ClusterRestParams, ClusterRows, ClusterRowsParams};
use crate::error::OpResult;
use crate::op::Op;

/// Clusters of some heads and a selection of them. Later heads have fewer of both.
#[derive(Clone, Debug)]
struct Selected {
    clusters: u32,
    selected: u32,
    hkv: u32,
}

impl Selected {
    fn count(&self, head: u32) -> u32 {
        self.clusters - head % 3 * (self.clusters / 3)
    }

    fn n_selected(&self, head: u32) -> u32 {
        self.selected.min(self.count(head)).saturating_sub(head)
    }

    fn stride(&self) -> u32 {
        self.clusters + 3
    }

    fn room(&self) -> u32 {
        self.selected + 2
    }

    /// Sizes up to 24, some of them 0, and then `clusters`, `takes` and `n_selected`: whole
    /// clusters but for the last.
    fn draw(&self, rng: &mut SplitMix64) -> (Vec<u32>, [Input; 3]) {
        let (mut sizes, mut clusters, mut takes) = (Vec::new(), Vec::new(), Vec::new());
        for head in 0..self.hkv {
            let at = sizes.len();
            sizes.extend((0..self.count(head)).map(|_| rng.below(25) as u32));
            sizes.resize(at + self.stride() as usize, u32::MAX);
            let n = self.n_selected(head) as usize;
            let chosen = rng.distinct(self.count(head) as usize, n);
            takes.extend(chosen.iter().map(|c| sizes[at + *c as usize]));
            if let (Some(last), true) = (takes.last_mut(), n > 0) {
                *last /= 2;
            }
            clusters.extend(chosen);
            clusters.resize(((head + 1) * self.room()) as usize, u32::MAX);
            takes.resize(clusters.len(), u32::MAX);
        }
        let counts = (0..self.hkv).map(|head| self.n_selected(head)).collect();
        let parts = [("clusters", clusters), ("takes", takes), ("n_selected", counts)];
        (sizes, parts.map(|(name, values)| Input::ints(name, values)))
    }
}

/// A case of [`Op::ClusterRest`].
#[derive(Clone, Debug)]
pub struct ClusterRestCase {
    /// Clusters of the first head.
    pub clusters: u32,
    /// Of which it selects.
    pub selected: u32,
    /// KV heads.
    pub hkv: u32,
}

impl ClusterRestCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |clusters, selected, hkv| all.push(Self { clusters, selected, hkv });
        EDGES.iter().for_each(|clusters| add(*clusters, clusters / 3, 2));
        EDGES.iter().for_each(|selected| add(300, *selected, 3));
        [(0, 0, 2), (40, 0, 1), (40, 40, 8), (2500, 700, 2), (1, 1, 1)]
            .into_iter()
            .for_each(|(clusters, selected, hkv)| add(clusters, selected, hkv));
        all
    }

    fn of(&self) -> Selected {
        Selected { clusters: self.clusters, selected: self.selected, hkv: self.hkv }
    }
}

impl fmt::Display for ClusterRestCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, selected, hkv } = self;
        write!(f, "cluster_rest[c={clusters},selected={selected},hkv={hkv}]")
    }
}

impl OpCase for ClusterRestCase {
    fn op(&self) -> Op {
        Op::ClusterRest
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let of = self.of();
        let (sizes, [clusters, takes, n_selected]) = of.draw(rng);
        let n_clusters = (0..self.hkv).map(|head| of.count(head)).collect();
        let used = |head: u32| {
            let at = (head * of.stride()) as usize;
            at..at + of.count(head) as usize
        };
        let rest = OutputPlan::ints("rest", (self.hkv * of.stride()) as usize);
        Plan {
            inputs: vec![
                Input::ints("sizes", sizes),
                Input::ints("n_clusters", n_clusters),
                clusters,
                takes,
                n_selected,
            ],
            weights: Vec::new(),
            outputs: vec![rest.only((0..self.hkv).map(used).collect())],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [rest] = exactly(&mut b.outputs);
        backend.cluster_rest(ClusterRest {
            p: ClusterRestParams {
                n_kv_heads: self.hkv,
                cluster_stride: self.of().stride(),
                max_selected: self.of().room(),
            },
            sizes: b.inputs[0].view(),
            n_clusters: b.inputs[1].view(),
            clusters: b.inputs[2].view(),
            takes: b.inputs[3].view(),
            n_selected: b.inputs[4].view(),
            rest: rest.view_mut(),
        })
    }
}

/// A case of [`Op::ClusterRows`].
#[derive(Clone, Debug)]
pub struct ClusterRowsCase {
    /// Clusters of the first head.
    pub clusters: u32,
    /// Of which it selects.
    pub selected: u32,
    /// KV heads.
    pub hkv: u32,
    /// Whether lists have less room than the selection has rows.
    pub is_short: bool,
    /// Whether lists have entries before.
    pub appends: bool,
}

/// Row of the first cluster.
const FIRST_ROW: u32 = 16;

impl ClusterRowsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        // The first ones have all inputs: those are what checks of a contract look at.
        for (is_short, appends) in [(false, true), (true, true), (false, false), (true, false)] {
            let mut add = |clusters, selected, hkv| {
                all.push(Self { clusters, selected, hkv, is_short, appends });
            };
            EDGES.iter().for_each(|selected| add(300, *selected, 3));
            [(0, 0, 2), (40, 0, 1), (40, 40, 8), (2500, 700, 2), (1, 1, 1)]
                .into_iter()
                .for_each(|(clusters, selected, hkv)| add(clusters, selected, hkv));
        }
        all
    }

    fn of(&self) -> Selected {
        Selected { clusters: self.clusters, selected: self.selected, hkv: self.hkv }
    }

    fn list_stride(&self) -> u32 {
        if self.is_short { 5 * self.selected + 1 } else { 24 * self.selected + 9 }
    }

    /// Entries that the list of a head has.
    fn behind(&self, head: u32) -> u32 {
        if self.appends { (3 + 2 * head).min(self.list_stride()) } else { 0 }
    }
}

impl fmt::Display for ClusterRowsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, selected, hkv, is_short, appends } = self;
        let short = if *is_short { ",short" } else { "" };
        let behind = if *appends { ",behind" } else { "" };
        write!(f, "cluster_rows[c={clusters},selected={selected},hkv={hkv}{short}{behind}]")
    }
}

impl OpCase for ClusterRowsCase {
    fn op(&self) -> Op {
        Op::ClusterRows
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let of = self.of();
        let (sizes, [clusters, takes, n_selected]) = of.draw(rng);
        let (mut starts, mut used) = (Vec::new(), Vec::new());
        let stride = self.list_stride();
        for head in 0..self.hkv {
            let at = (head * of.stride()) as usize;
            let mut row = FIRST_ROW;
            for size in &sizes[at..at + of.count(head) as usize] {
                starts.push(row);
                row += size;
            }
            starts.resize(at + of.stride() as usize, u32::MAX);
            let taken = &takes.values.ints()[(head * of.room()) as usize..];
            let rows: u32 = taken[..of.n_selected(head) as usize].iter().sum();
            let (list, behind) = ((head * stride) as usize, self.behind(head));
            let end = list + (behind + rows).min(stride) as usize;
            used.push(list + behind as usize..end);
        }
        let behind = (0..self.hkv).map(|head| self.behind(head)).collect();
        let behind = self.appends.then(|| Input::ints("behind", behind));
        let mut inputs = vec![Input::ints("starts", starts), clusters, takes, n_selected];
        inputs.extend(behind);
        let rows = OutputPlan::ints("rows", (self.hkv * stride) as usize);
        Plan {
            inputs,
            weights: Vec::new(),
            outputs: vec![rows.only(used), OutputPlan::ints("n_rows", self.hkv as usize)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [rows, n_rows] = exactly(&mut b.outputs);
        backend.cluster_rows(ClusterRows {
            p: ClusterRowsParams {
                n_kv_heads: self.hkv,
                cluster_stride: self.of().stride(),
                max_selected: self.of().room(),
                list_stride: self.list_stride(),
                first_row: FIRST_ROW,
            },
            starts: b.inputs[0].view(),
            clusters: b.inputs[1].view(),
            takes: b.inputs[2].view(),
            n_selected: b.inputs[3].view(),
            behind: b.inputs.get(4).map(|behind| behind.view()),
            rows: rows.view_mut(),
            n_rows: n_rows.view_mut(),
        })
    }
}
