//! Launches `rotate_rows.cu`.

use longview_ops::{OpResult, RotateRows, RotateRowsParams};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::RotateRowsArgs;
use crate::kernels::Kernel;
use crate::variant::by_type;

const THREADS: usize = 256;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: RotateRows<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let RotateRowsParams { n_kv_heads, head_dim, rotary_dim, n_rows, dst_head_stride } = d.p;
    let args = RotateRowsArgs {
        src: d.src.at(),
        table: d.table.at(),
        dst: d.dst.address(0),
        n_kv_heads,
        head_dim,
        rotary_dim,
        n_rows,
        src_head_stride: d.src.head_stride as u32,
        dst_head_stride,
    };
    // A pair is one item.
    let per_row = (2 * head_dim - rotary_dim / 2) as usize;
    let n = n_kv_heads as usize * n_rows as usize * per_row;
    let kernels = [Kernel::rotate_rows_f32, Kernel::rotate_rows_f16, Kernel::rotate_rows_bf16];
    backend.launch(by_type(d.dst.dtype, kernels), Grid::over(n, THREADS), &args)
}
