//! Launches `argmax.cu`: parts of each row, then the best of them.

use longview_ops::{Argmax, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::{ArgmaxMergeArgs, ArgmaxPartsArgs};
use crate::kernels::Kernel;

/// Elements of a part.
const PER_BLOCK: usize = 4096;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: Argmax<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (n_rows, width) = (d.p.n_rows as usize, d.p.width as usize);
    let n_parts = width.div_ceil(PER_BLOCK);
    backend.queue.with_scratch((n_rows * n_parts * 8) as u64, |parts| {
        let n_parts_32 = n_parts as u32;
        let args = ArgmaxPartsArgs { x: d.x.at(), parts, width: d.p.width, n_parts: n_parts_32 };
        backend.launch(Kernel::argmax_parts, Grid::new([n_rows, n_parts, 1]), &args)?;
        let out = d.out.at();
        let args = ArgmaxMergeArgs { parts, out, n_rows: d.p.n_rows, n_parts: n_parts_32 };
        backend.launch(Kernel::argmax_merge, Grid::over(n_rows, 1), &args)
    })
}
