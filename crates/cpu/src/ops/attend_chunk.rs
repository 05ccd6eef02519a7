//! Attention of chunks of queries over runs of KV rows.
//!
//! An item is (KV head, block of tokens, part of the keys). Keys are split only where heads and
//! blocks alone would not keep a machine busy (decode with full attention); how is a function of
//! the shape alone.

use longview_ops::{AttendChunk, AttendParams, ChunkSpan, DeviceBuffer, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::attend::{AttendBlock, KEYS, Queries, Rows};
use crate::partials::{Partials, Targets};
use crate::queue::Queue;
use crate::simd::stored::{KvElem, with_rows};
use crate::team::Cost;
use crate::views::{slice, slice_mut};

/// Query rows (token, head) of a block: widening and transposing a key is shared by so many.
const BLOCK_ROWS: usize = 256;

/// Items that keep a machine busy.
const ENOUGH_ITEMS: usize = 16;

/// Keys that are worth an item.
const MIN_KEYS: usize = 2 * KEYS;

/// Each span on its own, in order.
pub(crate) fn run(queue: &mut Queue, d: AttendChunk<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
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
    part_keys: usize,
    n_parts: usize,
}

impl Cut {
    fn new(n_tokens: usize, group: usize, n_kv_heads: usize, n_keys: usize) -> Self {
        let most = (BLOCK_ROWS / group).max(1);
        let n_blocks = n_tokens.div_ceil(most);
        let block_tokens = n_tokens.div_ceil(n_blocks.max(1)).max(1);
        let wanted = ENOUGH_ITEMS / (n_kv_heads * n_blocks).max(1);
        let n_parts = wanted.min(n_keys / MIN_KEYS).max(1);
        let part_keys = n_keys.div_ceil(n_parts).next_multiple_of(KEYS);
        Self { block_tokens, n_blocks, part_keys, n_parts }
    }
}

impl Part<'_> {
    fn run<E: KvElem>(&self, queue: &mut Queue, out: &mut [f32], lse: &mut [f32]) {
        let (n_tokens, n_keys) = (self.span.q_len as usize, self.span.n_rows as usize);
        let group = (self.p.n_q_heads / self.p.n_kv_heads) as usize;
        let cut = Cut::new(n_tokens, group, self.p.n_kv_heads as usize, n_keys);
        if n_tokens == 0 {
            return;
        }
        if cut.n_parts == 1 {
            let targets = Targets::new(out, lse);
            return self.items::<E>(queue, &cut, targets, self.p.accumulate != 0);
        }
        // The parts' results live in the op's scratch, which is put back for the next op.
        let mut shared = std::mem::take(&mut queue.shared);
        let (o, l) = (out.len() * cut.n_parts, lse.len() * cut.n_parts);
        let [part_out, part_lse] = shared.floats([o, l]);
        let targets = Targets::new(&mut *part_out, &mut *part_lse);
        self.items::<E>(queue, &cut, targets, false);
        let partials = Partials {
            out: part_out,
            lse: part_lse,
            n_parts: cut.n_parts,
            head_dim: self.p.head_dim as usize,
            accumulate: self.p.accumulate != 0,
        };
        partials.merge(&mut queue.team, out, lse);
        queue.shared = shared;
    }

    fn items<E: KvElem>(
        &self,
        queue: &mut Queue,
        cut: &Cut,
        targets: Targets<'_>,
        accumulate: bool,
    ) {
        let p = self.p;
        let (n_tokens, n_keys) = (self.span.q_len as usize, self.span.n_rows as usize);
        let (hq, hkv, dh) = (p.n_q_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
        let kv = self.span.kv;
        let elements = &kv.buffer.elements::<E>()[kv.offset..];
        let isa = queue.team.isa();
        let cost = Cost::flop(4 * n_tokens * hq * n_keys * dh);
        let n_items = hkv * cut.n_blocks * cut.n_parts;
        let diagonal = i64::from(self.span.diagonal);
        let hidden = match self.span.window {
            ChunkSpan::<CpuBackend>::ALL => i64::from(i32::MIN) * 2,
            window => diagonal + 1 - i64::from(window),
        };
        queue.team.for_each(n_items, cost, |scratch, i| {
            // The last block first: under a causal mask it has the most keys.
            let block = cut.n_blocks - 1 - i / (hkv * cut.n_parts);
            let (part, head) = (i / hkv % cut.n_parts, i % hkv);
            let first = block * cut.block_tokens;
            let last = (first + cut.block_tokens).min(n_tokens);
            let key = (part * cut.part_keys).min(n_keys);
            let end = (key + cut.part_keys).min(n_keys);
            let row = E::row_len(dh);
            let start = (head * kv.head_stride + self.span.row_start as usize + key) * row;
            let n = end - key;
            isa.run(AttendBlock {
                queries: Queries {
                    q: &self.q[first * hq * dh..last * hq * dh],
                    n_tokens: last - first,
                    n_q_heads: hq,
                    first_head: head * (hq / hkv),
                    group: hq / hkv,
                    head_dim: dh,
                    scale: p.scale,
                    out: targets.out,
                    lse: targets.lse,
                    out_token: part * n_tokens + first,
                    accumulate,
                },
                rows: Rows::<E> {
                    elements: &elements[start..start + n * row],
                    list: None,
                    weights: None,
                    head_dim: dh,
                    n,
                },
                diagonal: diagonal + first as i64 - key as i64,
                hidden: hidden + first as i64 - key as i64,
                scratch,
            });
        });
    }
}
