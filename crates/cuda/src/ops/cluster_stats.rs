//! Launches `cluster_stats.cu`: radii become 0, then points are measured.

use longview_ops::{ClusterStats, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::{ClusterRadiusClearArgs, ClusterStatsArgs};
use crate::kernels::Kernel;

/// Radii of a block.
const RADII: usize = 256;
/// Points of a block.
const POINTS: usize = 32;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: ClusterStats<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (points, centroids, radius) = (d.points.at(), d.centroids.at(), d.radius.at());
    let is_aligned = [points, centroids].iter().all(|address| address.is_aligned(16));
    let n_radii = d.p.n_kv_heads * d.p.n_clusters;
    let args = ClusterRadiusClearArgs { radius, n: n_radii, unused: 0 };
    let grid = Grid::over(n_radii as usize, RADII);
    backend.launch(Kernel::cluster_radius_clear, grid, &args)?;
    let n_all_points = d.p.n_kv_heads * d.p.n_points;
    let args = ClusterStatsArgs {
        points,
        labels: d.labels.at(),
        centroids,
        closeness: d.closeness.at(),
        radius,
        n_all_points,
        n_points: d.p.n_points,
        n_clusters: d.p.n_clusters,
        head_dim: d.p.head_dim,
        distance: d.p.distance,
        rows_are_aligned: (is_aligned && d.p.head_dim.is_multiple_of(4)).into(),
    };
    backend.launch(Kernel::cluster_stats, Grid::over(n_all_points as usize, POINTS), &args)
}
