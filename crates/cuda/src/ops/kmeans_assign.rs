//! Launches `kmeans_assign.cu`: the centroids' terms, then the labels.

use longview_ops::{KmeansAssign, OpResult};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernels::Kernel;

kernel_args! {
    /// See `kmeans_assign.cu`.
    KmeansTermsArgs {
        centroids: Address,
        terms: Address,
        n_changed: Address,
        n_kv_heads: u32,
        n_clusters: u32,
        head_dim: u32,
        distance: u32,
    }
}

kernel_args! {
    /// See `kmeans_assign.cu`.
    KmeansAssignArgs {
        points: Address,
        centroids: Address,
        terms: Address,
        labels: Address,
        scores: Address,
        n_changed: Address,
        n_points: u32,
        n_clusters: u32,
        head_dim: u32,
        rows_are_aligned: u32,
    }
}

/// Centroids of a block that makes their terms: a warp each.
const TERMS: usize = 8;

/// The kernel, and the side of its tiles: small ones for few clusters, and where large ones would
/// leave most multiprocessors without work.
fn choose(
    n_kv_heads: usize,
    n_points: usize,
    n_clusters: usize,
    n_multiprocessors: usize,
) -> (Kernel, usize) {
    let n_wide = n_kv_heads * n_points.div_ceil(128);
    match n_clusters > 64 && 2 * n_wide >= n_multiprocessors {
        true => (Kernel::kmeans_assign_wide, 128),
        false => (Kernel::kmeans_assign_narrow, 64),
    }
}

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: KmeansAssign<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (n_heads, n, c) = (d.p.n_kv_heads as usize, d.p.n_points as usize, d.p.n_clusters as usize);
    let (points, centroids, n_changed) = (d.points.at(), d.centroids.at(), d.n_changed.at());
    let is_aligned = [points, centroids].iter().all(|address| address.is_aligned(16));
    backend.queue.with_scratch((n_heads * c * 8) as u64, |terms| {
        let args = KmeansTermsArgs {
            centroids,
            terms,
            n_changed,
            n_kv_heads: d.p.n_kv_heads,
            n_clusters: d.p.n_clusters,
            head_dim: d.p.head_dim,
            distance: d.p.distance,
        };
        backend.launch(Kernel::kmeans_terms, Grid::over(n_heads * c, TERMS), &args)?;
        let args = KmeansAssignArgs {
            points,
            centroids,
            terms,
            labels: d.labels.at(),
            scores: d.scores.at(),
            n_changed,
            n_points: d.p.n_points,
            n_clusters: d.p.n_clusters,
            head_dim: d.p.head_dim,
            rows_are_aligned: (is_aligned && d.p.head_dim.is_multiple_of(4)).into(),
        };
        let n_multiprocessors = backend.driver().facts().n_multiprocessors as usize;
        let (kernel, side) = choose(n_heads, n, c, n_multiprocessors);
        backend.launch(kernel, Grid::new([n.div_ceil(side), n_heads, 1]), &args)
    })
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn tiles_are_large_where_there_are_enough() {
        let side = |n_heads, n, c| choose(n_heads, n, c, 108).1;
        assert_eq!(side(8, 4096, 256), 128);
        assert_eq!(side(8, 320, 20), 64);
        assert_eq!(side(2, 1024, 128), 64);
    }
}
