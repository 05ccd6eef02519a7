//! Many rows of activations times a matrix of any weight type, in full f32.
//!
//! Activations are packed once into strips of MR rows. Each worker takes a block of weight rows,
//! widens and transposes a slice of k of it into its own panels (they stay in L2), and runs the
//! register tile over all strips. Packing costs one pass over the weights; it pays from about 16
//! rows on.

use crate::simd::Simd;
use crate::simd::elem::Elem;
use crate::supported_isa::Kernel;
use crate::team::Shared;

use super::{pack, tile};

/// Columns of A and B that are worked on at a time: a panel of B (KC x NR) then fits L1.
pub(crate) const KC: usize = 256;

/// Packs strip `index` of x, slice of k by slice, MR rows each.
pub(crate) struct PackStrip<'a> {
    /// `[m, k]`.
    pub(crate) x: &'a [f32],
    pub(crate) k: usize,
    pub(crate) index: usize,
    /// MR x k.
    pub(crate) strip: &'a mut [f32],
}

impl Kernel for PackStrip<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let k = self.k;
        let rows = &self.x[(self.index * S::MR * k).min(self.x.len())..];
        let m = rows.len().checked_div(k).unwrap_or(0).min(S::MR);
        assert!(self.strip.len() >= S::MR * k);
        let row = |i: usize| rows.as_ptr().add(i * k);
        pack::panel::<S, _>(row, m, k, 1.0, S::MR, self.strip.as_mut_ptr());
    }
}

/// A block of columns of the output.
pub(crate) struct Block<'a, E> {
    /// Packed strips of x, MR x k each.
    pub(crate) strips: &'a [f32],
    /// Rows of x.
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
    /// KC x n, n rounded up to NR.
    pub(crate) panels: &'a mut [f32],
}

impl<E: Elem> Kernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let k = self.k;
        let n = self.weights.len() / k;
        assert!(self.panels.len() >= k.min(KC) * n.next_multiple_of(S::NR));
        assert!(self.strips.len() >= self.m.div_ceil(S::MR) * S::MR * k);
        if let Some(bias) = self.bias {
            self.start(&bias[self.first..self.first + n]);
        }
        // Slices of k are outermost: the panels of one slice are widened once and serve all rows of
        // x while they are in L2. The price is that sums go through `out` once a slice.
        let mut p = 0;
        while p < k {
            let depth = (k - p).min(KC);
            self.pack::<S>(n, p, depth);
            self.multiply::<S>(n, p, depth);
            p += KC;
        }
    }
}

impl<E: Elem> Block<'_, E> {
    /// Puts the bias into the output, so that the products add to it.
    fn start(&mut self, bias: &[f32]) {
        for r in 0..self.m {
            // SAFETY: the columns of this block belong to this worker.
            let out = unsafe { self.out.slice(r * self.n_out + self.first, bias.len()) };
            for (o, b) in out.iter_mut().zip(bias) {
                *o = b + if self.add { *o } else { 0.0 };
            }
        }
        self.add = true;
    }

    #[inline(always)]
    unsafe fn pack<S: Simd>(&mut self, n: usize, p: usize, depth: usize) {
        let (w, k) = (self.weights.as_ptr(), self.k);
        let mut j = 0;
        while j < n {
            let row = |i: usize| w.add((j + i) * k + p);
            let panel = self.panels.as_mut_ptr().add(j * depth);
            pack::panel::<S, _>(row, (n - j).min(S::NR), depth, 1.0, S::NR, panel);
            j += S::NR;
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd>(&self, n: usize, p: usize, depth: usize) {
        let out = self.out.as_ptr();
        // Rows outside, columns inside: the MR x KC slice of x stays in L1 while the panels pass.
        let mut i = 0;
        while i < self.m {
            let a = self.strips.as_ptr().add(i * self.k + p * S::MR);
            let mut j = 0;
            while j < n {
                tile::full::<S>(tile::Tile {
                    k: depth,
                    a,
                    a_row: 1,
                    a_col: S::MR,
                    b: self.panels.as_ptr().add(j * depth),
                    b_row: S::NR,
                    c: out.add(i * self.n_out + self.first + j),
                    c_row: self.n_out,
                    m: (self.m - i).min(S::MR),
                    n: (n - j).min(S::NR),
                    add: self.add || p > 0,
                });
                j += S::NR;
            }
            i += S::MR;
        }
    }
}
