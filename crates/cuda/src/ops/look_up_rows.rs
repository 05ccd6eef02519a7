//! Launches `look_up_rows.cu`: a block for each KV head.

use longview_ops::{LookUpRows, LookUpRowsParams, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::LookUpRowsArgs;
use crate::kernels::Kernel;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: LookUpRows<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let args = LookUpRowsArgs {
        starts: d.starts.at(),
        clusters: d.clusters.at(),
        takes: d.takes.at(),
        n_selected: d.n_selected.at(),
        state: d.state.at(),
        rows: d.rows.at(),
        moves: d.moves.at(),
        counts: d.counts.at(),
        n_kv_heads: d.p.n_kv_heads,
        max_selected: d.p.max_selected,
        cluster_stride: d.p.cluster_stride,
        list_stride: d.p.list_stride,
        move_stride: d.p.move_stride,
        n_slots: d.p.n_slots,
        first_slot_row: d.p.first_slot_row,
        cache_steps: d.p.cache_steps,
        table_len: LookUpRowsParams::table_len(d.p.n_slots as usize) as u32,
        unused: 0,
    };
    backend.launch(Kernel::look_up_rows, Grid::over(d.p.n_kv_heads as usize, 1), &args)
}
