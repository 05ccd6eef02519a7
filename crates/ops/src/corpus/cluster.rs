//! Cases of clustering and of the scores of clusters.

use std::fmt;

use longview_core::{DType, SplitMix64};

use super::case::OpCase;
use super::data::{EDGES, FLOATS, HEAD_DIMS, HEADS, exactly, indices, normals};
use super::plan::{Buffers, Input, Outcome, OutputPlan, Plan, Values};
use crate::backend::Backend;
use crate::compare::{
    Comparison, compare_exact, compare_floats, compare_guards, compare_outcomes, compare_ranked,
};
use crate::desc::{
    CentroidScores, CentroidScoresParams, ClusterStats, Distance, KmeansAssign, KmeansParams,
    KmeansUpdate, Listed, Placed, Pooling, ScoreSpan,
};
use crate::error::OpResult;
use crate::op::Op;
use crate::reference::assign_score;
use crate::tolerance::Tolerance;

/// The sizes that the k-means cases share.
#[derive(Clone, Copy, Debug)]
pub struct KmeansShape {
    /// KV heads.
    pub heads: u32,
    /// Points.
    pub n: u32,
    /// Clusters of each head.
    pub c: u32,
    /// Width of a head.
    pub dh: u32,
}

impl KmeansShape {
    /// Every dimension over the edges, then combinations.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |heads, n, c, dh| all.push(Self { heads, n, c, dh });
        EDGES.iter().for_each(|n| add(2, *n, 9, 20));
        EDGES.iter().for_each(|c| add(2, 61, *c, 20));
        EDGES.iter().take(16).for_each(|dh| add(1, 17, 5, *dh));
        HEAD_DIMS
            .into_iter()
            .for_each(|dh| [1, 2, 8].into_iter().for_each(|heads| add(heads, 67, 11, dh)));
        [(2, 0, 3, 20), (2, 400, 300, 64), (1, 1100, 1030, 20), (1, 64, 64, 64)]
            .into_iter()
            .for_each(|(heads, n, c, dh)| add(heads, n, c, dh));
        all
    }

    fn params(self, distance: Distance) -> KmeansParams {
        let Self { heads: n_kv_heads, n: n_points, c: n_clusters, dh: head_dim } = self;
        KmeansParams { n_kv_heads, n_points, n_clusters, head_dim, distance: distance as u32 }
    }

    fn n_labels(self) -> usize {
        (self.heads * self.n) as usize
    }

    fn n_clusters(self) -> usize {
        (self.heads * self.c) as usize
    }

    /// Labels that leave about a third of the clusters empty.
    fn draw_labels(self, rng: &mut SplitMix64) -> Vec<u32> {
        let mut labels = indices(rng, self.n_labels(), self.c);
        labels.iter_mut().filter(|l| **l % 3 == 1).for_each(|l| *l -= 1);
        labels
    }

    fn draw_points(self, rng: &mut SplitMix64) -> Vec<f32> {
        normals(rng, self.n_labels() * self.dh as usize, 1.0)
    }

    /// Puts every fourth point on its centroid, or a thousandth beside it: such a distance is right
    /// only if it is summed from differences.
    fn move_to_centroids(self, rng: &mut SplitMix64, points: &mut [f32], of: (&[u32], &[f32])) {
        let (width, (labels, centroids)) = (self.dh as usize, of);
        for (i, label) in labels.iter().enumerate().step_by(4) {
            let cluster = i / self.n as usize * self.c as usize + *label as usize;
            let beside = if i % 8 == 0 { 0.0 } else { 1e-3 };
            let centroid = &centroids[cluster * width..][..width];
            for (x, c) in points[i * width..].iter_mut().zip(centroid) {
                *x = c + beside * rng.next_normal();
            }
        }
    }

    /// Centroids, the last of each head all zeros and, of three or more, the second a copy of the
    /// first.
    fn draw_centroids(self, rng: &mut SplitMix64) -> Vec<f32> {
        let width = self.dh as usize;
        let mut all = normals(rng, self.n_clusters() * width, 1.0);
        for head in all.chunks_exact_mut(self.c as usize * width).filter(|_| self.c >= 3) {
            head.copy_within(..width, width);
            let last = head.len() - width;
            head[last..].fill(0.0);
        }
        all
    }
}

impl fmt::Display for KmeansShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hkv={},n={},c={},dh={}", self.heads, self.n, self.c, self.dh)
    }
}

/// Every shape under every distance.
fn under_all<C>(make: impl Fn(KmeansShape, Distance) -> C) -> Vec<C> {
    let distances = [Distance::Cosine, Distance::L2, Distance::InnerProduct];
    let shapes = KmeansShape::all().into_iter();
    shapes.flat_map(|shape| distances.map(|distance| make(shape, distance))).collect()
}

/// A case of [`Op::KmeansAssign`]. Equal centroids make ties.
#[derive(Clone, Debug)]
pub struct KmeansAssignCase {
    /// Sizes.
    pub shape: KmeansShape,
    /// What "near" means.
    pub distance: Distance,
}

impl KmeansAssignCase {
    pub(super) fn all() -> Vec<Self> {
        under_all(|shape, distance| Self { shape, distance })
    }

    /// The f64 score of a label; `None` for one that does not exist.
    fn score(&self, plan: &Plan, point: usize, label: usize) -> Option<f64> {
        let KmeansShape { n, c, dh, .. } = self.shape;
        let (n, c, width) = (n as usize, c as usize, dh as usize);
        let wide = |input: usize, at: usize| -> Vec<f64> {
            let values = plan.inputs[input].values.floats();
            values[at * width..(at + 1) * width].iter().map(|v| f64::from(*v)).collect()
        };
        let score = || {
            let centroid = wide(1, point / n * c + label);
            assign_score(self.distance as u32, &wide(0, point), &centroid)
        };
        (label < c).then(score)
    }
}

impl fmt::Display for KmeansAssignCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kmeans_assign[{},{:?}]", self.shape, self.distance)
    }
}

impl OpCase for KmeansAssignCase {
    fn op(&self) -> Op {
        Op::KmeansAssign
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let shape = self.shape;
        let n = shape.n_labels();
        let points = Input::floats("points", shape.draw_points(rng));
        let centroids = Input::floats("centroids", shape.draw_centroids(rng));
        let mut before = indices(rng, n, shape.c);
        before.iter_mut().step_by(7).for_each(|label| *label = u32::MAX);
        Plan {
            inputs: vec![points, centroids],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::ints("labels", n).holding(Values::Ints(before)),
                OutputPlan::floats("scores", n),
                OutputPlan::ints("n_changed", shape.heads as usize),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [labels, scores, n_changed] = exactly(&mut b.outputs);
        backend.kmeans_assign(KmeansAssign {
            p: self.shape.params(self.distance),
            points: b.inputs[0].view(),
            centroids: b.inputs[1].view(),
            labels: labels.view_mut(),
            scores: scores.view_mut(),
            n_changed: n_changed.view_mut(),
        })
    }

    /// A label may be any centroid within the tolerance of the best; what is counted as changed
    /// must agree with the labels that were given.
    fn judge(&self, plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        let mut c = Comparison::default();
        got.outputs.iter().for_each(|o| compare_guards(&mut c, o));
        let labels = got.output("labels").values.ints();
        let score = |point, label| self.score(plan, point, label);
        compare_ranked(&mut c, "labels", labels, want.output("labels").values.ints(), tol, score);
        let scores = |o: &Outcome| o.output("scores").values.clone();
        compare_floats(&mut c, "scores", scores(got).floats(), scores(want).floats(), tol, false);
        let before = plan.outputs[0].before.as_ref().map_or(&[][..], Values::ints);
        let n = self.shape.n as usize;
        let changed = |head: usize| {
            let range = (head * n).min(labels.len())..((head + 1) * n).min(labels.len());
            range.filter(|i| labels[*i] != before[*i]).count() as u32
        };
        let n_changed: Vec<u32> = (0..self.shape.heads as usize).map(changed).collect();
        compare_exact(&mut c, "n_changed", got.output("n_changed").values.ints(), &n_changed);
        c
    }
}

/// A case of [`Op::KmeansUpdate`]; a third of the clusters is empty.
#[derive(Clone, Debug)]
pub struct KmeansUpdateCase {
    /// Sizes.
    pub shape: KmeansShape,
}

impl KmeansUpdateCase {
    pub(super) fn all() -> Vec<Self> {
        KmeansShape::all().into_iter().map(|shape| Self { shape }).collect()
    }
}

impl fmt::Display for KmeansUpdateCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kmeans_update[{}]", self.shape)
    }
}

impl OpCase for KmeansUpdateCase {
    fn op(&self) -> Op {
        Op::KmeansUpdate
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let shape = self.shape;
        let points = Input::floats("points", shape.draw_points(rng));
        let labels = Input::ints("labels", shape.draw_labels(rng));
        let before = Values::Floats(shape.draw_centroids(rng));
        Plan {
            inputs: vec![points, labels],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::floats("centroids", before.len()).holding(before),
                OutputPlan::ints("counts", shape.n_clusters()),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [centroids, counts] = exactly(&mut b.outputs);
        backend.kmeans_update(KmeansUpdate {
            p: self.shape.params(Distance::Cosine),
            points: b.inputs[0].view(),
            labels: b.inputs[1].view(),
            centroids: centroids.view_mut(),
            counts: counts.view_mut(),
        })
    }
}

/// A case of [`Op::ClusterStats`]; a third of the clusters is empty, some points lie on their
/// centroid or close to it.
#[derive(Clone, Debug)]
pub struct ClusterStatsCase {
    /// Sizes.
    pub shape: KmeansShape,
    /// What "close" means.
    pub distance: Distance,
}

impl ClusterStatsCase {
    pub(super) fn all() -> Vec<Self> {
        under_all(|shape, distance| Self { shape, distance })
    }
}

impl fmt::Display for ClusterStatsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster_stats[{},{:?}]", self.shape, self.distance)
    }
}

impl OpCase for ClusterStatsCase {
    fn op(&self) -> Op {
        Op::ClusterStats
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let shape = self.shape;
        let (mut points, labels) = (shape.draw_points(rng), shape.draw_labels(rng));
        let centroids = shape.draw_centroids(rng);
        shape.move_to_centroids(rng, &mut points, (&labels, &centroids));
        Plan {
            inputs: vec![
                Input::floats("points", points),
                Input::ints("labels", labels),
                Input::floats("centroids", centroids),
            ],
            weights: Vec::new(),
            outputs: vec![
                OutputPlan::floats("closeness", shape.n_labels()),
                OutputPlan::floats("radius", shape.n_clusters()),
            ],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [closeness, radius] = exactly(&mut b.outputs);
        backend.cluster_stats(ClusterStats {
            p: self.shape.params(self.distance),
            points: b.inputs[0].view(),
            labels: b.inputs[1].view(),
            centroids: b.inputs[2].view(),
            closeness: closeness.view_mut(),
            radius: radius.view_mut(),
        })
    }
}

/// A case of [`Op::CentroidScores`]. Later heads and sequences have fewer clusters, the last head
/// of the last none.
#[derive(Clone, Debug)]
pub struct CentroidScoresCase {
    /// Clusters of the first head of the first sequence.
    pub clusters: u32,
    /// Query heads.
    pub hq: u32,
    /// KV heads.
    pub hkv: u32,
    /// Width of a head.
    pub dh: u32,
    /// Of the centroids.
    pub dtype: DType,
    /// How a group becomes one.
    pub pooling: Pooling,
    /// Sequences.
    pub seqs: u32,
    /// Scores up to about +-100.
    pub sharp: bool,
    /// Whether every other cluster is scored, in an order by chance.
    pub listed: bool,
    /// Where landmarks lie.
    pub placed: Placed,
}

/// Spread of codes: some are beyond what there is.
const CODES: f32 = 50.0;

impl CentroidScoresCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for dtype in FLOATS.into_iter().chain([DType::I8]) {
            // Codes have a softmax.
            let is_softmax = |pooling: Pooling| pooling as u32 <= Pooling::SizeWeighted as u32;
            let has = |pooling: &Pooling| dtype.is_float() || is_softmax(*pooling);
            for pooling in Pooling::ALL.into_iter().filter(has) {
                Self::add(&Self::base(dtype, pooling), &mut all);
            }
            for pooling in [Pooling::SumSoftmax, Pooling::MaxSoftmax] {
                let listed = Self { listed: true, ..Self::base(dtype, pooling) };
                Self::add(&listed, &mut all);
                // Keys among KV rows, behind rows that are not listed.
                Self::add(&Self { placed: Placed { first: 6, step: 2 }, ..listed }, &mut all);
            }
        }
        all
    }

    fn base(dtype: DType, pooling: Pooling) -> Self {
        Self {
            clusters: 37,
            hq: 6,
            hkv: 2,
            dh: 20,
            dtype,
            pooling,
            seqs: 1,
            sharp: false,
            listed: false,
            placed: Placed::DENSE,
        }
    }

    fn add(base: &Self, all: &mut Vec<Self>) {
        for clusters in EDGES.into_iter().chain([0, 300, 1030]) {
            all.push(Self { clusters, ..base.clone() });
        }
        for (i, (hq, hkv)) in HEADS.into_iter().enumerate() {
            all.push(Self { hq, hkv, dh: HEAD_DIMS[i % 5], ..base.clone() });
            all.push(Self { hq, hkv, dh: HEAD_DIMS[(i + 2) % 5], sharp: true, ..base.clone() });
        }
        [0, 2, 3]
            .into_iter()
            .for_each(|seqs| all.push(Self { seqs, clusters: 65, ..base.clone() }));
        // Groups of two.
        all.push(Self { clusters: 70, hq: 4, dh: 64, ..base.clone() });
        all.push(Self { clusters: 1500, hq: 14, dh: 64, seqs: 2, ..base.clone() });
    }

    fn count(&self, seq: u32, head: u32) -> u32 {
        // Heads that choose alike have as many clusters.
        let head = if self.pooling == Pooling::SharedScores { 0 } else { head };
        let is_last = seq > 0 && seq + 1 == self.seqs && head + 1 == self.hkv;
        let fewer = head * (self.clusters / 5) + seq * (self.clusters / 3);
        if is_last { 0 } else { self.clusters.saturating_sub(fewer) }
    }

    /// Scores of a head.
    fn scored(&self, seq: u32, head: u32) -> u32 {
        if self.listed { self.count(seq, head).div_ceil(2) } else { self.count(seq, head) }
    }

    fn cluster_stride(&self) -> u32 {
        self.placed.first + (self.clusters + 3) * self.placed.step
    }

    fn list_stride(&self) -> u32 {
        self.clusters + 1
    }

    fn score_stride(&self) -> u32 {
        self.clusters + 6
    }

    /// Centroids, sizes, counts and, if there is one, the list of one sequence; what is not in use
    /// is poison.
    fn draw_span(&self, rng: &mut SplitMix64, seq: u32) -> Vec<Input> {
        let (mut centroids, mut sizes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let width = self.dh as usize;
        for head in 0..self.hkv {
            let n = self.count(seq, head) as usize;
            let stride = self.cluster_stride() as usize;
            let spread = if self.dtype == DType::I8 { CODES } else { 1.0 };
            let Placed { first, step } = self.placed;
            centroids.resize((head as usize * stride + first as usize) * width, f32::NAN);
            for _ in 0..n {
                centroids.extend(normals(rng, width, spread));
                centroids.resize(centroids.len() + (step as usize - 1) * width, f32::NAN);
            }
            centroids.resize((head as usize + 1) * stride * width, f32::NAN);
            sizes.extend((0..n).map(|c| if c == 0 { 5 } else { rng.below(40) as u32 }));
            sizes.resize((head as usize + 1) * stride, u32::MAX);
            let n_scored = if self.listed { self.scored(seq, head) as usize } else { 0 };
            ids.extend(rng.distinct(n, n_scored));
            ids.resize((head as usize + 1) * self.list_stride() as usize, u32::MAX);
        }
        let counts = (0..self.hkv).map(|head| self.scored(seq, head)).collect();
        let mut inputs = vec![
            Input::typed("centroids", self.dtype, centroids),
            Input::ints("sizes", sizes),
            Input::ints("n_clusters", counts),
        ];
        if self.listed {
            inputs.push(Input::ints("listed", ids));
        }
        inputs
    }
}

impl fmt::Display for CentroidScoresCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, hq, hkv, dh, dtype, pooling, seqs, sharp, listed, placed } = self;
        write!(f, "centroid_scores[c={clusters},hq={hq},hkv={hkv},dh={dh},centroids={dtype}")?;
        let sharp = if *sharp { ",sharp" } else { "" };
        let listed = if *listed { ",listed" } else { "" };
        let placed = if *placed == Placed::DENSE { "" } else { ",placed" };
        write!(f, ",{pooling:?},seqs={seqs}{sharp}{listed}{placed}]")
    }
}

impl OpCase for CentroidScoresCase {
    fn op(&self) -> Op {
        Op::CentroidScores
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let len = ((self.seqs + 1) * self.hq * self.dh) as usize;
        let spread = if self.sharp { 32.0 } else { 1.0 };
        let spread = if self.dtype == DType::I8 { spread / CODES } else { spread };
        let mut inputs = vec![Input::floats("q", normals(rng, len, spread))];
        (0..self.seqs).for_each(|seq| inputs.extend(self.draw_span(rng, seq)));
        let stride = self.score_stride() as usize;
        let heads = (0..self.seqs).flat_map(|seq| (0..self.hkv).map(move |head| (seq, head)));
        let in_use = |(seq, head): (u32, u32)| {
            let start = (seq * self.hkv + head) as usize * stride;
            start..start + self.scored(seq, head) as usize
        };
        let scores = OutputPlan::floats("scores", (self.seqs * self.hkv) as usize * stride)
            .only(heads.map(in_use).collect());
        Plan { inputs, weights: Vec::new(), outputs: vec![scores] }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [scores] = exactly(&mut b.outputs);
        let spans: Vec<_> = b.inputs[1..]
            .chunks_exact(if self.listed { 4 } else { 3 })
            .zip(0..)
            .map(|(parts, seq)| ScoreSpan {
                q_index: self.seqs - seq,
                centroids: parts[0].view(),
                sizes: parts[1].view(),
                n_clusters: parts[2].view(),
                cluster_stride: self.cluster_stride(),
                listed: parts
                    .get(3)
                    .map(|ids| Listed { ids: ids.view(), stride: self.list_stride() }),
                placed: self.placed,
            })
            .collect();
        backend.centroid_scores(CentroidScores {
            p: CentroidScoresParams {
                n_tokens: self.seqs + 1,
                n_q_heads: self.hq,
                n_kv_heads: self.hkv,
                head_dim: self.dh,
                score_stride: self.score_stride(),
                scale: 1.0 / (self.dh as f32).sqrt(),
                pooling: self.pooling as u32,
            },
            q: b.inputs[0].view(),
            spans: &spans,
            scores: scores.view_mut(),
        })
    }

    /// Scores without a softmax are not probabilities.
    fn judge(&self, plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        let is_raw = matches!(self.pooling, Pooling::SumScores | Pooling::SharedScores);
        let raw =
            if self.sharp { Tolerance::RAW_SCORES.times(32.0) } else { Tolerance::RAW_SCORES };
        let is_coarse = self.sharp && self.dtype == DType::I8;
        let tol = if is_coarse { &Tolerance::SHARP_CODES } else { tol };
        compare_outcomes(plan, got, want, if is_raw { &raw } else { tol })
    }
}
