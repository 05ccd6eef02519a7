//! Rows of any stored type into f32 panels for [`super::tile`].
//!
//! A panel of `width` rows with k columns is stored as k groups of `width`: the tile then reads it
//! front to back. Rows beyond the last are zeros. Squares of LANES x LANES are transposed in
//! registers.

use crate::simd::stored::Stored;
use crate::simd::{MAX_LANES, Simd};

/// Where the columns of a panel lie: column `p` at `start[p % LANES] + p / LANES * step`.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    start: [usize; MAX_LANES],
    step: usize,
}

impl Places {
    /// In their order.
    #[inline(always)]
    pub(crate) fn in_order<S: Simd>() -> Self {
        Self { start: std::array::from_fn(|lane| lane), step: S::LANES }
    }

    /// Lane by lane in [`Simd::SUM_ORDER`], so that [`super::tile::by_lanes`] reads them front to
    /// back.
    #[inline(always)]
    pub(crate) fn by_lanes<S: Simd>(k: usize) -> Self {
        let mut start = [0; MAX_LANES];
        let mut at = 0;
        for &lane in &S::SUM_ORDER[..S::LANES] {
            start[lane] = at;
            at += of_lane::<S>(k, lane);
        }
        Self { start, step: 1 }
    }
}

/// Columns of k that fall into a lane.
#[inline(always)]
pub(crate) fn of_lane<S: Simd>(k: usize, lane: usize) -> usize {
    (k + S::LANES - 1 - lane) / S::LANES
}

/// Packs `n <= width` rows of `k` elements into one panel, multiplied by `scale`.
///
/// # Safety
/// `row(i)` is valid for k elements for every i below n, `panel` for `k * width`; the
/// instruction set's features are there.
#[inline(always)]
pub(crate) unsafe fn panel<S: Simd, R: Stored>(
    row: impl Fn(usize) -> R + Copy,
    n: usize,
    k: usize,
    scale: f32,
    width: usize,
    places: &Places,
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
            square::<S, R>(row, j, rows, p, columns, &mut v);
            for (i, x) in v[..columns].iter().enumerate() {
                let place = places.start[i] + p / S::LANES * places.step;
                let to = panel.add(place * width + j);
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
    row: impl Fn(usize) -> R + Copy,
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
