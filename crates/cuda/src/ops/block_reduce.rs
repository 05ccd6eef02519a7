//! Launches `block_reduce.cu`.

use longview_ops::{BlockReduce, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::BlockReduceArgs;
use crate::kernels::Kernel;

const THREADS: usize = 256;
/// Landmarks of a block that looks for keys: a warp each.
const PER_BLOCK: usize = 8;
/// Channels of a unit of 16 bytes.
const UNIT: usize = 4;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: BlockReduce<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (p, head_dim) = (d.p, d.p.head_dim as usize);
    let args = BlockReduceArgs {
        points: d.points.at(),
        // Of a view of no elements nobody reads.
        mass: d.mass.at(),
        out: d.out.at(),
        n_kv_heads: p.n_kv_heads,
        n_points: p.n_points,
        head_dim: p.head_dim,
        block: p.block,
        n_blocks: p.n_blocks() as u32,
        summary: p.summary,
        n_top: p.n_top,
        stride: p.stride(),
    };
    let n_landmarks = p.n_kv_heads as usize * p.n_blocks();
    if p.uses_mass() {
        return backend.launch(Kernel::block_reduce_top, Grid::over(n_landmarks, PER_BLOCK), &args);
    }
    let is_aligned = [args.points, args.out].iter().all(|address| address.is_aligned(16));
    let (kernel, each) = if is_aligned && head_dim.is_multiple_of(UNIT) {
        (Kernel::block_reduce_unit, UNIT)
    } else {
        (Kernel::block_reduce_plain, 1)
    };
    backend.launch(kernel, Grid::over(n_landmarks * head_dim / each, THREADS), &args)
}
