//! Launches `split_signs.wgsl`.

use longview_ops::{OpResult, SplitSigns};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: SplitSigns<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    Launch::new(backend, "split_signs", "split_signs")
        .params(&d.p)
        .view(&d.x)
        .view_mut(&d.out)
        .counts((d.x.len * 4) as u64)
        .run(d.x.len.div_ceil(GROUP))
}
