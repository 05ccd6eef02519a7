//! Scores of clusters: a softmax over all of them for each query head, pooled over the group.
//!
//! Two passes over blocks of clusters: logits with each block's maximum and sum, then, with these
//! joined, the pooled probabilities. Bound by the bytes of the centroids.

use longview_ops::{CentroidScores, DeviceBuffer, Listed, Op, OpResult, Pooling, ScoreSpan};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::kernels::dots::{Dots, ListedDots};
use crate::kernels::vector::{SoftmaxParts, SoftmaxPool};
use crate::queue::Queue;
use crate::simd::elem::{Elem, with_elem};
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Clusters of an item.
const BLOCK: usize = 512;

/// Each KV head of each span in turn.
pub(crate) fn run(queue: &mut Queue, d: CentroidScores<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (hkv, stride) = (d.p.n_kv_heads as usize, d.p.score_stride as usize);
    let (group, dh) = ((d.p.n_q_heads / d.p.n_kv_heads) as usize, d.p.head_dim as usize);
    for span in d.spans {
        let (op, counts) = (Op::CentroidScores, slice::<u32>(&span.n_clusters));
        ensure_at_most(op, "number of clusters", counts, span.room(d.p.score_stride))?;
        let Some(Listed { ids, stride }) = &span.listed else { continue };
        for (ids, n) in slice::<u32>(ids).chunks(*stride as usize).zip(counts) {
            ensure_below(op, "cluster", &ids[..*n as usize], span.cluster_stride as usize)?;
        }
    }
    let q = slice::<f32>(&d.q);
    let scores = slice_mut::<f32>(d.scores);
    for (i, span) in d.spans.iter().enumerate() {
        for head in 0..hkv {
            let n = slice::<u32>(&span.n_clusters)[head] as usize;
            let query = (span.q_index as usize * hkv + head) * group * dh;
            let problem = Problem {
                q: &q[query..query + group * dh],
                group,
                dh,
                scale: d.p.scale,
                pooling: d.p.pooling,
            };
            let out = &mut scores[(i * hkv + head) * stride..][..n];
            with_elem!(span.centroids.buffer.dtype(), E => {
                if let Some(Listed { ids, stride }) = &span.listed {
                    let first = head * span.cluster_stride as usize;
                    let centroids = &slice::<E>(&span.centroids)[first * dh..];
                    let ids = &slice::<u32>(ids)[head * *stride as usize..][..n];
                    problem.run(queue, &Rows { centroids, ids: Some(ids) }, &[], out);
                    continue;
                }
                let (centroids, sizes) = clusters::<E>(span, head, n, dh);
                if d.p.pooling >= Pooling::SumScores as u32 {
                    problem.sum(queue, centroids, out);
                } else {
                    problem.run(queue, &Rows { centroids, ids: None }, sizes, out);
                }
            });
        }
        if d.p.pooling == Pooling::SharedScores as u32 {
            let n = slice::<u32>(&span.n_clusters);
            ensure_at_most(Op::CentroidScores, "clusters of a head", n, n[0] as usize)?;
            share(&mut scores[i * hkv * stride..][..hkv * stride], stride, n[0] as usize);
        }
    }
    Ok(())
}

/// Every head's scores become the sum of all heads'.
fn share(scores: &mut [f32], stride: usize, n: usize) {
    let (sum, others) = scores.split_at_mut(stride);
    for head in others.chunks_exact(stride) {
        sum[..n].iter_mut().zip(head).for_each(|(sum, s)| *sum += s);
    }
    others.chunks_exact_mut(stride).for_each(|head| head[..n].copy_from_slice(&sum[..n]));
}

/// The centroids and sizes of one head.
fn clusters<'a, E: Elem>(
    span: &ScoreSpan<'a, CpuBackend>,
    head: usize,
    n: usize,
    dh: usize,
) -> (&'a [E], &'a [u32]) {
    let first = head * span.cluster_stride as usize;
    let centroids: &[E] = slice(&span.centroids);
    let sizes: &[u32] = slice(&span.sizes);
    (&centroids[first * dh..(first + n) * dh], &sizes[first..first + n])
}

/// The centroids of a head.
struct Rows<'a, E> {
    centroids: &'a [E],
    /// Those that are scored; without it, all.
    ids: Option<&'a [u32]>,
}

struct Problem<'a> {
    q: &'a [f32],
    group: usize,
    dh: usize,
    scale: f32,
    pooling: u32,
}

impl Problem<'_> {
    /// Sums over the group, without a softmax.
    fn sum<E: Elem>(&self, queue: &mut Queue, centroids: &[E], out: &mut [f32]) {
        let (n, group, dh) = (out.len(), self.group, self.dh);
        let (row, isa) = (dh.next_multiple_of(16), queue.team.isa());
        let [q, sum] = queue.shared.floats([group * row, row]);
        self.scale_queries(q, row);
        // A sum of products with one row is a product with the sum.
        sum.fill(0.0);
        for q in q.chunks_exact(row) {
            sum.iter_mut().zip(q).for_each(|(sum, q)| *sum += q);
        }
        let (q, cost) = (&*sum, Cost::bytes(n * dh * size_of::<E>()));
        queue.team.for_chunks(out, BLOCK, cost, |_, i, out| {
            let rows = &centroids[i * BLOCK * dh..][..out.len() * dh];
            let out_row = out.len();
            isa.run(Dots { q, q_row: row, rows, k: dh, out, out_row });
        });
    }

    fn run<E: Elem>(&self, queue: &mut Queue, rows: &Rows<'_, E>, sizes: &[u32], out: &mut [f32]) {
        let (n, group, dh) = (out.len(), self.group, self.dh);
        if n == 0 {
            return;
        }
        let isa = queue.team.isa();
        let weighted = self.pooling == Pooling::SizeWeighted as u32;
        let (row, n_blocks) = (dh.next_multiple_of(16), n.div_ceil(BLOCK));
        let [q, logits, parts] =
            queue.shared.floats([group * row, n_blocks * group * BLOCK, n_blocks * group * 2]);
        self.scale_queries(q, row);
        let q = &*q;
        let bytes = Cost::bytes(n * dh * size_of::<E>() * group.div_ceil(2));
        let logit_pieces = Pieces::of(&mut *logits, group * BLOCK);
        let part_pieces = Pieces::of(&mut *parts, group * 2);
        queue.team.for_chunks2(logit_pieces, part_pieces, bytes, |_, i, logits, parts| {
            let (first, last) = (i * BLOCK, ((i + 1) * BLOCK).min(n));
            match rows.ids {
                None => {
                    let rows = &rows.centroids[first * dh..last * dh];
                    isa.run(Dots { q, q_row: row, rows, k: dh, out: logits, out_row: BLOCK });
                }
                Some(ids) => {
                    let (all, ids) = (rows.centroids, &ids[first..last]);
                    isa.run(ListedDots {
                        q,
                        q_row: row,
                        all,
                        ids,
                        k: dh,
                        out: logits,
                        out_row: BLOCK,
                    });
                }
            }
            for (x, part) in logits.chunks_exact(BLOCK).zip(parts.chunks_exact_mut(2)) {
                let weights = weighted.then(|| &sizes[first..last]);
                (part[0], part[1]) = isa.run(SoftmaxParts { x: &x[..last - first], weights });
            }
        });
        join(parts, group);
        let (logits, totals) = (&*logits, &parts[..group * 2]);
        let take_max = self.pooling == Pooling::MaxSoftmax as u32;
        queue.team.for_chunks(out, BLOCK, Cost::bytes(n * group * 24), |_, i, out| {
            let first = i * BLOCK;
            let weights = weighted.then(|| &sizes[first..first + out.len()]);
            for (g, total) in totals.chunks_exact(2).enumerate() {
                let x = &logits[(i * group + g) * BLOCK..][..out.len()];
                let (max, factor, is_first) = (total[0], 1.0 / total[1], g == 0);
                isa.run(SoftmaxPool { x, max, factor, weights, take_max, is_first, out });
            }
        });
    }

    fn scale_queries(&self, out: &mut [f32], row: usize) {
        for (from, to) in self.q.chunks_exact(self.dh).zip(out.chunks_exact_mut(row)) {
            to.fill(0.0);
            for (to, from) in to.iter_mut().zip(from) {
                *to = from * self.scale;
            }
        }
    }
}

/// Joins the (maximum, sum) of all blocks into the first block's, for each query head.
fn join(parts: &mut [f32], group: usize) {
    let (total, rest) = parts.split_at_mut(group * 2);
    for block in rest.chunks_exact(group * 2) {
        for (t, p) in total.chunks_exact_mut(2).zip(block.chunks_exact(2)) {
            let max = if p[0] > t[0] { p[0] } else { t[0] };
            if max > f32::NEG_INFINITY {
                t[1] = t[1] * (t[0] - max).exp() + p[1] * (p[0] - max).exp();
                t[0] = max;
            }
        }
    }
}
