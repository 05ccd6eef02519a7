//! Launches `column_mass.cu`.

use longview_core::DType;
use longview_ops::{ColumnMass, OpResult};

use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::ColumnMassArgs;
use crate::kernels::Kernel;
use crate::variant::{by_type, row_limit};

/// Listed rows of a block.
const BLOCK_ROWS: usize = 64;
/// Widest head that tensor cores take.
const MAX_WIDTH: u32 = 128;
/// Query rows of a tile: on tensor cores, and without.
const TILES: [u32; 2] = [8, 64];

const F16: [Kernel; 2] = [Kernel::column_mass_f16_64, Kernel::column_mass_f16_128];
const BF16: [Kernel; 2] = [Kernel::column_mass_bf16_64, Kernel::column_mass_bf16_128];
const PLAIN: [Kernel; 3] =
    [Kernel::column_mass_plain_f32, Kernel::column_mass_plain_f16, Kernel::column_mass_plain_bf16];

/// The kernel, and the query rows of its tiles.
fn choose(
    dtype: DType,
    head_dim: u32,
    is_aligned: bool,
    compute_capability: (u32, u32),
) -> (Kernel, u32) {
    let width = usize::from(head_dim > 64);
    let fits = is_aligned && head_dim <= MAX_WIDTH;
    match dtype {
        DType::F16 if fits => (F16[width], TILES[0]),
        DType::BF16 if fits && compute_capability >= (8, 0) => (BF16[width], TILES[0]),
        _ => (by_type(dtype, PLAIN), TILES[1]),
    }
}

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: ColumnMass<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    if p.q_len == 0 {
        return Ok(());
    }
    let (q, kv, dtype) = (d.q.at(), d.kv.at(), d.kv.buffer.dtype);
    let half_bytes = p.head_dim as usize * dtype.size();
    let kv_is_aligned = kv.is_aligned(16) && half_bytes.is_multiple_of(16);
    let capability = backend.driver().facts().compute_capability;
    let (kernel, tile) = choose(dtype, p.head_dim, kv_is_aligned, capability);
    let args = ColumnMassArgs {
        q,
        lse: d.lse.at(),
        kv,
        rows: d.rows.at(),
        n_rows: d.n_rows.at(),
        out: d.out.at(),
        n_q_heads: p.n_q_heads,
        n_kv_heads: p.n_kv_heads,
        head_dim: p.head_dim,
        q_start: p.q_start,
        q_len: p.q_len,
        list_stride: p.list_stride,
        out_stride: p.out_stride,
        head_stride: d.kv.head_stride as u32,
        row_limit: row_limit(&d.kv, p.head_dim),
        diagonal: p.diagonal,
        window: p.window,
        scale: p.scale,
        // What a tile has no tokens for are more heads.
        tokens: p.q_len.min(tile).next_power_of_two(),
        kv_is_aligned: kv_is_aligned.into(),
        q_is_aligned: (q.is_aligned(16) && p.head_dim.is_multiple_of(4)).into(),
        unused: 0,
    };
    let n_blocks = (p.list_stride as usize).div_ceil(BLOCK_ROWS);
    backend.launch(kernel, Grid::new([n_blocks, p.n_kv_heads as usize, 1]), &args)
}

#[cfg(test)]
mod tests {
    use super::{DType, Kernel, choose};

    #[test]
    fn tensor_cores_take_rows_of_whole_units() {
        let kernel = |dtype, head_dim, is_aligned| choose(dtype, head_dim, is_aligned, (8, 0)).0;
        assert_eq!(kernel(DType::F16, 64, true), Kernel::column_mass_f16_64);
        assert_eq!(kernel(DType::F16, 128, true), Kernel::column_mass_f16_128);
        assert_eq!(kernel(DType::BF16, 80, true), Kernel::column_mass_bf16_128);
        assert_eq!(kernel(DType::F16, 64, false), Kernel::column_mass_plain_f16);
        assert_eq!(kernel(DType::F16, 256, true), Kernel::column_mass_plain_f16);
        assert_eq!(kernel(DType::F32, 64, true), Kernel::column_mass_plain_f32);
        let old = choose(DType::BF16, 64, true, (7, 5)).0;
        assert_eq!(old, Kernel::column_mass_plain_bf16);
    }
}
