//! Clustering, scoring and selection.

use anyhow::Result;
use longview_core::DType;
use longview_ops::{
    Backend, CentroidScores, CentroidScoresParams, KmeansAssign, KmeansParams, OpResult, ScoreSpan,
    SelectClusters, SelectClustersParams, SelectSpan, View, ViewMut,
};

use super::{Bench, Case, Table, Work};

const N_Q_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const BUDGET: u32 = 1024;
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
            }];
            let (q, scores) = (View::all(&q), ViewMut::all(&mut scores));
            backend.centroid_scores(CentroidScores { p, q, spans, scores })
        })
    }
}

/// The best clusters up to the budget.
struct SelectCase {
    n_clusters: usize,
}

impl<B: Backend> Case<B> for SelectCase {
    fn title(&self) -> String {
        format!("select_clusters {} clusters, budget {BUDGET}", self.n_clusters)
    }

    fn work(&self) -> Work {
        Work::memory(N_KV_HEADS * self.n_clusters * DType::F32.size(), 0.0)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let n_clusters = self.n_clusters;
        let backend = bench.backend;
        let scores = bench.buffer(DType::F32, N_KV_HEADS * n_clusters)?;
        let sizes = bench.words(&vec![CLUSTER_TOKENS; N_KV_HEADS * n_clusters])?;
        let counts = bench.words(&[n_clusters as u32; N_KV_HEADS])?;
        let budgets = bench.words(&[BUDGET; N_KV_HEADS])?;
        let room = N_KV_HEADS * BUDGET as usize;
        let mut clusters = backend.alloc(DType::U32, room, "clusters")?;
        let mut takes = backend.alloc(DType::U32, room, "takes")?;
        let mut n_selected = backend.alloc(DType::U32, N_KV_HEADS, "n_selected")?;
        let p = SelectClustersParams {
            n_kv_heads: N_KV_HEADS as u32,
            score_stride: n_clusters as u32,
            max_selected: BUDGET,
        };
        bench.seconds(&mut || {
            let spans = &[SelectSpan {
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                budgets: View::all(&budgets),
                cluster_stride: n_clusters as u32,
            }];
            backend.select_clusters(SelectClusters {
                p,
                scores: View::all(&scores),
                spans,
                clusters: ViewMut::all(&mut clusters),
                takes: ViewMut::all(&mut takes),
                n_selected: ViewMut::all(&mut n_selected),
            })
        })
    }
}

/// A decode window, segments, and the index of 32K and of a million tokens.
pub(super) fn cases<B: Backend>(bench: &mut Bench<'_, B>, table: &mut Table<'_>) -> Result<()> {
    let kmeans = |n_points, n_clusters, head_dim| KmeansCase { n_points, n_clusters, head_dim };
    table.add(
        bench,
        &[
            kmeans(2048, 400, 64),
            kmeans(32_768, 2048, 64),
            kmeans(32_768, 400, 64),
            kmeans(8192, 512, 128),
        ],
    )?;
    for n_clusters in [2048, 65_536] {
        table.add(bench, &[ScoresCase { n_clusters }])?;
        table.add(bench, &[SelectCase { n_clusters }])?;
    }
    Ok(())
}
