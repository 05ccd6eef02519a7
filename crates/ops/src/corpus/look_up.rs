//! Cases of the device cache: several steps in a row.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::exactly;
use super::plan::{Buffers, Input, Outcome, OutputPlan, Plan, Values};
use crate::backend::Backend;
use crate::compare::{Comparison, compare_exact, compare_guards};
use crate::desc::{LookUpRows, LookUpRowsParams};
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::Tolerance;

/// Entries that each list holds before the selection.
const BEFORE: u32 = 3;
/// Tokens of a cluster, at most.
const LARGEST: usize = 24;

/// A case of [`Op::LookUpRows`]: steps whose selections drift, as those of a model do.
#[derive(Clone, Debug)]
pub struct LookUpRowsCase {
    /// Clusters of a head.
    pub clusters: u32,
    /// Rows selected in a step; later heads select fewer.
    pub budget: u32,
    /// KV heads.
    pub hkv: u32,
    /// Steps that an unused row stays.
    pub cache_steps: u32,
    /// Steps in a row on one state of the cache.
    pub steps: u32,
    /// Slots beyond what R steps can want.
    pub spare: u32,
    /// Whether slots, list and moves have less room than the selection wants.
    pub is_short: bool,
}

impl LookUpRowsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |clusters, budget, hkv, cache_steps, steps, spare| {
            let is_short = false;
            all.push(Self { clusters, budget, hkv, cache_steps, steps, spare, is_short });
        };
        for cache_steps in 1..=3 {
            for budget in [1, 7, 31, 32, 33, 63, 64, 65, 129, 257, 1000] {
                add(100, budget, 2, cache_steps, 6, 0);
            }
            add(300, 512, 3, cache_steps, 9, 5);
        }
        [1, 8].into_iter().for_each(|hkv| add(67, 100, hkv, 1, 4, 0));
        add(1, 5, 1, 1, 3, 0);
        add(40, 0, 2, 1, 2, 1);
        add(2500, 4096, 1, 1, 3, 0);
        // More slots than a block takes at once, than a table in shared memory has room for, and
        // more clusters than a block has threads.
        add(100, 500, 1, 12, 3, 1);
        add(300, 200, 2, 100, 4, 1);
        add(1500, 13_500, 1, 1, 2, 0);
        let short = |c: &Self| Self { is_short: true, ..c.clone() };
        let shorts: Vec<_> = all.iter().filter(|c| c.budget >= 31).map(short).collect();
        all.extend(shorts);
        all
    }

    fn n_slots(&self) -> u32 {
        let slots = self.budget * self.cache_steps + self.spare;
        if self.is_short { slots - slots / 4 } else { slots }
    }

    fn move_stride(&self) -> u32 {
        self.budget + 2 - if self.is_short { self.budget / 8 } else { 0 }
    }

    fn list_stride(&self) -> u32 {
        BEFORE + self.budget - if self.is_short { self.budget / 16 } else { 0 }
    }

    fn max_selected(&self) -> u32 {
        self.budget.min(self.clusters)
    }

    /// One head's selection of a step: what it likes best of what it liked before and new clusters.
    fn select(&self, rng: &mut SplitMix64, liked: &mut [f32], sizes: &[u32], budget: u32) -> Taken {
        liked.iter_mut().for_each(|like| *like = 0.8 * *like + 0.4 * rng.next_normal());
        let mut order: Vec<usize> = (0..liked.len()).collect();
        order.sort_by(|a, b| liked[*b].total_cmp(&liked[*a]));
        let (mut left, mut taken) = (budget, Taken::default());
        for cluster in order {
            let take = sizes[cluster].min(left);
            if take > 0 {
                taken.clusters.push(cluster as u32);
                taken.takes.push(take);
                left -= take;
            }
        }
        taken
    }
}

#[derive(Default)]
struct Taken {
    clusters: Vec<u32>,
    takes: Vec<u32>,
}

impl fmt::Display for LookUpRowsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, budget, hkv, cache_steps, steps, spare, is_short } = self;
        let short = if *is_short { ",short" } else { "" };
        write!(
            f,
            "look_up_rows[c={clusters},b={budget},hkv={hkv},r={cache_steps},steps={steps},\
             spare={spare}{short}]"
        )
    }
}

impl OpCase for LookUpRowsCase {
    fn op(&self) -> Op {
        Op::LookUpRows
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let (heads, room) = (self.hkv as usize, self.max_selected() as usize);
        let sizes: Vec<Vec<u32>> = (0..heads)
            .map(|_| (0..self.clusters).map(|_| 1 + rng.below(LARGEST) as u32).collect())
            .collect();
        let starts = sizes.iter().flat_map(|sizes| {
            sizes.iter().scan(5, |next, size| {
                let start = *next;
                *next += size;
                Some(start)
            })
        });
        let mut inputs = vec![Input::ints("starts", starts.collect())];
        let mut liked = vec![vec![0.0; self.clusters as usize]; heads];
        for _ in 0..self.steps {
            let (mut clusters, mut takes, mut n) = (Vec::new(), Vec::new(), Vec::new());
            for head in 0..heads {
                let budget = self.budget - self.budget * head as u32 / 9;
                let mut taken = self.select(rng, &mut liked[head], &sizes[head], budget);
                n.push(taken.clusters.len() as u32);
                taken.clusters.resize(room, u32::MAX);
                taken.takes.resize(room, u32::MAX);
                clusters.extend(taken.clusters);
                takes.extend(taken.takes);
            }
            inputs.push(Input::ints("clusters", clusters));
            inputs.push(Input::ints("takes", takes));
            inputs.push(Input::ints("n_selected", n));
        }
        let state = heads * LookUpRowsParams::state_len(self.n_slots() as usize);
        let mut counts = vec![BEFORE; heads];
        counts.resize(4 * heads, 0);
        let zeros = |name, n: usize| OutputPlan::ints(name, n).holding(Values::Ints(vec![0; n]));
        Plan {
            inputs,
            weights: Vec::new(),
            outputs: vec![
                zeros("state", state),
                zeros("rows", heads * self.list_stride() as usize),
                zeros("moves", 2 * heads * self.move_stride() as usize),
                OutputPlan::ints("counts", 4 * heads).holding(Values::Ints(counts)),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [state, rows, moves, counts] = exactly(&mut b.outputs);
        let before = vec![BEFORE; self.hkv as usize];
        for (i, step) in b.inputs[1..].chunks_exact(3).enumerate() {
            if i > 0 {
                let mut listed = counts.view_mut();
                listed.len = self.hkv as usize;
                backend.write(listed, bytemuck::cast_slice(&before))?;
            }
            backend.look_up_rows(LookUpRows {
                p: LookUpRowsParams {
                    n_kv_heads: self.hkv,
                    max_selected: self.max_selected(),
                    cluster_stride: self.clusters,
                    list_stride: self.list_stride(),
                    move_stride: self.move_stride(),
                    n_slots: self.n_slots(),
                    first_slot_row: 11,
                    cache_steps: self.cache_steps,
                },
                starts: b.inputs[0].view(),
                clusters: step[0].view(),
                takes: step[1].view(),
                n_selected: step[2].view(),
                state: state.view_mut(),
                rows: rows.view_mut(),
                moves: moves.view_mut(),
                counts: counts.view_mut(),
            })?;
        }
        Ok(())
    }

    /// Everything but the scratch of the state is one answer.
    fn judge(&self, _: &Plan, got: &Outcome, want: &Outcome, _: &Tolerance) -> Comparison {
        let mut c = Comparison::default();
        got.outputs.iter().for_each(|output| compare_guards(&mut c, output));
        let ints = |o: &Outcome, name| o.output(name).values.ints().to_vec();
        for name in ["rows", "moves", "counts"] {
            compare_exact(&mut c, name, &ints(got, name), &ints(want, name));
        }
        let n_slots = self.n_slots() as usize;
        let kept = |o: &Outcome| -> Vec<u32> {
            let state = ints(o, "state");
            let heads = state.chunks_exact(LookUpRowsParams::state_len(n_slots));
            heads.flat_map(|head| head[..LookUpRowsParams::kept_len(n_slots)].to_vec()).collect()
        };
        compare_exact(&mut c, "state", &kept(got), &kept(want));
        c
    }
}
