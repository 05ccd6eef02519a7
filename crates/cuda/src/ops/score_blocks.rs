//! Launches `score_blocks.cu`.

use longview_ops::{Op, OpResult, ScoreBlocks};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::ScoreBlocksArgs;
use crate::kernels::Kernel;
use crate::ops::attend_list::check_width;

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: ScoreBlocks<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (p, tiles) = (d.p, d.p.tiles);
    check_width::<D>(Op::ScoreBlocks, p.head_dim)?;
    let n_tiles = tiles.n_tiles();
    let args = ScoreBlocksArgs {
        q: d.q.at(),
        means: d.means.at(),
        shares: d.shares.at(),
        n_q_heads: p.n_q_heads,
        n_kv_heads: p.n_kv_heads,
        head_dim: p.head_dim,
        scale: p.scale,
        n_first: p.n_first,
        n_recent: p.n_recent,
        n_parts: p.n_parts,
        q_start: tiles.q_start,
        q_len: tiles.q_len,
        position: tiles.position,
        tile: tiles.tile,
        block: tiles.block,
        share_stride: tiles.share_stride,
        n_tiles: n_tiles as u32,
        n_blocks: tiles.n_blocks() as u32,
        head_stride: d.means.head_stride as u32,
    };
    let n = n_tiles * p.n_kv_heads as usize;
    backend.launch(Kernel::score_blocks, Grid::over(n, 1), &args)
}
