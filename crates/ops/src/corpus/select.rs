//! Cases of cluster selection.

use std::fmt;

use longview_core::SplitMix64;

use super::case::OpCase;
use super::data::{EDGES, exactly};
use super::plan::{Buffers, Input, Outcome, OutputPlan, Plan};
use crate::backend::Backend;
use crate::compare::{
    Comparison, Picked, Ranking, compare_exact, compare_guards, compare_selection,
};
use crate::desc::{Listed, SelectClusters, SelectClustersParams, SelectSpan};
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::Tolerance;

/// What the scores of a [`SelectClustersCase`] are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreKind {
    /// All different, as good as always.
    Random,
    /// Eighths: many ties.
    Ties,
    /// One value: the order of the ids.
    Equal,
    /// Falling with the id, so that the best come first.
    Sorted,
    /// As likely below 0 as above: scores without a softmax.
    Signed,
}

/// A case of [`Op::SelectClusters`]. Later heads and sequences have fewer clusters and smaller
/// budgets.
#[derive(Clone, Debug)]
pub struct SelectClustersCase {
    /// Clusters of the first head of the first sequence.
    pub clusters: u32,
    /// Its budget, in tokens.
    pub budget: u32,
    /// KV heads.
    pub hkv: u32,
    /// Sequences.
    pub seqs: u32,
    /// What the scores are like.
    pub kind: ScoreKind,
    /// In the order of ids, of clusters of one token.
    pub by_id: bool,
    /// Of clusters that a list names.
    pub listed: bool,
}

impl SelectClustersCase {
    pub(super) fn all() -> Vec<Self> {
        use ScoreKind::{Equal, Random, Signed, Sorted, Ties};
        let mut all = Vec::new();
        let mut add = |clusters, budget, hkv, seqs, kind| {
            let by_best = Self { clusters, budget, hkv, seqs, kind, by_id: false, listed: false };
            let by_id = Self { by_id: true, budget: budget / 5, ..by_best.clone() };
            all.extend([by_best.clone(), by_id.clone()]);
            // A list changes where sizes are read and what is written, whatever the scores.
            if kind == Ties {
                all.extend([by_best, by_id].map(|case| Self { listed: true, ..case }));
            }
        };
        for kind in [Random, Ties, Equal, Sorted, Signed] {
            let sizes = EDGES.into_iter().chain([255, 256, 300, 1023, 1024, 1025, 2500]);
            sizes.for_each(|clusters| add(clusters, 5 * clusters + 3, 2, 1, kind));
            EDGES.iter().for_each(|budget| add(129, *budget, 2, 1, kind));
            // Nothing, one token, everything, more than everything.
            [0, 1, 100_000, u32::MAX].into_iter().for_each(|budget| add(300, budget, 3, 1, kind));
            [1, 8].into_iter().for_each(|hkv| add(257, 512, hkv, 1, kind));
            [0, 2, 3].into_iter().for_each(|seqs| add(67, 100, 2, seqs, kind));
            add(0, 100, 2, 1, kind);
            add(1500, 2048, 8, 2, kind);
        }
        // More clusters than threads hold, of which few or many are taken.
        for (kind, budget) in [(Random, 2500), (Ties, 2500), (Ties, 40_000)] {
            add(9001, budget, 2, 1, kind);
        }
        all
    }

    fn count(&self, seq: u32, head: u32) -> u32 {
        self.clusters.saturating_sub(head * (self.clusters / 9) + seq * (self.clusters / 4))
    }

    fn budget(&self, seq: u32, head: u32) -> u32 {
        self.budget / (1 + seq + head)
    }

    /// Half of the clusters are on the list.
    fn cluster_stride(&self) -> u32 {
        self.clusters * (1 + u32::from(self.listed)) + 3
    }

    /// Entries from one head's list to the next.
    fn list_stride(&self) -> u32 {
        self.clusters + 5
    }

    /// Inputs of a sequence.
    fn n_inputs(&self) -> usize {
        3 + usize::from(self.listed)
    }

    fn score_stride(&self) -> u32 {
        self.clusters + 6
    }

    /// No more room than the contract asks for.
    fn max_selected(&self) -> u32 {
        self.budget.min(self.clusters)
    }

    fn heads(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (seqs, hkv) = (self.seqs, self.hkv);
        (0..seqs).flat_map(move |seq| (0..hkv).map(move |head| (seq, head)))
    }

    /// Normal numbers in f32: what a device may flush to zero would make ties that the contract
    /// does not have.
    fn score(&self, rng: &mut SplitMix64, cluster: u32) -> f32 {
        match self.kind {
            ScoreKind::Random => rng.next_f32(),
            ScoreKind::Ties => rng.below(8) as f32 / 8.0,
            ScoreKind::Equal => 0.25,
            ScoreKind::Sorted => 1.0 / (cluster + 1) as f32,
            ScoreKind::Signed => rng.next_f32() - 0.5,
        }
    }

    fn draw_scores(&self, rng: &mut SplitMix64) -> Vec<f32> {
        let mut scores = Vec::new();
        for (seq, head) in self.heads() {
            let end = scores.len() + self.score_stride() as usize;
            scores.extend((0..self.count(seq, head)).map(|c| self.score(rng, c)));
            scores.resize(end, f32::NAN);
        }
        scores
    }

    /// Sizes up to 24; every tenth cluster or so is empty.
    fn draw_sizes(&self, rng: &mut SplitMix64, seq: u32) -> Vec<u32> {
        let mut sizes = Vec::new();
        for head in 0..self.hkv {
            let end = sizes.len() + self.cluster_stride() as usize;
            let most = if self.by_id { 1 } else { 24 };
            let mut size = || if rng.below(10) == 0 { 0 } else { 1 + rng.below(most) as u32 };
            let n = self.count(seq, head) * (1 + u32::from(self.listed));
            sizes.extend((0..n).map(|_| size()));
            sizes.resize(end, u32::MAX);
        }
        sizes
    }

    /// For each head as many different clusters as are in use, in no order.
    fn draw_list(&self, rng: &mut SplitMix64, seq: u32) -> Vec<u32> {
        let mut list = Vec::new();
        for head in 0..self.hkv {
            let end = list.len() + self.list_stride() as usize;
            let n = self.count(seq, head);
            let mut ids: Vec<u32> = (0..2 * n).collect();
            for i in 0..n as usize {
                let other = i + rng.below(ids.len() - i);
                ids.swap(i, other);
            }
            list.extend(&ids[..n as usize]);
            list.resize(end, u32::MAX);
        }
        list
    }

    /// What one head may choose from: scores by cluster, of which those that are not listed have no
    /// tokens.
    fn choice(&self, plan: &Plan, seq: u32, head: u32) -> Choice {
        let n = self.count(seq, head) as usize;
        let scores = (seq * self.hkv + head) as usize * self.score_stride() as usize;
        let scores = &plan.inputs[0].values.floats()[scores..][..n];
        let (input, first) = (self.n_inputs() * seq as usize, head as usize);
        let own_sizes = first * self.cluster_stride() as usize;
        let own_sizes = &plan.inputs[1 + input].values.ints()[own_sizes..];
        if !self.listed {
            return Choice { scores: scores.to_vec(), sizes: own_sizes[..n].to_vec() };
        }
        let ids = &plan.inputs[4 + input].values.ints()[first * self.list_stride() as usize..][..n];
        let mut choice = Choice { scores: vec![0.0; 2 * n], sizes: vec![0; 2 * n] };
        for (id, score) in ids.iter().map(|id| *id as usize).zip(scores) {
            (choice.scores[id], choice.sizes[id]) = (*score, own_sizes[id]);
        }
        choice
    }
}

/// What one head may choose from, by cluster.
struct Choice {
    scores: Vec<f32>,
    sizes: Vec<u32>,
}

impl fmt::Display for SelectClustersCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, budget, hkv, seqs, kind, by_id, listed } = self;
        let by_id = if *by_id { ",by_id" } else { "" };
        let listed = if *listed { ",listed" } else { "" };
        write!(f, "select_clusters[c={clusters},b={budget},hkv={hkv},seqs={seqs},")?;
        write!(f, "{kind:?}{by_id}{listed}]")
    }
}

impl OpCase for SelectClustersCase {
    fn op(&self) -> Op {
        Op::SelectClusters
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let mut inputs = vec![Input::floats("scores", self.draw_scores(rng))];
        for seq in 0..self.seqs {
            let sizes = self.draw_sizes(rng, seq);
            let per_head = |f: &dyn Fn(u32) -> u32| (0..self.hkv).map(f).collect();
            inputs.push(Input::ints("sizes", sizes));
            inputs.push(Input::ints("n_clusters", per_head(&|head| self.count(seq, head))));
            inputs.push(Input::ints("budgets", per_head(&|head| self.budget(seq, head))));
            if self.listed {
                inputs.push(Input::ints("listed", self.draw_list(rng, seq)));
            }
        }
        let heads = (self.seqs * self.hkv) as usize;
        let room = heads * self.max_selected() as usize;
        Plan {
            inputs,
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::ints("clusters", room),
                OutputPlan::ints("takes", room),
                OutputPlan::ints("n_selected", heads),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [clusters, takes, n_selected] = exactly(&mut b.outputs);
        let spans: Vec<_> = b.inputs[1..]
            .chunks_exact(self.n_inputs())
            .map(|parts| SelectSpan {
                sizes: parts[0].view(),
                n_clusters: parts[1].view(),
                budgets: parts[2].view(),
                cluster_stride: self.cluster_stride(),
                listed: parts
                    .get(3)
                    .map(|ids| Listed { ids: ids.view(), stride: self.list_stride() }),
            })
            .collect();
        backend.select_clusters(SelectClusters {
            p: SelectClustersParams {
                n_kv_heads: self.hkv,
                score_stride: self.score_stride(),
                max_selected: self.max_selected(),
                by_id: self.by_id.into(),
            },
            scores: b.inputs[0].view(),
            spans: &spans,
            clusters: clusters.view_mut(),
            takes: takes.view_mut(),
            n_selected: n_selected.view_mut(),
        })
    }

    /// Entries behind a head's `n_selected` may hold anything; the rest is compared head by head.
    fn judge(&self, plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        let mut c = Comparison::default();
        got.outputs.iter().for_each(|o| compare_guards(&mut c, o));
        let room = self.max_selected() as usize;
        for (i, (seq, head)) in self.heads().enumerate() {
            let name = format!("sequence {seq}, head {head}");
            match (Picked::of(got, i, room), Picked::of(want, i, room)) {
                (Some(got), Some(want)) => {
                    let Choice { scores, sizes } = &self.choice(plan, seq, head);
                    let ranking = Ranking { scores, sizes, budget: self.budget(seq, head) };
                    compare_selection(&mut c, &name, got, want, &ranking, tol);
                }
                _ => c.fail(format!("{name}: n_selected is more than {room}")),
            }
        }
        if tol.is_exact() {
            let counts = |o: &Outcome| o.output("n_selected").values.ints().to_vec();
            compare_exact(&mut c, "n_selected", &counts(got), &counts(want));
        }
        c
    }
}
