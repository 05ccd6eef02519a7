//! Launches `split_signs.cu`.

use longview_ops::{OpResult, SplitSigns};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::SplitSignsArgs;
use crate::kernels::Kernel;

const THREADS: usize = 256;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: SplitSigns<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let n = d.p.n_vectors as usize * d.p.width as usize;
    let args =
        SplitSignsArgs { x: d.x.at(), out: d.out.at(), n: n as u64, width: d.p.width, unused: 0 };
    backend.launch(Kernel::split_signs, Grid::over(n, THREADS), &args)
}
