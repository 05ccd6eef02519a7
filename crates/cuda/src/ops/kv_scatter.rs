//! Launches `kv_scatter.cu`.

use longview_ops::{KvScatter, KvScatterParams, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::KvScatterArgs;
use crate::kernels::Kernel;
use crate::variant::by_type;

const THREADS: usize = 256;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: KvScatter<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let KvScatterParams { n_tokens, n_kv_heads, head_dim, dst_head_stride } = d.p;
    let args = KvScatterArgs {
        k: d.k.at(),
        v: d.v.at(),
        rows: d.rows.at(),
        dst: d.dst.address(0),
        n_tokens,
        n_kv_heads,
        head_dim,
        dst_head_stride,
    };
    let kernels = [Kernel::kv_scatter_f32, Kernel::kv_scatter_f16, Kernel::kv_scatter_bf16];
    backend.launch(by_type(d.dst.dtype, kernels), Grid::over(2 * d.k.len, THREADS), &args)
}
