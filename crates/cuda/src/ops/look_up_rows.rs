//! Launches `look_up_rows.cu`: a block for each KV head, with its table in shared memory where the
//! device has as much for a block.

use longview_ops::{LookUpRows, LookUpRowsParams, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{DeviceFacts, Driver, Grid};
use crate::kernel_args::LookUpRowsArgs;
use crate::kernels::Kernel;

/// Shared memory of a block beside the table, and room for what a driver takes.
const FIXED: usize = 10 << 10;

/// Bytes of a table of `n_slots` slots, and of the list of free ones: keys of 4 bytes, slots of 2.
fn table_bytes(n_slots: usize) -> usize {
    6 * LookUpRowsParams::table_len(n_slots) + 2 * n_slots
}

/// The kernel for so many slots, and the shared memory that it asks for.
fn choose(facts: &DeviceFacts, n_slots: usize) -> (Kernel, usize) {
    let bytes = table_bytes(n_slots);
    let is_small = bytes + FIXED <= facts.shared_bytes as usize && n_slots < usize::from(u16::MAX);
    if is_small { (Kernel::look_up_rows, bytes) } else { (Kernel::look_up_rows_large, 0) }
}

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
    let (kernel, shared) = choose(backend.driver().facts(), d.p.n_slots as usize);
    let grid = Grid::over(d.p.n_kv_heads as usize, 1).with_shared(shared as u32);
    backend.launch(kernel, grid, &args)
}

#[cfg(test)]
mod tests {
    use super::{DeviceFacts, Kernel, choose};

    fn device(shared_bytes: u32) -> DeviceFacts {
        DeviceFacts {
            name: "any".into(),
            compute_capability: (8, 0),
            n_multiprocessors: 100,
            unified_memory: false,
            memory_bytes: None,
            shared_bytes,
        }
    }

    #[test]
    fn a_table_is_in_shared_memory_where_it_fits() {
        let of = |kib: u32, n_slots| choose(&device(kib << 10), n_slots);
        let large = (Kernel::look_up_rows_large, 0);
        assert_eq!(of(64, 2048), (Kernel::look_up_rows, 28_672));
        assert_eq!(of(64, 4096), large);
        assert_eq!(of(99, 4096), (Kernel::look_up_rows, 57_344));
        assert_eq!(of(99, 4097), large);
        assert_eq!(of(163, 8192), (Kernel::look_up_rows, 114_688));
        assert_eq!(of(227, 16_384), large);
        // Slots are numbered by 16 bits.
        assert_eq!(of(1 << 20, 1 << 16), large);
        assert_eq!(of(64, 0), (Kernel::look_up_rows, 6));
    }
}
