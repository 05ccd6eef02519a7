//! Launches `attend_blocks.cu`.

use longview_core::DType;
use longview_ops::{AttendBlocks, Op, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::AttendBlocksArgs;
use crate::kernels::Kernel;
use crate::ops::attend_list::check_width;
use crate::variant::by_type;

/// Query rows of a block of threads: on tensor cores, and without.
const ROWS: [usize; 2] = [64, 16];

const F16: [Kernel; 2] = [Kernel::attend_blocks_f16_64, Kernel::attend_blocks_f16_128];
const BF16: [Kernel; 2] = [Kernel::attend_blocks_bf16_64, Kernel::attend_blocks_bf16_128];
/// By the width of heads, up to 128 and 256, and by type.
const PLAIN: [[Kernel; 3]; 2] = [
    [
        Kernel::attend_blocks_plain_f32_128,
        Kernel::attend_blocks_plain_f16_128,
        Kernel::attend_blocks_plain_bf16_128,
    ],
    [
        Kernel::attend_blocks_plain_f32_256,
        Kernel::attend_blocks_plain_f16_256,
        Kernel::attend_blocks_plain_bf16_256,
    ],
];
const CODED: [Kernel; 2] = [Kernel::attend_blocks_plain_q8_128, Kernel::attend_blocks_plain_q8_256];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: AttendBlocks<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let (p, attend, tiles) = (d.p, d.p.attend, d.p.tiles);
    check_width::<D>(Op::AttendBlocks, attend.head_dim)?;
    let capability = backend.driver().facts().compute_capability;
    // Rows of no whole units of 16 bytes are no tensor core's, and means are numbers of 32 bits.
    let is_fit = d.kv.at().is_aligned(16) && p.is_kept();
    let (kernel, rows) = choose(d.kv.buffer.dtype, attend.head_dim, is_fit, capability);
    let n_tiles = tiles.n_tiles();
    let group = (attend.n_q_heads / attend.n_kv_heads) as usize;
    // A chunk may be shorter than a tile.
    let n_parts = (tiles.tile.min(tiles.q_len) as usize * group).div_ceil(rows);
    let args = AttendBlocksArgs {
        q: d.q.at(),
        kv: d.kv.at(),
        shares: d.shares.at(),
        out: d.out.at(),
        lse: d.lse.at(),
        n_q_heads: attend.n_q_heads,
        n_kv_heads: attend.n_kv_heads,
        head_dim: attend.head_dim,
        scale: attend.scale,
        accumulate: attend.accumulate,
        first_token: tiles.q_start,
        q_len: tiles.q_len,
        position: tiles.position,
        tile: tiles.tile,
        share_stride: tiles.share_stride,
        threshold: p.threshold,
        is_kept: p.is_kept().into(),
        rows_per_block: p.rows_per_block,
        row_start: p.row_start,
        first_row: p.first_row,
        n_rows: p.n_rows,
        head_stride: d.kv.head_stride as u32,
        n_tiles: n_tiles as u32,
        n_parts: n_parts as u32,
        bias: (p.weight() as f32).ln(),
    };
    let n = n_tiles * n_parts * attend.n_kv_heads as usize;
    backend.launch(kernel, Grid::over(n, 1), &args)
}

/// The kernel, and the query rows of its blocks of threads. `is_fit` says that rows are kept ones
/// and begin at units of 16 bytes. There are no products of bf16 before compute capability 8.0.
fn choose(
    dtype: DType,
    head_dim: u32,
    is_fit: bool,
    compute_capability: (u32, u32),
) -> (Kernel, usize) {
    let is_fit = is_fit && head_dim <= 128 && head_dim.is_multiple_of(8);
    let (narrow, wide) = (usize::from(head_dim > 64), usize::from(head_dim > 128));
    match dtype {
        DType::F16 if is_fit => (F16[narrow], ROWS[0]),
        DType::BF16 if is_fit && compute_capability >= (8, 0) => (BF16[narrow], ROWS[0]),
        DType::Q8 => (CODED[wide], ROWS[1]),
        dtype => (by_type(dtype, PLAIN[wide]), ROWS[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, Kernel, choose};

    #[test]
    fn tensor_cores_take_kept_rows_of_whole_units() {
        let kernel = |dtype, head_dim, is_fit| choose(dtype, head_dim, is_fit, (8, 0)).0;
        assert_eq!(kernel(DType::F16, 64, true), Kernel::attend_blocks_f16_64);
        assert_eq!(kernel(DType::BF16, 80, true), Kernel::attend_blocks_bf16_128);
        assert_eq!(kernel(DType::F16, 20, true), Kernel::attend_blocks_plain_f16_128);
        assert_eq!(kernel(DType::F16, 64, false), Kernel::attend_blocks_plain_f16_128);
        assert_eq!(kernel(DType::F16, 256, true), Kernel::attend_blocks_plain_f16_256);
        assert_eq!(kernel(DType::F32, 64, true), Kernel::attend_blocks_plain_f32_128);
        assert_eq!(kernel(DType::Q8, 129, true), Kernel::attend_blocks_plain_q8_256);
        let old = choose(DType::BF16, 64, true, (7, 5)).0;
        assert_eq!(old, Kernel::attend_blocks_plain_bf16_128);
    }
}
