//! Launches `cluster_stats.wgsl`: radii to 0, then the points.

use longview_ops::{ClusterStats, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::{Launch, rows_are_vectors};

/// Points of a workgroup.
const POINTS: usize = 32;
/// Radii of a workgroup that clears them.
const RADII: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: ClusterStats<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = &d.p;
    let (n_heads, width) = (p.n_kv_heads as usize, p.head_dim as usize);
    let (n, c) = (n_heads * p.n_points as usize, n_heads * p.n_clusters as usize);
    let is_vector = rows_are_vectors(p.head_dim, &[d.points.offset, d.centroids.offset]);
    let launch = |entry| Launch::new(backend, "cluster_stats", entry).params(p);
    launch("clear").define("CLEAR", 1).view_mut(&d.radius).run(c.div_ceil(RADII))?;
    launch("cluster_stats")
        .define("VECTOR", is_vector.into())
        .view_mut(&d.radius)
        .view(&d.points)
        .view(&d.labels)
        .view(&d.centroids)
        .view_mut(&d.closeness)
        .counts((n * (2 * width + 1) * 4) as u64)
        .run(n.div_ceil(POINTS))
}
