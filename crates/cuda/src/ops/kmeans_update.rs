//! Launches `kmeans_update.cu`.

use longview_ops::{KmeansUpdate, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::KmeansUpdateArgs;
use crate::kernels::Kernel;

/// Clusters of a range.
const CLUSTERS: usize = 32;
/// Channels of a partition.
const CHANNELS: usize = 32;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: KmeansUpdate<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = KmeansUpdateArgs {
        points: d.points.at(),
        labels: d.labels.at(),
        centroids: d.centroids.at(),
        counts: d.counts.at(),
        n_points: d.p.n_points,
        n_clusters: d.p.n_clusters,
        head_dim: d.p.head_dim,
        unused: 0,
    };
    let n_ranges = (d.p.n_clusters as usize).div_ceil(CLUSTERS);
    let n_partitions = (d.p.head_dim as usize).div_ceil(CHANNELS);
    let grid = Grid::new([n_ranges, n_partitions, d.p.n_kv_heads as usize]);
    backend.launch(Kernel::kmeans_update, grid, &args)
}
