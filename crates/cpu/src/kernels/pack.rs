//! Rows of any stored type into f32 panels for [`super::tile`].
//!
//! A panel of `width` rows with k columns is stored as k groups of `width`: the tile then reads it
//! front to back. Rows beyond the last are zeros. Squares of LANES x LANES are transposed in
//! registers.

use crate::simd::stored::Stored;
use crate::simd::{MAX_LANES, Simd};

/// Packs `n <= width` rows of `k` elements into one panel, multiplied by `scale`.
///
/// # Safety
/// `row(i)` is valid for k elements for every i below n, `panel` for `k * width`; the
/// instruction set's features are there.
#[inline(always)]
pub(crate) unsafe fn panel<S: Simd, R: Stored>(
    row: impl Fn(usize) -> R,
    n: usize,
    k: usize,
    scale: f32,
    width: usize,
    panel: *mut f32,
) {
    let scale = S::splat(scale);
    // Down k for LANES rows before the next rows: one square after the other reads LANES streams
    // front to back.
    let mut j = 0;
    while j < width {
        let lanes = (width - j).min(S::LANES);
        let rows = n.saturating_sub(j).min(lanes);
        let mut p = 0;
        while p < k {
            let columns = (k - p).min(S::LANES);
            let mut v = [S::zero(); MAX_LANES];
            square::<S, R>(&row, j, rows, p, columns, &mut v);
            for (i, x) in v[..columns].iter().enumerate() {
                let to = panel.add((p + i) * width + j);
                let x = S::mul(*x, scale);
                if lanes == S::LANES {
                    S::store(to, x);
                } else {
                    S::store_n(to, lanes, x);
                }
            }
            p += S::LANES;
        }
        j += S::LANES;
    }
}

/// Rows j.. and columns p.. as a transposed square.
#[inline(always)]
unsafe fn square<S: Simd, R: Stored>(
    row: &impl Fn(usize) -> R,
    j: usize,
    rows: usize,
    p: usize,
    columns: usize,
    v: &mut [S::V; MAX_LANES],
) {
    if rows == S::LANES && columns == S::LANES {
        for i in 0..S::LANES {
            v[i] = row(j + i).load::<S>(p);
        }
    } else {
        for i in 0..rows {
            v[i] = row(j + i).load_n::<S>(p, columns);
        }
    }
    S::transpose(v);
}

/// Copies n rows of `k` elements as f32 with `stride` from one to the next, zeros up to the next
/// multiple of LANES.
///
/// # Safety
/// `row(i)` is valid for k elements, `out` for `n * stride`; `stride` is at least k rounded up to
/// LANES.
#[inline(always)]
pub(crate) unsafe fn widen<S: Simd, R: Stored>(
    row: impl Fn(usize) -> R,
    n: usize,
    k: usize,
    stride: usize,
    out: *mut f32,
) {
    for i in 0..n {
        let (from, to) = (row(i), out.add(i * stride));
        let mut p = 0;
        while p + S::LANES <= k {
            S::store(to.add(p), from.load::<S>(p));
            p += S::LANES;
        }
        if p < k {
            S::store(to.add(p), from.load_n::<S>(p, k - p));
        }
    }
}
