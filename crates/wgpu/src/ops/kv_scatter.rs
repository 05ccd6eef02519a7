//! Launches `kv_scatter.wgsl`.

use longview_ops::{KvScatter, OpResult, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: KvScatter<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let row_words = 2 * d.p.head_dim as usize * d.dst.dtype.size() / 4;
    let n = d.p.n_tokens as usize * d.p.n_kv_heads as usize * row_words;
    Launch::new(backend, "kv_scatter", "kv_scatter")
        .params(&d.p)
        .params(&kind(d.dst.dtype))
        .view(&d.k)
        .view(&d.v)
        .view(&d.rows)
        .writes(&d.dst.raw)
        .counts((d.k.len * 8) as u64)
        .run(n.div_ceil(GROUP))
}
