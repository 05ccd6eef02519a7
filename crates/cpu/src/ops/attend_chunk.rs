//! Attention of chunks of queries over runs of KV rows.
//!
//! An item is a KV head and a block of tokens; where tokens are so few that these would not keep a
//! machine busy (decode with full attention), it is a KV head and a part of the keys. Both give the
//! same bits: blocks merge the same parts in the same order.

use longview_ops::{AttendChunk, AttendParams, ChunkSpan, DeviceBuffer, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::ensure_below;
use crate::kernels::attend::{AttendBlock, PART, Queries, Rows};
use crate::kernels::state::{Results, Target};
use crate::partials::Partials;
use crate::queue::Queue;
use crate::simd::stored::{KvElem, with_rows};
use crate::team::{Cost, Shared};
use crate::views::{slice, slice_mut};

/// Least and most query rows (token, head) of a block: widening and transposing a key is shared by
/// so many.
const BLOCK_ROWS: [usize; 2] = [128, 256];

/// Up to so many query rows of a KV head, items have parts of the keys.
const FEW_ROWS: usize = 64;

/// Items that keep a machine busy.
const ENOUGH_ITEMS: usize = 16;

/// Each span on its own, in order.
pub(crate) fn run(queue: &mut Queue, d: AttendChunk<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    for span in d.spans {
        let Some(order) = &span.order else { continue };
        let run = span.row_start as usize..(span.row_start + span.n_rows) as usize;
        for list in slice::<u32>(&order.rows).chunks_exact((order.stride as usize).max(1)) {
            let limit = span.kv.row_limit(d.p.head_dim as usize);
            ensure_below(Op::AttendChunk, "row", &list[run.clone()], limit)?;
        }
    }
    let q = slice::<f32>(&d.q);
    let (out, lse) = (slice_mut::<f32>(d.out), slice_mut::<f32>(d.lse));
    for span in d.spans {
        let heads = d.p.n_q_heads as usize;
        let tokens = span.q_start as usize..(span.q_start + span.q_len) as usize;
        let rows = tokens.start * heads..tokens.end * heads;
        let dh = d.p.head_dim as usize;
        let elements = rows.start * dh..rows.end * dh;
        with_rows!(span.kv.buffer.dtype(), E => {
            let part = Part { p: d.p, span, q: &q[elements.clone()] };
            part.run::<E>(queue, &mut out[elements], &mut lse[rows]);
        });
    }
    Ok(())
}

/// One span with its own queries.
struct Part<'a> {
    p: AttendParams,
    span: &'a ChunkSpan<'a, CpuBackend>,
    q: &'a [f32],
}

/// How a span is cut.
struct Cut {
    block_tokens: usize,
    n_blocks: usize,
    /// Keys of an item, whole parts; `None` for all.
    item_keys: Option<usize>,
}

impl Cut {
    fn new(n_tokens: usize, group: usize, n_kv_heads: usize, n_keys: usize) -> Self {
        let wanted = ENOUGH_ITEMS.div_ceil(n_kv_heads);
        if n_tokens * group <= FEW_ROWS {
            let n_parts = n_keys.div_ceil(PART);
            let item_keys = (n_parts > 1).then(|| n_parts.div_ceil(wanted) * PART);
            return Self { block_tokens: n_tokens, n_blocks: 1, item_keys };
        }
        let rows = (n_tokens * group / wanted).clamp(BLOCK_ROWS[0], BLOCK_ROWS[1]);
        let n_blocks = n_tokens.div_ceil((rows / group).max(1));
        Self { block_tokens: n_tokens.div_ceil(n_blocks), n_blocks, item_keys: None }
    }
}

impl Part<'_> {
    fn run<E: KvElem>(&self, queue: &mut Queue, out: &mut [f32], lse: &mut [f32]) {
        let (n_tokens, n_keys) = (self.span.q_len as usize, self.span.n_rows as usize);
        if n_tokens == 0 {
            return;
        }
        let [n_heads, n_kv_heads, head_dim] =
            [self.p.n_q_heads, self.p.n_kv_heads, self.p.head_dim].map(|n| n as usize);
        let cut = Cut::new(n_tokens, n_heads / n_kv_heads, n_kv_heads, n_keys);
        let results = Results {
            out: Shared::new(&mut *out),
            lse: Shared::new(&mut *lse),
            accumulate: self.p.accumulate != 0,
        };
        if cut.item_keys.is_none() {
            return self.items::<E>(queue, &cut, Target::Results(results));
        }
        // The parts live in the op's scratch, which is put back for the next op.
        let mut shared = std::mem::take(&mut queue.shared);
        let n_parts = n_keys.div_ceil(PART);
        let mut partials = Partials::new(&mut shared, n_parts, n_tokens * n_heads, head_dim);
        self.items::<E>(queue, &cut, Target::Parts(partials.parts()));
        partials.merge(&mut queue.team, results);
        queue.shared = shared;
    }

    fn items<E: KvElem>(&self, queue: &mut Queue, cut: &Cut, target: Target<'_>) {
        let p = self.p;
        let (n_tokens, n_keys) = (self.span.q_len as usize, self.span.n_rows as usize);
        let (hq, hkv, dh) = (p.n_q_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
        let kv = self.span.kv;
        let all = &kv.buffer.elements::<E>()[kv.offset..];
        let order = self.span.order.as_ref();
        let order = order.map(|order| (slice::<u32>(&order.rows), order.stride as usize));
        let isa = queue.team.isa();
        let cost = Cost::flop(4 * n_tokens * hq * n_keys * dh);
        let item_keys = cut.item_keys.unwrap_or(n_keys).max(1);
        let n_cuts = n_keys.div_ceil(item_keys).max(1);
        let n_items = hkv * cut.n_blocks * n_cuts;
        let diagonal = i64::from(self.span.diagonal);
        let hidden = match self.span.window {
            ChunkSpan::<CpuBackend>::ALL => i64::from(i32::MIN) * 2,
            window => diagonal + 1 - i64::from(window),
        };
        queue.team.for_each(n_items, cost, |scratch, i| {
            // The last block first: under a causal mask it has the most keys. Parts of the keys of
            // a head one after the other: they are one stream.
            let block = cut.n_blocks - 1 - i / (hkv * n_cuts);
            let (key, head) = (i % n_cuts * item_keys, i / n_cuts % hkv);
            let first = block * cut.block_tokens;
            let last = (first + cut.block_tokens).min(n_tokens);
            let end = n_keys.min(key + item_keys);
            let (row, n) = (E::row_len(dh), end - key);
            let first_row = self.span.row_start as usize + key;
            let list = order.map(|(rows, stride)| &rows[head * stride + first_row..][..n]);
            let rows = match list {
                Some(_) => 0..kv.row_limit(dh),
                None => first_row..first_row + n,
            };
            let start = head * kv.head_stride;
            let elements = (start + rows.start) * row..(start + rows.end) * row;
            isa.run(AttendBlock {
                queries: Queries {
                    q: &self.q[first * hq * dh..last * hq * dh],
                    n_tokens: last - first,
                    n_q_heads: hq,
                    first_head: head * (hq / hkv),
                    group: hq / hkv,
                    head_dim: dh,
                    scale: p.scale,
                },
                rows: Rows::<E> { elements: &all[elements], list, weights: None, head_dim: dh, n },
                diagonal: diagonal + first as i64 - key as i64,
                hidden: hidden + first as i64 - key as i64,
                target: target.of_part(key / PART),
                out_token: first,
                scratch,
            });
        });
    }
}
