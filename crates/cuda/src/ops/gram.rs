//! Launches `gram.cu`.

use longview_ops::{Gram, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::GramArgs;
use crate::kernels::Kernel;

/// Rows and columns of a block.
const TILE: usize = 32;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: Gram<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = GramArgs {
        x: d.x.at(),
        out: d.out.at(),
        n_tokens: d.p.n_tokens,
        n_heads: d.p.n_heads,
        group: d.p.group,
        head_dim: d.p.head_dim,
    };
    let n_tiles = (d.p.head_dim as usize).div_ceil(TILE);
    let n_matrices = (d.p.n_heads / d.p.group) as usize;
    backend.launch(Kernel::gram, Grid::new([n_tiles, n_tiles, n_matrices]), &args)
}
