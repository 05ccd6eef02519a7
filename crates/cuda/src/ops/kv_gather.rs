//! Launches `kv_gather.cu`.

use longview_ops::{KvGather, KvGatherParams, KvView, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::KvGatherArgs;
use crate::kernels::Kernel;
use crate::variant::row_limit;

/// Entries of a block: a warp each.
const PER_BLOCK: usize = 8;

/// Entries that a launch has at least, and a power of two where it has more: blocks without an
/// entry end at once, and launches of one size are the same node of a graph, whatever is missing.
const LEAST_ENTRIES: usize = 512;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: KvGather<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let KvGatherParams { n_kv_heads, head_dim, list_stride, dst_head_stride } = d.p;
    let row_bytes = d.src.row_len(head_dim as usize) * d.dst.dtype.size();
    let (src, dst) = (d.src.at(), d.dst.address(0));
    let fits = |unit| {
        row_bytes.is_multiple_of(unit) && [src, dst].iter().all(|a| a.is_aligned(unit as u64))
    };
    let (kernel, unit) = match () {
        () if fits(16) => (Kernel::kv_gather_16, 16),
        () if fits(4) => (Kernel::kv_gather_4, 4),
        () if fits(2) => (Kernel::kv_gather_2, 2),
        // Rows of 8 bits at an odd place.
        () => (Kernel::kv_gather_1, 1),
    };
    let args = KvGatherArgs {
        src,
        src_rows: d.src_rows.at(),
        dst_rows: d.dst_rows.at(),
        n_rows: d.n_rows.at(),
        dst,
        n_kv_heads,
        list_stride,
        src_head_stride: d.src.head_stride as u32,
        dst_head_stride,
        src_limit: row_limit(&d.src, head_dim),
        dst_limit: row_limit(&KvView::new(&*d.dst, dst_head_stride as usize), head_dim),
        row_units: (row_bytes / unit) as u32,
        unused: 0,
    };
    let n_entries = match n_kv_heads as usize * list_stride as usize {
        0 => 0,
        n => n.next_power_of_two().max(LEAST_ENTRIES),
    };
    backend.launch(kernel, Grid::over(n_entries, PER_BLOCK), &args)
}
