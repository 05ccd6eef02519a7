//! Launches `look_up_rows.wgsl`.

use longview_ops::{LookUpRows, LookUpRowsParams, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

pub(crate) fn run(backend: &WgpuBackend, d: LookUpRows<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let table_len = LookUpRowsParams::table_len(d.p.n_slots as usize);
    let words = d.state.len + d.clusters.len + d.takes.len;
    Launch::new(backend, "look_up_rows", "look_up_rows")
        .params(&d.p)
        .u32(table_len)
        .view(&d.starts)
        .view(&d.clusters)
        .view(&d.takes)
        .view(&d.n_selected)
        .view_mut(&d.state)
        .view_mut(&d.rows)
        .view_mut(&d.moves)
        .view_mut(&d.counts)
        .counts(4 * words as u64)
        .run(d.p.n_kv_heads as usize)
}
