//! Attention of a block of query rows over a run or a list of KV rows, with online softmax.
//!
//! A query row is one (token, query head) pair; all heads of a KV head's group are in one block, so
//! that each KV row is widened and transposed once for all of them. Many rows: two small matrix
//! products per key tile, bound by FMAs. Few rows (decode): keys are transposed a few at a time
//! into L1, and values are read where they lie; bound by memory. Scores are kept in units of log2,
//! so that the softmax is `2^x`.
//!
//! A row's result does not depend on the rows that are computed with it. A score is summed in the
//! order of its elements; keys are cut into parts and tiles at fixed places; each part has an
//! online softmax of its own; and parts are merged in their order.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::f16;

use crate::scratch::Scratch;
use crate::simd::stored::KvElem;
use crate::simd::{Kernel, MAX_LANES, Simd, math};

use super::dots::{Strided, StridedMut};
use super::state::{Mass, Target, scale};
use super::{dots, pack, tile};

/// Keys of a tile; a multiple of every instruction set's NR.
const KEYS: usize = 256;

/// Keys of a part.
pub(crate) const PART: usize = 2 * KEYS;

/// Floats from one row of scores to the next: not a power of two, or all rows would share a few
/// cache sets.
const SCORE_ROW: usize = KEYS + 16;

/// Rows that are asked for ahead of their use (decode).
const AHEAD: usize = 32;

/// Up to here, rows are few: a key is used too seldom to pay for panels in memory.
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

/// Where the queries of one block are.
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
}

impl Queries<'_> {
    pub(super) fn n_rows(&self) -> usize {
        self.n_tokens * self.group
    }

    /// Index of row r among the heads of the block's tokens.
    #[inline(always)]
    pub(super) fn head(&self, r: usize) -> usize {
        r / self.group * self.n_q_heads + self.first_head + r % self.group
    }
}

/// One block: query row of token t sees key j iff `t + hidden <= j <= t + diagonal`.
pub(crate) struct AttendBlock<'a, E> {
    pub(crate) queries: Queries<'a>,
    pub(crate) rows: Rows<'a, E>,
    pub(crate) diagonal: i64,
    pub(crate) hidden: i64,
    pub(crate) target: Target<'a>,
    /// The token of the target that the block's first one is.
    pub(crate) out_token: usize,
    pub(crate) scratch: &'a mut Scratch,
}

impl<E: KvElem> Kernel for AttendBlock<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let q = &self.queries;
        assert!(q.q.len() >= q.n_tokens * q.n_q_heads * q.head_dim);
        assert!(self.rows.head_dim == q.head_dim && q.first_head + q.group <= q.n_q_heads);
        self.rows.check();
        let mut scratch = std::mem::take(self.scratch);
        self.attend::<S>(&mut scratch);
        *self.scratch = scratch;
    }
}

impl<E: KvElem> AttendBlock<'_, E> {
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

    fn is_few(&self) -> bool {
        self.queries.n_rows() <= FEW
    }

    #[inline(always)]
    unsafe fn attend<S: Simd>(&self, scratch: &mut Scratch) {
        let (dh, n_rows) = (self.queries.head_dim, self.queries.n_rows());
        let width = dh.next_multiple_of(S::LANES);
        let padded = n_rows.next_multiple_of(S::MR);
        let packed = if self.is_few() { 0 } else { KEYS };
        let [q, o, max, sum, keys, values, scores, all_o, all_max, all_sum] = scratch.floats([
            padded * width,
            padded * width,
            padded,
            padded * S::LANES,
            packed * dh,
            packed * width,
            S::MR.max(FEW) * SCORE_ROW,
            n_rows * dh,
            n_rows,
            n_rows,
        ]);
        if self.is_few() {
            self.scale_queries::<S>(width, q);
            for i in 0..AHEAD {
                self.rows.prefetch::<S>(self.hidden(0, 0, self.rows.n) + i);
            }
        } else {
            self.queries.pack::<S>(q);
        }
        let limit = self.limit();
        let start = self.hidden(0, 0, limit) / KEYS * KEYS;
        let mut first = start;
        let is_only = first < limit && limit <= (first / PART + 1) * PART;
        all_o.fill(0.0);
        all_max.fill(Mass::NONE.max);
        all_sum.fill(Mass::NONE.sum);
        let before = self.out_token * self.queries.n_q_heads;
        while first < limit {
            o.fill(0.0);
            max.fill(Mass::NONE.max);
            sum.fill(Mass::NONE.sum);
            let scratch = Part {
                width,
                q: q.as_ptr(),
                o: o.as_mut_ptr(),
                max: max.as_mut_ptr(),
                sum: sum.as_mut_ptr(),
                keys: keys.as_mut_ptr(),
                values: values.as_mut_ptr(),
                scores: scores.as_mut_ptr(),
            };
            let part = first / PART;
            while first < limit.min((part + 1) * PART) {
                let n = (limit - first).min(KEYS);
                let (of, part, is_first) = (self, &scratch, first == start);
                if self.is_few() {
                    S::call(KeyTile::<E, true> { of, part, first, n, is_first });
                } else {
                    S::call(KeyTile::<E, false> { of, part, first, n, is_first });
                }
                first += KEYS;
            }
            for r in 0..n_rows {
                let lanes = S::load(sum.as_ptr().add(r * S::LANES));
                let mass = Mass { max: max[r], sum: S::sum(lanes) };
                let (at, o) = (before + self.queries.head(r), &o[r * width..][..dh]);
                if !self.target.write_part::<S>(part, is_only, at, o, mass) {
                    let mut all = Mass { max: all_max[r], sum: all_sum[r] };
                    all.add::<S>(&mut all_o[r * dh..][..dh], mass, o);
                    (all_max[r], all_sum[r]) = (all.max, all.sum);
                }
            }
        }
        let Target::Results(results) = &self.target else { return };
        if is_only {
            return;
        }
        for r in 0..n_rows {
            let all = Mass { max: all_max[r], sum: all_sum[r] };
            let at = before + self.queries.head(r);
            results.write::<S>(at, &all_o[r * dh..][..dh], all);
        }
    }

    #[inline(always)]
    unsafe fn scale_queries<S: Simd>(&self, width: usize, scaled: &mut [f32]) {
        let q = &self.queries;
        let dh = q.head_dim;
        for (r, to) in scaled.chunks_exact_mut(width).take(q.n_rows()).enumerate() {
            to[..dh].copy_from_slice(&q.q[q.head(r) * dh..][..dh]);
            to[dh..].fill(0.0);
            scale::<S>(&mut to[..dh], q.scale * LOG2_E);
        }
    }

    /// A tile of n keys with many rows. Keys outside, queries inside: keys and values are widened
    /// once and serve all query rows from L2.
    #[inline(always)]
    unsafe fn many<S: Simd>(&self, part: &Part, first: usize, n: usize) {
        let (dh, n_rows) = (self.queries.head_dim, self.queries.n_rows());
        let places = pack::Places::by_lanes::<S>(dh);
        let mut j = 0;
        while j < n {
            let row = |i: usize| self.rows.key(first + j + i);
            let panel = part.keys.add(j * dh);
            pack::panel::<S, _>(row, (n - j).min(S::NR), dh, 1.0, S::NR, &places, panel);
            j += S::NR;
        }
        let codes = |i: usize| self.rows.codes(first + i);
        pack::widen::<S, _>(codes, n, dh, part.width, part.values);
        let biases = self.rows.biases(first, n);
        let mut r = 0;
        while r < n_rows {
            let m = (n_rows - r).min(S::MR);
            self.strip::<S>(part, &Strip { r, m, first, n, biases: biases.as_ref() });
            r += S::MR;
        }
    }

    /// One strip of query rows against one key tile.
    #[inline(always)]
    unsafe fn strip<S: Simd>(&self, part: &Part, s: &Strip<'_>) {
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
            tile::by_lanes::<S>(tile::Tile {
                k: dh,
                a: part.q.add(s.r * dh),
                a_row: 1,
                a_col: S::MR,
                b: part.keys.add(j * dh),
                b_row: S::NR,
                c: part.scores.add(j),
                c_row: SCORE_ROW,
                m: S::MR,
                n: S::NR,
                add: false,
            });
            j += S::NR;
        }
        self.weigh::<S>(part, s, seen);
        tile::strip::<S>(tile::Tile {
            k: seen - hidden,
            a: part.scores.add(hidden),
            a_row: SCORE_ROW,
            a_col: 1,
            b: part.values.add(hidden * part.width),
            b_row: part.width,
            c: part.o.add(s.r * part.width),
            c_row: part.width,
            m: s.m,
            n: part.width,
            add: true,
        });
    }

    /// A tile of n keys with few rows. Nothing is packed or widened to memory. Keys first, then
    /// values, which the softmax between them needs. Both passes ask for rows of the next tile,
    /// half of them each: else memory would be idle while values are summed. (A copy of the loop
    /// alone, Zen 4, two cores, three rows, heads of 64 in f16, while streaming gave 34 GB/s: 20
    /// GB/s with all rows asked for in the pass over the keys, 29 so.)
    #[inline(always)]
    unsafe fn few<S: Simd>(&self, part: &Part, first: usize, n: usize, is_first: bool) {
        let (dh, n_rows) = (self.queries.head_dim, self.queries.n_rows());
        let hidden = self.hidden(0, first, n);
        let key = |i: usize| self.rows.key(first + hidden + i);
        // Nobody has asked for the first tile, which asks for its own rows and then for all of the
        // next.
        let ahead = |i: usize| match (is_first, i % 2) {
            (true, _) => self.rows.prefetch::<S>(first + hidden + i + AHEAD),
            (false, 0) => self.rows.prefetch::<S>(first + KEYS + i / 2),
            (false, _) => {}
        };
        let to = StridedMut { at: part.scores.add(hidden), row: SCORE_ROW };
        let rows = Strided { at: part.q, row: part.width };
        dots::dots::<S, _>(rows, n_rows, key, ahead, n - hidden, dh, to);
        let biases = self.rows.biases(first, n);
        self.weigh::<S>(part, &Strip { r: 0, m: n_rows, first, n, biases: biases.as_ref() }, n);
        let codes = |i: usize| self.rows.codes(first + hidden + i);
        let ahead = |i: usize| match (is_first, i % 2) {
            (true, _) => self.rows.prefetch::<S>(first + KEYS + i),
            (false, 0) => self.rows.prefetch::<S>(first + KEYS + KEYS / 2 + i / 2),
            (false, _) => {}
        };
        let scores = Strided { at: part.scores.add(hidden), row: SCORE_ROW };
        let to = StridedMut { at: part.o, row: part.width };
        dots::weighted::<S, _>(scores, codes, ahead, n - hidden, dh, to, n_rows);
    }

    /// Turns the scores of a strip of rows into weights of values, of which `seen` are read. One
    /// pass over all rows for their maxima, then all factors for what was summed before, then the
    /// weights: so no row waits for what another one needs, and no branch hangs on a maximum.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(&self, part: &Part, s: &Strip<'_>, seen: usize) {
        const { assert!(S::MR <= MAX_LANES && FEW <= MAX_LANES) };
        let end = seen.next_multiple_of(S::LANES);
        let (mut shifts, mut keeps) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        let mut is_kept = true;
        for i in 0..s.m {
            let token = (s.r + i) / self.queries.group;
            let visible = self.visible(token, s.first, s.n);
            let hidden = self.hidden(token, s.first, visible);
            let (max, scores) = (&mut *part.max.add(s.r + i), part.scores.add(i * SCORE_ROW));
            add_biases(std::slice::from_raw_parts_mut(scores, visible), s.biases);
            let new = largest::<S>(scores, hidden..visible, end, *max);
            // With everything hidden so far, any finite shift gives 2^-inf = 0.
            shifts[i] = if new == f32::NEG_INFINITY { 0.0 } else { new };
            // Where nothing was seen before, sums are 0, and any factor will do.
            keeps[i] = if *max == f32::NEG_INFINITY { 0.0 } else { *max - shifts[i] };
            is_kept &= keeps[i] == 0.0;
            *max = new;
        }
        for at in (0..s.m).step_by(S::LANES) {
            let keeps = keeps.as_mut_ptr().add(at);
            S::store(keeps, math::exp2::<S>(S::load(keeps)));
        }
        for i in 0..s.m {
            let sum = part.sum.add((s.r + i) * S::LANES);
            let scores = part.scores.add(i * SCORE_ROW);
            exponentials::<S>(scores, end, shifts[i], keeps[i], sum);
        }
        if !is_kept {
            for i in 0..s.m {
                let o = part.o.add((s.r + i) * part.width);
                scale::<S>(std::slice::from_raw_parts_mut(o, part.width), keeps[i]);
            }
        }
        let weights = StridedMut { at: part.scores, row: SCORE_ROW };
        self.rows.scale_weights::<S>(s.first, seen, weights, s.m);
    }
}

/// A tile of n keys with few rows or with many.
struct KeyTile<'a, E, const FEW: bool> {
    of: &'a AttendBlock<'a, E>,
    part: &'a Part,
    first: usize,
    n: usize,
    /// Whether no tile comes before it.
    is_first: bool,
}

impl<E: KvElem, const FEW: bool> Kernel for KeyTile<'_, E, FEW> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { of, part, first, n, is_first } = self;
        if FEW { of.few::<S>(part, first, n, is_first) } else { of.many::<S>(part, first, n) }
    }
}

/// The scratch of a part of the keys: its online softmax waits there from tile to tile.
struct Part {
    /// Dh rounded up to LANES.
    width: usize,
    /// All query rows: in strips of MR, or, where they are few, `[rows, width]`.
    q: *const f32,
    /// Sums of values times weights: `[rows, width]`.
    o: *mut f32,
    max: *mut f32,
    /// `[rows, LANES]`.
    sum: *mut f32,
    /// Panels of NR keys; not used with few rows.
    keys: *mut f32,
    /// `[KEYS, width]`; not used with few rows.
    values: *mut f32,
    /// MR rows, or all few.
    scores: *mut f32,
}

/// Query rows and the key tile they meet.
struct Strip<'a> {
    /// First query row, and how many.
    r: usize,
    m: usize,
    /// First key of the tile, and how many.
    first: usize,
    n: usize,
    /// Of the tile's keys.
    biases: Option<&'a [f32; KEYS]>,
}

/// The largest of `max` and the `visible` of `end` scores; all others become minus infinity.
#[inline(always)]
unsafe fn largest<S: Simd>(scores: *mut f32, visible: Range<usize>, end: usize, max: f32) -> f32 {
    for j in (0..visible.start).chain(visible.end..end) {
        *scores.add(j) = f32::NEG_INFINITY;
    }
    let mut best = S::splat(max);
    let mut j = 0;
    while j < end {
        best = S::max(S::load(scores.add(j)), best);
        j += S::LANES;
    }
    S::max_lane(best)
}

/// Turns `end` scores into `2^(score - shift)` and adds them to `keep` times `sum`, lane by lane.
#[inline(always)]
unsafe fn exponentials<S: Simd>(
    scores: *mut f32,
    end: usize,
    shift: f32,
    keep: f32,
    sum: *mut f32,
) {
    let shift = S::splat(shift);
    let mut total = S::mul(S::load(sum), S::splat(keep));
    let mut j = 0;
    while j < end {
        let p = math::exp2::<S>(S::sub(S::load(scores.add(j)), shift));
        total = S::add(total, p);
        S::store(scores.add(j), p);
        j += S::LANES;
    }
    S::store(sum, total);
}

/// Adds each key's bias to its score.
fn add_biases(scores: &mut [f32], biases: Option<&[f32; KEYS]>) {
    if let Some(biases) = biases {
        scores.iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
    }
}
