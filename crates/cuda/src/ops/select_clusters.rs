//! Launches `select_clusters.cu`: a block for each KV head of each sequence.

use longview_ops::{OpResult, SelectClusters};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::SelectClustersArgs;
use crate::kernels::Kernel;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: SelectClusters<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let n_heads = d.p.n_kv_heads as usize;
    let (score_stride, room) = (d.p.score_stride as usize, d.p.max_selected as usize);
    for (i, span) in d.spans.iter().enumerate() {
        let head = i * n_heads;
        let args = SelectClustersArgs {
            scores: d.scores.buffer.address(d.scores.offset + head * score_stride),
            sizes: span.sizes.at(),
            n_clusters: span.n_clusters.at(),
            budgets: span.budgets.at(),
            clusters: d.clusters.buffer.address(d.clusters.offset + head * room),
            takes: d.takes.buffer.address(d.takes.offset + head * room),
            n_selected: d.n_selected.buffer.address(d.n_selected.offset + head),
            ids: span.listed.map_or(Address(0), |listed| listed.ids.at()),
            score_stride: d.p.score_stride,
            cluster_stride: span.cluster_stride,
            max_selected: d.p.max_selected,
            by_id: d.p.by_id,
            id_stride: span.listed.map_or(0, |listed| listed.stride),
            unused: 0,
        };
        backend.launch(Kernel::select_clusters, Grid::over(n_heads, 1), &args)?;
    }
    Ok(())
}
