//! Launches `gram.wgsl`.

use longview_ops::{Gram, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const TILE: usize = 32;

pub(crate) fn run(backend: &WgpuBackend, d: Gram<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n_tiles = (d.p.head_dim as usize).div_ceil(TILE);
    let n_matrices = (d.p.n_heads / d.p.group) as usize;
    Launch::new(backend, "gram", "gram")
        .params(&d.p)
        .view(&d.x)
        .view_mut(&d.out)
        .counts((d.x.len * 4) as u64)
        .run_grid([n_tiles * n_tiles, n_matrices, 1])
}
