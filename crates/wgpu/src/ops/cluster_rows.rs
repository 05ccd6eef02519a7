//! Launches `cluster_rows.wgsl`.

use longview_ops::{ClusterRows, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Selected clusters of a workgroup.
const TILE: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: ClusterRows<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_heads, room) = (d.p.n_kv_heads as usize, d.p.max_selected as usize);
    // Counts are written where nothing can be selected, too.
    let n_tiles = room.div_ceil(TILE).max(1);
    Launch::new(backend, "cluster_rows", "cluster_rows")
        .params(&d.p)
        .u32(n_tiles)
        .u32(usize::from(d.behind.is_some()))
        .view(&d.starts)
        .view(&d.clusters)
        .view(&d.takes)
        .view(&d.n_selected)
        .view(d.behind.as_ref().unwrap_or(&d.n_selected))
        .view_mut(&d.rows)
        .view_mut(&d.n_rows)
        .counts(12 * (n_heads * room) as u64)
        .run(n_heads * n_tiles)
}
