//! Means of rows, and what share of a tile's attention blocks of rows have by their means.

use std::f32::consts::LOG2_E;

use crate::scratch::Scratch;
use crate::simd::stored::KvElem;
use crate::simd::{Kernel, Simd, math};

use super::attend::Queries;
use super::{pack, tile};

/// The mean of neighbouring rows, keys and values alike.
pub(crate) struct MeanOfRows<'a, E> {
    /// Whole rows.
    pub(crate) elements: &'a [E],
    pub(crate) head_dim: usize,
    /// `[2, head_dim]`.
    pub(crate) out: &'a mut [f32],
}

impl<E: KvElem> Kernel for MeanOfRows<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (dh, row_len) = (self.head_dim, E::row_len(self.head_dim));
        assert!(self.out.len() == 2 * dh && self.elements.len().is_multiple_of(row_len));
        let n = self.elements.len() / row_len;
        let row = |i: usize| self.elements.as_ptr().add(i * row_len);
        let (key, value) = self.out.split_at_mut(dh);
        mean::<S, _>(|i| E::key(row(i), dh), n, key);
        mean::<S, _>(|i| E::value(row(i), dh), n, value);
    }
}

/// # Safety
/// As for [`Simd`]; `row(i)` has as many numbers as `out` for every i below n.
#[inline(always)]
unsafe fn mean<S: Simd, R: crate::simd::stored::Stored>(
    row: impl Fn(usize) -> R,
    n: usize,
    out: &mut [f32],
) {
    let factor = S::splat(1.0 / n as f32);
    let mut p = 0;
    while p < out.len() {
        let lanes = (out.len() - p).min(S::LANES);
        let mut sum = S::zero();
        for i in 0..n {
            let x =
                if lanes == S::LANES { row(i).load::<S>(p) } else { row(i).load_n::<S>(p, lanes) };
            sum = S::add(sum, x);
        }
        S::store_n(out.as_mut_ptr().add(p), lanes, S::mul(sum, factor));
        p += S::LANES;
    }
}

/// Means that are multiplied with the queries at once; a multiple of every instruction set's NR.
const MEANS: usize = 256;

/// Floats from one row of scores to the next: not a power of two.
const SCORE_ROW: usize = MEANS + 16;

/// Sums over a tile's rows of `e^(z - max z)`, where z is the largest score of a block's parts.
pub(crate) struct BlockSums<'a> {
    pub(crate) queries: Queries<'a>,
    /// Rows `[2, head_dim]` of all parts, block by block.
    pub(crate) means: &'a [f32],
    pub(crate) n_parts: usize,
    /// One for each block.
    pub(crate) sums: &'a mut [f32],
    pub(crate) scratch: &'a mut Scratch,
}

impl Kernel for BlockSums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (q, parts) = (&self.queries, self.n_parts);
        let (dh, n_rows, n_blocks) = (q.head_dim, q.n_rows(), self.sums.len());
        let n_means = n_blocks * parts;
        assert!(self.means.len() >= n_means * 2 * dh);
        assert!(n_rows == 0 || q.q.len() >= (q.head(n_rows - 1) + 1) * dh);
        let padded = n_rows.next_multiple_of(S::MR);
        // Whole blocks a time, as many as fit.
        let of_means = (MEANS / parts).max(1) * parts;
        let score_row = SCORE_ROW.max(of_means.next_multiple_of(S::NR) + 16);
        let blocks_row = n_blocks.next_multiple_of(S::LANES);
        let [packed, panels, scores, blocks, sums] = self.scratch.floats([
            padded * dh,
            of_means.next_multiple_of(S::NR) * dh,
            S::MR * score_row,
            n_rows * blocks_row,
            blocks_row,
        ]);
        q.pack::<S>(packed);
        blocks.fill(f32::NEG_INFINITY);
        let places = pack::Places::by_lanes::<S>(dh);
        for first in (0..n_means).step_by(of_means) {
            let n = (n_means - first).min(of_means);
            let key = |i: usize| self.means.as_ptr().add((first + i) * 2 * dh);
            for j in (0..n).step_by(S::NR) {
                let row = |i: usize| key(j + i);
                let panel = panels.as_mut_ptr().add(j * dh);
                pack::panel::<S, _>(row, (n - j).min(S::NR), dh, 1.0, S::NR, &places, panel);
            }
            for r in (0..n_rows).step_by(S::MR) {
                for j in (0..n).step_by(S::NR) {
                    tile::by_lanes::<S>(tile::Tile {
                        k: dh,
                        a: packed.as_ptr().add(r * dh),
                        a_row: 1,
                        a_col: S::MR,
                        b: panels.as_ptr().add(j * dh),
                        b_row: S::NR,
                        c: scores.as_mut_ptr().add(j),
                        c_row: score_row,
                        m: S::MR,
                        n: S::NR,
                        add: false,
                    });
                }
                for i in 0..(n_rows - r).min(S::MR) {
                    let to = &mut blocks[(r + i) * blocks_row + first / parts..][..n / parts];
                    largest_of_parts(&scores[i * score_row..][..n], parts, to);
                }
            }
        }
        sums.fill(0.0);
        for row in blocks.chunks_exact(blocks_row.max(1)) {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let shift = S::splat(max);
            for j in (0..blocks_row).step_by(S::LANES) {
                let z = S::load(row.as_ptr().add(j));
                let sum = sums.as_mut_ptr().add(j);
                S::store(sum, S::add(S::load(sum), math::exp2::<S>(S::sub(z, shift))));
            }
        }
        self.sums.copy_from_slice(&sums[..n_blocks]);
    }
}

/// The largest of every `parts` scores.
#[inline(always)]
fn largest_of_parts(scores: &[f32], parts: usize, to: &mut [f32]) {
    if parts == 4 {
        for (to, of) in to.iter_mut().zip(scores.chunks_exact(4)) {
            *to = of[0].max(of[1]).max(of[2].max(of[3]));
        }
    } else {
        for (to, of) in to.iter_mut().zip(scores.chunks_exact(parts)) {
            *to = of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        }
    }
}

impl Queries<'_> {
    /// Packs all rows in strips of MR, in units of log2.
    ///
    /// # Safety
    /// As for [`Simd`]; `packed` has room for the rows, rounded up to MR.
    #[inline(always)]
    pub(super) unsafe fn pack<S: Simd>(&self, packed: &mut [f32]) {
        let (n_rows, dh) = (self.n_rows(), self.head_dim);
        let places = pack::Places::by_lanes::<S>(dh);
        let mut r = 0;
        while r < n_rows {
            let row = |i: usize| self.q.as_ptr().add(self.head(r + i) * dh);
            let strip = packed.as_mut_ptr().add(r * dh);
            let m = (n_rows - r).min(S::MR);
            pack::panel::<S, _>(row, m, dh, self.scale * LOG2_E, S::MR, &places, strip);
            r += S::MR;
        }
    }
}
