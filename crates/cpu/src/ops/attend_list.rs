//! Attention of one token per sequence over lists of KV rows: the hook for recall.

use longview_ops::{AttendList, AttendParams, DeviceBuffer, ListSpan, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::kernels::attend::{AttendBlock, PART, Queries, Rows};
use crate::kernels::state::{Results, Target};
use crate::partials::Partials;
use crate::queue::Queue;
use crate::simd::stored::{KvElem, with_rows};
use crate::team::{Cost, Shared};
use crate::views::{slice, slice_mut};

/// Each span on its own, in order.
pub(crate) fn run(queue: &mut Queue, d: AttendList<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    for span in d.spans {
        let (counts, rows) = (slice::<u32>(&span.n_rows), slice::<u32>(&span.rows));
        let stride = span.list_stride as usize;
        ensure_at_most(Op::AttendList, "number of rows", counts, stride)?;
        for (head, &n) in counts.iter().enumerate() {
            let used = &rows[head * stride..head * stride + n as usize];
            ensure_below(Op::AttendList, "row", used, span.kv.row_limit(d.p.head_dim as usize))?;
        }
    }
    let q = slice::<f32>(&d.q);
    let (out, lse) = (slice_mut::<f32>(d.out), slice_mut::<f32>(d.lse));
    let (heads, dh) = (d.p.n_q_heads as usize, d.p.head_dim as usize);
    for span in d.spans {
        let rows = span.q_index as usize * heads..(span.q_index as usize + 1) * heads;
        let elements = rows.start * dh..rows.end * dh;
        with_rows!(span.kv.buffer.dtype(), E => {
            let part = Part { p: d.p, span, q: &q[elements.clone()] };
            part.run::<E>(queue, &mut out[elements], &mut lse[rows]);
        });
    }
    Ok(())
}

/// One span with its own query.
struct Part<'a> {
    p: AttendParams,
    span: &'a ListSpan<'a, CpuBackend>,
    q: &'a [f32],
}

impl Part<'_> {
    fn run<E: KvElem>(&self, queue: &mut Queue, out: &mut [f32], lse: &mut [f32]) {
        let counts: &[u32] = slice(&self.span.n_rows);
        let longest = counts.iter().copied().max().unwrap_or(0) as usize;
        let n_parts = longest.div_ceil(PART).max(1);
        let results = Results {
            out: Shared::new(&mut *out),
            lse: Shared::new(&mut *lse),
            accumulate: self.p.accumulate != 0,
        };
        if n_parts == 1 {
            return self.items::<E>(queue, n_parts, Target::Results(results));
        }
        // The parts live in the op's scratch, which is put back for the next op.
        let mut shared = std::mem::take(&mut queue.shared);
        let [n_heads, head_dim] = [self.p.n_q_heads, self.p.head_dim].map(|n| n as usize);
        let mut partials = Partials::new(&mut shared, n_parts, n_heads, head_dim);
        self.items::<E>(queue, n_parts, Target::Parts(partials.parts()));
        partials.merge(&mut queue.team, results);
        queue.shared = shared;
    }

    /// An item is a part of a KV head's list.
    fn items<E: KvElem>(&self, queue: &mut Queue, n_parts: usize, target: Target<'_>) {
        let p = self.p;
        let (hq, hkv, dh) = (p.n_q_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
        let (counts, rows) = (slice::<u32>(&self.span.n_rows), slice::<u32>(&self.span.rows));
        let (kv, stride) = (self.span.kv, self.span.list_stride as usize);
        let weights: Option<&[u32]> = self.span.weights.as_ref().map(slice);
        let elements = &kv.buffer.elements::<E>()[kv.offset..];
        let total: usize = counts.iter().map(|&n| n as usize).sum();
        let cost = Cost::bytes(total * E::row_len(dh) * size_of::<E>() * (hq / hkv).div_ceil(2));
        let isa = queue.team.isa();
        queue.team.for_each(hkv * n_parts, cost, |scratch, i| {
            let (part, head) = (i / hkv, i % hkv);
            let target = target.of_part(part);
            let n = counts[head] as usize;
            let (key, end) = ((part * PART).min(n), ((part + 1) * PART).min(n));
            let entries = head * stride + key..head * stride + end;
            let list = &rows[entries.clone()];
            let row = E::row_len(dh);
            let start = head * kv.head_stride * row;
            let elements = &elements[start..start + kv.row_limit(dh) * row];
            isa.run(AttendBlock {
                queries: Queries {
                    q: self.q,
                    n_tokens: 1,
                    n_q_heads: hq,
                    first_head: head * (hq / hkv),
                    group: hq / hkv,
                    head_dim: dh,
                    scale: p.scale,
                },
                rows: Rows::<E> {
                    elements,
                    list: Some(list),
                    weights: weights.map(|weights| &weights[entries]),
                    head_dim: dh,
                    n: list.len(),
                },
                diagonal: i64::from(i32::MAX),
                hidden: i64::from(i32::MIN),
                target,
                out_token: 0,
                scratch,
            });
        });
    }
}
