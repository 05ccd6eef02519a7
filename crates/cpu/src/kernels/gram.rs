//! `X^T X` of the rows of a group of heads: the register tile with X as both operands.

use crate::scratch::Scratch;
use crate::simd::{Kernel, Simd};

use super::{pack, tile};

/// Rows that are copied, zero-padded, at a time.
const ROWS: usize = 256;

/// `out += sum of x x^T` over tokens and the heads of one group.
pub(crate) struct Outer<'a> {
    /// `[T, heads, Dh]`.
    pub(crate) x: &'a [f32],
    pub(crate) n_tokens: usize,
    pub(crate) heads: usize,
    pub(crate) first_head: usize,
    pub(crate) group: usize,
    pub(crate) dh: usize,
    /// `[Dh, Dh]`.
    pub(crate) out: &'a mut [f32],
    pub(crate) scratch: &'a mut Scratch,
}

impl Kernel for Outer<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, n_tokens, heads, first_head, group, dh, out, scratch } = self;
        assert!(x.len() == n_tokens * heads * dh && first_head + group <= heads);
        assert_eq!(out.len(), dh * dh);
        // A tile may read MR or NR elements from any of its starts below Dh.
        let width = dh.next_multiple_of(S::LANES) + S::MR.max(S::NR).next_multiple_of(S::LANES);
        let [rows] = scratch.floats([ROWS * width]);
        rows.fill(0.0);
        let total = n_tokens * group;
        let mut first = 0;
        // ROWS vectors are padded and then multiplied as a block: the copy stays in L2 for both
        // operands, and `out` is read and written once a block.
        while first < total {
            let n = (total - first).min(ROWS);
            let row = |i: usize| {
                let (token, head) = ((first + i) / group, (first + i) % group);
                x.as_ptr().add((token * heads + first_head + head) * dh)
            };
            pack::widen::<S, _>(row, n, dh, width, rows.as_mut_ptr());
            let mut i = 0;
            while i < dh {
                tile::strip::<S>(tile::Tile {
                    k: n,
                    a: rows.as_ptr().add(i),
                    a_row: 1,
                    a_col: width,
                    b: rows.as_ptr(),
                    b_row: width,
                    c: out.as_mut_ptr().add(i * dh),
                    c_row: dh,
                    m: (dh - i).min(S::MR),
                    n: dh,
                    add: true,
                });
                i += S::MR;
            }
            first += ROWS;
        }
    }
}
