//! Launches `cluster_rest.cu`.

use longview_ops::{ClusterRest, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::ClusterRestArgs;
use crate::kernels::Kernel;

/// Clusters of a block.
const CLUSTERS: usize = 2048;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: ClusterRest<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = ClusterRestArgs {
        sizes: d.sizes.at(),
        n_clusters: d.n_clusters.at(),
        clusters: d.clusters.at(),
        takes: d.takes.at(),
        n_selected: d.n_selected.at(),
        rest: d.rest.at(),
        cluster_stride: d.p.cluster_stride,
        max_selected: d.p.max_selected,
    };
    let n_blocks = (d.p.cluster_stride as usize).div_ceil(CLUSTERS);
    let grid = Grid::new([n_blocks, d.p.n_kv_heads as usize, 1]);
    backend.launch(Kernel::cluster_rest, grid, &args)
}
