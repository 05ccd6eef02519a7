//! Dot products of a few f32 vectors with rows of codes of 8 bits, as whole numbers.
//!
//! A vector is rounded to 15 bits: `x = unit (128 high + low)` with two bytes, so that sums of
//! products with codes are exact and one instruction makes 64 of them. A row's four codes lie in a
//! lane; so sums never meet across lanes.

use crate::simd::MAX_LANES;
use crate::simd::bytes::ByteSimd;
use crate::supported_isa::ByteKernel;

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

/// Vectors in two bytes an element.
struct Rounded {
    /// High and low bytes of each.
    bytes: [[[i8; COLUMNS]; 2]; VECTORS],
    /// Sums of the bytes, times -128.
    less: [[i32; 2]; VECTORS],
    units: [f32; VECTORS],
    /// Of vectors that are folded: all bits of each byte whose element is of the second half, four
    /// in the order of memory to a word.
    second: [[u32; UNIT / 4]; VECTORS],
}

impl Rounded {
    const ZERO: Self = Self {
        bytes: [[[0; COLUMNS]; 2]; VECTORS],
        less: [[0; 2]; VECTORS],
        units: [0.0; VECTORS],
        second: [[0; UNIT / 4]; VECTORS],
    };

    /// Rounds vector `g` of two units of which one of every two elements [`UNIT`] apart is zero:
    /// the other one stands for both.
    #[inline(always)]
    unsafe fn fold(&mut self, g: usize, x: &[f32]) {
        let (first, second) = x.split_at(UNIT);
        let (mut folded, mut is_second) = ([0.0f32; UNIT], [0u8; UNIT]);
        for i in 0..UNIT {
            folded[i] = first[i] + second[i];
            is_second[i] = if second[i] == 0.0 { 0 } else { u8::MAX };
        }
        self.set(g, &folded);
        for (word, four) in self.second[g].iter_mut().zip(is_second.chunks_exact(4)) {
            *word = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        }
    }

    /// Rounds vector `g`, of up to [`COLUMNS`] elements. In loops over arrays, of which the
    /// compiler makes vectors: every block of rows rounds anew.
    #[inline(always)]
    unsafe fn set(&mut self, g: usize, x: &[f32]) {
        let mut padded = [0.0f32; COLUMNS];
        let width = x.len().next_multiple_of(MAX_LANES);
        padded[..x.len()].copy_from_slice(x);
        let (mut most, mut not_finite) = ([0.0f32; MAX_LANES], [0.0f32; MAX_LANES]);
        let mut i = 0;
        while i < width {
            for lane in 0..MAX_LANES {
                let x = padded[i + lane];
                most[lane] = if x.abs() > most[lane] { x.abs() } else { most[lane] };
                // Infinity and not-a-number become not-a-number.
                not_finite[lane] += x * 0.0;
            }
            i += MAX_LANES;
        }
        for lane in 1..MAX_LANES {
            most[0] = if most[lane] > most[0] { most[lane] } else { most[0] };
            not_finite[0] += not_finite[lane];
        }
        let (most, is_finite) = (most[0], !not_finite[0].is_nan());
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
        let Self { q, q_row, all, ids, n, row: step, k, out, out_row } = self;
        let (n_rows, n_q) = (rows_of(all.len(), step, k), q.len() / q_row);
        assert!(ids.map_or(n_rows, <[u32]>::len) >= n);
        // Not `all`: that stops at the first, so it is no vector loop (a sixth of the time).
        let mut is_row = true;
        for id in ids.map_or(&[][..], |ids| &ids[..n]) {
            is_row &= (*id as usize) < n_rows;
        }
        assert!(is_row);
        assert!(q_row >= k && n <= out_row && (n_q == 0 || out.len() >= (n_q - 1) * out_row + n));
        let mut rounded = Rounded::ZERO;
        for first in (0..n_q).step_by(VECTORS) {
            let vectors = (n_q - first).min(VECTORS);
            for column in (0..k).step_by(COLUMNS) {
                let width = (k - column).min(COLUMNS);
                let own = |g: usize| &q[(first + g) * q_row + column..][..width];
                let folds = k == 2 * UNIT && (0..vectors).all(|g| is_split(own(g)));
                for g in 0..vectors {
                    if folds {
                        rounded.fold(g, own(g));
                    } else {
                        rounded.set(g, own(g));
                    }
                }
                let rows = RowsAt { all: all.as_ptr().add(column).cast(), ids, step };
                let part = Part { rounded: &rounded, vectors, width, folds, adds: column > 0 };
                part.run::<S>(&rows, n, &mut out[first * out_row..], out_row);
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
struct RowsAt<'a> {
    all: *const u8,
    ids: Option<&'a [u32]>,
    /// Bytes from one row to the next.
    step: usize,
}

impl RowsAt<'_> {
    /// Rows `i..i + n`.
    #[inline(always)]
    unsafe fn block<S: ByteSimd>(&self, i: usize, n: usize) -> [*const u8; MAX_LANES] {
        let Self { all, ids, step } = *self;
        let mut at = [all; MAX_LANES];
        match ids {
            Some(ids) => {
                self.ask::<S>(i + AHEAD, S::LANES);
                for j in 0..n {
                    at[j] = all.add(*ids.get_unchecked(i + j) as usize * step);
                }
            }
            None => {
                for j in 0..n {
                    at[j] = all.add((i + j) * step);
                }
            }
        }
        at
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

/// Some vectors and some columns of all rows.
struct Part<'a> {
    rounded: &'a Rounded,
    vectors: usize,
    width: usize,
    /// Whether vectors are folded: of two codes of a row a unit apart, each takes one.
    folds: bool,
    /// Whether results are added to what is there.
    adds: bool,
}

impl Part<'_> {
    #[inline(always)]
    unsafe fn run<S: ByteSimd>(
        &self,
        rows: &RowsAt<'_>,
        n: usize,
        out: &mut [f32],
        out_row: usize,
    ) {
        rows.ask::<S>(0, AHEAD);
        let mut i = 0;
        while i < n {
            let lanes = (n - i).min(S::LANES);
            let at = rows.block::<S>(i, lanes);
            let to = StridedMut { at: out.as_mut_ptr().add(i), row: out_row };
            if self.folds {
                self.folded::<S>(&at, lanes, to);
            } else if self.width <= UNIT {
                self.narrow::<S>(&at, lanes, to);
            } else if S::LANES == MAX_LANES && self.width <= 2 * UNIT {
                self.two::<S>(&at, lanes, to);
            } else {
                self.wide::<S>(&at, lanes, to);
            }
            i += S::LANES;
        }
    }

    /// Rows of one unit: no sum leaves its register.
    #[inline(always)]
    unsafe fn narrow<S: ByteSimd>(&self, at: &[*const u8; MAX_LANES], rows: usize, to: StridedMut) {
        let w = unit_codes::<S>(at, 0, self.width);
        for g in 0..self.vectors {
            let [high, low] = &self.rounded.bytes[g];
            let both = [high.as_ptr(), low.as_ptr()];
            let sums = S::dot_two::<8, 8>(self.start::<S>(g), &w, 0, both);
            self.put::<S>(g, sums, rows, to);
        }
    }

    /// Rows of two units, where codes of both fit into registers beside the sums.
    #[inline(always)]
    unsafe fn two<S: ByteSimd>(&self, at: &[*const u8; MAX_LANES], rows: usize, to: StridedMut) {
        let units = [unit_codes::<S>(at, 0, self.width), unit_codes::<S>(at, UNIT, self.width)];
        for g in 0..self.vectors {
            let [high, low] = &self.rounded.bytes[g];
            let mut sums = self.start::<S>(g);
            for u in 0..2 {
                let both = [high.as_ptr().add(u * UNIT), low.as_ptr().add(u * UNIT)];
                sums = S::dot_two::<8, 8>(sums, &units[u], 0, both);
            }
            self.put::<S>(g, sums, rows, to);
        }
    }

    /// Rows of two units and vectors that are folded: half of the products. They are whole numbers,
    /// so the sums are those of [`Self::two`].
    #[inline(always)]
    unsafe fn folded<S: ByteSimd>(&self, at: &[*const u8; MAX_LANES], rows: usize, to: StridedMut) {
        let first = unit_codes::<S>(at, 0, self.width);
        let second = unit_codes::<S>(at, UNIT, self.width);
        for g in 0..self.vectors {
            let (mut w, is_second) = (first, &self.rounded.second[g]);
            for j in 0..8 {
                w[j] = S::select(is_second[j], second[j], first[j]);
            }
            let [high, low] = &self.rounded.bytes[g];
            let both = [high.as_ptr(), low.as_ptr()];
            let sums = S::dot_two::<8, 8>(self.start::<S>(g), &w, 0, both);
            self.put::<S>(g, sums, rows, to);
        }
    }

    #[inline(always)]
    unsafe fn wide<S: ByteSimd>(&self, at: &[*const u8; MAX_LANES], rows: usize, to: StridedMut) {
        let mut sums = [[S::zero_int(); 2]; VECTORS];
        for g in 0..self.vectors {
            sums[g] = self.start::<S>(g);
        }
        for column in (0..self.width).step_by(UNIT) {
            let w = unit_codes::<S>(at, column, self.width);
            for g in 0..self.vectors {
                let [high, low] = &self.rounded.bytes[g];
                let both = [high.as_ptr().add(column), low.as_ptr().add(column)];
                sums[g] = S::dot_two::<8, 8>(sums[g], &w, 0, both);
            }
        }
        for g in 0..self.vectors {
            self.put::<S>(g, sums[g], rows, to);
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

/// Codes of LANES rows from `column` on, as [`ByteSimd::dot`] takes them; what is beyond `width`
/// meets zeros.
#[inline(always)]
unsafe fn unit_codes<S: ByteSimd>(
    at: &[*const u8; MAX_LANES],
    column: usize,
    width: usize,
) -> [S::B; 8] {
    let mut rows = *at;
    for row in &mut rows {
        *row = row.wrapping_add(column);
    }
    let [a, b, c, d] = sixteen::<S>(&rows, width - column);
    let mut w = [a, b, c, d, a, b, c, d];
    if width - column > 16 {
        for row in &mut rows {
            *row = row.wrapping_add(16);
        }
        let upper = sixteen::<S>(&rows, width - column - 16);
        w[4..].copy_from_slice(&upper);
    }
    if S::BIASED {
        for j in 0..8 {
            w[j] = S::flip(w[j], 0x80);
        }
    }
    w
}

/// Sixteen codes of each row, of which there are `left`.
#[inline(always)]
unsafe fn sixteen<S: ByteSimd>(rows: &[*const u8; MAX_LANES], left: usize) -> [S::B; 4] {
    if left >= 16 {
        return S::load_rows(rows);
    }
    // The last row of all may end where the buffer ends.
    let mut whole = [[0u8; 16]; MAX_LANES];
    for (to, row) in whole.iter_mut().zip(rows).take(S::LANES) {
        std::ptr::copy_nonoverlapping(*row, to.as_mut_ptr(), left);
    }
    let mut at = *rows;
    for (at, row) in at.iter_mut().zip(&whole) {
        *at = row.as_ptr();
    }
    S::load_rows(&at)
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
