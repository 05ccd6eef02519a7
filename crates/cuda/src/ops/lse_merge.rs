//! Launches `lse_merge.cu`.

use longview_ops::{LseMerge, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::LseMergeArgs;
use crate::kernels::Kernel;

/// Rows of a block: a warp each.
const PER_BLOCK: usize = 8;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: LseMerge<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = LseMergeArgs {
        other_out: d.other_out.at(),
        other_lse: d.other_lse.at(),
        out: d.out.at(),
        lse: d.lse.at(),
        n_rows: d.p.n_rows,
        head_dim: d.p.head_dim,
    };
    backend.launch(Kernel::lse_merge, Grid::over(d.p.n_rows as usize, PER_BLOCK), &args)
}
