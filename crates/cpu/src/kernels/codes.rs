//! Dot products of a few f32 vectors with rows of codes of 8 bits, as whole numbers.
//!
//! A vector is rounded to 15 bits: `x = unit (128 high + low)` with two bytes, so that sums of
//! products with codes are exact and one instruction makes 64 of them. A row's four codes lie in a
//! lane; so sums never meet across lanes.

use std::marker::PhantomData;

use crate::simd::MAX_LANES;
use crate::simd::bytes::{ByteKernel, ByteSimd, InTurn, RowStarts};

use super::dots::{StridedMut, rows_of};

/// Vectors that are rounded together.
const VECTORS: usize = 8;
/// Columns that are summed as whole numbers: 256 x 127 x 127 x 129 is below 2^31.
const COLUMNS: usize = 256;
/// Columns that registers take at a time.
const UNIT: usize = 32;
/// Rows of a list that are asked for ahead: most lie in runs, which end soon. (3,072 rows of 32
/// bytes in runs of 16 that no cache has, Zen 4: 36 us without, 16 with 16, 11 with 48, 9 with 96;
/// where a cache has them, 3.4.)
const AHEAD: usize = 96;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Dot products of `n_q` vectors with rows of codes.
pub(crate) struct CodeDots<'a> {
    /// `[n_q, q_row]`.
    pub(crate) q: &'a [f32],
    pub(crate) q_row: usize,
    /// These vectors, where [`RoundVectors`] has seen them.
    pub(crate) rounded: Option<&'a Rounded>,
    /// `[.., k]`.
    pub(crate) all: &'a [i8],
    /// Numbers of rows of `all`, at least n; those behind the first n are next, and are asked for
    /// ahead. Without a list, the first n rows.
    pub(crate) ids: Option<&'a [u32]>,
    /// Rows that are multiplied.
    pub(crate) n: usize,
    /// Codes from one row to the next, at least k.
    pub(crate) row: usize,
    pub(crate) k: usize,
    /// `[n_q, out_row]`; as many of each row are written as there are rows.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_row: usize,
}

/// Up to [`VECTORS`] vectors of up to [`COLUMNS`] elements, in two bytes an element.
pub(crate) struct Rounded {
    vectors: usize,
    width: usize,
    /// Whether vectors are folded: of two codes of a row a unit apart, each takes one.
    folds: bool,
    /// High and low bytes of each.
    bytes: [[[i8; COLUMNS]; 2]; VECTORS],
    /// Sums of the bytes, times -128.
    less: [[i32; 2]; VECTORS],
    units: [f32; VECTORS],
    /// Of vectors that are folded: all bits of each byte whose element is of the second half, four
    /// in the order of memory to a word.
    second: [[u32; UNIT / 4]; VECTORS],
}

/// Rounds vectors that are multiplied with rows more than once, if there are few enough.
pub(crate) struct RoundVectors<'a> {
    /// `[n_q, q_row]`.
    pub(crate) q: &'a [f32],
    pub(crate) q_row: usize,
    pub(crate) k: usize,
    pub(crate) to: &'a mut Rounded,
}

impl ByteKernel for RoundVectors<'_> {
    /// Whether they were rounded.
    type Output = bool;

    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) -> bool {
        let Self { q, q_row, k, to } = self;
        let vectors = q.len() / q_row;
        let fits = vectors <= VECTORS && k <= COLUMNS;
        if fits {
            assert!(q_row >= k);
            to.round::<S>(vectors, k, |g| &q[g * q_row..][..k]);
        }
        fits
    }
}

impl Rounded {
    pub(crate) const NONE: Self = Self {
        vectors: 0,
        width: 0,
        folds: false,
        bytes: [[[0; COLUMNS]; 2]; VECTORS],
        less: [[0; 2]; VECTORS],
        units: [0.0; VECTORS],
        second: [[0; UNIT / 4]; VECTORS],
    };

    /// Rounds `vectors` vectors of `width` elements.
    #[inline(always)]
    unsafe fn round<'q, S: ByteSimd>(
        &mut self,
        vectors: usize,
        width: usize,
        vector: impl Fn(usize) -> &'q [f32],
    ) {
        let folds = width == 2 * UNIT && (0..vectors).all(|g| is_split(vector(g)));
        (self.vectors, self.width, self.folds) = (vectors, width, folds);
        for g in 0..vectors {
            if folds {
                self.fold::<S>(g, vector(g));
            } else {
                self.set::<S>(g, vector(g));
            }
        }
    }

    /// Rounds vector `g` of two units of which one of every two elements [`UNIT`] apart is zero:
    /// the other one stands for both.
    #[inline(always)]
    unsafe fn fold<S: ByteSimd>(&mut self, g: usize, x: &[f32]) {
        let (first, second) = x.split_at(UNIT);
        let (mut folded, mut is_second) = ([0.0f32; UNIT], [0u8; UNIT]);
        for i in 0..UNIT {
            folded[i] = first[i] + second[i];
            is_second[i] = if second[i] == 0.0 { 0 } else { u8::MAX };
        }
        self.set::<S>(g, &folded);
        for (word, four) in self.second[g].iter_mut().zip(is_second.chunks_exact(4)) {
            *word = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        }
    }

    /// Rounds vector `g`, of up to [`COLUMNS`] elements.
    #[inline(always)]
    unsafe fn set<S: ByteSimd>(&mut self, g: usize, x: &[f32]) {
        let mut padded = [0.0f32; COLUMNS];
        let width = x.len().next_multiple_of(MAX_LANES);
        padded[..x.len()].copy_from_slice(x);
        let (mut most, mut not_finite) = (S::zero(), S::zero());
        for i in (0..width).step_by(S::LANES) {
            let x = S::load(padded.as_ptr().add(i));
            most = S::max(S::max(x, S::sub(S::zero(), x)), most);
            // Infinity and not-a-number become not-a-number.
            not_finite = S::fma(x, S::zero(), not_finite);
        }
        let (most, is_finite) = (S::max_lane(most), !S::sum(not_finite).is_nan());
        let unit = most / (127.0 * 128.0);
        self.units[g] = if is_finite { unit } else { f32::NAN };
        // The codes of what is no number stand for nothing: their unit is none.
        let per_unit = if is_finite && unit > 0.0 { 1.0 / unit } else { 0.0 };
        let [high, low] = &mut self.bytes[g];
        let mut sums = [[0i32; MAX_LANES]; 2];
        let mut i = 0;
        while i < width {
            for lane in 0..MAX_LANES {
                let rounded = (padded[i + lane] * per_unit).round_ties_even();
                let is_code = rounded.abs() <= 32_767.0;
                let whole: i32 = if is_code { rounded.to_int_unchecked() } else { 0 };
                let upper = ((whole + 64) >> 7).clamp(-127, 127);
                let lower = whole - 128 * upper;
                (high[i + lane], low[i + lane]) = (upper as i8, lower as i8);
                sums[0][lane] += upper;
                sums[1][lane] += i32::from(lower as i8);
            }
            i += MAX_LANES;
        }
        // Up to the end of the last unit.
        let end = width.next_multiple_of(UNIT);
        high[width..end].fill(0);
        low[width..end].fill(0);
        for plane in 0..2 {
            let mut sum = 0;
            for lane in 0..MAX_LANES {
                sum += sums[plane][lane];
            }
            self.less[g][plane] = -128 * sum;
        }
    }
}

impl ByteKernel for CodeDots<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) {
        let Self { q, q_row, rounded, all, ids, n, row: step, k, out, out_row } = self;
        let (n_rows, n_q) = (rows_of(all.len(), step, k), q.len() / q_row);
        assert!(ids.map_or(n_rows, <[u32]>::len) >= n);
        // Not `all`: that stops at the first, so it is no vector loop (a sixth of the time).
        let mut is_row = true;
        for id in ids.map_or(&[][..], |ids| &ids[..n]) {
            is_row &= (*id as usize) < n_rows;
        }
        assert!(is_row);
        assert!(q_row >= k && n <= out_row && (n_q == 0 || out.len() >= (n_q - 1) * out_row + n));
        if let Some(rounded) = rounded {
            assert!(rounded.vectors == n_q && rounded.width == k);
            let rows = Rows { all: all.as_ptr().cast(), ids, step };
            let to = StridedMut { at: out.as_mut_ptr(), row: out_row };
            Part { rounded, adds: false, rows: &rows, n, to }.run::<S>();
            return;
        }
        let mut rounded = Rounded::NONE;
        for first in (0..n_q).step_by(VECTORS) {
            let vectors = (n_q - first).min(VECTORS);
            for column in (0..k).step_by(COLUMNS) {
                let width = (k - column).min(COLUMNS);
                let own = |g: usize| &q[(first + g) * q_row + column..][..width];
                rounded.round::<S>(vectors, width, own);
                let rows = Rows { all: all.as_ptr().add(column).cast(), ids, step };
                let at = out[first * out_row..].as_mut_ptr();
                let (to, adds) = (StridedMut { at, row: out_row }, column > 0);
                Part { rounded: &rounded, adds, rows: &rows, n, to }.run::<S>();
            }
        }
    }
}

/// Whether a vector of two units has a zero in one of every two elements that are a unit apart, as
/// queries have that are split by their signs.
#[inline(always)]
fn is_split(x: &[f32]) -> bool {
    let (first, second) = x.split_at(UNIT);
    let mut is_split = true;
    for i in 0..UNIT {
        is_split &= first[i] == 0.0 || second[i] == 0.0;
    }
    is_split
}

/// Where some columns of rows begin.
struct Rows<'a> {
    all: *const u8,
    ids: Option<&'a [u32]>,
    /// Bytes from one row to the next.
    step: usize,
}

impl Rows<'_> {
    /// Rows `i..i + n` of those that `ids` names, or of all; the last stands for what is beyond.
    #[inline(always)]
    unsafe fn starts(&self, i: usize, n: usize) -> [*const u8; MAX_LANES] {
        let mut starts = [self.all; MAX_LANES];
        for j in 0..MAX_LANES {
            let i = i + j.min(n - 1);
            let id = self.ids.map_or(i, |ids| *ids.get_unchecked(i) as usize);
            starts[j] = self.all.add(id * self.step);
        }
        starts
    }

    /// Asks for the next `n` rows of a list from `i` on. Of a run of rows that share lines, every
    /// line is asked for once or twice.
    #[inline(always)]
    unsafe fn ask<S: ByteSimd>(&self, i: usize, n: usize) {
        let Some(ids) = self.ids else { return };
        let (end, rows_of_a_line) =
            (ids.len().min(i + n), if 2 * self.step <= LINE { 2 } else { 1 });
        let mut i = i;
        while i < end {
            S::prefetch(self.all.wrapping_add(*ids.get_unchecked(i) as usize * self.step));
            i += rows_of_a_line;
        }
    }
}

/// Some vectors and some columns of the first `n` rows.
struct Part<'a> {
    rounded: &'a Rounded,
    /// Whether results are added to what is there.
    adds: bool,
    rows: &'a Rows<'a>,
    n: usize,
    /// The first product of each vector, which the others follow.
    to: StridedMut,
}

impl Part<'_> {
    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) {
        let width = self.rounded.width;
        if self.rounded.folds {
            self.by::<S, Folded>();
        } else if width == UNIT {
            self.by::<S, Unit>();
        } else if width <= UNIT {
            self.by::<S, Narrow>();
        } else if const { S::LANES == MAX_LANES } && width <= 2 * UNIT {
            self.by::<S, Two>();
        } else {
            self.by::<S, Wide>();
        }
    }

    #[inline(always)]
    unsafe fn by<S: ByteSimd, W: Way>(self) {
        S::call_bytes(By { part: self, way: PhantomData::<W> });
    }

    /// Rows of one unit or less: no sum leaves its register.
    #[inline(always)]
    unsafe fn narrow<S: ByteSimd>(&self, w: [S::B; 8], n: usize, to: StridedMut) {
        for g in 0..self.rounded.vectors {
            let [high, low] = &self.rounded.bytes[g];
            let both = [high.as_ptr(), low.as_ptr()];
            let sums = S::dot_two::<8, 8>(self.start::<S>(g), &w, 0, both);
            self.put::<S>(g, sums, n, to);
        }
    }

    /// What sums of vector `g` begin with.
    #[inline(always)]
    unsafe fn start<S: ByteSimd>(&self, g: usize) -> [S::I; 2] {
        if S::BIASED {
            let less = &self.rounded.less[g];
            [S::splat_int(&raw const less[0]), S::splat_int(&raw const less[1])]
        } else {
            [S::zero_int(); 2]
        }
    }

    /// Stores the products of vector `g` with up to LANES rows.
    #[inline(always)]
    unsafe fn put<S: ByteSimd>(&self, g: usize, sums: [S::I; 2], rows: usize, to: StridedMut) {
        let to = to.at.add(g * to.row);
        let unit = S::splat(self.rounded.units[g]);
        let v = S::mul(S::to_float(S::add_128(sums[1], sums[0])), unit);
        if self.adds {
            S::store_n(to, rows, S::add(v, S::load_n(to, rows)));
        } else if rows == S::LANES {
            S::store(to, v);
        } else {
            S::store_n(to, rows, v);
        }
    }
}

/// A way to multiply LANES rows.
trait Way {
    /// Products with the first `n` of LANES rows.
    unsafe fn block<S: ByteSimd>(part: &Part<'_>, rows: impl RowStarts, n: usize, to: StridedMut);
}

/// Rows of two units and vectors that are folded: half of the products. They are whole numbers, so
/// the sums are those of [`Two`].
enum Folded {}
/// Rows of one unit.
enum Unit {}
/// Rows of less.
enum Narrow {}
/// Rows of up to two units, where codes of both fit into registers beside the sums.
enum Two {}
/// Any rows.
enum Wide {}

impl Way for Folded {
    #[inline(always)]
    unsafe fn block<S: ByteSimd>(part: &Part<'_>, rows: impl RowStarts, n: usize, to: StridedMut) {
        let first = unit_codes::<S>(rows, 0, 2 * UNIT);
        let second = unit_codes::<S>(rows, UNIT, 2 * UNIT);
        for g in 0..part.rounded.vectors {
            let (mut w, is_second) = (first, &part.rounded.second[g]);
            for j in 0..8 {
                w[j] = S::select(is_second[j], second[j], first[j]);
            }
            let [high, low] = &part.rounded.bytes[g];
            let both = [high.as_ptr(), low.as_ptr()];
            let sums = S::dot_two::<8, 8>(part.start::<S>(g), &w, 0, both);
            part.put::<S>(g, sums, n, to);
        }
    }
}

impl Way for Unit {
    #[inline(always)]
    unsafe fn block<S: ByteSimd>(part: &Part<'_>, rows: impl RowStarts, n: usize, to: StridedMut) {
        part.narrow::<S>(unit_codes::<S>(rows, 0, UNIT), n, to);
    }
}

impl Way for Narrow {
    #[inline(always)]
    unsafe fn block<S: ByteSimd>(part: &Part<'_>, rows: impl RowStarts, n: usize, to: StridedMut) {
        part.narrow::<S>(unit_codes::<S>(rows, 0, part.rounded.width), n, to);
    }
}

impl Way for Two {
    #[inline(always)]
    unsafe fn block<S: ByteSimd>(part: &Part<'_>, rows: impl RowStarts, n: usize, to: StridedMut) {
        let width = part.rounded.width;
        let units = [unit_codes::<S>(rows, 0, width), unit_codes::<S>(rows, UNIT, width)];
        for g in 0..part.rounded.vectors {
            let [high, low] = &part.rounded.bytes[g];
            let mut sums = part.start::<S>(g);
            for u in 0..2 {
                let both = [high.as_ptr().add(u * UNIT), low.as_ptr().add(u * UNIT)];
                sums = S::dot_two::<8, 8>(sums, &units[u], 0, both);
            }
            part.put::<S>(g, sums, n, to);
        }
    }
}

impl Way for Wide {
    #[inline(always)]
    unsafe fn block<S: ByteSimd>(part: &Part<'_>, rows: impl RowStarts, n: usize, to: StridedMut) {
        let vectors = part.rounded.vectors;
        let mut sums = [[S::zero_int(); 2]; VECTORS];
        for g in 0..vectors {
            sums[g] = part.start::<S>(g);
        }
        for column in (0..part.rounded.width).step_by(UNIT) {
            let w = unit_codes::<S>(rows, column, part.rounded.width);
            for g in 0..vectors {
                let [high, low] = &part.rounded.bytes[g];
                let both = [high.as_ptr().add(column), low.as_ptr().add(column)];
                sums[g] = S::dot_two::<8, 8>(sums[g], &w, 0, both);
            }
        }
        for g in 0..vectors {
            part.put::<S>(g, sums[g], n, to);
        }
    }
}

/// A part that is multiplied in one way.
struct By<'a, W> {
    part: Part<'a>,
    way: PhantomData<W>,
}

impl<W: Way> ByteKernel for By<'_, W> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) {
        let part = &self.part;
        let (rows, n, StridedMut { at, row }) = (part.rows, part.n, part.to);
        rows.ask::<S>(0, AHEAD);
        let (mut i, whole) = (0, n - n % S::LANES);
        while i < whole {
            let to = StridedMut { at: at.add(i), row };
            match rows.ids {
                Some(_) => {
                    rows.ask::<S>(i + AHEAD, S::LANES);
                    W::block::<S>(part, &rows.starts(i, S::LANES), S::LANES, to);
                }
                None => {
                    let first = rows.all.add(i * rows.step);
                    W::block::<S>(part, InTurn { first, step: rows.step }, S::LANES, to);
                }
            }
            i += S::LANES;
        }
        if i < n {
            let to = StridedMut { at: at.add(i), row };
            W::block::<S>(part, &rows.starts(i, n - i), n - i, to);
        }
    }
}

/// Codes of LANES rows from `column` on, as [`ByteSimd::dot`] takes them; what is beyond `width`
/// meets zeros.
#[inline(always)]
unsafe fn unit_codes<S: ByteSimd>(rows: impl RowStarts, column: usize, width: usize) -> [S::B; 8] {
    let [a, b, c, d] = sixteen::<S>(rows, column, width);
    let mut w = [a, b, c, d, a, b, c, d];
    if width - column > 16 {
        w[4..].copy_from_slice(&sixteen::<S>(rows, column + 16, width));
    }
    if S::BIASED {
        for j in 0..8 {
            w[j] = S::flip(w[j], 0x80);
        }
    }
    w
}

/// Sixteen codes of each row from `column` on, as far as there are `width`.
#[inline(always)]
unsafe fn sixteen<S: ByteSimd>(rows: impl RowStarts, column: usize, width: usize) -> [S::B; 4] {
    let left = width - column;
    if left >= 16 {
        return S::load_rows(rows, column);
    }
    // The last row of all may end where the buffer ends.
    let mut whole = [[0u8; 16]; MAX_LANES];
    let mut starts = [whole[0].as_ptr(); MAX_LANES];
    for l in 0..S::LANES {
        std::ptr::copy_nonoverlapping(rows.start(l).add(column), whole[l].as_mut_ptr(), left);
        starts[l] = whole[l].as_ptr();
    }
    S::load_rows(&starts, 0)
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::*;
    use crate::isa::Isa;
    use crate::supported_isa::SupportedIsa;

    fn sets() -> Vec<SupportedIsa> {
        let available = Isa::ALL.iter().copied().filter(|isa| isa.is_available());
        let chosen = available.map(|isa| SupportedIsa::choose(Some(isa)).unwrap());
        chosen.flat_map(SupportedIsa::with_each_of_byte_products).collect()
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits_near_the_true_sums() {
        let mut rng = SplitMix64::new(5);
        for (k, n_q, n) in [
            (1usize, 1, 1),
            (16, 3, 40),
            (32, 7, 100),
            (20, 2, 33),
            (47, 9, 17),
            (64, 8, 16),
            (300, 5, 35),
        ] {
            let row = k.next_multiple_of(16);
            let q: Vec<f32> = (0..n_q * row)
                .map(|i| if i % row < k { rng.next_normal() * 3.0 } else { 0.0 })
                .collect();
            let all: Vec<i8> =
                (0..50 * k).map(|_| rng.below(255) as i8).map(|c| c.max(-127)).collect();
            let ids: Vec<u32> = (0..n).map(|_| rng.below(50) as u32).collect();
            for ids in [Some(&ids[..]), None] {
                let n = ids.map_or(50, <[u32]>::len);
                let dots = |isa: SupportedIsa| {
                    let mut out = vec![7.0; n_q * (n + 3)];
                    let out_row = n + 3;
                    let (q, all) = (&q[..], &all[..]);
                    isa.run_bytes(CodeDots {
                        q,
                        q_row: row,
                        rounded: None,
                        all,
                        ids,
                        n,
                        row: k,
                        k,
                        out: &mut out,
                        out_row,
                    });
                    out
                };
                let first = dots(SupportedIsa::choose(Some(Isa::Portable)).unwrap());
                for isa in sets() {
                    assert_eq!(dots(isa), first, "{:?}: k {k}, {n_q} vectors, {n} rows", isa.isa());
                }
                for (g, out) in first.chunks_exact(n + 3).enumerate() {
                    let q = &q[g * row..][..k];
                    let most = q.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    for (i, got) in out[..n].iter().enumerate() {
                        let id = ids.map_or(i, |ids| ids[i] as usize);
                        let products = q
                            .iter()
                            .zip(&all[id * k..])
                            .map(|(q, c)| f64::from(*q) * f64::from(*c));
                        let (want, bound): (f64, f64) =
                            (products.sum(), f64::from(most) * 127.0 * k as f64 / 32_000.0);
                        assert!((f64::from(*got) - want).abs() <= bound, "{got} for {want}");
                    }
                    assert_eq!(out[n..], [7.0; 3]);
                }
            }
        }
    }

    /// Columns in another order, in which nothing is folded, have the same sums.
    #[test]
    fn vectors_split_by_their_signs_have_the_same_bits_in_half_the_products() {
        let mut rng = SplitMix64::new(6);
        let (k, n_q, n) = (2 * UNIT, 9, 100);
        for zeros in [0, 3] {
            let mut q = vec![0.0; n_q * k];
            for (i, x) in (0..n_q * UNIT).map(|i| (i, rng.next_normal())) {
                let (g, column) = (i / UNIT, i % UNIT);
                // Vectors with a few zeros, and one that is all of them.
                let x = if column < zeros || zeros > 0 && g == 4 { 0.0 } else { x };
                (q[g * k + column], q[g * k + UNIT + column]) = (x.max(0.0), x.min(0.0));
            }
            let all: Vec<i8> =
                (0..n * k).map(|_| rng.below(255) as i8).map(|c| c.max(-127)).collect();
            let mixed = |from: &dyn Fn(usize) -> usize| -> Vec<usize> {
                (0..n.max(n_q) * k).map(|i| i / k * k + from(i % k)).collect()
            };
            // Of two elements a unit apart, both come to the same half.
            let order = mixed(&|column| column / 2 + column % 2 * UNIT);
            let q_mixed: Vec<f32> = order[..q.len()].iter().map(|i| q[*i]).collect();
            let all_mixed: Vec<i8> = order[..all.len()].iter().map(|i| all[*i]).collect();
            assert!(is_split(&q[..k]) && !is_split(&q_mixed[..k]));
            let ids: Vec<u32> = (0..n).map(|_| rng.below(n) as u32).collect();
            for isa in sets() {
                let dots = |q: &[f32], all: &[i8]| {
                    let mut out = vec![0.0; n_q * n];
                    let (ids, row) = (Some(&ids[..]), k);
                    let (q_row, out_row) = (k, n);
                    isa.run_bytes(CodeDots {
                        q,
                        q_row,
                        rounded: None,
                        all,
                        ids,
                        n,
                        row,
                        k,
                        out: &mut out,
                        out_row,
                    });
                    out
                };
                assert_eq!(dots(&q, &all), dots(&q_mixed, &all_mixed), "{:?}", isa.isa());
            }
        }
    }

    #[test]
    fn a_vector_that_is_no_number_gives_none_and_one_of_zeros_gives_zero() {
        for isa in sets() {
            let (mut out, codes) = ([1.0; 3], [100i8; 16]);
            let mut q = [0.0; 48];
            (q[0], q[17]) = (f32::NAN, f32::INFINITY);
            isa.run_bytes(CodeDots {
                q: &q,
                q_row: 16,
                rounded: None,
                all: &codes,
                ids: None,
                n: 1,
                row: 16,
                k: 16,
                out: &mut out,
                out_row: 1,
            });
            assert!(out[0].is_nan() && out[1].is_nan() && out[2] == 0.0, "{out:?}");
        }
    }
}
