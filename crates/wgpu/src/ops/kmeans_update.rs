//! Launches `kmeans_update.wgsl`.

use longview_ops::{KmeansUpdate, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::{Launch, rows_are_vectors};

/// Clusters and channels of a workgroup.
const CLUSTERS: usize = 32;
const CHANNELS: usize = 64;

pub(crate) fn run(backend: &WgpuBackend, d: KmeansUpdate<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = &d.p;
    let (n_heads, width) = (p.n_kv_heads as usize, p.head_dim as usize);
    Launch::new(backend, "kmeans_update", "kmeans_update")
        .define("VECTOR", rows_are_vectors(p.head_dim, &[d.points.offset]).into())
        .params(p)
        .view(&d.points)
        .view(&d.labels)
        .view_mut(&d.centroids)
        .view_mut(&d.counts)
        .counts((n_heads * p.n_points as usize * (width + 1) * 4) as u64)
        .run_grid([(p.n_clusters as usize).div_ceil(CLUSTERS), width.div_ceil(CHANNELS), n_heads])
}
