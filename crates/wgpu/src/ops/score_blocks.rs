//! Launches `score_blocks.wgsl`.

use longview_ops::{Op, OpResult, ScoreBlocks};

use crate::attention::{check_width, kv_defines, kv_row_bytes};
use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Queries that a workgroup scores at the same time: fewer where wide ones would not fit into
/// shared memory.
fn queries(head_dim: u32) -> u32 {
    if head_dim > 128 { 8 } else { 16 }
}

pub(crate) fn run(backend: &WgpuBackend, d: ScoreBlocks<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, tiles) = (d.p, d.p.tiles);
    check_width(Op::ScoreBlocks, p.head_dim)?;
    let (n_tiles, n_heads) = (tiles.n_tiles(), p.n_kv_heads as usize);
    let n_means = n_tiles.checked_sub(1).map_or(0, |last| tiles.own_block(last)) as u64;
    let bytes = n_means * u64::from(p.n_parts) * kv_row_bytes(&d.means, p.head_dim) as u64;
    kv_defines(Launch::new(backend, "score_blocks", "score_blocks"), &d.means, p.head_dim)
        .define("QUERIES", queries(p.head_dim))
        .params(&p)
        .u32(n_tiles)
        .u32(tiles.n_blocks())
        .u32(d.means.head_stride)
        .view(&d.q)
        .reads(&d.means.buffer.raw)
        .u32(d.means.offset)
        .view_mut(&d.shares)
        .counts(bytes * n_heads as u64)
        .run(n_tiles * n_heads)
}

#[cfg(test)]
mod tests {
    use super::queries;

    #[test]
    fn queries_fit_into_shared_memory() {
        // 16 KiB are there everywhere: octets of queries, and a maximum of 64 lanes for each.
        for head_dim in 1..=256 {
            let n = queries(head_dim);
            assert!(4 * n * (head_dim.next_multiple_of(8) + 65) <= 16 << 10, "{head_dim}");
        }
    }
}
