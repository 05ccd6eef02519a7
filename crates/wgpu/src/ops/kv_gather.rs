//! Launches `kv_gather.wgsl`.

use longview_ops::{KvGather, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: KvGather<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (size, head_dim) = (d.dst.dtype.size(), d.p.head_dim as usize);
    let row_bytes = d.src.row_len(head_dim) * size;
    let src_bytes = d.src.offset * size;
    let is_vector = row_bytes.is_multiple_of(16) && src_bytes.is_multiple_of(16);
    let unit = if is_vector { 16 } else { 4 };
    let n_entries = d.p.n_kv_heads as usize * d.p.list_stride as usize;
    let dst_limit = match d.p.dst_head_stride as usize {
        0 => d.dst.len / d.src.row_len(head_dim).max(1),
        stride => stride,
    };
    // How many of the entries are in use only the device knows.
    Launch::new(backend, "kv_gather", "kv_gather")
        .define("VECTOR", is_vector.into())
        .define("SHIFTED", (!src_bytes.is_multiple_of(4)).into())
        .params(&d.p)
        .u32(d.src.head_stride)
        .u32(d.src.row_limit(head_dim))
        .u32(dst_limit)
        .u32(row_bytes / unit)
        .reads(&d.src.buffer.raw)
        .u32(src_bytes / unit)
        .view(&d.src_rows)
        .view(&d.dst_rows)
        .view(&d.n_rows)
        .writes(&d.dst.raw)
        .counts((n_entries * row_bytes) as u64)
        .run((n_entries * row_bytes / unit).div_ceil(GROUP))
}
