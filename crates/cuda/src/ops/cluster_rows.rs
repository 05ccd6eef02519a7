//! Launches `cluster_rows.cu`: a block for each KV head.

use longview_ops::{ClusterRows, OpResult};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::ClusterRowsArgs;
use crate::kernels::Kernel;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: ClusterRows<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = ClusterRowsArgs {
        starts: d.starts.at(),
        clusters: d.clusters.at(),
        takes: d.takes.at(),
        n_selected: d.n_selected.at(),
        behind: d.behind.as_ref().map_or(Address::NONE, At::at),
        rows: d.rows.at(),
        n_rows: d.n_rows.at(),
        cluster_stride: d.p.cluster_stride,
        max_selected: d.p.max_selected,
        list_stride: d.p.list_stride,
        first_row: d.p.first_row,
    };
    backend.launch(Kernel::cluster_rows, Grid::over(d.p.n_kv_heads as usize, 1), &args)
}
