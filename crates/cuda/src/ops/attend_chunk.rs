//! Launches `attend_chunk.cu`, and `attend_list.cu` where that is better or alone can.

use longview_core::DType;
use longview_ops::{AttendChunk, ChunkSpan, Op, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::AttendChunkArgs;
use crate::kernels::Kernel;
use crate::ops::attend_list::{ListLaunch, ListRows, check_width};

/// Tokens that are too few to share loads of KV rows: splits of the run are worth more.
const FEW_TOKENS: u32 = 8;

/// Query rows of a block.
const ROWS: usize = 64;

const F16: [Kernel; 2] = [Kernel::attend_chunk_f16_64, Kernel::attend_chunk_f16_128];
const BF16: [Kernel; 2] = [Kernel::attend_chunk_bf16_64, Kernel::attend_chunk_bf16_128];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: AttendChunk<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
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
    let n_query_rows = span.q_len as usize * (p.n_q_heads / p.n_kv_heads) as usize;
    let n_tiles = n_query_rows.div_ceil(ROWS);
    let n_blocks = n_tiles * p.n_kv_heads as usize;
    let facts = backend.driver().facts();
    let kernel = tile_kernel(span, p.head_dim, facts.compute_capability);
    // Few blocks leave multiprocessors idle, which splits of the run do not.
    let is_wide = span.q_len > FEW_TOKENS && n_blocks >= facts.n_multiprocessors as usize;
    let Some(kernel) = kernel.filter(|_| is_wide) else {
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
    let args = AttendChunkArgs {
        q: d.q.at(),
        kv: span.kv.at(),
        out: d.out.at(),
        lse: d.lse.at(),
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
        accumulate: p.accumulate,
        scale: p.scale,
        unused: 0,
    };
    backend.launch(kernel, Grid::over(n_blocks, 1), &args)
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
    use super::{BF16, F16};
    use crate::kernels::SOURCES;
    use crate::target::Target;

    /// What `attend_chunk.cu` says of its cost, counted in what the compiler made of it. All
    /// products of a step of the loop over KV rows are unrolled: 16 query rows times 16 KV rows.
    #[test]
    fn products_cost_so_many_times_what_the_equation_asks_for() {
        let expected = [(F16[1], 128, 2), (BF16[1], 128, 3), (F16[0], 64, 3), (BF16[0], 64, 4)];
        // Columns of an instruction.
        for (target, depth) in [(Target::Compute75, 8), (Target::Compute80, 16)] {
            for (kernel, dim, times) in expected {
                let ptx = SOURCES[kernel.source()].ptx(target);
                let begin = format!("{}(", kernel.facts().name);
                let mut entries = ptx.split(".visible .entry ");
                let entry = entries.find(|entry| entry.starts_with(&begin)).expect("an entry");
                let made = entry.matches("mma.sync").count() * 2 * 16 * 8 * depth;
                let is_empty = target == Target::Compute75 && BF16.contains(&kernel);
                let asked = if is_empty { 0 } else { 16 * 16 * 4 * dim };
                assert_eq!(made, times * asked, "{kernel:?} for {}", target.name());
            }
        }
    }
}
