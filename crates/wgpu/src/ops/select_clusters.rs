//! Launches `select_clusters.wgsl`: one dispatch per sequence.

use longview_ops::{OpResult, SelectClusters};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

pub(crate) fn run(backend: &WgpuBackend, d: SelectClusters<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n_heads = d.p.n_kv_heads as usize;
    for (i, span) in d.spans.iter().enumerate() {
        let room = span.room(d.p.score_stride);
        let launch = Launch::new(backend, "select_clusters", "select_clusters")
            .define("LISTED", span.listed.is_some().into())
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
            .counts((n_heads * room * 8) as u64);
        match &span.listed {
            Some(listed) => launch.view(&listed.ids).u32(listed.stride as usize).run(n_heads)?,
            None => launch.u32(0).u32(0).run(n_heads)?,
        }
    }
    Ok(())
}
