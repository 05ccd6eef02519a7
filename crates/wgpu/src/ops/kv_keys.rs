//! Launches `kv_keys.wgsl`.

use longview_ops::{KvKeys, OpResult, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: KvKeys<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n = d.out.len;
    Launch::new(backend, "kv_keys", "kv_keys")
        .params(&d.p)
        .params(&kind(d.src.buffer.dtype))
        .u32(d.src.head_stride)
        .u32(d.src.row_limit(d.p.head_dim as usize))
        .reads(&d.src.buffer.raw)
        .u32(d.src.offset)
        .view(&d.rows)
        .view_mut(&d.out)
        .counts((n * d.src.buffer.dtype.size()) as u64)
        .run(n.div_ceil(GROUP))
}
