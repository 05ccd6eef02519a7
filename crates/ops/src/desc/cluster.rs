//! Descriptors of clustering, scoring and selection.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, grouped, of_landmarks, reads, writes};
use crate::buffer::{DeviceBuffer, Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// What "near" means between a key and a centroid (ClusterKV's ablation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Distance {
    /// Largest cosine: the paper's choice; magnitudes do not count.
    #[default]
    Cosine = 0,
    /// Smallest Euclidean distance.
    L2 = 1,
    /// Largest inner product.
    InnerProduct = 2,
}

/// How the scores of the G query heads of a KV head become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Pooling {
    /// `sum_g softmax_g[c]`: keeps the meaning of attention mass.
    #[default]
    SumSoftmax = 0,
    /// `max_g softmax_g[c]`.
    MaxSoftmax = 1,
    /// `sum_g` of a softmax in which a cluster weighs by its size: `size_c e^(s_c) / sum_i size_i
    /// e^(s_i)`.
    SizeWeighted = 2,
    /// `sum_g s_g[c]`, no softmax: bounds and landmarks are compared as they are (Quest under GQA,
    /// KTransformers' SEPARATE).
    SumScores = 3,
    /// The same summed over all heads, so that all KV heads choose alike (InfLLM, KTransformers'
    /// SHARED). All KV heads must have the same number of clusters.
    SharedScores = 4,
}

impl Pooling {
    /// All of them, by number.
    pub const ALL: [Pooling; 5] = [
        Pooling::SumSoftmax,
        Pooling::MaxSoftmax,
        Pooling::SizeWeighted,
        Pooling::SumScores,
        Pooling::SharedScores,
    ];
}

/// Parameters of the k-means ops.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct KmeansParams {
    /// Hkv: independent problems side by side.
    pub n_kv_heads: u32,
    /// Points.
    pub n_points: u32,
    /// Clusters of each head.
    pub n_clusters: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// [`Distance`] as a number.
    pub distance: u32,
}

impl KmeansParams {
    fn check<B: Storage>(&self, op: Op, points: &View<'_, B>) -> OpResult<()> {
        ensure(op, self.n_kv_heads > 0 && self.head_dim > 0 && self.n_clusters > 0, || {
            format!(
                "{} heads, {} clusters, width {}",
                self.n_kv_heads, self.n_clusters, self.head_dim
            )
        })?;
        ensure(op, self.distance <= 2, || format!("distance {}", self.distance))?;
        reads(op, "points", points, DType::F32, self.n_labels() * self.head_dim as usize)
    }

    fn n_labels(&self) -> usize {
        self.n_kv_heads as usize * self.n_points as usize
    }

    fn n_centroids(&self) -> usize {
        self.n_kv_heads as usize * self.n_clusters as usize
    }
}

/// Nearest centroid of each point.
///
/// The score that is maximised, so that every distance is one kernel: cosine `k.c / |c|` (the norm
/// of k does not change the order; a zero centroid scores 0), L2 `k.c - |c|^2 / 2`, inner product
/// `k.c`. Ties: lowest cluster.
pub struct KmeansAssign<'a, B: Storage> {
    /// Sizes.
    pub p: KmeansParams,
    /// F32 `[Hkv, N, Dh]`.
    pub points: View<'a, B>,
    /// F32 `[Hkv, C, Dh]`.
    pub centroids: View<'a, B>,
    /// U32 `[Hkv, N]`, read (to count changes) and written.
    pub labels: ViewMut<'a, B>,
    /// F32 `[Hkv, N]`: the score of the label.
    pub scores: ViewMut<'a, B>,
    /// U32 `[Hkv]`: labels that differ from what was in `labels`.
    pub n_changed: ViewMut<'a, B>,
}

impl<B: Storage> KmeansAssign<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::KmeansAssign, &self.p);
        p.check(op, &self.points)?;
        reads(op, "centroids", &self.centroids, DType::F32, p.n_centroids() * p.head_dim as usize)?;
        writes(op, "labels", &self.labels, DType::U32, p.n_labels())?;
        writes(op, "scores", &self.scores, DType::F32, p.n_labels())?;
        writes(op, "n_changed", &self.n_changed, DType::U32, p.n_kv_heads as usize)
    }
}

/// Means of the clusters.
pub struct KmeansUpdate<'a, B: Storage> {
    /// Sizes; `distance` is not used.
    pub p: KmeansParams,
    /// F32 `[Hkv, N, Dh]`.
    pub points: View<'a, B>,
    /// U32 `[Hkv, N]`, each below C.
    pub labels: View<'a, B>,
    /// F32 `[Hkv, C, Dh]`, read (empty clusters keep theirs) and written.
    pub centroids: ViewMut<'a, B>,
    /// U32 `[Hkv, C]`.
    pub counts: ViewMut<'a, B>,
}

impl<B: Storage> KmeansUpdate<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::KmeansUpdate, &self.p);
        p.check(op, &self.points)?;
        reads(op, "labels", &self.labels, DType::U32, p.n_labels())?;
        writes(
            op,
            "centroids",
            &self.centroids,
            DType::F32,
            p.n_centroids() * p.head_dim as usize,
        )?;
        writes(op, "counts", &self.counts, DType::U32, p.n_centroids())
    }
}

/// Closeness of points and radius of clusters, for labels that are final.
pub struct ClusterStats<'a, B: Storage> {
    /// Sizes.
    pub p: KmeansParams,
    /// F32 `[Hkv, N, Dh]`.
    pub points: View<'a, B>,
    /// U32 `[Hkv, N]`, each below C.
    pub labels: View<'a, B>,
    /// F32 `[Hkv, C, Dh]`.
    pub centroids: View<'a, B>,
    /// F32 `[Hkv, N]`: greater is closer. Cosine `k.c / (|k||c|)` (0 if either is 0), L2 `-|k -
    /// c|`, inner product `k.c`.
    pub closeness: ViewMut<'a, B>,
    /// F32 `[Hkv, C]`: `max |k - c|` over the members.
    pub radius: ViewMut<'a, B>,
}

impl<B: Storage> ClusterStats<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::ClusterStats, &self.p);
        p.check(op, &self.points)?;
        reads(op, "labels", &self.labels, DType::U32, p.n_labels())?;
        reads(op, "centroids", &self.centroids, DType::F32, p.n_centroids() * p.head_dim as usize)?;
        writes(op, "closeness", &self.closeness, DType::F32, p.n_labels())?;
        writes(op, "radius", &self.radius, DType::F32, p.n_centroids())
    }
}

/// Parameters of [`CentroidScores`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct CentroidScoresParams {
    /// Query tokens of all sequences together.
    pub n_tokens: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Clusters from one head's scores to the next.
    pub score_stride: u32,
    /// Multiplies q . centroid.
    pub scale: f32,
    /// [`Pooling`] as a number.
    pub pooling: u32,
}

/// One sequence's clusters, for scoring.
pub struct ScoreSpan<'a, B: Storage> {
    /// The sequence's query token among the step's tokens.
    pub q_index: u32,
    /// F32, F16, BF16 or, with a softmax, I8 `[Hkv, cluster_stride, Dh]`. Against I8 a backend may
    /// round each query to 2^-15 of its largest number.
    pub centroids: View<'a, B>,
    /// U32 `[Hkv, cluster_stride]`: tokens of each cluster.
    pub sizes: View<'a, B>,
    /// U32 `[Hkv]`: clusters in use, each at most [`ScoreSpan::room`]; may be 0.
    pub n_clusters: View<'a, B>,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// What is scored, where that is not clusters 0, 1, 2 .. up to `n_clusters`. `sizes` are not
    /// read then.
    pub listed: Option<Listed<'a, B>>,
    /// Where landmarks of a list lie; [`Placed::DENSE`] without one.
    pub placed: Placed,
}

/// Which clusters are scored or chosen from: entry i of a head is cluster `ids[h, i]`, and
/// `n_clusters` of the span counts entries.
pub struct Listed<'a, B: Storage> {
    /// U32 `[Hkv, stride]`, each a cluster's number below `cluster_stride`.
    pub ids: View<'a, B>,
    /// Entries from one head to the next.
    pub stride: u32,
}

/// Where the landmark of a listed cluster lies: cluster i of a head has landmark `first + i * step`
/// of the `cluster_stride` that the head has. So keys can be compared where they lie among KV rows,
/// each of which is a key and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The landmark of cluster 0.
    pub first: u32,
    /// Landmarks from one cluster to the next.
    pub step: u32,
}

impl Placed {
    /// Cluster i has landmark i.
    pub const DENSE: Self = Self { first: 0, step: 1 };

    /// Clusters whose landmarks are below `stride`.
    pub fn limit(self, stride: u32) -> u32 {
        stride.saturating_sub(self.first).div_ceil(self.step.max(1))
    }
}

impl<B: Storage> Clone for Listed<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Storage> Copy for Listed<'_, B> {}

impl<B: Storage> ScoreSpan<'_, B> {
    /// Most scores of a head.
    pub fn room(&self, score_stride: u32) -> usize {
        let stride = self.listed.map_or(self.cluster_stride, |listed| listed.stride);
        stride.min(score_stride) as usize
    }
}

/// Pooled scores of all clusters.
pub struct CentroidScores<'a, B: Storage> {
    /// Sizes.
    pub p: CentroidScoresParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// One entry per sequence.
    pub spans: &'a [ScoreSpan<'a, B>],
    /// F32 `[sequences, Hkv, score_stride]`; only clusters in use are written.
    pub scores: ViewMut<'a, B>,
}

impl<B: Storage> CentroidScores<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::CentroidScores, &self.p);
        grouped(op, p.n_q_heads, p.n_kv_heads, p.head_dim)?;
        ensure(op, p.pooling <= Pooling::SharedScores as u32, || format!("pooling {}", p.pooling))?;
        let (h, d) = (p.n_kv_heads as usize, p.head_dim as usize);
        reads(op, "q", &self.q, DType::F32, p.n_tokens as usize * p.n_q_heads as usize * d)?;
        let scores = self.spans.len() * h * p.score_stride as usize;
        writes(op, "scores", &self.scores, DType::F32, scores)?;
        for (i, s) in self.spans.iter().enumerate() {
            let clusters = h * s.cluster_stride as usize;
            ensure(op, s.q_index < p.n_tokens, || format!("span {i}: token {}", s.q_index))?;
            let dtype = s.centroids.buffer.dtype();
            of_landmarks(op, "centroids", dtype)?;
            ensure(op, dtype.is_float() || p.pooling <= Pooling::SizeWeighted as u32, || {
                format!("span {i}: landmarks of {dtype} with pooling {}", p.pooling)
            })?;
            reads(op, "centroids", &s.centroids, s.centroids.buffer.dtype(), clusters * d)?;
            reads(op, "n_clusters", &s.n_clusters, DType::U32, h)?;
            let Some(Listed { ids, stride }) = &s.listed else {
                ensure(op, s.placed == Placed::DENSE, || {
                    format!("span {i}: {:?} without a list", s.placed)
                })?;
                reads(op, "sizes", &s.sizes, DType::U32, clusters)?;
                continue;
            };
            reads(op, "listed", ids, DType::U32, h * *stride as usize)?;
            ensure(op, s.placed.step > 0, || format!("span {i}: {:?}", s.placed))?;
            ensure(op, p.pooling <= Pooling::MaxSoftmax as u32, || {
                format!("span {i}: a list with pooling {}", p.pooling)
            })?;
        }
        Ok(())
    }
}

/// Parameters of [`SelectClusters`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SelectClustersParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Clusters from one head's scores to the next.
    pub score_stride: u32,
    /// Entries from one head's output to the next; at least the largest budget or the largest
    /// cluster count, whichever is smaller (a taken cluster has a token).
    pub max_selected: u32,
    /// 0: best first. 1: in the order of ids, or of the list, which takes no sort; no cluster may
    /// have more than one token.
    pub by_id: u32,
}

/// One sequence's clusters, for selection.
pub struct SelectSpan<'a, B: Storage> {
    /// U32 `[Hkv, cluster_stride]`: tokens of each cluster.
    pub sizes: View<'a, B>,
    /// U32 `[Hkv]`: clusters in use, or entries of the list.
    pub n_clusters: View<'a, B>,
    /// U32 `[Hkv]`: tokens that each head may take; may be 0.
    pub budgets: View<'a, B>,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// What is chosen from, where that is not clusters 0, 1, 2 .. up to `n_clusters`: score i is
    /// that of cluster `ids[h, i]`. Among equals the first entry comes first.
    pub listed: Option<Listed<'a, B>>,
}

impl<B: Storage> SelectSpan<'_, B> {
    /// Most scores of a head.
    pub fn room(&self, score_stride: u32) -> usize {
        let stride = self.listed.map_or(self.cluster_stride, |listed| listed.stride);
        stride.min(score_stride) as usize
    }
}

/// The clusters that each KV head attends, best first or in the order of their ids.
pub struct SelectClusters<'a, B: Storage> {
    /// Sizes.
    pub p: SelectClustersParams,
    /// F32 `[sequences, Hkv, score_stride]`.
    pub scores: View<'a, B>,
    /// One entry per sequence.
    pub spans: &'a [SelectSpan<'a, B>],
    /// U32 `[sequences, Hkv, max_selected]`: cluster ids.
    pub clusters: ViewMut<'a, B>,
    /// U32 `[sequences, Hkv, max_selected]`: tokens taken of each, its size but for the last.
    pub takes: ViewMut<'a, B>,
    /// U32 `[sequences, Hkv]`: entries written.
    pub n_selected: ViewMut<'a, B>,
}

impl<B: Storage> SelectClusters<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::SelectClusters, &self.p);
        let heads = self.spans.len() * p.n_kv_heads as usize;
        reads(op, "scores", &self.scores, DType::F32, heads * p.score_stride as usize)?;
        writes(op, "clusters", &self.clusters, DType::U32, heads * p.max_selected as usize)?;
        writes(op, "takes", &self.takes, DType::U32, heads * p.max_selected as usize)?;
        writes(op, "n_selected", &self.n_selected, DType::U32, heads)?;
        for s in self.spans {
            let h = p.n_kv_heads as usize;
            reads(op, "sizes", &s.sizes, DType::U32, h * s.cluster_stride as usize)?;
            reads(op, "n_clusters", &s.n_clusters, DType::U32, h)?;
            reads(op, "budgets", &s.budgets, DType::U32, h)?;
            if let Some(Listed { ids, stride }) = &s.listed {
                reads(op, "listed", ids, DType::U32, h * *stride as usize)?;
            }
        }
        Ok(())
    }
}

/// Parameters of [`QueryGate`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct QueryGateParams {
    /// Query tokens of all sequences together.
    pub n_tokens: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// The sequence's query token among the step's tokens.
    pub q_index: u32,
}

/// How near one sequence's query is to its last one, which it replaces.
pub struct QueryGate<'a, B: Storage> {
    /// Sizes.
    pub p: QueryGateParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[Hq, Dh]`, read and then overwritten by token `q_index` of `q`.
    pub last: ViewMut<'a, B>,
    /// F32 `[Hkv]`: the mean cosine of each group.
    pub cosines: ViewMut<'a, B>,
}

impl<B: Storage> QueryGate<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::QueryGate, &self.p);
        grouped(op, p.n_q_heads, p.n_kv_heads, p.head_dim)?;
        ensure(op, p.q_index < p.n_tokens, || format!("token {} of {}", p.q_index, p.n_tokens))?;
        let token = p.n_q_heads as usize * p.head_dim as usize;
        reads(op, "q", &self.q, DType::F32, p.n_tokens as usize * token)?;
        writes(op, "last", &self.last, DType::F32, token)?;
        writes(op, "cosines", &self.cosines, DType::F32, p.n_kv_heads as usize)
    }
}
