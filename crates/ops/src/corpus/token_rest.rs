//! Cases of the ops that say what a choice of single tokens left of their clusters.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::{EDGES, exactly};
use super::plan::{Buffers, Input, OutputPlan, Plan};
use crate::backend::Backend;
use crate::desc::{OwnerCounts, OwnerCountsParams, RestLists, RestListsParams};
use crate::error::OpResult;
use crate::op::Op;

/// Behind what is in use.
const UNUSED: u32 = u32::MAX;

/// A case of [`Op::OwnerCounts`]. Later heads have fewer tokens, clusters and chosen tokens.
#[derive(Clone, Debug)]
pub struct OwnerCountsCase {
    /// Tokens of the first head.
    pub tokens: u32,
    /// Clusters that own them.
    pub clusters: u32,
    /// Tokens that it chose.
    pub selected: u32,
    /// KV heads.
    pub hkv: u32,
}

impl OwnerCountsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add =
            |tokens, clusters, selected, hkv| all.push(Self { tokens, clusters, selected, hkv });
        EDGES.iter().for_each(|n| add(*n, n.div_ceil(4), n / 3, 2));
        EDGES.iter().for_each(|selected| add(600, 40, *selected, 3));
        // No clusters, no choice, everything chosen, one cluster that owns all, clusters that own
        // nothing, and tokens as many as a step chooses.
        for (tokens, clusters, selected, hkv) in [
            (0, 0, 0, 2),
            (40, 5, 0, 1),
            (40, 7, 40, 8),
            (700, 1, 650, 1),
            (50, 900, 50, 2),
            (5000, 1300, 2040, 8),
            (1, 1, 1, 1),
        ] {
            add(tokens, clusters, selected, hkv);
        }
        all
    }

    fn n_tokens(&self, head: u32) -> u32 {
        self.tokens - head % 3 * (self.tokens / 3)
    }

    fn n_clusters(&self, head: u32) -> u32 {
        self.clusters - head % 3 * (self.clusters / 4)
    }

    fn n_selected(&self, head: u32) -> u32 {
        self.selected.min(self.n_tokens(head)).saturating_sub(head)
    }

    fn params(&self) -> OwnerCountsParams {
        OwnerCountsParams {
            n_kv_heads: self.hkv,
            owner_stride: self.tokens + 5,
            cluster_stride: self.clusters + 3,
            max_selected: self.selected + 2,
        }
    }
}

impl fmt::Display for OwnerCountsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens, clusters, selected, hkv } = self;
        write!(f, "owner_counts[t={tokens},c={clusters},selected={selected},hkv={hkv}]")
    }
}

impl OpCase for OwnerCountsCase {
    fn op(&self) -> Op {
        Op::OwnerCounts
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let p = self.params();
        let (mut owners, mut chosen, mut used) = (Vec::new(), Vec::new(), Vec::new());
        for head in 0..self.hkv {
            let (n, clusters) = (self.n_tokens(head), self.n_clusters(head));
            // Tokens of a cluster follow each other, as in an index, but for every eighth.
            owners.extend((0..n).map(|token| match token % 8 {
                7 => rng.below(clusters as usize) as u32,
                _ => (u64::from(token) * u64::from(clusters) / u64::from(n)) as u32,
            }));
            owners.resize(((head + 1) * p.owner_stride) as usize, UNUSED);
            chosen.extend(rng.distinct(n as usize, self.n_selected(head) as usize));
            chosen.resize(((head + 1) * p.max_selected) as usize, UNUSED);
            let at = (head * p.cluster_stride) as usize;
            used.push(at..at + clusters as usize);
        }
        let per_head = |count: &dyn Fn(u32) -> u32| (0..self.hkv).map(count).collect();
        let counts = OutputPlan::ints("counts", (self.hkv * p.cluster_stride) as usize);
        Plan {
            inputs: vec![
                Input::ints("owners", owners),
                Input::ints("chosen", chosen),
                Input::ints("n_selected", per_head(&|head| self.n_selected(head))),
                Input::ints("n_clusters", per_head(&|head| self.n_clusters(head))),
            ],
            weights: Vec::new(),
            outputs: vec![counts.only(used)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [counts] = exactly(&mut b.outputs);
        backend.owner_counts(OwnerCounts {
            p: self.params(),
            owners: b.inputs[0].view(),
            chosen: b.inputs[1].view(),
            n_selected: b.inputs[2].view(),
            n_clusters: b.inputs[3].view(),
            counts: counts.view_mut(),
        })
    }
}

/// A case of [`Op::RestLists`]. Later heads have fewer clusters and groups.
#[derive(Clone, Debug)]
pub struct RestListsCase {
    /// Clusters of the first head.
    pub clusters: u32,
    /// Of 16 clusters so many lost tokens, as a rule.
    pub touched: u32,
    /// Groups of clusters.
    pub groups: u32,
    /// KV heads.
    pub hkv: u32,
    /// Whether lists have less room than there are clusters that lost tokens.
    pub is_short: bool,
}

impl RestListsCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for is_short in [false, true] {
            let mut add = |clusters, touched, groups, hkv| {
                all.push(Self { clusters, touched, groups, hkv, is_short });
            };
            EDGES.iter().for_each(|clusters| add(*clusters, 5, clusters.div_ceil(16), 3));
            for (clusters, touched, groups, hkv) in [
                (0, 0, 0, 2),
                (40, 0, 3, 1),
                (40, 16, 40, 8),
                (1100, 16, 1, 2),
                (4100, 3, 260, 8),
                (9000, 1, 700, 2),
                (1, 16, 1, 1),
            ] {
                add(clusters, touched, groups, hkv);
            }
        }
        all
    }

    fn n_clusters(&self, head: u32) -> u32 {
        self.clusters - head % 3 * (self.clusters / 3)
    }

    fn n_groups(&self, head: u32) -> u32 {
        self.groups - head % 3 * (self.groups / 3)
    }

    fn params(&self) -> RestListsParams {
        RestListsParams {
            n_kv_heads: self.hkv,
            cluster_stride: self.clusters + 3,
            group_stride: self.groups + 2,
            list_stride: if self.is_short { self.clusters / 8 } else { self.clusters + 1 },
        }
    }
}

impl fmt::Display for RestListsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, touched, groups, hkv, is_short } = self;
        let short = if *is_short { ",short" } else { "" };
        write!(f, "rest_lists[c={clusters},touched={touched},g={groups},hkv={hkv}{short}]")
    }
}

impl OpCase for RestListsCase {
    fn op(&self) -> Op {
        Op::RestLists
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let p = self.params();
        let (mut lost, mut sizes, mut group_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut group_tokens = Vec::new();
        let (mut used, mut grouped) = (Vec::new(), Vec::new());
        for head in 0..self.hkv {
            let (n, n_groups) = (self.n_clusters(head), self.n_groups(head));
            let mut tokens = vec![0; n_groups as usize];
            let mut n_listed = 0;
            for _ in 0..n {
                let size = 1 + rng.below(24) as u32;
                let is_touched = (rng.below(16) as u32) < self.touched;
                // As a rule some of the tokens; all of them now and then.
                let some = 1 + rng.below(size as usize + 3) as u32;
                let group = rng.below(n_groups as usize);
                tokens[group] += size;
                sizes.push(size);
                group_of.push(group as u32);
                lost.push(if is_touched { some.min(size) } else { 0 });
                n_listed += usize::from(is_touched);
            }
            for list in [&mut lost, &mut sizes, &mut group_of] {
                list.resize(((head + 1) * p.cluster_stride) as usize, UNUSED);
            }
            group_tokens.extend(tokens);
            group_tokens.resize(((head + 1) * p.group_stride) as usize, UNUSED);
            let (list, group) = ((head * p.list_stride) as usize, (head * p.group_stride) as usize);
            used.push(list..list + n_listed.min(p.list_stride as usize));
            grouped.push(group..group + n_groups as usize);
        }
        let per_head = |count: &dyn Fn(u32) -> u32| (0..self.hkv).map(count).collect();
        let list = |name| {
            let entries = OutputPlan::ints(name, (self.hkv * p.list_stride) as usize);
            entries.only(used.clone())
        };
        let groups = OutputPlan::ints("rest_of_groups", (self.hkv * p.group_stride) as usize);
        Plan {
            inputs: vec![
                Input::ints("lost", lost),
                Input::ints("sizes", sizes),
                Input::ints("group_of", group_of),
                Input::ints("n_clusters", per_head(&|head| self.n_clusters(head))),
                Input::ints("group_tokens", group_tokens),
                Input::ints("n_groups", per_head(&|head| self.n_groups(head))),
            ],
            weights: Vec::new(),
            outputs: vec![
                list("listed"),
                list("left"),
                OutputPlan::ints("n_listed", self.hkv as usize),
                groups.only(grouped),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [listed, left, n_listed, rest_of_groups] = exactly(&mut b.outputs);
        backend.rest_lists(RestLists {
            p: self.params(),
            lost: b.inputs[0].view(),
            sizes: b.inputs[1].view(),
            group_of: b.inputs[2].view(),
            n_clusters: b.inputs[3].view(),
            group_tokens: b.inputs[4].view(),
            n_groups: b.inputs[5].view(),
            listed: listed.view_mut(),
            left: left.view_mut(),
            n_listed: n_listed.view_mut(),
            rest_of_groups: rest_of_groups.view_mut(),
        })
    }
}
