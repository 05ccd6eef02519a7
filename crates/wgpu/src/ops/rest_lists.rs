//! Launches `rest_lists.wgsl`: a workgroup for each KV head.

use longview_ops::{OpResult, RestLists};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Clusters first, then groups by the list: all buffers at once are more than a kernel may bind.
pub(crate) fn run(backend: &WgpuBackend, d: RestLists<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n_heads = d.p.n_kv_heads as usize;
    let launch = |entry| Launch::new(backend, "rest_lists", entry).params(&d.p);
    launch("list_clusters")
        .define("GROUPS", 0)
        .view(&d.sizes)
        .view(&d.n_clusters)
        .view(&d.lost)
        .view_mut(&d.listed)
        .view_mut(&d.left)
        .view_mut(&d.n_listed)
        .counts(8 * d.lost.len as u64)
        .run(n_heads)?;
    launch("rest_of_groups")
        .define("GROUPS", 1)
        .view(&d.sizes)
        .view(&d.group_of)
        .view(&d.group_tokens)
        .view(&d.n_groups)
        .reads(&d.listed.buffer.raw)
        .u32(d.listed.offset)
        .reads(&d.n_listed.buffer.raw)
        .u32(d.n_listed.offset)
        .view_mut(&d.rest_of_groups)
        .counts(4 * d.group_tokens.len as u64)
        .run(n_heads)
}
