//! Launches `pool_scores.wgsl`.

use longview_ops::{OpResult, PoolScores};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: PoolScores<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_heads, n) = (d.p.n_kv_heads as usize, d.p.n as usize);
    Launch::new(backend, "pool_scores", "pool_scores")
        .params(&d.p)
        .view(&d.x)
        .view_mut(&d.out)
        .counts((n_heads * d.p.group as usize * n * 4) as u64)
        .run((n_heads * n).div_ceil(GROUP))
}
