//! Many rows of activations times a matrix of any plain type, in full f32.
//!
//! Every output is one sum in the lanes of a vector along the row, as in [`super::matvec`]: a row
//! has the same bits whatever rows are computed with it. Each worker takes a block of weight rows,
//! widens a slice of it once, and multiplies it with all rows of activations while it is in L2.

use std::ops::Range;

use crate::simd::elem::Elem;
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::team::Shared;

use super::pack;

/// Weight rows that are multiplied side by side.
pub(crate) const SIDE: usize = 4;

/// Most columns that are worked on at a time: with them six rows of x take 24 KiB of L1.
const SLICE: usize = 1024;

/// Rows of x whose sums wait in scratch where a row has more than one slice.
pub(super) const CHUNK: usize = 96;

/// The most sums that a tile has.
const MAX_SUMS: usize = 24;

/// Floats that [`Block`] needs for a block of `n` weight rows: widened weights, and sums that wait.
pub(crate) fn scratch_lens(m: usize, n: usize, k: usize, lanes: usize) -> [usize; 2] {
    let depth = slice_len(k, lanes);
    let waiting = if depth < k { m.min(CHUNK) * n * lanes } else { 0 };
    [n * stride(depth, lanes), waiting]
}

/// Floats from one widened row to the next: whole vectors, and one more, because rows of 4 KiB side
/// by side would fall into the same sets of L1 (Zen 4, 2048 columns: 75 GFLOP/s against 94).
fn stride(columns: usize, lanes: usize) -> usize {
    columns.next_multiple_of(lanes) + lanes
}

/// Columns of a slice: all slices have about as many.
fn slice_len(k: usize, lanes: usize) -> usize {
    k.div_ceil(k.div_ceil(SLICE)).next_multiple_of(lanes).min(k)
}

/// A block of columns of the output.
pub(crate) struct Block<'a, E> {
    /// `[m, k]`.
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    /// `[n, k]`: the block's weight rows.
    pub(crate) weights: &'a [E],
    pub(crate) k: usize,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
    /// `[m, n_out]`; only columns of this block are touched.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) n_out: usize,
    /// Column of the block's first weight row.
    pub(crate) first: usize,
    /// As [`scratch_lens`] says.
    pub(crate) wide: &'a mut [f32],
    pub(crate) waiting: &'a mut [f32],
}

impl<E: Elem> Kernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (k, n) = (self.k, self.weights.len() / self.k);
        let need = scratch_lens(self.m, n, k, S::LANES);
        assert!(self.x.len() >= self.m * k);
        assert!(self.wide.len() >= need[0] && self.waiting.len() >= need[1]);
        let depth = slice_len(k, S::LANES);
        // With one slice no sum waits, and all rows of x pass the widened weights.
        let chunk = if depth < k { CHUNK } else { self.m };
        for start in (0..self.m).step_by(chunk) {
            let rows = start..self.m.min(start + chunk);
            for p in (0..k).step_by(depth) {
                let columns = p..k.min(p + depth);
                self.widen::<S>(n, columns.clone());
                self.multiply::<S>(n, rows.clone(), columns);
            }
        }
    }
}

impl<E: Elem> Block<'_, E> {
    #[inline(always)]
    unsafe fn widen<S: Simd>(&mut self, n: usize, columns: Range<usize>) {
        let row = |i: usize| self.weights.as_ptr().add(i * self.k + columns.start);
        let stride = stride(columns.len(), S::LANES);
        pack::widen::<S, _>(row, n, columns.len(), stride, self.wide.as_mut_ptr());
    }

    /// Rows of x outside, weights inside: the slice of a few rows of x stays in L1 while the
    /// weights pass.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&mut self, n: usize, rows: Range<usize>, columns: Range<usize>) {
        let mut r = rows.start;
        while r < rows.end {
            let at = Place { first: r - rows.start, r, n, columns: columns.clone() };
            // As many sums as registers allow.
            r += match (S::MR * S::NV, rows.end - r) {
                (16.., 6..) => self.row_group::<S, 6>(at),
                (12.., 3..) => self.row_group::<S, 3>(at),
                (_, 2..) if S::MR * S::NV >= 12 => self.row_group::<S, 2>(at),
                _ => self.row_group::<S, 1>(at),
            };
        }
    }

    /// Returns R.
    #[inline(always)]
    unsafe fn row_group<S: Simd, const R: usize>(&mut self, at: Place) -> usize {
        let mut o = 0;
        while o + SIDE <= at.n {
            self.tile::<S, R, SIDE>(&at, o);
            o += SIDE;
        }
        while o < at.n {
            self.tile::<S, R, 1>(&at, o);
            o += 1;
        }
        R
    }

    /// The sums of R rows of x with O weight rows, from one slice.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const O: usize>(&mut self, at: &Place, o: usize) {
        let depth = at.columns.len();
        let stride = stride(depth, S::LANES);
        let waiting = self.waiting.as_mut_ptr().wrapping_add((at.first * at.n + o * R) * S::LANES);
        let mut sums = [[S::zero(); O]; R];
        if at.columns.start > 0 {
            for r in 0..R {
                for j in 0..O {
                    sums[r][j] = S::load(waiting.add((r * O + j) * S::LANES));
                }
            }
        }
        let x = self.x.as_ptr().add(at.r * self.k + at.columns.start);
        let w = self.wide.as_ptr().add(o * stride);
        products::<S, R, O>(&mut sums, x, self.k, w, stride, depth);
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

/// R rows of x, `x_row` apart, times O rows of w, `w_row` apart: R + O loads feed R * O FMAs.
#[inline(always)]
unsafe fn products<S: Simd, const R: usize, const O: usize>(
    sums: &mut [[S::V; O]; R],
    x: *const f32,
    x_row: usize,
    w: *const f32,
    w_row: usize,
    k: usize,
) {
    let mut p = 0;
    while p + S::LANES <= k {
        // Of the two sides, the rows of x stay in registers and weights come one by one: with 12
        // sums and 3 rows that is all 16 registers of AVX2.
        let mut row = [S::zero(); R];
        for r in 0..R {
            row[r] = S::load(x.add(r * x_row + p));
        }
        for j in 0..O {
            let v = S::load(w.add(j * w_row + p));
            for r in 0..R {
                sums[r][j] = S::fma(v, row[r], sums[r][j]);
            }
        }
        p += S::LANES;
    }
    if p < k {
        for r in 0..R {
            let x = S::load_n(x.add(r * x_row + p), k - p);
            for j in 0..O {
                sums[r][j] = S::fma(S::load(w.add(j * w_row + p)), x, sums[r][j]);
            }
        }
    }
}

/// Sum `r * O + j` of the lanes of `sums[r][j]`, in the order of [`Simd::sum`].
#[inline(always)]
pub(super) unsafe fn totals<S: Simd, const R: usize, const O: usize>(
    sums: &[[S::V; O]; R],
) -> [f32; MAX_SUMS + MAX_LANES] {
    let mut totals = [0.0; MAX_SUMS + MAX_LANES];
    let mut i = 0;
    if R * O <= 4 {
        // The same sums, and cheaper than a vector of them.
        while i < R * O {
            totals[i] = S::sum(sums[i / O][i % O]);
            i += 1;
        }
    }
    while i < R * O {
        let mut v = [S::zero(); MAX_LANES];
        for l in 0..S::LANES {
            if i + l < R * O {
                v[l] = sums[(i + l) / O][(i + l) % O];
            }
        }
        S::store(totals.as_mut_ptr().add(i), S::sums(v));
        i += S::LANES;
    }
    totals
}
