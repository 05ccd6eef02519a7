//! Launches `rope.cu`.

use longview_ops::{OpResult, Rope, RopeParams};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::RopeArgs;
use crate::kernels::Kernel;

const THREADS: usize = 256;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: Rope<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let RopeParams { n_tokens, n_heads, head_dim, rotary_dim } = d.p;
    // A pair is one item.
    let per_head = (head_dim - rotary_dim / 2) as usize;
    let n = n_tokens as usize * n_heads as usize * per_head;
    let (x, table, out) = (d.x.at(), d.table.at(), d.out.at());
    let args = RopeArgs { x, table, out, n_tokens, n_heads, head_dim, rotary_dim };
    backend.launch(Kernel::rope, Grid::over(n, THREADS), &args)
}
