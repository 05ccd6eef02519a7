//! Launches `lse_merge.wgsl`.

use longview_ops::{LseMerge, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Rows of a workgroup.
const ROWS: usize = 8;

pub(crate) fn run(backend: &WgpuBackend, d: LseMerge<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    Launch::new(backend, "lse_merge", "lse_merge")
        .params(&d.p)
        .params(&f32::NEG_INFINITY)
        .view(&d.other_out)
        .view(&d.other_lse)
        .view_mut(&d.out)
        .view_mut(&d.lse)
        .run((d.p.n_rows as usize).div_ceil(ROWS))
}
