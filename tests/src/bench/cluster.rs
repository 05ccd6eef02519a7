//! Clustering, scoring and selection.

use longview_core::DType;
use longview_ops::{
    Backend, CentroidScores, CentroidScoresParams, ClusterStats, Gram, GramParams, KmeansAssign,
    KmeansParams, KmeansUpdate, OpResult, Placed, ScoreSpan, View, ViewMut,
};

use super::harness::{Bench, Case, Cases, Work, boxed};

const N_Q_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const CLUSTER_TOKENS: u32 = 16;

/// One round of labels.
struct KmeansCase {
    n_points: usize,
    n_clusters: usize,
    head_dim: usize,
}

impl<B: Backend> Case<B> for KmeansCase {
    fn title(&self) -> String {
        let Self { n_points, n_clusters, head_dim } = self;
        format!("kmeans_assign {n_points} points, {n_clusters} clusters x {head_dim}")
    }

    fn work(&self) -> Work {
        let Self { n_points, n_clusters, head_dim } = *self;
        let bytes = N_KV_HEADS * (n_points + n_clusters) * head_dim * 4;
        Work::arithmetic(bytes, 2.0 * (N_KV_HEADS * n_points * n_clusters * head_dim) as f64)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { n_points, n_clusters, head_dim } = *self;
        let backend = bench.backend;
        let points = bench.buffer(DType::F32, N_KV_HEADS * n_points * head_dim)?;
        let centroids = bench.buffer(DType::F32, N_KV_HEADS * n_clusters * head_dim)?;
        let mut labels = backend.alloc(DType::U32, N_KV_HEADS * n_points, "labels")?;
        let mut scores = backend.alloc(DType::F32, N_KV_HEADS * n_points, "scores")?;
        let mut changed = backend.alloc(DType::U32, N_KV_HEADS, "changed")?;
        let p = KmeansParams {
            n_kv_heads: N_KV_HEADS as u32,
            n_points: n_points as u32,
            n_clusters: n_clusters as u32,
            head_dim: head_dim as u32,
            distance: 0,
        };
        bench.seconds(&mut || {
            backend.kmeans_assign(KmeansAssign {
                p,
                points: View::all(&points),
                centroids: View::all(&centroids),
                labels: ViewMut::all(&mut labels),
                scores: ViewMut::all(&mut scores),
                n_changed: ViewMut::all(&mut changed),
            })
        })
    }
}

/// Every centroid against one query.
struct ScoresCase {
    n_clusters: usize,
}

const SCORED_DIM: usize = 64;

impl ScoresCase {
    fn elements(&self) -> usize {
        N_KV_HEADS * self.n_clusters * SCORED_DIM
    }
}

impl<B: Backend> Case<B> for ScoresCase {
    fn title(&self) -> String {
        let heads = format!("heads {N_Q_HEADS}/{N_KV_HEADS} x {SCORED_DIM}");
        format!("centroid_scores f16 {} clusters {heads}", self.n_clusters)
    }

    fn work(&self) -> Work {
        let flop = 2.0 * (N_Q_HEADS * self.n_clusters * SCORED_DIM) as f64;
        Work::memory(self.elements() * DType::F16.size(), flop)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let n_clusters = self.n_clusters;
        let backend = bench.backend;
        let q = bench.buffer(DType::F32, N_Q_HEADS * SCORED_DIM)?;
        let centroids = bench.buffer(DType::F16, self.elements())?;
        let sizes = bench.words(&vec![CLUSTER_TOKENS; N_KV_HEADS * n_clusters])?;
        let counts = bench.words(&[n_clusters as u32; N_KV_HEADS])?;
        let mut scores = backend.alloc(DType::F32, N_KV_HEADS * n_clusters, "scores")?;
        let p = CentroidScoresParams {
            n_tokens: 1,
            n_q_heads: N_Q_HEADS as u32,
            n_kv_heads: N_KV_HEADS as u32,
            head_dim: SCORED_DIM as u32,
            score_stride: n_clusters as u32,
            scale: 0.125,
            pooling: 0,
        };
        bench.seconds(&mut || {
            let spans = &[ScoreSpan {
                q_index: 0,
                centroids: View::all(&centroids),
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                cluster_stride: n_clusters as u32,
                listed: None,
                placed: Placed::DENSE,
            }];
            let (q, scores) = (View::all(&q), ViewMut::all(&mut scores));
            backend.centroid_scores(CentroidScores { p, q, spans, scores })
        })
    }
}

/// What follows from labels: means of the members, or how near they are.
struct LabelsCase {
    is_update: bool,
    n_points: usize,
    n_clusters: usize,
    head_dim: usize,
}

impl<B: Backend> Case<B> for LabelsCase {
    fn title(&self) -> String {
        let Self { is_update, n_points, n_clusters, head_dim } = self;
        let op = if *is_update { "kmeans_update" } else { "cluster_stats" };
        format!("{op} {n_points} points, {n_clusters} clusters x {head_dim}")
    }

    fn work(&self) -> Work {
        let Self { n_points, n_clusters, head_dim, .. } = *self;
        let bytes = N_KV_HEADS * (n_points + n_clusters) * head_dim * 4;
        Work::memory(bytes, 2.0 * (N_KV_HEADS * n_points * head_dim) as f64)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { is_update, n_points, n_clusters, head_dim } = *self;
        let backend = bench.backend;
        let points = bench.buffer(DType::F32, N_KV_HEADS * n_points * head_dim)?;
        let mut centroids = bench.buffer(DType::F32, N_KV_HEADS * n_clusters * head_dim)?;
        let labels: Vec<u32> =
            (0..N_KV_HEADS * n_points).map(|_| bench.rng.below(n_clusters) as u32).collect();
        let labels = bench.words(&labels)?;
        let mut counts = backend.alloc(DType::U32, N_KV_HEADS * n_clusters, "counts")?;
        let mut closeness = backend.alloc(DType::F32, N_KV_HEADS * n_points, "closeness")?;
        let mut radius = backend.alloc(DType::F32, N_KV_HEADS * n_clusters, "radius")?;
        let p = KmeansParams {
            n_kv_heads: N_KV_HEADS as u32,
            n_points: n_points as u32,
            n_clusters: n_clusters as u32,
            head_dim: head_dim as u32,
            distance: 0,
        };
        bench.seconds(&mut || {
            let (points, labels) = (View::all(&points), View::all(&labels));
            if is_update {
                let centroids = ViewMut::all(&mut centroids);
                let counts = ViewMut::all(&mut counts);
                return backend.kmeans_update(KmeansUpdate {
                    p,
                    points,
                    labels,
                    centroids,
                    counts,
                });
            }
            backend.cluster_stats(ClusterStats {
                p,
                points,
                labels,
                centroids: View::all(&centroids),
                closeness: ViewMut::all(&mut closeness),
                radius: ViewMut::all(&mut radius),
            })
        })
    }
}

/// What a chunk adds to the sums of q q^T.
struct GramCase {
    n_tokens: usize,
    n_heads: usize,
    group: usize,
    head_dim: usize,
}

impl<B: Backend> Case<B> for GramCase {
    fn title(&self) -> String {
        let Self { n_tokens, n_heads, group, head_dim } = self;
        format!("gram T {n_tokens} heads {n_heads}/{} x {head_dim}", n_heads / group)
    }

    fn work(&self) -> Work {
        let Self { n_tokens, n_heads, group, head_dim } = *self;
        let elements = n_tokens * n_heads * head_dim;
        let bytes = 4 * (elements + 2 * n_heads / group * head_dim * head_dim);
        Work::arithmetic(bytes, 2.0 * (elements * head_dim) as f64)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { n_tokens, n_heads, group, head_dim } = *self;
        let x = bench.buffer(DType::F32, n_tokens * n_heads * head_dim)?;
        let n_out = n_heads / group * head_dim * head_dim;
        let mut out = bench.backend.alloc(DType::F32, n_out, "out")?;
        let p = GramParams {
            n_tokens: n_tokens as u32,
            n_heads: n_heads as u32,
            group: group as u32,
            head_dim: head_dim as u32,
        };
        let backend = bench.backend;
        bench.seconds(&mut || {
            backend.gram(Gram { p, x: View::all(&x), out: ViewMut::all(&mut out) })
        })
    }
}

/// A decode window, segments, and the index of 32K and of a million tokens.
pub(super) fn cases<B: Backend>() -> Cases<B> {
    let kmeans = |n_points, n_clusters, head_dim| KmeansCase { n_points, n_clusters, head_dim };
    let labels = |is_update, (n_points, n_clusters, head_dim)| LabelsCase {
        is_update,
        n_points,
        n_clusters,
        head_dim,
    };
    let (long, segment) = ((32_768, 2048, 64), (8192, 512, 128));
    let mut cases = boxed([
        kmeans(2048, 400, 64),
        kmeans(32_768, 2048, 64),
        kmeans(32_768, 400, 64),
        kmeans(8192, 512, 128),
    ]);
    cases.extend(boxed([
        labels(true, long),
        labels(true, segment),
        labels(false, long),
        labels(false, segment),
    ]));
    let gram = |n_tokens, n_heads, group, head_dim| GramCase { n_tokens, n_heads, group, head_dim };
    cases.extend(boxed([gram(512, 4, 2, 64), gram(512, 32, 4, 128)]));
    cases.extend(boxed([2048, 65_536].map(|n_clusters| ScoresCase { n_clusters })));
    cases
}
