//! Launches `kv_scatter.cu`.

use longview_core::DType;
use longview_ops::{KvScatter, KvScatterParams, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::KvScatterArgs;
use crate::kernels::Kernel;
use crate::variant::by_type;

const THREADS: usize = 256;
/// Rows of 8 bits of a block: a warp each.
const CODED_ROWS: usize = 8;

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
    if d.dst.dtype == DType::Q8 {
        let n_rows = n_tokens as usize * n_kv_heads as usize;
        return backend.launch(Kernel::kv_scatter_q8, Grid::over(n_rows, CODED_ROWS), &args);
    }
    let kernels = [Kernel::kv_scatter_f32, Kernel::kv_scatter_f16, Kernel::kv_scatter_bf16];
    backend.launch(by_type(d.dst.dtype, kernels), Grid::over(2 * d.k.len, THREADS), &args)
}
