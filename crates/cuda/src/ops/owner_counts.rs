//! Launches `owner_counts.cu`: a block for each KV head.

use longview_ops::{OpResult, OwnerCounts};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::OwnerCountsArgs;
use crate::kernels::Kernel;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: OwnerCounts<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = OwnerCountsArgs {
        owners: d.owners.at(),
        chosen: d.chosen.at(),
        n_selected: d.n_selected.at(),
        n_clusters: d.n_clusters.at(),
        counts: d.counts.at(),
        owner_stride: d.p.owner_stride,
        cluster_stride: d.p.cluster_stride,
        max_selected: d.p.max_selected,
        unused: 0,
    };
    backend.launch(Kernel::owner_counts, Grid::over(d.p.n_kv_heads as usize, 1), &args)
}
