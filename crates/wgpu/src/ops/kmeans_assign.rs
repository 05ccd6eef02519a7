//! Launches `kmeans_assign.wgsl`: the centroids' terms, then the labels.

use longview_ops::{KmeansAssign, Op, OpError, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::{Launch, rows_are_vectors};

/// Centroids of a workgroup that makes their terms.
const TERMS: usize = 16;
/// Points of a workgroup that labels them.
const POINTS: usize = 128;
/// Clusters of half a tile.
const NARROW: usize = 64;
/// Operations of a dispatch, at most: a slow device that also drives a display must not be held up
/// for long (its watchdog would reset it), and a fast one is still full.
const MOST_OPERATIONS: u64 = 1 << 36;
/// What a dispatch has workgroups for (and f32, in which labels travel, is exact for).
const MOST_CLUSTERS: u32 = 1_000_000;

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
    let launch = |entry, start| {
        Launch::new(backend, "kmeans_assign", entry)
            .define("VECTOR", is_vector.into())
            .params(p)
            .u32(d.points.offset)
            .u32(d.centroids.offset)
            .u32(d.labels.offset)
            .u32(d.scores.offset)
            .u32(d.n_changed.offset)
            .u32(start)
            .reads(&d.centroids.buffer.raw)
            .writes(&d.n_changed.buffer.raw)
    };
    let n_groups = c.div_ceil(TERMS);
    launch("find_terms", 0).define("TERMS", 1).writes(&terms).run_grid([n_groups, n_heads, 1])?;
    let width = p.head_dim as usize;
    let step = points_at_once(n_heads * c * width);
    for start in (0..n).step_by(step) {
        let n = step.min(n - start);
        launch("kmeans_assign", start)
            .define("NARROW", (c <= NARROW).into())
            .reads(&terms)
            .reads(&d.points.buffer.raw)
            .writes(&d.labels.buffer.raw)
            .writes(&d.scores.buffer.raw)
            .counts((n_heads * (n + c) * width * 4) as u64)
            .run_grid([n.div_ceil(POINTS), n_heads, 1])?;
    }
    Ok(())
}

/// Points of each head for one dispatch, where each takes so many products.
fn points_at_once(products: usize) -> usize {
    let points = (MOST_OPERATIONS / (2 * products as u64)).max(1);
    usize::try_from(points).unwrap_or(1 << 30).next_multiple_of(POINTS)
}

#[cfg(test)]
mod tests {
    use super::points_at_once;

    #[test]
    fn large_problems_are_cut() {
        assert_eq!(points_at_once(8 * 4096 * 128), 8192);
        assert_eq!(points_at_once(1 << 40), 128);
        assert!(points_at_once(2 * 256 * 64) >= 32_768);
    }
}
