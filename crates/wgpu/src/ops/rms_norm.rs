//! Launches `rms_norm.wgsl`.

use longview_ops::{Op, OpResult, RmsNorm, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Widths up to this (norms of heads) have a small workgroup for each row.
const NARROW: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: RmsNorm<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_rows, width) = (d.p.n_rows as usize, d.p.width as usize);
    d.weight.expect(Op::RmsNorm, 1, width)?;
    let plain = d.weight.plain(Op::RmsNorm)?;
    // The row, and with `accumulate` what is added to.
    let read = (n_rows * width * 4) as u64 * (1 + u64::from(d.p.accumulate));
    let Some(shard) = d.weight.shards.first() else { return Ok(()) };
    Launch::new(backend, "rms_norm", "rms_norm")
        .define("GROUP", if width <= NARROW { 32 } else { 256 })
        .params(&d.p)
        .params(&kind(plain.dtype))
        .reads(&shard.raw)
        .u32(plain.elements_of(shard.word_offset))
        .view(&d.x)
        .view_mut(&d.out)
        .counts(read + d.weight.size_bytes())
        .run(n_rows)
}
