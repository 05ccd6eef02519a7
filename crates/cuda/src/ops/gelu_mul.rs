//! Launches `gelu_mul.cu`.

use longview_ops::{GeluMul, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::GeluMulArgs;
use crate::kernels::Kernel;

/// Elements of a block.
const PER_BLOCK: usize = 1024;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: GeluMul<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let n = d.p.n as usize;
    let args = GeluMulArgs { gate: d.gate.at(), up: d.up.at(), out: d.out.at(), n: n as u64 };
    backend.launch(Kernel::gelu_mul, Grid::over(n, PER_BLOCK), &args)
}
