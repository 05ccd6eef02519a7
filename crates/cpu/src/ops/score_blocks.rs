//! What share of a tile's attention every block of the past has, by the means of its parts.

use longview_ops::{OpResult, ScoreBlocks};

use crate::backend::CpuBackend;
use crate::kernels::attend::Queries;
use crate::kernels::blocks::BlockSums;
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Each tile of each KV head is one item.
pub(crate) fn run(queue: &mut Queue, d: ScoreBlocks<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, tiles, q) = (d.p, d.p.tiles, slice::<f32>(&d.q));
    let [hq, dh, parts] = [p.n_q_heads, p.head_dim, p.n_parts].map(|n| n as usize);
    let (group, n_tiles) = ((p.n_q_heads / p.n_kv_heads) as usize, tiles.n_tiles());
    if n_tiles == 0 {
        return Ok(());
    }
    let means = &d.means.buffer.elements::<f32>()[d.means.offset..];
    let shares = slice_mut::<f32>(d.shares);
    let (isa, n_blocks) = (queue.team.isa(), tiles.n_blocks());
    let cost = Cost::flop(2 * tiles.q_len as usize * hq * n_blocks * parts * dh);
    queue.team.for_chunks(shares, tiles.share_stride as usize, cost, |scratch, i, shares| {
        let (head, tile) = (i / n_tiles, i % n_tiles);
        let (tokens, own) = (tiles.tokens(tile), tiles.own_block(tile));
        let first = tiles.q_start as usize + tokens.start;
        let means = &means[head * d.means.head_stride * 2 * dh..][..own * parts * 2 * dh];
        isa.run(BlockSums {
            queries: Queries {
                q: &q[first * hq * dh..(first + tokens.len()) * hq * dh],
                n_tokens: tokens.len(),
                n_q_heads: hq,
                first_head: head * group,
                group,
                head_dim: dh,
                scale: p.scale,
            },
            means,
            n_parts: parts,
            sums: &mut shares[..own],
            scratch,
        });
        let most = shares[..own].iter().copied().fold(f32::MIN_POSITIVE, f32::max);
        let distant = p.n_first as usize..own.saturating_sub(p.n_recent as usize);
        for (b, share) in shares[..n_blocks].iter_mut().enumerate() {
            *share = if distant.contains(&b) { *share / most } else { 1.0 };
        }
    });
    Ok(())
}
