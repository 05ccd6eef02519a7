//! Launches `kv_scatter.wgsl`.

use longview_core::DType;
use longview_ops::{KvScatter, Op, OpError, OpResult, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

const GROUP: usize = 256;
/// Widest head whose scales a workgroup holds.
const MAX_CODED_DIM: u32 = 1024;

pub(crate) fn run(backend: &WgpuBackend, d: KvScatter<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let n_rows = d.p.n_tokens as usize * d.p.n_kv_heads as usize;
    let is_coded = d.dst.dtype == DType::Q8;
    let (entry, n_groups) = if is_coded {
        check_width(d.p.head_dim)?;
        ("kv_scatter_coded", n_rows)
    } else {
        let row_words = 2 * d.p.head_dim as usize * d.dst.dtype.size() / 4;
        ("kv_scatter", (n_rows * row_words).div_ceil(GROUP))
    };
    Launch::new(backend, "kv_scatter", entry)
        .define("CODED", is_coded.into())
        .params(&d.p)
        .params(&kind(d.dst.dtype))
        .view(&d.k)
        .view(&d.v)
        .view(&d.rows)
        .writes(&d.dst.raw)
        .counts((d.k.len * 8) as u64)
        .run(n_groups)
}

fn check_width(head_dim: u32) -> OpResult<()> {
    if head_dim <= MAX_CODED_DIM {
        return Ok(());
    }
    let reason = format!("rows of 8 bits of width {head_dim}, of at most {MAX_CODED_DIM}");
    Err(OpError::Unsupported { backend: "wgpu", op: Op::KvScatter, reason })
}
