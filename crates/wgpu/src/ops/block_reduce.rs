//! Launches `block_reduce.wgsl`.

use longview_ops::{BlockReduce, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Invocations of a workgroup where each owns a channel of a landmark.
const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: BlockReduce<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let n_landmarks = p.n_kv_heads as usize * p.n_blocks();
    let n_workgroups = if p.uses_mass() {
        n_landmarks
    } else {
        (n_landmarks * p.head_dim as usize).div_ceil(GROUP)
    };
    // Something has to be bound where no mass is given.
    let mass = if p.uses_mass() { d.mass } else { d.points };
    Launch::new(backend, "block_reduce", "block_reduce")
        .define("TOP", p.uses_mass().into())
        .params(&p)
        .u32(p.n_blocks())
        .u32(p.width())
        .params(&p.stride())
        .view(&d.points)
        .view(&mass)
        .view_mut(&d.out)
        .counts((d.points.len * 4) as u64)
        .run(n_workgroups)
}
