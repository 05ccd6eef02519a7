//! Launches `owner_counts.wgsl`: a workgroup for each KV head.

use longview_ops::{OpResult, OwnerCounts};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

pub(crate) fn run(backend: &WgpuBackend, d: OwnerCounts<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let words = d.counts.len + 2 * d.chosen.len;
    Launch::new(backend, "owner_counts", "owner_counts")
        .params(&d.p)
        .view(&d.owners)
        .view(&d.chosen)
        .view(&d.n_selected)
        .view(&d.n_clusters)
        .view_mut(&d.counts)
        .counts(4 * words as u64)
        .run(d.p.n_kv_heads as usize)
}
