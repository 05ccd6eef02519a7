//! Launches `argmax.wgsl`.

use longview_ops::{Argmax, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

pub(crate) fn run(backend: &WgpuBackend, d: Argmax<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    Launch::new(backend, "argmax", "argmax")
        .params(&d.p)
        .view(&d.x)
        .view_mut(&d.out)
        .counts((d.x.len * 4) as u64)
        .run(d.p.n_rows as usize)
}
