//! Reference of the ops that move KV rows.

use longview_core::{DType, HeadId, kv8};

use super::access::{floats, ints, kv_row};
use super::buffer::RefBuffer;
use super::checks::{below, counts_fit};
use super::device::ReferenceBackend as R;
use crate::buffer::{DeviceBuffer, View};
use crate::desc::{KvGather, KvKeys, KvScatter, KvScatterTwice, RotateRows};
use crate::error::OpResult;
use crate::op::Op;

/// Row `rows[t]` of every KV head gets the key and the value of token t.
pub(super) fn kv_scatter(d: KvScatter<'_, R>) -> OpResult<()> {
    let rows = rows_of(&d)?;
    let (n_heads, width) = (d.p.n_kv_heads as usize, d.p.head_dim as usize);
    let stride = d.p.dst_head_stride as usize;
    let (k, v) = (floats(&d.k), floats(&d.v));
    for (t, row) in rows.into_iter().enumerate() {
        for head in 0..n_heads {
            let src = (t * n_heads + head) * width;
            put_row(d.dst, head * stride + row, &k[src..src + width], &v[src..src + width]);
        }
    }
    Ok(())
}

/// Into both buffers, or, where one of them does not fit, into none.
pub(super) fn kv_scatter_twice(d: KvScatterTwice<'_, R>) -> OpResult<()> {
    let calls = d.calls();
    calls.iter().try_for_each(|call| rows_of(call).map(|_| ()))?;
    calls.into_iter().try_for_each(kv_scatter)
}

/// The rows that are written, all of which are there.
fn rows_of(d: &KvScatter<'_, R>) -> OpResult<Vec<usize>> {
    d.check()?;
    let (rows, stride) = (ints(&d.rows), d.p.dst_head_stride as usize);
    rows.iter().try_for_each(|row| below(Op::KvScatter, "row", *row, stride))?;
    Ok(rows)
}

/// Makes row `row` of a key and a value.
fn put_row(dst: &mut RefBuffer, row: usize, key: &[f64], value: &[f64]) {
    let width = dst.dtype().kv_row_len(key.len());
    if dst.dtype() != DType::Q8 {
        dst.put_floats(row * width, key);
        return dst.put_floats(row * width + key.len(), value);
    }
    // They were f32: rounding them to 8 bits is defined on that.
    let narrow = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    kv8::encode(&narrow(key), &narrow(value), &mut dst.bytes[row * width..][..width]);
}

/// Row `dst_rows[i]` of `dst` gets row `src_rows[i]` of `src`, for each KV head.
pub(super) fn kv_gather(d: KvGather<'_, R>) -> OpResult<()> {
    d.check()?;
    let width = d.src.row_len(d.p.head_dim as usize);
    let (src_stride, dst_stride) = (d.src.head_stride, d.p.dst_head_stride as usize);
    let moves = moves(&d)?;
    for (head, from, to) in moves {
        let src = d.src.offset + (head * src_stride + from) * width;
        d.dst.copy_from((head * dst_stride + to) * width, d.src.buffer, src, width);
    }
    Ok(())
}

/// Each of the first rows, its key rotated.
pub(super) fn rotate_rows(d: RotateRows<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, table) = (d.p, floats(&d.table));
    let (width, half) = (p.head_dim as usize, p.rotary_dim as usize / 2);
    let (cos, sin) = table.split_at(half);
    for head in 0..p.n_kv_heads as usize {
        for row in 0..p.n_rows as usize {
            let from = kv_row(&d.src, width, HeadId::new(head), row);
            let mut to = from.clone();
            for i in 0..half {
                to[i] = from[i] * cos[i] - from[i + half] * sin[i];
                to[i + half] = from[i + half] * cos[i] + from[i] * sin[i];
            }
            d.dst.put_floats((head * p.dst_head_stride as usize + row) * 2 * width, &to);
        }
    }
    Ok(())
}

/// Every (head, source row, destination row), each seen to be inside.
fn moves(d: &KvGather<'_, R>) -> OpResult<Vec<(usize, usize, usize)>> {
    let op = Op::KvGather;
    let (src_rows, dst_rows, counts) = (ints(&d.src_rows), ints(&d.dst_rows), ints(&d.n_rows));
    let stride = d.p.list_stride as usize;
    counts_fit(op, "n_rows", &counts, stride)?;
    let mut moves = Vec::new();
    for (head, n) in counts.into_iter().enumerate() {
        for i in head * stride..head * stride + n {
            below(op, "source row", src_rows[i], d.src.row_limit(d.p.head_dim as usize))?;
            below(op, "destination row", dst_rows[i], dst_rows_of(d))?;
            moves.push((head, src_rows[i], dst_rows[i]));
        }
    }
    Ok(moves)
}

/// Rows that a list of destinations may name are below this: in a pool, all of it.
fn dst_rows_of(d: &KvGather<'_, R>) -> usize {
    match d.p.dst_head_stride as usize {
        0 => d.dst.len() / d.src.row_len(d.p.head_dim as usize).max(1),
        stride => stride,
    }
}

/// `out[h, i]` is the key of row `rows[h, i]`.
pub(super) fn kv_keys(d: KvKeys<'_, R>) -> OpResult<()> {
    d.check()?;
    let (n, width) = (d.p.n_rows as usize, d.p.head_dim as usize);
    let all = floats(&View::all(d.src.buffer));
    let mut keys = Vec::with_capacity(d.out.len);
    for (i, row) in ints(&d.rows).into_iter().enumerate() {
        below(Op::KvKeys, "row", row, d.src.row_limit(width))?;
        let at = d.src.offset + (i / n * d.src.head_stride + row) * 2 * width;
        keys.extend_from_slice(&all[at..at + width]);
    }
    let at = d.out.offset;
    d.out.buffer.put_floats(at, &keys);
    Ok(())
}
