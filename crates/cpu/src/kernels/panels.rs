//! Many rows of activations times a matrix of any plain type, in full f32, as outer products: a
//! column of activations with a row of a panel of weights, both packed.
//!
//! [`super::gemm`] multiplies rows where they lie, and adds the lanes of every sum at the end; that
//! and what it reads from L2 takes a fifth of its time. Here both sides are packed lane by lane, so
//! that [`tile::by_lanes`] makes sums in the same order, and hence of the same bits, without adding
//! across lanes. It pays where there are many rows, each of them long.

use crate::simd::elem::Elem;
use crate::simd::{Kernel, Simd};
use crate::supported_isa::SupportedIsa;
use crate::team::Shared;

use super::pack::{self, Places};
use super::tile::{self, Tile};

/// Rows of activations from which on packing is worth it.
const LEAST_ROWS: usize = 48;

/// Least elements of a row: below it a lane has too few products for its additions (Zen 4, two
/// cores, GFLOP/s with rows where they lie and with panels: 195 and 177 with 576 elements, 193 and
/// 192 with 1,536, 195 and 205 with 2,048, 175 and 198 with 8,192).
const LEAST_COLUMNS: usize = 2048;

/// Floats of the largest tile.
const TILE: usize = 12 * 32;

/// Whether [`Panels`] is faster than [`super::gemm::Block`]. With few registers it is not: their
/// tiles are too small to hide what a lane costs.
pub(crate) fn is_faster(isa: SupportedIsa, m: usize, k: usize) -> bool {
    isa.tile_rows() * isa.tile_cols() == TILE && m >= LEAST_ROWS && k >= LEAST_COLUMNS
}

/// Floats of a strip of packed rows.
pub(crate) fn strip_len(isa: SupportedIsa, k: usize) -> usize {
    isa.tile_rows() * k
}

/// Packs the rows of a strip.
pub(crate) struct PackStrip<'a> {
    /// `[n, k]`, at most as many rows as a tile has; the others become zeros.
    pub(crate) x: &'a [f32],
    pub(crate) k: usize,
    /// As long as [`strip_len`] says.
    pub(crate) to: &'a mut [f32],
}

impl Kernel for PackStrip<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, k, to } = self;
        let n = x.len() / k;
        assert!(n <= S::MR && to.len() == S::MR * k);
        let row = |i: usize| x.as_ptr().add(i * k);
        let places = Places::by_lanes::<S>(k);
        pack::panel::<S, _>(row, n, k, 1.0, S::MR, &places, to.as_mut_ptr());
    }
}

/// A panel of columns of the output.
pub(crate) struct Panels<'a, E> {
    /// Strips of the rows, as [`PackStrip`] makes them.
    pub(crate) x: &'a [f32],
    /// Rows.
    pub(crate) m: usize,
    /// `[n, k]`: at most as many weight rows as a tile has columns.
    pub(crate) weights: &'a [E],
    pub(crate) k: usize,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
    /// `[m, n_out]`; only columns of this panel are touched.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) n_out: usize,
    /// Column of the first weight row.
    pub(crate) first: usize,
    /// A tile's columns times k.
    pub(crate) panel: &'a mut [f32],
}

impl<E: Elem> Kernel for Panels<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, m, weights, k, bias, add, out, n_out, first, panel } = self;
        let n = weights.len() / k;
        assert!(x.len() >= m.next_multiple_of(S::MR) * k && S::MR * S::NR <= TILE);
        assert!(n <= S::NR && panel.len() == S::NR * k);
        assert!(bias.is_none_or(|bias| bias.len() >= first + n));
        let row = |i: usize| weights.as_ptr().add(i * k);
        let places = Places::by_lanes::<S>(k);
        pack::panel::<S, _>(row, n, k, 1.0, S::NR, &places, panel.as_mut_ptr());
        let mut sums = [0.0f32; TILE];
        let mut r = 0;
        while r < m {
            tile::by_lanes::<S>(Tile {
                k,
                a: x.as_ptr().add(r * k),
                a_row: 1,
                a_col: S::MR,
                b: panel.as_ptr(),
                b_row: S::NR,
                c: sums.as_mut_ptr(),
                c_row: S::NR,
                m: S::MR,
                n: S::NR,
                add: false,
            });
            for i in 0..S::MR.min(m - r) {
                let out = out.slice((r + i) * n_out + first, n);
                for j in 0..n {
                    let bias = bias.map_or(0.0, |bias| *bias.as_ptr().add(first + j));
                    let old = if add { out[j] } else { 0.0 };
                    out[j] = sums[i * S::NR + j] + bias + old;
                }
            }
            r += S::MR;
        }
    }
}
