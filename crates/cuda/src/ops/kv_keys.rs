//! Launches `kv_keys.cu`.

use longview_ops::{KvKeys, KvKeysParams, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::KvKeysArgs;
use crate::kernels::Kernel;
use crate::variant::{by_type, row_limit};
use crate::weight::UNIT_BYTES;

const THREADS: usize = 256;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: KvKeys<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let KvKeysParams { n_kv_heads, head_dim, n_rows } = d.p;
    let args = KvKeysArgs {
        src: d.src.at(),
        rows: d.rows.at(),
        out: d.out.at(),
        n_kv_heads,
        head_dim,
        n_rows,
        head_stride: d.src.head_stride as u32,
        row_limit: row_limit(&d.src, head_dim),
        unused: 0,
    };
    let dtype = d.src.buffer.dtype;
    let of_units = (head_dim as usize * dtype.size()).is_multiple_of(UNIT_BYTES)
        && [args.src, args.out].iter().all(|a| a.is_aligned(UNIT_BYTES as u64));
    let (kernels, each) = if of_units {
        (
            [Kernel::kv_keys_unit_f32, Kernel::kv_keys_unit_f16, Kernel::kv_keys_unit_bf16],
            UNIT_BYTES / dtype.size(),
        )
    } else {
        ([Kernel::kv_keys_plain_f32, Kernel::kv_keys_plain_f16, Kernel::kv_keys_plain_bf16], 1)
    };
    backend.launch(by_type(dtype, kernels), Grid::over(d.out.len / each, THREADS), &args)
}
