//! Rows of activations that were rounded to bf16 times a matrix of bf16, which is read in place:
//! each instruction adds two products to every lane, where the kernels of [`super::gemm`] and
//! [`super::matvec`] add one and widen the weights first.
//!
//! Every output is one sum in the lanes of a vector along the row, for few rows as for many: a row
//! has the same bits whatever rows are computed with it.

use std::ops::Range;

use half::bf16;

use crate::simd::pairs::{PairKernel, PairSimd};
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::team::Shared;

use super::gemm::{CHUNK, SIDE, totals};
use super::matvec::MAX_ROWS;

/// Most columns that are worked on at a time: with them six rows of x take 24 KiB of L1.
const SLICE: usize = 2048;

/// Rows of x that share a load of the weights where there are few.
const FEW: usize = 4;

/// Numbers from one row of x to the next: whole vectors, and a cache line more, because rows of 4
/// KiB side by side would fall into the same sets of L1.
pub(crate) fn row_len(k: usize) -> usize {
    k.next_multiple_of(2 * MAX_LANES) + 2 * MAX_LANES
}

/// Floats that [`Pairs`] needs for `m` rows and a block of `n` weight rows: sums that wait.
pub(crate) fn waiting_len(m: usize, n: usize, k: usize, lanes: usize) -> usize {
    if m > MAX_ROWS && slice_len(k, lanes) < k { m.min(CHUNK) * n * lanes } else { 0 }
}

/// Columns of a slice: all slices have about as many.
fn slice_len(k: usize, lanes: usize) -> usize {
    k.div_ceil(k.div_ceil(SLICE)).next_multiple_of(2 * lanes).min(k)
}

/// Rounds a row to bf16, the nearest, ties to even; zeros after it.
pub(crate) struct RoundToPairs<'a> {
    pub(crate) x: &'a [f32],
    /// As long as [`row_len`] says.
    pub(crate) to: &'a mut [bf16],
}

impl Kernel for RoundToPairs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, to } = self;
        assert_eq!(to.len(), row_len(x.len()));
        let mut p = 0;
        while p + S::LANES <= x.len() {
            S::store_bf16(to.as_mut_ptr().add(p), S::load(x.as_ptr().add(p)));
            p += S::LANES;
        }
        to[p..].fill(bf16::ZERO);
        let rest = x.len() - p;
        S::store_bf16_n(to.as_mut_ptr().add(p), rest, S::load_n(x.as_ptr().add(p), rest));
    }
}

/// Rounds numbers to bf16 as above, and keeps them as f32.
pub(crate) struct RoundFloats<'a> {
    pub(crate) x: &'a mut [f32],
}

impl Kernel for RoundFloats<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut rounded = [bf16::ZERO; MAX_LANES];
        let mut p = 0;
        while p < self.x.len() {
            let (at, n) = (self.x.as_mut_ptr().add(p), (self.x.len() - p).min(S::LANES));
            if n == S::LANES {
                S::store_bf16(rounded.as_mut_ptr(), S::load(at));
                S::store(at, S::load_bf16(rounded.as_ptr()));
            } else {
                S::store_bf16(rounded.as_mut_ptr(), S::load_n(at, n));
                S::store_n(at, n, S::load_bf16(rounded.as_ptr()));
            }
            p += S::LANES;
        }
    }
}

/// `out[r, first..] = x_r . w_o (+ bias) (+ out)` for a block of weight rows.
pub(crate) struct Pairs<'a> {
    /// `[m, row_len(k)]`, zeros after k.
    pub(crate) x: &'a [bf16],
    pub(crate) m: usize,
    /// `[n, k]`: the block.
    pub(crate) weights: &'a [bf16],
    pub(crate) k: usize,
    /// All biases.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
    /// `[m, n_out]`; only columns of this block are touched.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) n_out: usize,
    /// Column of the block's first row.
    pub(crate) first: usize,
    /// As [`waiting_len`] says.
    pub(crate) waiting: &'a mut [f32],
}

impl PairKernel for Pairs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: PairSimd>(mut self) {
        let (k, n) = (self.k, self.weights.len() / self.k);
        assert!(self.x.len() >= self.m * row_len(k));
        assert!(self.waiting.len() >= waiting_len(self.m, n, k, S::LANES));
        if self.m <= MAX_ROWS {
            return self.few::<S>(n);
        }
        let depth = slice_len(k, S::LANES);
        // With one slice no sum waits, and all rows of x pass the weights.
        let chunk = if depth < k { CHUNK } else { self.m };
        for start in (0..self.m).step_by(chunk) {
            let rows = start..self.m.min(start + chunk);
            for p in (0..k).step_by(depth) {
                self.many::<S>(n, rows.clone(), p..k.min(p + depth));
            }
        }
    }
}

impl Pairs<'_> {
    /// One pass over the weights for each [`FEW`] rows: bound by their bytes. One row after the
    /// other, as in [`super::matvec`].
    #[inline(always)]
    unsafe fn few<S: PairSimd>(&mut self, n: usize) {
        let mut r = 0;
        while r < self.m {
            for o in 0..n {
                let place = Place { first: 0, r, n, columns: 0..self.k };
                match self.m - r {
                    1 => self.tile::<S, 1, 1>(&place, o),
                    2 => self.tile::<S, 2, 1>(&place, o),
                    3 => self.tile::<S, 3, 1>(&place, o),
                    _ => self.tile::<S, FEW, 1>(&place, o),
                }
            }
            r += FEW;
        }
    }

    /// Rows of x outside, weights inside: the slice of a few rows of x stays in L1 while the
    /// weights pass.
    #[inline(always)]
    unsafe fn many<S: PairSimd>(&mut self, n: usize, rows: Range<usize>, columns: Range<usize>) {
        let mut r = rows.start;
        while r < rows.end {
            let at = Place { first: r - rows.start, r, n, columns: columns.clone() };
            // As many sums as registers allow.
            r += match (S::MR * S::NV, rows.end - r) {
                (24.., 6..) => self.row_group::<S, 6>(&at),
                (24.., 3..) => self.row_group::<S, 3>(&at),
                _ => self.row_group::<S, 1>(&at),
            };
        }
    }

    /// Returns R.
    #[inline(always)]
    unsafe fn row_group<S: PairSimd, const R: usize>(&mut self, at: &Place) -> usize {
        let mut o = 0;
        while o + SIDE <= at.n {
            self.tile::<S, R, SIDE>(at, o);
            o += SIDE;
        }
        while o < at.n {
            self.tile::<S, R, 1>(at, o);
            o += 1;
        }
        R
    }

    /// The sums of R rows of x with O weight rows, from one slice.
    #[inline(always)]
    unsafe fn tile<S: PairSimd, const R: usize, const O: usize>(&mut self, at: &Place, o: usize) {
        let waiting = self.waiting.as_mut_ptr().wrapping_add((at.first * at.n + o * R) * S::LANES);
        let mut sums = [[S::zero(); O]; R];
        if at.columns.start > 0 {
            for r in 0..R {
                for j in 0..O {
                    sums[r][j] = S::load(waiting.add((r * O + j) * S::LANES));
                }
            }
        }
        let x_row = row_len(self.k);
        let x = self.x.as_ptr().add(at.r * x_row + at.columns.start);
        let w = self.weights.as_ptr().add(o * self.k + at.columns.start);
        products::<S, R, O>(&mut sums, x, x_row, w, self.k, at.columns.len());
        if at.columns.end < self.k {
            for r in 0..R {
                for j in 0..O {
                    S::store(waiting.add((r * O + j) * S::LANES), sums[r][j]);
                }
            }
            return;
        }
        let totals = totals::<S, R, O>(&sums);
        for r in 0..R {
            let column = self.first + o;
            let out = self.out.slice((at.r + r) * self.n_out + column, O);
            for j in 0..O {
                let bias = self.bias.map_or(0.0, |b| b[column + j]);
                out[j] = totals[r * O + j] + bias + if self.add { out[j] } else { 0.0 };
            }
        }
    }
}

/// A few rows of x and the slice of them that meets a block of weights.
struct Place {
    /// The first row, counted from the chunk's first.
    first: usize,
    /// The first row.
    r: usize,
    /// Weight rows of the block.
    n: usize,
    columns: Range<usize>,
}

/// R rows of x, `x_row` apart, times O rows of w, `w_row` apart.
#[inline(always)]
unsafe fn products<S: PairSimd, const R: usize, const O: usize>(
    sums: &mut [[S::V; O]; R],
    x: *const bf16,
    x_row: usize,
    w: *const bf16,
    w_row: usize,
    k: usize,
) {
    let width = 2 * S::LANES;
    let mut p = 0;
    while p < k {
        let n = (k - p).min(width);
        let mut row = [S::load_pairs(x.add(p)); R];
        for r in 1..R {
            row[r] = S::load_pairs(x.add(r * x_row + p));
        }
        for j in 0..O {
            let at = w.add(j * w_row + p);
            let v = if n == width { S::load_pairs(at) } else { S::load_pairs_n(at, n) };
            for r in 0..R {
                sums[r][j] = S::dot_pairs(sums[r][j], v, row[r]);
            }
        }
        p += width;
    }
}
