//! Attention of a block of query rows over a run or a list of KV rows, with online softmax.
//!
//! A query row is one (token, query head) pair; all heads of a KV head's group are in one block, so
//! that each KV row is widened and transposed once for all of them. Many rows: two small matrix
//! products per key tile (`many`), bound by FMAs. Few rows (decode): dot products straight from the
//! stored rows (`few`), bound by memory. Scores are kept in units of log2, so that the softmax is
//! `2^x`.

use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use half::f16;

use crate::scratch::Scratch;
use crate::simd::stored::KvElem;
use crate::simd::{MAX_LANES, Simd, math};
use crate::supported_isa::Kernel;
use crate::team::Shared;

use super::dots::{Strided, StridedMut};
use super::{dots, pack, tile};

/// Keys of a tile; a multiple of every instruction set's NR.
pub(crate) const KEYS: usize = 256;

/// Floats from one row of scores to the next: not a power of two, or all rows would share a few
/// cache sets.
const SCORE_ROW: usize = KEYS + 16;

/// Rows that are asked for ahead of their use (decode).
const AHEAD: usize = 32;

/// Up to here, rows are few.
const FEW: usize = 8;

/// The KV rows of one head: a run, or those that a list names.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, E> {
    /// From the row that the run starts with, or from row 0 for a list.
    pub(crate) elements: &'a [E],
    /// Row ids; each was checked to lie inside `elements`.
    pub(crate) list: Option<&'a [u32]>,
    /// How many keys each entry stands for; `None` for one each.
    pub(crate) weights: Option<&'a [u32]>,
    pub(crate) head_dim: usize,
    /// Rows of the run or list.
    pub(crate) n: usize,
}

impl<E: KvElem> Rows<'_, E> {
    /// # Safety
    /// `i < n`.
    #[inline(always)]
    unsafe fn row(&self, i: usize) -> *const E {
        let row = match self.list {
            Some(list) => *list.get_unchecked(i) as usize,
            None => i,
        };
        self.elements.as_ptr().add(row * E::row_len(self.head_dim))
    }

    /// # Safety
    /// `i < n`.
    #[inline(always)]
    unsafe fn key(&self, i: usize) -> E::Key {
        E::key(self.row(i), self.head_dim)
    }

    /// # Safety
    /// `i < n`.
    #[inline(always)]
    unsafe fn value(&self, i: usize) -> E::Value {
        E::value(self.row(i), self.head_dim)
    }

    /// # Safety
    /// `i < n`.
    #[inline(always)]
    unsafe fn codes(&self, i: usize) -> E::Codes {
        E::codes(self.row(i), self.head_dim)
    }

    /// Multiplies weights of the n values from `first` on by their scales, for each of the rows of
    /// weights.
    ///
    /// # Safety
    /// There are as many values, and `n` weights in each of the rows, rounded up to LANES.
    #[inline(always)]
    unsafe fn scale_weights<S: Simd>(
        &self,
        first: usize,
        n: usize,
        weights: StridedMut,
        rows: usize,
    ) {
        let mut i = 0;
        while i < n {
            let lanes = (n - i).min(S::LANES);
            let mut scales = [f16::ZERO; MAX_LANES];
            for (j, scale) in scales[..lanes].iter_mut().enumerate() {
                let Some(of) = E::value_scale(self.row(first + i + j), self.head_dim) else {
                    return;
                };
                *scale = of;
            }
            let scales = S::load_f16(scales.as_ptr());
            for r in 0..rows {
                let at = weights.at.add(r * weights.row + i);
                S::store(at, S::mul(S::load(at), scales));
            }
            i += S::LANES;
        }
    }

    /// Asks for both halves of row i, if there is one.
    ///
    /// # Safety
    /// The instruction set's features are there.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, i: usize) {
        if i < self.n {
            let row = self.row(i).cast::<u8>();
            let mut line = 0;
            while line < E::row_len(self.head_dim) * size_of::<E>() {
                S::prefetch(row.wrapping_add(line));
                line += 64;
            }
        }
    }

    fn check(&self) {
        let need = if self.list.is_some() { 0 } else { self.n * E::row_len(self.head_dim) };
        assert!(self.elements.len() >= need && self.list.is_none_or(|l| l.len() >= self.n));
        assert!(self.weights.is_none_or(|w| w.len() >= self.n));
    }

    /// What is added to the scores of the n keys of a tile: the logarithms of their weights, minus
    /// infinity, as for a key that is hidden, where that is 0.
    fn biases(&self, first: usize, n: usize) -> Option<[f32; KEYS]> {
        let weights = &self.weights?[first..first + n];
        let mut biases = [0.0; KEYS];
        biases.iter_mut().zip(weights).for_each(|(b, w)| *b = (*w as f32).log2());
        Some(biases)
    }
}

/// Where the queries of one block are, and where its results go.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// `[tokens, Hq, Dh]` from the block's first token on.
    pub(crate) q: &'a [f32],
    pub(crate) n_tokens: usize,
    pub(crate) n_q_heads: usize,
    /// First query head of the group.
    pub(crate) first_head: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    /// `[tokens, Hq, Dh]` and `[tokens, Hq]` that hold the block from token `out_token` on.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) lse: Shared<'a, f32>,
    pub(crate) out_token: usize,
    /// Merge into what `out` and `lse` hold.
    pub(crate) accumulate: bool,
}

impl Queries<'_> {
    fn n_rows(&self) -> usize {
        self.n_tokens * self.group
    }

    /// Index of row r among the heads of the block's tokens.
    #[inline(always)]
    fn head(&self, r: usize) -> usize {
        r / self.group * self.n_q_heads + self.first_head + r % self.group
    }

    /// Divides by the sum and writes, or merges, one row.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, r: usize, o: *const f32, max: f32, sum: f32) {
        let at = self.out_token * self.n_q_heads + self.head(r);
        let out = self.out.slice(at * self.head_dim, self.head_dim);
        let lse = &mut self.lse.slice(at, 1)[0];
        let (mut new_lse, mut factor) = (f32::NEG_INFINITY, 0.0);
        if sum != 0.0 {
            (new_lse, factor) = ((max + sum.log2()) * LN_2, 1.0 / sum);
        }
        let mut keep = 0.0;
        if self.accumulate {
            let (a, b, merged) = merge_weights(*lse, new_lse);
            (keep, factor, new_lse) = (a, factor * b, merged);
        }
        *lse = new_lse;
        let x = std::slice::from_raw_parts(o, self.head_dim);
        if keep == 0.0 {
            // Not a sum with 0 times the old contents: those may be anything.
            scaled::<S>(x, factor, out);
        } else {
            super::vector::Blend { x, add: factor, keep, out }.run::<S>();
        }
    }
}

/// How two attentions with log-sum-exps a and b mix: their weights and the merged log-sum-exp.
pub(crate) fn merge_weights(a: f32, b: f32) -> (f32, f32, f32) {
    let max = if a > b { a } else { b };
    if max == f32::NEG_INFINITY {
        return (0.0, 0.0, max);
    }
    let (x, y) = ((a - max).exp(), (b - max).exp());
    let sum = x + y;
    (x / sum, y / sum, max + sum.ln())
}

#[inline(always)]
unsafe fn scaled<S: Simd>(x: &[f32], factor: f32, out: &mut [f32]) {
    let (from, to, factor) = (x.as_ptr(), out.as_mut_ptr(), S::splat(factor));
    let mut i = 0;
    while i + S::LANES <= out.len() {
        S::store(to.add(i), S::mul(S::load(from.add(i)), factor));
        i += S::LANES;
    }
    let n = out.len() - i;
    S::store_n(to.add(i), n, S::mul(S::load_n(from.add(i), n), factor));
}

/// One block: query row of token t sees key j iff `t + hidden <= j <= t + diagonal`.
pub(crate) struct AttendBlock<'a, E> {
    pub(crate) queries: Queries<'a>,
    pub(crate) rows: Rows<'a, E>,
    pub(crate) diagonal: i64,
    pub(crate) hidden: i64,
    pub(crate) scratch: &'a mut Scratch,
}

impl<E: KvElem> Kernel for AttendBlock<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let q = &self.queries;
        let last = (q.n_tokens * q.n_q_heads * q.head_dim).max(q.head_dim) - q.head_dim;
        assert!(q.n_tokens == 0 || q.q.len() > last.saturating_sub(1));
        assert!(self.rows.head_dim == q.head_dim && q.first_head + q.group <= q.n_q_heads);
        self.rows.check();
        if q.n_rows() <= FEW { self.few::<S>() } else { self.many::<S>() }
    }
}

impl<'a, E: KvElem> AttendBlock<'a, E> {
    /// The first key behind those of the tile at `first` that token t sees, at most n.
    #[inline(always)]
    fn visible(&self, t: usize, first: usize, n: usize) -> usize {
        (t as i64 + self.diagonal + 1 - first as i64).clamp(0, n as i64) as usize
    }

    /// Keys of the tile at `first` that lie before those that token t sees, at most n.
    #[inline(always)]
    fn hidden(&self, t: usize, first: usize, n: usize) -> usize {
        (t as i64 + self.hidden - first as i64).clamp(0, n as i64) as usize
    }

    /// Keys that any token sees.
    fn limit(&self) -> usize {
        self.visible(self.queries.n_tokens.saturating_sub(1), 0, self.rows.n)
    }

    #[inline(always)]
    unsafe fn many<S: Simd>(self) {
        let (dh, n_rows) = (self.queries.head_dim, self.queries.n_rows());
        let width = dh.next_multiple_of(S::LANES);
        let padded = n_rows.next_multiple_of(S::MR);
        let mut scratch = std::mem::take(self.scratch);
        let [q, o, max, sum, keys, values, scores] = scratch.floats([
            padded * dh,
            padded * width,
            padded,
            padded * S::LANES,
            KEYS * dh,
            KEYS * width,
            S::MR * SCORE_ROW,
        ]);
        self.pack_queries::<S>(q);
        o.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        let limit = self.limit();
        let mut first = self.hidden(0, 0, limit);
        // Keys outside, queries inside: a tile of keys and values is widened once and serves all
        // query rows from L2. So every row's softmax is an online one: its maximum, its sum and its
        // unscaled output wait in scratch for the next tile.
        while first < limit {
            let n = (limit - first).min(KEYS);
            self.pack_keys::<S>(first, n, keys);
            let value = |i: usize| self.rows.value(first + i);
            pack::widen::<S, _>(value, n, dh, width, values.as_mut_ptr());
            let biases = self.rows.biases(first, n);
            let mut r = 0;
            while r < n_rows {
                let m = (n_rows - r).min(S::MR);
                let strip = Strip {
                    r,
                    m,
                    first,
                    n,
                    width,
                    biases: biases.as_ref(),
                    q: q.as_ptr().add(r * dh),
                    keys: keys.as_ptr(),
                    values: values.as_ptr(),
                    scores: scores.as_mut_ptr(),
                    o: o.as_mut_ptr().add(r * width),
                    max: max.as_mut_ptr().add(r),
                    sum: sum.as_mut_ptr().add(r * S::LANES),
                };
                self.strip::<S>(strip);
                r += S::MR;
            }
            first += KEYS;
        }
        for r in 0..n_rows {
            let total = S::sum(S::load(sum.as_ptr().add(r * S::LANES)));
            self.queries.finish::<S>(r, o.as_ptr().add(r * width), max[r], total);
        }
        *self.scratch = scratch;
    }

    #[inline(always)]
    unsafe fn pack_queries<S: Simd>(&self, packed: &mut [f32]) {
        let q = &self.queries;
        let (n_rows, dh) = (q.n_rows(), q.head_dim);
        let mut r = 0;
        while r < n_rows {
            let row = |i: usize| q.q.as_ptr().add(q.head(r + i) * dh);
            let strip = packed.as_mut_ptr().add(r * dh);
            let m = (n_rows - r).min(S::MR);
            pack::panel::<S, _>(row, m, dh, q.scale * LOG2_E, S::MR, strip);
            r += S::MR;
        }
    }

    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(&self, first: usize, n: usize, keys: &mut [f32]) {
        let dh = self.queries.head_dim;
        let mut j = 0;
        while j < n {
            let row = |i: usize| self.rows.key(first + j + i);
            let panel = keys.as_mut_ptr().add(j * dh);
            pack::panel::<S, _>(row, (n - j).min(S::NR), dh, 1.0, S::NR, panel);
            j += S::NR;
        }
    }

    /// One strip of query rows against one key tile.
    #[inline(always)]
    unsafe fn strip<S: Simd>(&self, s: Strip<'_>) {
        let (dh, group) = (self.queries.head_dim, self.queries.group);
        let seen = self.visible((s.r + s.m - 1) / group, s.first, s.n);
        let hidden = self.hidden(s.r / group, s.first, s.n);
        if hidden >= seen {
            return;
        }
        // Columns beyond what the strip's last row sees are left out, and so are those before what
        // its first row sees. Rows that see less have the rest hidden by the softmax below.
        let mut j = hidden / S::NR * S::NR;
        while j < seen {
            tile::full::<S>(tile::Tile {
                k: dh,
                a: s.q,
                a_row: 1,
                a_col: S::MR,
                b: s.keys.add(j * dh),
                b_row: S::NR,
                c: s.scores.add(j),
                c_row: SCORE_ROW,
                m: S::MR,
                n: S::NR,
                add: false,
            });
            j += S::NR;
        }
        for i in 0..s.m {
            let token = (s.r + i) / group;
            let visible = self.visible(token, s.first, s.n);
            let hidden = self.hidden(token, s.first, visible);
            let (max, sum) = (&mut *s.max.add(i), s.sum.add(i * S::LANES));
            let scores = s.scores.add(i * SCORE_ROW);
            weigh(std::slice::from_raw_parts_mut(scores, visible), s.biases);
            let keep = softmax::<S>(scores, hidden..visible, seen, max, sum);
            if keep != 1.0 {
                rescale::<S>(s.o.add(i * s.width), s.width, keep);
            }
        }
        tile::strip::<S>(tile::Tile {
            k: seen,
            a: s.scores,
            a_row: SCORE_ROW,
            a_col: 1,
            b: s.values,
            b_row: s.width,
            c: s.o,
            c_row: s.width,
            m: s.m,
            n: s.width,
            add: true,
        });
    }

    #[inline(always)]
    unsafe fn few<S: Simd>(self) {
        let (dh, n_rows) = (self.queries.head_dim, self.queries.n_rows());
        let width = dh.next_multiple_of(S::LANES);
        let mut scratch = std::mem::take(self.scratch);
        let [q, o, max, sum, scores] = scratch.floats([
            n_rows * width,
            n_rows * width,
            n_rows,
            n_rows * S::LANES,
            n_rows * SCORE_ROW,
        ]);
        self.scale_queries::<S>(width, q);
        o.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        let limit = self.limit();
        let mut first = self.hidden(0, 0, limit);
        for i in 0..AHEAD {
            self.rows.prefetch::<S>(first + i);
        }
        // Nothing is packed or widened to memory: with few rows a key is used too seldom to pay for
        // it. Keys of a tile first, then its values, which the softmax between them needs; the
        // values are prefetched with their keys, whose neighbours in memory they are.
        while first < limit {
            let n = (limit - first).min(KEYS);
            let key = |i: usize| self.rows.key(first + i);
            let to = StridedMut { at: scores.as_mut_ptr(), row: SCORE_ROW };
            let ahead = |i: usize| self.rows.prefetch::<S>(first + i + AHEAD);
            let rows = Strided { at: q.as_ptr(), row: width };
            dots::dots::<S, _>(rows, n_rows, key, ahead, n, dh, to);
            let biases = self.rows.biases(first, n);
            for r in 0..n_rows {
                let token = r / self.queries.group;
                let visible = self.visible(token, first, n);
                let hidden = self.hidden(token, first, visible);
                let row = scores.as_mut_ptr().add(r * SCORE_ROW);
                weigh(std::slice::from_raw_parts_mut(row, visible), biases.as_ref());
                let sum = sum.as_mut_ptr().add(r * S::LANES);
                let keep = softmax::<S>(row, hidden..visible, n, &mut max[r], sum);
                if keep != 1.0 {
                    rescale::<S>(o.as_mut_ptr().add(r * width), width, keep);
                }
            }
            let weights = StridedMut { at: scores.as_mut_ptr(), row: SCORE_ROW };
            self.rows.scale_weights::<S>(first, n, weights, n_rows);
            let value = |i: usize| self.rows.codes(first + i);
            let scores = Strided { at: scores.as_ptr(), row: SCORE_ROW };
            let to = StridedMut { at: o.as_mut_ptr(), row: width };
            dots::weighted::<S, _>(scores, value, n, dh, to, n_rows);
            first += KEYS;
        }
        for r in 0..n_rows {
            let total = S::sum(S::load(sum.as_ptr().add(r * S::LANES)));
            self.queries.finish::<S>(r, o.as_ptr().add(r * width), max[r], total);
        }
        *self.scratch = scratch;
    }

    #[inline(always)]
    unsafe fn scale_queries<S: Simd>(&self, width: usize, scaled: &mut [f32]) {
        let q = &self.queries;
        let dh = q.head_dim;
        for (r, to) in scaled.chunks_exact_mut(width).enumerate() {
            let from = &q.q[q.head(r) * dh..][..dh];
            self::scaled::<S>(from, q.scale * LOG2_E, &mut to[..dh]);
            to[dh..].fill(0.0);
        }
    }
}

/// MR query rows and the key tile they meet.
struct Strip<'a> {
    /// First query row, and how many.
    r: usize,
    m: usize,
    /// First key of the tile, and how many.
    first: usize,
    n: usize,
    /// Dh rounded up to LANES.
    width: usize,
    /// Of the tile's keys.
    biases: Option<&'a [f32; KEYS]>,
    q: *const f32,
    keys: *const f32,
    values: *const f32,
    scores: *mut f32,
    o: *mut f32,
    max: *mut f32,
    sum: *mut f32,
}

/// Turns the `visible` of `n` scores into `2^(score - max)` and the rest, up to n, into 0; `max`
/// and `sum` (per lane) run on. Returns the factor for what was summed before.
#[inline(always)]
unsafe fn softmax<S: Simd>(
    scores: *mut f32,
    visible: Range<usize>,
    n: usize,
    max: &mut f32,
    sum: *mut f32,
) -> f32 {
    let end = n.next_multiple_of(S::LANES);
    for j in (0..visible.start).chain(visible.end..end) {
        *scores.add(j) = f32::NEG_INFINITY;
    }
    // The maximum in a pass of its own: with it known, the second pass needs one `exp2` a score and
    // never scales back what it has summed.
    let mut best = S::splat(*max);
    let mut j = 0;
    while j < end {
        best = S::max(S::load(scores.add(j)), best);
        j += S::LANES;
    }
    let new = S::max_lane(best);
    // With everything hidden so far, any finite shift gives 2^-inf = 0.
    let shift = S::splat(if new == f32::NEG_INFINITY { 0.0 } else { new });
    let mut keep = 1.0;
    let mut total = S::load(sum);
    if new != *max {
        let factor = math::exp2::<S>(S::sub(S::splat(*max), shift));
        total = S::mul(total, factor);
        keep = S::max_lane(factor);
    }
    let mut j = 0;
    while j < end {
        let p = math::exp2::<S>(S::sub(S::load(scores.add(j)), shift));
        total = S::add(total, p);
        S::store(scores.add(j), p);
        j += S::LANES;
    }
    S::store(sum, total);
    *max = new;
    keep
}

/// Adds each key's bias to its score.
fn weigh(scores: &mut [f32], biases: Option<&[f32; KEYS]>) {
    if let Some(biases) = biases {
        scores.iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
    }
}

#[inline(always)]
unsafe fn rescale<S: Simd>(o: *mut f32, width: usize, factor: f32) {
    let factor = S::splat(factor);
    let mut i = 0;
    while i < width {
        S::store(o.add(i), S::mul(S::load(o.add(i)), factor));
        i += S::LANES;
    }
}
