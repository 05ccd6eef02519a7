//! Launches `top_k.cu`: a block for each row, or for each part of a wide row and one for the parts.

use longview_ops::{OpResult, TopK};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::TopKArgs;
use crate::kernels::Kernel;

/// Elements of a part; rows up to this width have one block.
const PER_PART: usize = 8192;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: TopK<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (n_rows, k) = (d.p.n_rows as usize, d.p.k as usize);
    let n_parts = (d.p.width as usize).div_ceil(PER_PART);
    let args = TopKArgs {
        x: d.x.at(),
        values: d.values.at(),
        ids: d.ids.at(),
        found: Address::NONE,
        width: d.p.width,
        k: d.p.k,
        n_parts: n_parts as u32,
        per_part: PER_PART as u32,
    };
    if n_parts == 1 {
        return backend.launch(Kernel::top_k_row, Grid::over(n_rows, 1), &args);
    }
    backend.queue.with_scratch((n_rows * n_parts * k * 4) as u64, |found| {
        let args = TopKArgs { found, ..args };
        backend.launch(Kernel::top_k_parts, Grid::new([n_rows, n_parts, 1]), &args)?;
        backend.launch(Kernel::top_k_merge, Grid::over(n_rows, 1), &args)
    })
}
