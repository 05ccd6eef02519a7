//! Launches `query_sums.cu`: blocks for the sums that some token is added to.

use longview_ops::{OpResult, QuerySums, QuerySumsParams};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::QuerySumsArgs;
use crate::kernels::Kernel;

/// Channels of a block of threads.
const CHANNELS: usize = 32;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: QuerySums<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let QuerySumsParams { n_q_heads, n_kv_heads, head_dim, q_start, q_len, position, .. } = d.p;
    let (first_block, n) = touched(position, q_len, d.p.block);
    let args = QuerySumsArgs {
        q: d.q.at(),
        out: d.out.at(),
        n_q_heads,
        n_kv_heads,
        head_dim,
        q_start,
        q_len,
        position,
        block: d.p.block,
        n_blocks: d.p.n_blocks,
        first_block,
        unused: 0,
    };
    let grid = Grid::new([n, n_kv_heads as usize, (head_dim as usize).div_ceil(CHANNELS)]);
    backend.launch(Kernel::query_sums, grid, &args)
}

/// The first block that has some of the positions, and how many do.
fn touched(position: u32, n: u32, block: u32) -> (u32, usize) {
    let first = position / block;
    if n == 0 {
        return (first, 0);
    }
    let end = (u64::from(position) + u64::from(n)).div_ceil(u64::from(block));
    (first, (end - u64::from(first)) as usize)
}

#[cfg(test)]
mod tests {
    use super::touched;

    #[test]
    fn blocks_of_threads_are_for_blocks_with_tokens() {
        assert_eq!(touched(7, 0, 16), (0, 0));
        assert_eq!(touched(5, 11, 16), (0, 1));
        assert_eq!(touched(5, 12, 16), (0, 2));
        assert_eq!(touched(64, 1, 64), (1, 1));
        assert_eq!(touched(63, 130, 64), (0, 4));
        assert_eq!(touched(u32::MAX, u32::MAX, 1), (u32::MAX, u32::MAX as usize));
    }
}
