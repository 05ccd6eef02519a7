//! Launches `rotate_rows.wgsl`.

use longview_ops::{OpResult, RotateRows, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: RotateRows<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let row_bytes = 2 * d.p.head_dim as usize * d.dst.dtype.size();
    let bytes = d.p.n_kv_heads as usize * d.p.n_rows as usize * row_bytes;
    Launch::new(backend, "rotate_rows", "rotate_rows")
        .params(&d.p)
        .params(&kind(d.dst.dtype))
        .u32(d.src.head_stride)
        .reads(&d.src.buffer.raw)
        .u32(d.src.offset)
        .view(&d.table)
        .writes(&d.dst.raw)
        .counts(bytes as u64)
        .run((bytes / 4).div_ceil(GROUP))
}
