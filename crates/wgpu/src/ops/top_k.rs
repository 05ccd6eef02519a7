//! Launches `top_k.wgsl`.

use longview_ops::{OpResult, TopK};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

pub(crate) fn run(backend: &WgpuBackend, d: TopK<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    Launch::new(backend, "top_k", "top_k")
        .params(&d.p)
        .view(&d.x)
        .view_mut(&d.values)
        .view_mut(&d.ids)
        .counts((d.x.len * 4) as u64)
        .run(d.p.n_rows as usize)
}
