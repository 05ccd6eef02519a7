//! Launches `kmeans_assign.cu`: the centroids' terms, then the labels.

use longview_ops::{KmeansAssign, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{DeviceFacts, Driver, Grid};
use crate::kernel_args::{KmeansAssignArgs, KmeansTermsArgs};
use crate::kernels::Kernel;

/// Centroids of a block that makes their terms: a warp each.
const TERMS: usize = 8;

/// Whether tensor cores, which need three products of tf32 for one, are faster than f32 products.
/// By the data sheets they multiply tf32 eight times as fast as the rest of the device multiplies
/// f32 on A100, seven times on H100 and H200, which is a gain; on devices made for graphics (8.6,
/// 8.9, 12.0) they do it as fast, or twice, which is none. Before 8.0 they do not know tf32.
fn tensor_cores_gain(compute_capability: (u32, u32)) -> bool {
    matches!(compute_capability, (8, 0) | (9 | 10, _))
}

/// The kernel, and the side of its tiles: small ones for few clusters, and where large ones would
/// leave most multiprocessors without work. Tensor cores where they gain, for rows that can be
/// copied in whole units.
fn choose(
    n_kv_heads: usize,
    n_points: usize,
    n_clusters: usize,
    rows_are_aligned: bool,
    facts: &DeviceFacts,
) -> (Kernel, usize) {
    let n_wide = n_kv_heads * n_points.div_ceil(128);
    let is_wide = n_clusters > 64 && 2 * n_wide >= facts.n_multiprocessors as usize;
    let (tensor, plain, side) = if is_wide {
        (Kernel::kmeans_assign_tensor_wide, Kernel::kmeans_assign_wide, 128)
    } else {
        (Kernel::kmeans_assign_tensor_narrow, Kernel::kmeans_assign_narrow, 64)
    };
    let is_tensor = rows_are_aligned && tensor_cores_gain(facts.compute_capability);
    (if is_tensor { tensor } else { plain }, side)
}

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: KmeansAssign<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (n_heads, n, c) = (d.p.n_kv_heads as usize, d.p.n_points as usize, d.p.n_clusters as usize);
    let (points, centroids, n_changed) = (d.points.at(), d.centroids.at(), d.n_changed.at());
    let is_aligned = [points, centroids].iter().all(|address| address.is_aligned(16));
    let is_aligned = is_aligned && d.p.head_dim.is_multiple_of(4);
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
            rows_are_aligned: is_aligned.into(),
        };
        let (kernel, side) = choose(n_heads, n, c, is_aligned, backend.driver().facts());
        backend.launch(kernel, Grid::new([n.div_ceil(side), n_heads, 1]), &args)
    })
}

#[cfg(test)]
mod tests {
    use super::{DeviceFacts, Kernel, choose};

    fn device(compute_capability: (u32, u32)) -> DeviceFacts {
        DeviceFacts {
            name: "some".into(),
            compute_capability,
            n_multiprocessors: 108,
            unified_memory: false,
            memory_bytes: None,
            shared_bytes: 64 << 10,
        }
    }

    #[test]
    fn tiles_are_large_where_there_are_enough() {
        let side = |n_heads, n, c, is_aligned| {
            let sides = [(7, 5), (8, 0)].map(|c_c| choose(n_heads, n, c, is_aligned, &device(c_c)));
            assert_eq!(sides[0].1, sides[1].1, "the same for either kind of products");
            sides[0].1
        };
        for is_aligned in [false, true] {
            assert_eq!(side(8, 4096, 256, is_aligned), 128);
            assert_eq!(side(8, 320, 20, is_aligned), 64);
            assert_eq!(side(2, 1024, 128, is_aligned), 64);
        }
    }

    #[test]
    fn tensor_cores_multiply_where_they_gain_and_rows_are_aligned() {
        let kernel =
            |capability, is_aligned| choose(8, 4096, 256, is_aligned, &device(capability)).0;
        assert_eq!(kernel((7, 5), true), Kernel::kmeans_assign_wide);
        assert_eq!(kernel((8, 0), true), Kernel::kmeans_assign_tensor_wide);
        assert_eq!(kernel((10, 3), true), Kernel::kmeans_assign_tensor_wide);
        assert_eq!(kernel((9, 0), false), Kernel::kmeans_assign_wide);
        for graphics in [(8, 6), (8, 9), (12, 0)] {
            assert_eq!(kernel(graphics, true), Kernel::kmeans_assign_wide, "{graphics:?}");
        }
        let (narrow, _) = choose(1, 9, 3, true, &device((9, 0)));
        assert_eq!(narrow, Kernel::kmeans_assign_tensor_narrow);
        let (narrow, _) = choose(1, 9, 3, true, &device((7, 5)));
        assert_eq!(narrow, Kernel::kmeans_assign_narrow);
    }
}
