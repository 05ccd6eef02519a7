//! A few rows of activations times a matrix that is streamed once: bound by the bytes of the weights.
//!
//! Weights are widened in registers; activations stay f32. Several weight rows run side by side, so that there
//! are enough independent sums to hide the FMA's latency and enough streams for the prefetchers.

use crate::isa::Kernel;
use crate::simd::{Elem, Simd};
use crate::team::Shared;

/// Most activation rows.
pub(crate) const MAX_ROWS: usize = 8;

/// Bytes that are asked for ahead of their use, in each weight row.
const AHEAD: usize = 512;

/// `out[r, first..] = x_r . w_o (+ bias) (+ out)` for a block of weight rows.
pub(crate) struct Matvec<'a, E> {
    /// `[n, k]`: the block.
    pub(crate) weights: &'a [E],
    /// `[n_rows, k]`, at most [`MAX_ROWS`] rows.
    pub(crate) x: &'a [f32],
    pub(crate) n_rows: usize,
    pub(crate) k: usize,
    /// All biases.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
    /// `[n_rows, n_out]`; only columns of this block are touched.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) n_out: usize,
    /// Column of the block's first row.
    pub(crate) first: usize,
}

impl<E: Elem> Kernel for Matvec<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.x.len() == self.n_rows * self.k && self.n_rows <= MAX_ROWS);
        match self.n_rows {
            1 => self.blocks::<S, 1, 4>(),
            2 => self.blocks::<S, 2, 4>(),
            3 => self.blocks::<S, 3, 2>(),
            4 => self.blocks::<S, 4, 2>(),
            5 => self.blocks::<S, 5, 2>(),
            6 => self.blocks::<S, 6, 2>(),
            7 => self.blocks::<S, 7, 1>(),
            8 => self.blocks::<S, 8, 1>(),
            _ => {}
        }
    }
}

impl<E: Elem> Matvec<'_, E> {
    #[inline(always)]
    unsafe fn blocks<S: Simd, const R: usize, const O: usize>(&self) {
        let n = if self.k == 0 { 0 } else { self.weights.len() / self.k };
        let mut o = 0;
        while o + O <= n {
            self.block::<S, R, O>(o);
            o += O;
        }
        while o < n {
            self.block::<S, R, 1>(o);
            o += 1;
        }
    }

    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const O: usize>(&self, o: usize) {
        let (k, x) = (self.k, self.x.as_ptr());
        let w = self.weights.as_ptr().add(o * k);
        let mut sums = [[S::zero(); O]; R];
        let mut p = 0;
        while p + 2 * S::LANES <= k {
            for j in 0..O {
                S::prefetch(w.add(j * k + p).cast::<u8>().wrapping_add(AHEAD));
            }
            for half in [p, p + S::LANES] {
                step::<S, E, R, O>(&mut sums, w.add(half), x.add(half), k);
            }
            p += 2 * S::LANES;
        }
        if p + S::LANES <= k {
            step::<S, E, R, O>(&mut sums, w.add(p), x.add(p), k);
            p += S::LANES;
        }
        if p < k {
            for j in 0..O {
                let v = E::load_n::<S>(w.add(j * k + p), k - p);
                for r in 0..R {
                    sums[r][j] = S::fma(v, S::load_n(x.add(r * k + p), k - p), sums[r][j]);
                }
            }
        }
        for r in 0..R {
            for j in 0..O {
                self.finish(r, o + j, S::sum(sums[r][j]));
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(&self, r: usize, o: usize, sum: f32) {
        let column = self.first + o;
        let bias = self.bias.map_or(0.0, |b| b[column]);
        let out = &mut self.out.slice(r * self.n_out + column, 1)[0];
        *out = sum + bias + if self.add { *out } else { 0.0 };
    }
}

/// One vector of each weight row against each row of x.
#[inline(always)]
unsafe fn step<S: Simd, E: Elem, const R: usize, const O: usize>(
    sums: &mut [[S::V; O]; R],
    w: *const E,
    x: *const f32,
    k: usize,
) {
    let mut v = [S::zero(); O];
    for j in 0..O {
        v[j] = E::load::<S>(w.add(j * k));
    }
    for r in 0..R {
        let x = S::load(x.add(r * k));
        for j in 0..O {
            sums[r][j] = S::fma(v[j], x, sums[r][j]);
        }
    }
}
