//! Launches `rest_lists.cu`: a block for each KV head.

use longview_ops::{OpResult, RestLists};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::RestListsArgs;
use crate::kernels::Kernel;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: RestLists<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = RestListsArgs {
        lost: d.lost.at(),
        sizes: d.sizes.at(),
        group_of: d.group_of.at(),
        n_clusters: d.n_clusters.at(),
        group_tokens: d.group_tokens.at(),
        n_groups: d.n_groups.at(),
        clusters: d.listed.at(),
        left: d.left.at(),
        n_listed: d.n_listed.at(),
        rest_of_groups: d.rest_of_groups.at(),
        cluster_stride: d.p.cluster_stride,
        group_stride: d.p.group_stride,
        list_stride: d.p.list_stride,
        unused: 0,
    };
    backend.launch(Kernel::rest_lists, Grid::over(d.p.n_kv_heads as usize, 1), &args)
}
