//! Attention of a chunk over the blocks of rows that count, or over the means of the others.

use longview_ops::{AttendBlocks, DeviceBuffer, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::attend::{AttendBlock, Queries, Rows};
use crate::kernels::state::{Results, Target};
use crate::queue::Queue;
use crate::simd::stored::{KvElem, with_rows};
use crate::team::{Cost, Shared};
use crate::views::{slice, slice_mut};

/// Each tile of each KV head is one item: the rows that it attends are listed, and attended as a
/// run is.
pub(crate) fn run(queue: &mut Queue, d: AttendBlocks<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    with_rows!(d.kv.buffer.dtype(), E => attend::<E>(queue, d));
    Ok(())
}

fn attend<E: KvElem>(queue: &mut Queue, d: AttendBlocks<'_, CpuBackend>) {
    let (p, tiles, kv, q) = (d.p, d.p.tiles, d.kv, slice::<f32>(&d.q));
    let [hq, hkv, dh] =
        [p.attend.n_q_heads, p.attend.n_kv_heads, p.attend.head_dim].map(|n| n as usize);
    let (group, n_tiles, n_rows) = (hq / hkv, tiles.n_tiles(), p.n_rows as usize);
    let shares = slice::<f32>(&d.shares);
    let results = Results {
        out: Shared::new(slice_mut::<f32>(d.out)),
        lse: Shared::new(slice_mut::<f32>(d.lse)),
        accumulate: p.attend.accumulate != 0,
    };
    let elements = &kv.buffer.elements::<E>()[kv.offset..];
    let first_row = p.first_row as usize;
    // Rows of the run that a tile attends, in their order.
    let list = |head: usize, tile: usize, rows: &mut Vec<u32>| {
        rows.clear();
        let shares = &shares[(head * n_tiles + tile) * tiles.share_stride as usize..];
        let of_block = p.rows_per_block as usize;
        for (block, share) in shares[..tiles.n_blocks()].iter().enumerate() {
            if (*share >= p.threshold) == p.is_kept() {
                let start = (block * of_block).max(first_row);
                let end = ((block + 1) * of_block).min(first_row + n_rows);
                rows.extend((start..end).map(|row| (row - first_row) as u32));
            }
        }
    };
    let (isa, row) = (queue.team.isa(), E::row_len(dh));
    let cost = Cost::flop(4 * tiles.q_len as usize * hq * n_rows * dh);
    queue.team.for_each(hkv * n_tiles, cost, |scratch, i| {
        // The last tile first: it has the most rows.
        let (head, tile) = (i % hkv, n_tiles - 1 - i / hkv);
        let tokens = tiles.tokens(tile);
        let first = tiles.q_start as usize + tokens.start;
        let mut rows = std::mem::take(&mut scratch.rows);
        let mut weights = std::mem::take(&mut scratch.weights);
        list(head, tile, &mut rows);
        weights.clear();
        if !p.is_kept() {
            weights.resize(rows.len(), p.weight());
        }
        let start = (head * kv.head_stride + p.row_start as usize) * row;
        let position = tiles.position as usize + tokens.start;
        // Rows that a tile leaves out lie before it: behind its first token, what it sees of the
        // list grows by one row a token.
        let diagonal = match position.checked_sub(first_row) {
            _ if !p.is_kept() => i64::from(i32::MAX),
            Some(last) => rows.partition_point(|row| *row as usize <= last) as i64 - 1,
            None => position as i64 - first_row as i64,
        };
        isa.run(AttendBlock {
            queries: Queries {
                q: &q[first * hq * dh..(first + tokens.len()) * hq * dh],
                n_tokens: tokens.len(),
                n_q_heads: hq,
                first_head: head * group,
                group,
                head_dim: dh,
                scale: p.attend.scale,
            },
            rows: Rows::<E> {
                elements: &elements[start..start + n_rows * row],
                list: Some(&rows),
                weights: (!p.is_kept()).then_some(&weights),
                head_dim: dh,
                n: rows.len(),
            },
            diagonal,
            hidden: i64::from(i32::MIN) * 2,
            target: Target::Results(results),
            out_token: first,
            scratch,
        });
        scratch.rows = rows;
        scratch.weights = weights;
    });
}
