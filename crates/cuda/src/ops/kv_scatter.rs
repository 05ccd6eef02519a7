//! Launches `kv_scatter.cu`.

use longview_core::DType;
use longview_ops::{Backend, KvScatter, KvScatterParams, KvScatterTwice, OpResult};

use crate::args::Address;
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
    launch(backend, &d, None)
}

/// Into two buffers, in one launch where their rows are of one type.
pub(crate) fn run_twice<D: Driver>(
    backend: &CudaBackend<D>,
    d: KvScatterTwice<'_, CudaBackend<D>>,
) -> OpResult<()> {
    let [first, second] = d.calls();
    if first.dst.dtype != second.dst.dtype {
        backend.kv_scatter(first)?;
        return backend.kv_scatter(second);
    }
    first.check()?;
    second.check()?;
    launch(backend, &first, Some(&second))
}

fn launch<D: Driver>(
    backend: &CudaBackend<D>,
    d: &KvScatter<'_, CudaBackend<D>>,
    more: Option<&KvScatter<'_, CudaBackend<D>>>,
) -> OpResult<()> {
    let KvScatterParams { n_tokens, n_kv_heads, head_dim, dst_head_stride } = d.p;
    let n_destinations = 1 + usize::from(more.is_some());
    let args = KvScatterArgs {
        k: d.k.at(),
        v: d.v.at(),
        rows: d.rows.at(),
        dst: d.dst.address(0),
        more_rows: more.map_or(Address::NONE, |more| more.rows.at()),
        more_dst: more.map_or(Address::NONE, |more| more.dst.address(0)),
        n_tokens,
        n_kv_heads,
        head_dim,
        dst_head_stride,
        more_head_stride: more.map_or(0, |more| more.p.dst_head_stride),
        unused: 0,
    };
    let grid = |n: usize, per_block: usize| Grid::new([n.div_ceil(per_block), n_destinations, 1]);
    if d.dst.dtype == DType::Q8 {
        let n_rows = n_tokens as usize * n_kv_heads as usize;
        return backend.launch(Kernel::kv_scatter_q8, grid(n_rows, CODED_ROWS), &args);
    }
    let kernels = [Kernel::kv_scatter_f32, Kernel::kv_scatter_f16, Kernel::kv_scatter_bf16];
    backend.launch(by_type(d.dst.dtype, kernels), grid(2 * d.k.len, THREADS), &args)
}
