//! Launches `kmeans_assign.wgsl`: the centroids' terms, then the labels.

use longview_ops::{KmeansAssign, Op, OpError, OpResult};

use super::rows_are_vectors;
use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Centroids of a workgroup that makes their terms.
const TERMS: usize = 16;
/// Points of a workgroup that labels them.
const POINTS: usize = 128;
/// Clusters are counted in f32 on the way.
const MOST_CLUSTERS: u32 = 1 << 24;

pub(crate) fn run(backend: &WgpuBackend, d: KmeansAssign<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = &d.p;
    if p.n_clusters > MOST_CLUSTERS {
        let what = format!("{} clusters, at most {MOST_CLUSTERS}", p.n_clusters);
        return Err(OpError::shape(Op::KmeansAssign, what));
    }
    let (n_heads, n, c) = (p.n_kv_heads as usize, p.n_points as usize, p.n_clusters as usize);
    let terms = backend.scratch.take(&backend.gpu, (n_heads * c * 8) as u64)?;
    let is_vector = rows_are_vectors(p.head_dim, &[d.points.offset, d.centroids.offset]);
    let launch = |entry| {
        Launch::new(backend, "kmeans_assign", entry)
            .define("VECTOR", is_vector.into())
            .params(p)
            .u32(d.points.offset)
            .u32(d.centroids.offset)
            .u32(d.labels.offset)
            .u32(d.scores.offset)
            .u32(d.n_changed.offset)
            .reads(&d.centroids.buffer.raw)
            .writes(&d.n_changed.buffer.raw)
    };
    let n_groups = c.div_ceil(TERMS);
    launch("find_terms").define("TERMS", 1).writes(&terms).run_grid([n_groups, n_heads, 1])?;
    launch("kmeans_assign")
        .reads(&terms)
        .reads(&d.points.buffer.raw)
        .writes(&d.labels.buffer.raw)
        .writes(&d.scores.buffer.raw)
        .counts((n_heads * (n + c) * p.head_dim as usize * 4) as u64)
        .run_grid([n.div_ceil(POINTS), n_heads, 1])
}
