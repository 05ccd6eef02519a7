//! Scores of clusters: a softmax over all of them for each query head, pooled over the group.
//!
//! Two passes over blocks of clusters: terms of the softmax with each block's maximum and sum,
//! then, with these joined, the pooled probabilities. Bound by the bytes of the centroids.

use longview_ops::{
    CentroidScores, DeviceBuffer, Listed, Op, OpResult, Placed, Pooling, ScoreSpan,
};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::kernels::codes::{CodeDots, RoundVectors, Rounded};
use crate::kernels::dots::{Dots, ListedDots};
use crate::kernels::vector::{SoftmaxPool, SoftmaxTerms};
use crate::queue::Queue;
use crate::simd::elem::{Elem, with_elem};
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Runs `$body` with `$E` set to the Rust type of landmarks of `$dtype`.
macro_rules! with_landmarks {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            longview_core::DType::I8 => {
                type $E = i8;
                $body
            }
            dtype => crate::simd::elem::with_elem!(dtype, $E => $body),
        }
    };
}
pub(crate) use with_landmarks;

/// Clusters of an item.
pub(crate) const BLOCK: usize = 512;

/// Each KV head of each span in turn.
pub(crate) fn run(queue: &mut Queue, d: CentroidScores<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (hkv, stride) = (d.p.n_kv_heads as usize, d.p.score_stride as usize);
    let (group, dh) = ((d.p.n_q_heads / d.p.n_kv_heads) as usize, d.p.head_dim as usize);
    for span in d.spans {
        let (op, counts) = (Op::CentroidScores, slice::<u32>(&span.n_clusters));
        ensure_at_most(op, "number of clusters", counts, span.room(d.p.score_stride))?;
        let Some(Listed { ids, stride }) = &span.listed else { continue };
        let limit = span.placed.limit(span.cluster_stride) as usize;
        for (ids, n) in slice::<u32>(ids).chunks(*stride as usize).zip(counts) {
            ensure_below(op, "cluster", &ids[..*n as usize], limit)?;
        }
    }
    let q = slice::<f32>(&d.q);
    let scores = slice_mut::<f32>(d.scores);
    for (i, span) in d.spans.iter().enumerate() {
        let first = span.q_index as usize * hkv * group * dh;
        let problem = Problem {
            q: &q[first..first + hkv * group * dh],
            counts: slice(&span.n_clusters),
            group,
            dh,
            scale: d.p.scale,
            pooling: d.p.pooling,
        };
        let out = &mut scores[i * hkv * stride..][..hkv * stride];
        if d.p.pooling >= Pooling::SumScores as u32 {
            with_elem!(span.centroids.buffer.dtype(), E => {
                let centroids = slice::<E>(&span.centroids);
                for (head, out) in out.chunks_exact_mut(stride).enumerate() {
                    let centroids = &centroids[head * span.cluster_stride as usize * dh..];
                    problem.sum(queue, head, centroids, out);
                }
            });
        } else {
            with_landmarks!(span.centroids.buffer.dtype(), E => {
                problem.softmax(queue, span, slice::<E>(&span.centroids), out);
            });
        }
        if d.p.pooling == Pooling::SharedScores as u32 {
            let n = slice::<u32>(&span.n_clusters);
            ensure_at_most(Op::CentroidScores, "clusters of a head", n, n[0] as usize)?;
            share(out, stride, n[0] as usize);
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

struct Problem<'a> {
    /// Of all query heads.
    q: &'a [f32],
    /// Clusters of each KV head, or entries of its list.
    counts: &'a [u32],
    group: usize,
    dh: usize,
    scale: f32,
    pooling: u32,
}

impl Problem<'_> {
    /// Sums over the group of `head`, without a softmax.
    fn sum<E: Elem>(&self, queue: &mut Queue, head: usize, centroids: &[E], out: &mut [f32]) {
        let (n, group, dh) = (self.counts[head] as usize, self.group, self.dh);
        let (row, isa) = (dh.next_multiple_of(16), queue.team.isa());
        let [q, sum] = queue.shared.floats([group * row, row]);
        self.scale_queries(&self.q[head * group * dh..][..group * dh], q, row);
        // A sum of products with one row is a product with the sum.
        sum.fill(0.0);
        for q in q.chunks_exact(row) {
            sum.iter_mut().zip(q).for_each(|(sum, q)| *sum += q);
        }
        let (q, cost) = (&*sum, Cost::bytes(n * dh * size_of::<E>()));
        queue.team.for_chunks(&mut out[..n], BLOCK, cost, |_, i, out| {
            let rows = &centroids[i * BLOCK * dh..][..out.len() * dh];
            let out_row = out.len();
            isa.run(Dots { q, q_row: row, rows, k: dh, out, out_row });
        });
    }

    /// A softmax for each query head, pooled over the group of each KV head. Blocks of all heads
    /// are handed out together, so that threads meet twice whatever the number of heads.
    fn softmax<E: Landmark>(
        &self,
        queue: &mut Queue,
        span: &ScoreSpan<'_, CpuBackend>,
        centroids: &[E],
        out: &mut [f32],
    ) {
        let (group, dh, hkv) = (self.group, self.dh, self.counts.len());
        let most = self.counts.iter().copied().max().unwrap_or(0) as usize;
        if most == 0 {
            return;
        }
        let (stride, n_blocks) = (span.cluster_stride as usize, most.div_ceil(BLOCK));
        let isa = queue.team.isa();
        let weighted = self.pooling == Pooling::SizeWeighted as u32;
        let (row, items) = (dh.next_multiple_of(16), hkv * n_blocks);
        let lens = [hkv * group * row, items * group * BLOCK, items * group * 2];
        let [q, terms, parts] = queue.shared.floats(lens);
        self.scale_queries(self.q, q, row);
        let (q, sizes) = (&*q, slice::<u32>(&span.sizes));
        let total: usize = self.counts.iter().map(|n| *n as usize).sum();
        let bytes = Cost::bytes(total * dh * size_of::<E>() * group.div_ceil(2));
        let term_pieces = Pieces::of(&mut *terms, group * BLOCK);
        let part_pieces = Pieces::of(&mut *parts, group * 2);
        queue.team.for_chunks2(term_pieces, part_pieces, bytes, |_, i, terms, parts| {
            let head = i / n_blocks;
            let entries = span.listed.as_ref().map(|Listed { ids, stride }| {
                &slice::<u32>(ids)[head * *stride as usize..][..self.counts[head] as usize]
            });
            let Placed { first, step } = span.placed;
            // Without a row behind the first ones there is no list.
            let (first, step) = ((first as usize).min(stride), step as usize);
            let landmarks = Landmarks {
                all: &centroids[(head * stride + first) * dh..(head + 1) * stride * dh],
                n: self.counts[head] as usize,
                ids: entries,
                row: step * dh,
                weights: weighted.then(|| &sizes[head * stride..][..stride]),
            };
            let query = HeadQuery { q: &q[head * group * row..][..group * row], row, dh };
            let mut prepared = E::UNPREPARED;
            E::prepare(isa, query, &mut prepared);
            let to = Terms { terms, parts };
            landmarks.block_terms(isa, (query, &prepared), i % n_blocks, to);
        });
        for parts in parts.chunks_exact_mut(n_blocks * group * 2) {
            to_factors(parts, group);
        }
        let (terms, factors) = (&*terms, &*parts);
        let take_max = self.pooling == Pooling::MaxSoftmax as u32;
        let (cost, out_row) = (Cost::bytes(total * group * 8), out.len() / hkv);
        queue.team.for_chunks(out, out_row, cost, |_, head, out| {
            let terms = &terms[head * n_blocks * group * BLOCK..];
            let factors = &factors[head * n_blocks * group * 2..];
            let out = &mut out[..self.counts[head] as usize];
            pool(isa, group, take_max, (terms, factors), out);
        });
    }

    fn scale_queries(&self, q: &[f32], out: &mut [f32], row: usize) {
        scale_queries(q, self.dh, self.scale, out, row);
    }
}

/// Vectors of `dh` elements times `scale`, in rows of `row` elements, zeros after the last.
pub(crate) fn scale_queries(q: &[f32], dh: usize, scale: f32, out: &mut [f32], row: usize) {
    for (from, to) in q.chunks_exact(dh).zip(out.chunks_exact_mut(row)) {
        to.fill(0.0);
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * scale;
        }
    }
}

/// Queries of a KV head, scaled.
#[derive(Clone, Copy)]
pub(crate) struct HeadQuery<'a> {
    /// `[group, row]`, zeros after the first `dh` of each.
    pub q: &'a [f32],
    pub row: usize,
    pub dh: usize,
}

/// What a head scores.
#[derive(Clone, Copy)]
pub(crate) struct Landmarks<'a, E> {
    /// `[.., dh]`.
    pub all: &'a [E],
    /// How many are scored: the first of all, or entries of the list.
    pub n: usize,
    /// Numbers of rows of `all`, where not the first are scored.
    pub ids: Option<&'a [u32]>,
    /// Elements from one row to the next; dh without a list.
    pub row: usize,
    /// Multiplies the terms of all; lists have none.
    pub weights: Option<&'a [u32]>,
}

/// What a block of [`BLOCK`] landmarks leaves behind.
pub(crate) struct Terms<'a> {
    /// `[group, BLOCK]`: terms of the softmax, relative to the block's maximum.
    pub terms: &'a mut [f32],
    /// `[group, 2]`: maximum and sum.
    pub parts: &'a mut [f32],
}

/// Rows of landmarks that are scored together.
pub(crate) enum Picked<'a, E> {
    /// `[n, dh]`.
    Run(&'a [E]),
    /// The first n of those of `all` with these numbers, `row` elements from one to the next. The
    /// others are scored next.
    Listed { all: &'a [E], ids: &'a [u32], n: usize, row: usize },
}

/// A number of a stored landmark.
pub(crate) trait Landmark: bytemuck::Pod + Send + Sync {
    /// What products with many blocks of rows need of the queries, made once.
    type Prepared;

    /// Where [`Landmark::prepare`] writes to.
    const UNPREPARED: Self::Prepared;

    /// Prepares queries for [`Landmark::dots`].
    fn prepare(isa: SupportedIsa, query: HeadQuery<'_>, to: &mut Self::Prepared);

    /// Dot products of up to [`BLOCK`] rows with each query; `out` is `[group, BLOCK]`. `prepared`
    /// is of the same query.
    fn dots(
        isa: SupportedIsa,
        query: HeadQuery<'_>,
        prepared: &Self::Prepared,
        rows: Picked<'_, Self>,
        out: &mut [f32],
    );
}

impl<E: Elem> Landmark for E {
    type Prepared = ();

    const UNPREPARED: () = ();

    fn prepare(_: SupportedIsa, _: HeadQuery<'_>, (): &mut ()) {}

    fn dots(
        isa: SupportedIsa,
        query: HeadQuery<'_>,
        (): &(),
        rows: Picked<'_, Self>,
        out: &mut [f32],
    ) {
        let (HeadQuery { q, row: q_row, dh: k }, out_row) = (query, BLOCK);
        match rows {
            Picked::Run(rows) => isa.run(Dots { q, q_row, rows, k, out, out_row }),
            Picked::Listed { all, ids, n, row } => {
                let ids = &ids[..n];
                isa.run(ListedDots { q, q_row, all, ids, row, k, out, out_row });
            }
        }
    }
}

/// Queries rounded for products with codes; none where there are too many for it.
pub(crate) struct RoundedQueries {
    is_there: bool,
    rounded: Rounded,
}

impl Landmark for i8 {
    type Prepared = RoundedQueries;

    const UNPREPARED: RoundedQueries = RoundedQueries { is_there: false, rounded: Rounded::NONE };

    fn prepare(isa: SupportedIsa, query: HeadQuery<'_>, to: &mut RoundedQueries) {
        let HeadQuery { q, row: q_row, dh: k } = query;
        to.is_there = isa.run_bytes(RoundVectors { q, q_row, k, to: &mut to.rounded });
    }

    fn dots(
        isa: SupportedIsa,
        query: HeadQuery<'_>,
        prepared: &RoundedQueries,
        rows: Picked<'_, Self>,
        out: &mut [f32],
    ) {
        let (HeadQuery { q, row: q_row, dh: k }, out_row) = (query, BLOCK);
        let rounded = prepared.is_there.then_some(&prepared.rounded);
        let (all, ids, n, row) = match rows {
            Picked::Run(rows) => (rows, None, rows.len() / k, k),
            Picked::Listed { all, ids, n, row } => (all, Some(ids), n, row),
        };
        isa.run_bytes(CodeDots { q, q_row, rounded, all, ids, n, row, k, out, out_row });
    }
}

impl<E: Landmark> Landmarks<'_, E> {
    /// Scores one block for each query, of which `prepared` was made.
    pub fn block_terms(
        &self,
        isa: SupportedIsa,
        (query, prepared): (HeadQuery<'_>, &E::Prepared),
        block: usize,
        to: Terms<'_>,
    ) {
        let (k, Terms { terms, parts }) = (query.dh, to);
        let (first, last) = ((block * BLOCK).min(self.n), ((block + 1) * BLOCK).min(self.n));
        let rows = match self.ids {
            Some(ids) => {
                let (ids, n) = (&ids[first..self.n], last - first);
                Picked::Listed { all: self.all, ids, n, row: self.row }
            }
            None => Picked::Run(&self.all[first * k..last * k]),
        };
        E::dots(isa, query, prepared, rows, terms);
        for (x, part) in terms.chunks_exact_mut(BLOCK).zip(parts.chunks_exact_mut(2)) {
            let weights = self.weights.map(|weights| &weights[first..last]);
            let x = &mut x[..last - first];
            (part[0], part[1]) = isa.run(SoftmaxTerms { x, weights });
        }
    }
}

/// Pools the (terms, factors) of a head's blocks over its queries: the scores of its landmarks.
pub(crate) fn pool(
    isa: SupportedIsa,
    group: usize,
    take_max: bool,
    (terms, factors): (&[f32], &[f32]),
    out: &mut [f32],
) {
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        for g in 0..group {
            let item = block * group + g;
            let terms = &terms[item * BLOCK..][..out.len()];
            let (factor, is_first) = (factors[2 * item + 1], g == 0);
            isa.run(SoftmaxPool { terms, factor, take_max, is_first, out });
        }
    }
}

/// Joins the (maximum, sum) of all blocks of a KV head for each query head, and puts what a block's
/// terms are multiplied by in the place of its sum.
pub(crate) fn to_factors(parts: &mut [f32], group: usize) {
    for g in 0..group {
        let (mut most, mut sum) = (f32::NEG_INFINITY, 0.0f32);
        for block in parts.chunks_exact(group * 2) {
            let (own_most, own_sum) = (block[2 * g], block[2 * g + 1]);
            let max = if own_most > most { own_most } else { most };
            if max > f32::NEG_INFINITY {
                sum = sum * (most - max).exp() + own_sum * (own_most - max).exp();
                most = max;
            }
        }
        for block in parts.chunks_exact_mut(group * 2) {
            // Without any weight all scores are 0.
            let factor = if sum == 0.0 { 0.0 } else { (block[2 * g] - most).exp() / sum };
            block[2 * g + 1] = factor;
        }
    }
}
