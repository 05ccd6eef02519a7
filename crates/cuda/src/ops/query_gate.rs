//! Launches `query_gate.cu`.

use longview_ops::{OpResult, QueryGate};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::QueryGateArgs;
use crate::kernels::Kernel;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: QueryGate<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = QueryGateArgs {
        q: d.q.at(),
        last: d.last.at(),
        cosines: d.cosines.at(),
        q_index: d.p.q_index,
        n_q_heads: d.p.n_q_heads,
        n_kv_heads: d.p.n_kv_heads,
        head_dim: d.p.head_dim,
    };
    backend.launch(Kernel::query_gate, Grid::over(d.p.n_kv_heads as usize, 1), &args)
}
