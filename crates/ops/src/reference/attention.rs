//! Reference of attention: softmax over the rows a query sees, and the merge by log-sum-exp.

use std::ops::Range;

use longview_core::HeadId;

use super::access::{floats, ints, kv_row, present, put};
use super::checks::{below, counts_fit, dot};
use super::device::{RefMut, ReferenceBackend as R};
use crate::buffer::View;
use crate::desc::{AttendChunk, AttendList, AttendParams, ChunkSpan, ListSpan, LseMerge};
use crate::error::OpResult;
use crate::op::Op;

/// What one query head took from some rows.
pub(super) struct Attended {
    out: Vec<f64>,
    lse: f64,
}

impl Attended {
    fn nothing(head_dim: usize) -> Self {
        Self { out: vec![0.0; head_dim], lse: f64::NEG_INFINITY }
    }

    /// `softmax(scale * q . k) v` over `rows` of a key and a value each.
    fn over(q: &[f64], rows: &[Vec<f64>], scale: f32) -> Self {
        Self::over_weighted(q, rows, &vec![1; rows.len()], scale)
    }

    /// The same with each row there as often as its weight says.
    pub(super) fn over_weighted(
        q: &[f64],
        rows: &[Vec<f64>],
        weights: &[usize],
        scale: f32,
    ) -> Self {
        let head_dim = q.len();
        let mut this = Self::nothing(head_dim);
        let score = |(row, weight): (&Vec<f64>, &usize)| {
            f64::from(scale) * dot(q, &row[..head_dim]) + (*weight as f64).ln()
        };
        let counted = || rows.iter().zip(weights).filter(|(_, weight)| **weight > 0);
        let scores: Vec<f64> = counted().map(score).collect();
        if scores.is_empty() {
            return this;
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        for ((row, _), s) in counted().zip(&scores) {
            let weight = (s - max).exp() / sum;
            this.out.iter_mut().zip(&row[head_dim..]).for_each(|(o, v)| *o += weight * v);
        }
        this.lse = max + sum.ln();
        this
    }

    /// Attention over the keys of both.
    fn merged(self, other: Self) -> Self {
        if self.lse == f64::NEG_INFINITY && other.lse == f64::NEG_INFINITY {
            return Self::nothing(self.out.len());
        }
        let max = self.lse.max(other.lse);
        let (a, b) = ((self.lse - max).exp(), (other.lse - max).exp());
        let mean = |(x, y): (&f64, &f64)| (a * x + b * y) / (a + b);
        let out = self.out.iter().zip(&other.out).map(mean).collect();
        Self { out, lse: max + (a + b).ln() }
    }
}

/// Where attention goes: one entry of `out` and `lse` per token and query head.
pub(super) struct Sink<'a> {
    pub(super) out: RefMut<'a>,
    pub(super) lse: RefMut<'a>,
    pub(super) accumulate: bool,
}

impl Sink<'_> {
    /// Stores or merges the result of entry `index` (token * Hq + head).
    pub(super) fn take(&mut self, index: usize, new: Attended) {
        let width = new.out.len();
        let new = if self.accumulate { self.present(index, width).merged(new) } else { new };
        put(&mut self.out, index * width, &new.out);
        put(&mut self.lse, index, &[new.lse]);
    }

    fn present(&self, index: usize, width: usize) -> Attended {
        let part = |v: &RefMut<'_>, at: usize, len: usize| {
            floats(&View { buffer: &*v.buffer, offset: v.offset + at, len })
        };
        let out = part(&self.out, index * width, width);
        Attended { out, lse: part(&self.lse, index, 1)[0] }
    }
}

/// Queries of a span over rows `row_start..`, query i up to row `i + diagonal`, and the last
/// `window` of them.
pub(super) fn attend_chunk(d: AttendChunk<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, q) = (d.p, floats(&d.q));
    let width = p.head_dim as usize;
    let mut sink = Sink { out: d.out, lse: d.lse, accumulate: p.accumulate == 1 };
    for span in d.spans {
        for kv_head in (0..p.n_kv_heads).map(HeadId) {
            let run = span.row_start as usize..(span.row_start + span.n_rows) as usize;
            let rows: Vec<_> = ordered(span, width, kv_head, run)?
                .into_iter()
                .map(|row| kv_row(&span.kv, width, kv_head, row))
                .collect();
            for i in 0..span.q_len as usize {
                let seen = &rows[visible(i, span.diagonal, span.window, rows.len())];
                for index in entries(&p, span.q_start as usize + i, kv_head) {
                    let query = &q[index * width..][..width];
                    sink.take(index, Attended::over(query, seen, p.scale));
                }
            }
        }
    }
    Ok(())
}

/// Where the rows of a run lie.
fn ordered(
    span: &ChunkSpan<'_, R>,
    width: usize,
    head: HeadId,
    run: Range<usize>,
) -> OpResult<Vec<usize>> {
    let Some(order) = &span.order else { return Ok(run.collect()) };
    let listed = &ints(&order.rows)[head.index() * order.stride as usize..][run];
    let rows = listed.to_vec();
    let limit = span.kv.row_limit(width);
    rows.iter().try_for_each(|row| below(Op::AttendChunk, "row", *row, limit))?;
    Ok(rows)
}

/// One query token per span over the listed rows of each KV head.
pub(super) fn attend_list(d: AttendList<'_, R>) -> OpResult<()> {
    d.check()?;
    let (p, q) = (d.p, floats(&d.q));
    let width = p.head_dim as usize;
    d.spans.iter().try_for_each(|span| list_in_bounds(span, width))?;
    let mut sink = Sink { out: d.out, lse: d.lse, accumulate: p.accumulate == 1 };
    for span in d.spans {
        for kv_head in (0..p.n_kv_heads).map(HeadId) {
            let list = listed(span, kv_head);
            let rows: Vec<_> =
                list.into_iter().map(|row| kv_row(&span.kv, width, kv_head, row)).collect();
            let weights = match &span.weights {
                Some(weights) => {
                    ints(weights)[kv_head.index() * span.list_stride as usize..].to_vec()
                }
                None => vec![1; rows.len()],
            };
            for index in entries(&p, span.q_index as usize, kv_head) {
                let query = &q[index * width..][..width];
                sink.take(index, Attended::over_weighted(query, &rows, &weights, p.scale));
            }
        }
    }
    Ok(())
}

/// `out` and `lse` of both attentions together, in place in the first.
pub(super) fn lse_merge(mut d: LseMerge<'_, R>) -> OpResult<()> {
    d.check()?;
    let width = d.p.head_dim as usize;
    let (other_out, other_lse) = (floats(&d.other_out), floats(&d.other_lse));
    let (out, lse) = (present(&d.out), present(&d.lse));
    for r in 0..d.p.n_rows as usize {
        let row = r * width..(r + 1) * width;
        let first = Attended { out: out[row.clone()].to_vec(), lse: lse[r] };
        let second = Attended { out: other_out[row].to_vec(), lse: other_lse[r] };
        let both = first.merged(second);
        put(&mut d.out, r * width, &both.out);
        put(&mut d.lse, r, &[both.lse]);
    }
    Ok(())
}

/// The rows that query i sees. `i + diagonal` does not fit 32 bits for a tile of the past.
fn visible(i: usize, diagonal: i32, window: u32, n_rows: usize) -> Range<usize> {
    let seen = i as i64 + i64::from(diagonal) + 1;
    let hidden = if window == ChunkSpan::<R>::ALL { 0 } else { seen - i64::from(window) };
    let row = |n: i64| n.clamp(0, n_rows as i64) as usize;
    row(hidden).min(row(seen))..row(seen)
}

/// The entries (token * Hq + query head) that read `kv_head`.
pub(super) fn entries(p: &AttendParams, token: usize, kv_head: HeadId) -> std::ops::Range<usize> {
    let group = (p.n_q_heads / p.n_kv_heads) as usize;
    let first = token * p.n_q_heads as usize + kv_head.index() * group;
    first..first + group
}

/// The rows that a span lists for one KV head.
fn listed(span: &ListSpan<'_, R>, kv_head: HeadId) -> Vec<usize> {
    let n = ints(&span.n_rows)[kv_head];
    ints(&span.rows)[kv_head.index() * span.list_stride as usize..][..n].to_vec()
}

fn list_in_bounds(span: &ListSpan<'_, R>, head_dim: usize) -> OpResult<()> {
    let op = Op::AttendList;
    counts_fit(op, "n_rows", &ints(&span.n_rows), span.list_stride as usize)?;
    let n_kv_heads = span.n_rows.len;
    let rows = (0..n_kv_heads).map(HeadId::new).flat_map(|head| listed(span, head));
    rows.into_iter().try_for_each(|row| below(op, "row", row, span.kv.row_limit(head_dim)))
}
