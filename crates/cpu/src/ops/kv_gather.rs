//! KV rows to KV rows, bit for bit: the recall.

use longview_ops::{DeviceBuffer, KvGather, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::queue::Queue;
use crate::team::Cost;
use crate::views::slice;

/// Row `dst_rows[i]` of each head becomes row `src_rows[i]`; runs of both are copied as one.
pub(crate) fn run(queue: &mut Queue, d: KvGather<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let op = Op::KvGather;
    let (h, dh) = (d.p.n_kv_heads as usize, d.p.head_dim as usize);
    let (list, stride) = (d.p.list_stride as usize, d.p.dst_head_stride as usize);
    let counts: &[u32] = slice(&d.n_rows);
    let (from, to): (&[u32], &[u32]) = (slice(&d.src_rows), slice(&d.dst_rows));
    if h == 0 || dh == 0 {
        return Ok(());
    }
    ensure_at_most(op, "number of rows", counts, list)?;
    let limit = match stride {
        0 => d.dst.len() / d.src.row_len(dh),
        stride => stride,
    };
    for (head, &n) in counts.iter().enumerate() {
        let used = head * list..head * list + n as usize;
        ensure_below(op, "row of src", &from[used.clone()], d.src.row_limit(dh))?;
        ensure_below(op, "row of dst", &to[used], limit)?;
    }
    let row = d.src.row_len(dh) * d.dst.dtype().size();
    let src_start = d.src.offset * d.dst.dtype().size();
    let src = &d.src.buffer.bytes()[src_start..];
    let src_head = d.src.head_stride * row;
    let total: usize = counts.iter().map(|&n| n as usize).sum();
    if total == 0 {
        return Ok(());
    }
    if stride == 0 {
        // A pool: every head's rows lie anywhere.
        for (head, &n) in counts.iter().enumerate() {
            let used = head * list..head * list + n as usize;
            let src = &src[head * src_head..];
            copy_runs(&from[used.clone()], &to[used], row, src, d.dst.bytes_mut());
        }
        return Ok(());
    }
    let dst = &mut d.dst.bytes_mut()[..h * stride * row];
    queue.team.for_chunks(dst, stride * row, Cost::bytes(2 * total * row), |_, head, dst| {
        let used = head * list..head * list + counts[head] as usize;
        let src = &src[head * src_head..];
        copy_runs(&from[used.clone()], &to[used], row, src, dst);
    });
    Ok(())
}

/// Copies rows, neighbours that stay neighbours at once.
fn copy_runs(from: &[u32], to: &[u32], row: usize, src: &[u8], dst: &mut [u8]) {
    let mut i = 0;
    while i < from.len() {
        let (a, b) = (from[i] as usize, to[i] as usize);
        let mut n = 1;
        while i + n < from.len() && from[i + n] as usize == a + n && to[i + n] as usize == b + n {
            n += 1;
        }
        dst[b * row..(b + n) * row].copy_from_slice(&src[a * row..(a + n) * row]);
        i += n;
    }
}
