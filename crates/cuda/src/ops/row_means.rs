//! Launches `row_means.cu`.

use longview_core::DType;
use longview_ops::{OpResult, RowMeans};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::RowMeansArgs;
use crate::kernels::Kernel;
use crate::variant::by_type;

const THREADS: usize = 256;

const PLAIN: [Kernel; 3] = [Kernel::row_means_f32, Kernel::row_means_f16, Kernel::row_means_bf16];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: RowMeans<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let args = RowMeansArgs {
        kv: d.kv.at(),
        out: d.out.at(),
        n_kv_heads: p.n_kv_heads,
        head_dim: p.head_dim,
        n_averaged: p.n_averaged,
        n_means: p.n_means,
        row_start: p.row_start,
        first_mean: p.first_mean,
        out_stride: p.out_stride,
        head_stride: d.kv.head_stride as u32,
    };
    let kernel = match d.kv.buffer.dtype {
        DType::Q8 => Kernel::row_means_q8,
        dtype => by_type(dtype, PLAIN),
    };
    let n = p.n_kv_heads as usize * p.n_means as usize * 2 * p.head_dim as usize;
    backend.launch(kernel, Grid::over(n, THREADS), &args)
}
