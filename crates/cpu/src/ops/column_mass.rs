//! Attention that rows received.
//!
//! An item is a part of one KV head's list with all queries that count, some at a time, so that
//! nothing is summed twice and the result does not depend on the number of threads.

use longview_ops::{ColumnMass, DeviceBuffer, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::kernels::mass::{Mass, Sight};
use crate::queue::Queue;
use crate::simd::elem::{Elem, with_elem};
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Rows of an item.
const PART: usize = 256;

/// Query rows (token and head) that are scored at a time.
const QUERIES: usize = 32;

pub(crate) fn run(queue: &mut Queue, d: ColumnMass<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (op, stride) = (Op::ColumnMass, d.p.list_stride as usize);
    let (counts, rows) = (slice::<u32>(&d.n_rows), slice::<u32>(&d.rows));
    ensure_at_most(op, "number of rows", counts, stride)?;
    let limit = d.kv.row_limit(d.p.head_dim as usize);
    for (head, &n) in counts.iter().enumerate() {
        ensure_below(op, "row", &rows[head * stride..head * stride + n as usize], limit)?;
    }
    with_elem!(d.kv.buffer.dtype(), E => typed::<E>(queue, d));
    Ok(())
}

fn typed<E: Elem>(queue: &mut Queue, d: ColumnMass<'_, CpuBackend>) {
    let p = d.p;
    let (hq, hkv, dh) = (p.n_q_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
    let (group, stride, t) = (hq / hkv, p.list_stride as usize, p.q_len as usize);
    let (counts, rows) = (slice::<u32>(&d.n_rows), slice::<u32>(&d.rows));
    let longest = counts.iter().copied().max().unwrap_or(0) as usize;
    let (n_parts, row) = (longest.div_ceil(PART), dh.next_multiple_of(16));
    if n_parts == 0 || t == 0 {
        return;
    }
    let (q, lse) = (slice::<f32>(&d.q), slice::<f32>(&d.lse));
    let elements = &d.kv.buffer.elements::<E>()[d.kv.offset..];
    let last = i64::from(p.diagonal);
    let first = if p.window == 0 { i64::MIN } else { last - i64::from(p.window) };
    let sight = Sight { first, last };
    let out = slice_mut::<f32>(d.out);
    let listed = |head: usize, part: usize| {
        let n = counts[head] as usize;
        let (from, to) = ((part * PART).min(n), ((part + 1) * PART).min(n));
        &rows[head * stride + from..head * stride + to]
    };
    let (out_stride, isa) = (p.out_stride as usize, queue.team.isa());
    let cost = Cost::flop(2 * hq * t * longest * dh);
    // The parts' sums live in the op's scratch, which is put back for the next op.
    let mut shared = std::mem::take(&mut queue.shared);
    let [sums] = shared.floats([hkv * n_parts * group * PART]);
    queue.team.for_chunks(sums, group * PART, cost, |scratch, i, sums| {
        let (part, head) = (i / hkv, i % hkv);
        let list = listed(head, part);
        let len = list.len();
        if len == 0 {
            return;
        }
        let tokens = (QUERIES / group).max(1);
        let v = tokens * group;
        let [queries, own_lse, scores] = scratch.floats([v * row, v, v * len]);
        let sums = &mut sums[..group * len];
        sums.fill(0.0);
        let mut token = 0;
        while token < t {
            let n_tokens = (t - token).min(tokens);
            let n_q = n_tokens * group;
            for v in 0..n_q {
                let at = (p.q_start as usize + token + v / group) * hq + head * group + v % group;
                own_lse[v] = lse[at];
                let query = &mut queries[v * row..(v + 1) * row];
                query[dh..].fill(0.0);
                for (to, from) in query.iter_mut().zip(&q[at * dh..(at + 1) * dh]) {
                    *to = p.scale * from;
                }
            }
            isa.run(Mass {
                q: &queries[..n_q * row],
                q_row: row,
                lse: &own_lse[..n_q],
                first_query: token,
                group,
                elements: &elements[head * d.kv.head_stride * 2 * dh..],
                list,
                head_dim: dh,
                sight,
                scores,
                sums,
            });
            token += n_tokens;
        }
    });
    for (i, sums) in sums.chunks_exact(group * PART).enumerate() {
        let (part, head) = (i / hkv, i % hkv);
        let len = listed(head, part).len();
        for (g, sums) in sums[..group * len].chunks_exact(len.max(1)).enumerate() {
            let at = (head * group + g) * out_stride + part * PART;
            out[at..at + len].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
    queue.shared = shared;
}
