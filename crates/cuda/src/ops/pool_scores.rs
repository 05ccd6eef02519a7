//! Launches `pool_scores.cu`.

use longview_ops::{OpResult, PoolScores};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::PoolScoresArgs;
use crate::kernels::Kernel;

const THREADS: usize = 256;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: PoolScores<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let args = PoolScoresArgs {
        x: d.x.at(),
        out: d.out.at(),
        group: p.group,
        n: p.n,
        in_stride: p.in_stride,
        out_stride: p.out_stride,
        kernel: p.kernel,
        pool: p.pool,
        group_max: p.group_max,
        pool_first: p.pool_first,
        scale: p.scale,
        unused: 0,
    };
    let grid = Grid::new([(p.n as usize).div_ceil(THREADS), p.n_kv_heads as usize, 1]);
    backend.launch(Kernel::pool_scores, grid, &args)
}
