//! Launches `cluster_rest.wgsl`.

use longview_ops::{ClusterRest, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Clusters of a workgroup.
const SEGMENT: usize = 1024;

pub(crate) fn run(backend: &WgpuBackend, d: ClusterRest<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_heads, n_clusters) = (d.p.n_kv_heads as usize, d.p.cluster_stride as usize);
    let n_segments = n_clusters.div_ceil(SEGMENT);
    let words = n_heads * (n_clusters + 2 * d.p.max_selected as usize);
    // How many of the clusters are in use only the device knows.
    Launch::new(backend, "cluster_rest", "cluster_rest")
        .params(&d.p)
        .u32(n_segments)
        .view(&d.sizes)
        .view(&d.n_clusters)
        .view(&d.clusters)
        .view(&d.takes)
        .view(&d.n_selected)
        .view_mut(&d.rest)
        .counts(4 * words as u64)
        .run(n_heads * n_segments)
}
