//! Launches `gelu_mul.wgsl`.

use longview_ops::{GeluMul, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: GeluMul<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n = d.p.n as usize;
    Launch::new(backend, "gelu_mul", "gelu_mul")
        .params(&d.p)
        .view(&d.gate)
        .view(&d.up)
        .view_mut(&d.out)
        .run(n.div_ceil(GROUP))
}
