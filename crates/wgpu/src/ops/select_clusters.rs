//! Launches `select_clusters.wgsl`: one dispatch per sequence.

use longview_ops::{OpResult, SelectClusters};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

pub(crate) fn run(backend: &WgpuBackend, d: SelectClusters<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n_heads = d.p.n_kv_heads as usize;
    for (i, span) in d.spans.iter().enumerate() {
        let room = span.cluster_stride.min(d.p.score_stride) as usize;
        Launch::new(backend, "select_clusters", "select_clusters")
            .params(&d.p)
            .u32(i * n_heads)
            .params(&span.cluster_stride)
            .view(&d.scores)
            .view(&span.sizes)
            .view(&span.n_clusters)
            .view(&span.budgets)
            .view_mut(&d.clusters)
            .view_mut(&d.takes)
            .view_mut(&d.n_selected)
            .counts((n_heads * room * 8) as u64)
            .run(n_heads)?;
    }
    Ok(())
}
