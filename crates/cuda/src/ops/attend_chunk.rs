//! Launches `attend_chunk.cu`, and `attend_list.cu` where that is better or alone can.

use longview_core::DType;
use longview_ops::{AttendChunk, ChunkSpan, Op, OpError, OpResult};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::AttendChunkArgs;
use crate::kernels::Kernel;
use crate::ops::attend_list::{ListLaunch, ListRows, check_width};

/// Tokens that are too few to share loads of KV rows.
const FEW_TOKENS: u32 = 8;

/// Query rows of a block.
const ROWS: usize = 64;

/// KV rows that splits are counted in: a tile of the kernel, or two of them.
const SPLIT_UNIT: usize = 64;

/// Splits that the merge can weigh.
const MAX_SPLITS: usize = 32;

/// Blocks that a multiprocessor has registers for: heads up to 64, and wider ones.
const BLOCKS_PER_MULTIPROCESSOR: [usize; 2] = [3, 2];

/// What a block does before its first tile and after its last one, in time for so many
/// [`SPLIT_UNIT`].
const ENDS_OF_A_BLOCK: usize = 4;

/// The merge, in the same time.
const MERGE: usize = 2;

/// Splits times blocks of a call, in what a device has room for: scratch memory is as large.
const MOST_BLOCKS: usize = 4;

/// Query rows of a block of the merge.
const MERGED_ROWS: usize = 4;

const F16: [Kernel; 2] = [Kernel::attend_chunk_f16_64, Kernel::attend_chunk_f16_128];
const BF16: [Kernel; 2] = [Kernel::attend_chunk_bf16_64, Kernel::attend_chunk_bf16_128];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: AttendChunk<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    if d.spans.iter().any(|span| span.order.is_some()) {
        let reason = "rows of a run are read in their order".to_owned();
        return Err(OpError::Unsupported { backend: D::NAME, op: Op::AttendChunk, reason });
    }
    check_width::<D>(Op::AttendChunk, d.p.head_dim)?;
    d.spans.iter().filter(|span| span.q_len > 0).try_for_each(|span| one(backend, &d, span))
}

fn one<D: Driver>(
    backend: &CudaBackend<D>,
    d: &AttendChunk<'_, CudaBackend<D>>,
    span: &ChunkSpan<'_, CudaBackend<D>>,
) -> OpResult<()> {
    let p = d.p;
    let edges = span.edges();
    let facts = backend.driver().facts();
    let kernel = tile_kernel(span, p.head_dim, facts.compute_capability);
    let Some(kernel) = kernel.filter(|_| span.q_len > FEW_TOKENS) else {
        let launch = ListLaunch {
            p,
            q: d.q,
            first_token: span.q_start,
            n_tokens: span.q_len,
            kv: span.kv,
            room: span.n_rows,
            rows: ListRows::Run { first: span.row_start, edges },
        };
        return launch.run(backend, &d.out, &d.lse);
    };
    let n_query_rows = span.q_len as usize * (p.n_q_heads / p.n_kv_heads) as usize;
    let n_tiles = n_query_rows.div_ceil(ROWS);
    let n_blocks = n_tiles * p.n_kv_heads as usize;
    let blocks_at_once = BLOCKS_PER_MULTIPROCESSOR[usize::from(p.head_dim > 64)];
    let room = facts.n_multiprocessors as usize * blocks_at_once;
    let n_splits = splits(n_blocks, span.n_rows as usize, room);
    let n_entries = span.q_len as usize * p.n_q_heads as usize;
    let n_states = if n_splits == 1 { 0 } else { n_entries * n_splits };
    let state_bytes = (n_states * 8) as u64;
    let sum_bytes = (n_states * p.head_dim as usize * 4) as u64;
    let launches = |states: Address| {
        let args = AttendChunkArgs {
            q: d.q.at(),
            kv: span.kv.at(),
            out: d.out.at(),
            lse: d.lse.at(),
            states,
            sums: Address(states.0 + state_bytes),
            first_token: span.q_start,
            n_tokens: span.q_len,
            n_q_heads: p.n_q_heads,
            n_kv_heads: p.n_kv_heads,
            head_dim: p.head_dim,
            head_stride: span.kv.head_stride as u32,
            n_rows: span.n_rows,
            first_row: span.row_start,
            lead: edges.seen,
            hidden: edges.hidden,
            n_tiles: n_tiles as u32,
            n_splits: n_splits as u32,
            accumulate: p.accumulate,
            scale: p.scale,
        };
        backend.launch(kernel, Grid::new([n_blocks, n_splits, 1]), &args)?;
        if n_splits == 1 {
            return Ok(());
        }
        let grid = Grid::over(n_entries.div_ceil(MERGED_ROWS), 1);
        backend.launch(Kernel::attend_chunk_merge, grid, &args)
    };
    backend.queue.with_scratch(state_bytes + sum_bytes, launches)
}

/// Blocks that share the KV rows of each of `n_blocks`: as many as end first on a device that has
/// room for `room` blocks at a time.
fn splits(n_blocks: usize, n_rows: usize, room: usize) -> usize {
    let room = room.max(1);
    let n_units = n_rows.div_ceil(SPLIT_UNIT);
    let most = n_units.min(MOST_BLOCKS * room / n_blocks.max(1)).clamp(1, MAX_SPLITS);
    let time = |n_splits: &usize| {
        let waves = (n_blocks * n_splits).div_ceil(room);
        let merge = if *n_splits == 1 { 0 } else { MERGE };
        waves * (n_units.div_ceil(*n_splits) + ENDS_OF_A_BLOCK) + merge
    };
    (1..=most).min_by_key(time).unwrap_or(1)
}

/// The kernel of tiles for these rows; there is none for f32, for rows that are no whole units of
/// 16 bytes, for wide heads, and for bf16 before compute capability 8.0.
fn tile_kernel<D: Driver>(
    span: &ChunkSpan<'_, CudaBackend<D>>,
    head_dim: u32,
    compute_capability: (u32, u32),
) -> Option<Kernel> {
    let width = usize::from(head_dim > 64);
    let fits = head_dim <= 128 && head_dim.is_multiple_of(8) && span.kv.at().is_aligned(16);
    match span.kv.buffer.dtype {
        DType::F16 if fits => Some(F16[width]),
        DType::BF16 if fits && compute_capability >= (8, 0) => Some(BF16[width]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{BF16, F16, splits};
    use crate::kernels::SOURCES;
    use crate::target::Target;

    /// What `attend_chunk.cu` says of its cost, counted in what the compiler made of it. All
    /// products of a step of the loop over KV rows are unrolled: 16 query rows times a tile.
    #[test]
    fn products_cost_so_many_times_what_the_equation_asks_for() {
        // The width, KV rows of a tile, and twice how many times.
        let expected = [
            (F16[1], 128, 32, 4),
            (BF16[1], 128, 32, 5),
            (F16[0], 64, 64, 4),
            (BF16[0], 64, 64, 5),
        ];
        // Columns of an instruction.
        for (target, depth) in [(Target::Compute75, 8), (Target::Compute80, 16)] {
            for (kernel, dim, tile, times) in expected {
                let ptx = SOURCES[kernel.source()].ptx(target);
                let begin = format!("{}(", kernel.facts().name);
                let mut entries = ptx.split(".visible .entry ");
                let entry = entries.find(|entry| entry.starts_with(&begin)).expect("an entry");
                let made = entry.matches("mma.sync").count() * 2 * 16 * 8 * depth;
                let is_empty = target == Target::Compute75 && BF16.contains(&kernel);
                let asked = if is_empty { 0 } else { 16 * tile * 4 * dim };
                assert_eq!(2 * made, times * asked, "{kernel:?} for {}", target.name());
            }
        }
    }

    /// On a device like an H100, with heads of 128 and of 64.
    #[test]
    fn few_blocks_share_their_rows() {
        assert_eq!(splits(512, 32768, 264), 1);
        assert_eq!(splits(1056, 32768, 264), 1);
        assert_eq!(splits(128, 4096, 264), 2);
        assert_eq!(splits(32, 16384, 396), 12);
        assert_eq!(splits(56, 8192, 396), 7);
        assert_eq!(splits(2, 1 << 20, 396), 32);
        assert_eq!(splits(2, 65, 264), 1);
        assert_eq!(splits(2, 0, 0), 1);
    }
}
