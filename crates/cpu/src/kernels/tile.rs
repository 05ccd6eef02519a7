//! The register tile: `C (+)= A B` for MR rows of A and NR columns of B, sums in registers over all
//! of k.
//!
//! Everything heavy (matmul, both products of attention, k-means, Gram matrices) is this loop over
//! panels that [`super::pack`] made. AVX-512: 12 x 32, 24 sums, 2 loads and 12 broadcasts for 24
//! FMAs in each step of k.

use std::mem::MaybeUninit;

use crate::simd::{MAX_LANES, Simd};

use super::pack::of_lane;

/// A tile's operands. Element (i, p) of A is `a[i * a_row + p * a_col]`, row p of B starts at `b[p
/// * b_row]`.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) a_row: usize,
    pub(crate) a_col: usize,
    pub(crate) b: *const f32,
    pub(crate) b_row: usize,
    pub(crate) c: *mut f32,
    pub(crate) c_row: usize,
    /// Rows of C to write, at most MR. A must have all MR.
    pub(crate) m: usize,
    /// Columns of C to write, at most the tile's. B must have all.
    pub(crate) n: usize,
    /// Start from what C holds instead of 0.
    pub(crate) add: bool,
}

/// One tile of the instruction set's full width.
///
/// # Safety
/// A is valid for MR x k elements, B for k rows of NR, C for m x n; the instruction set's features
/// are there.
#[inline(always)]
pub(crate) unsafe fn full<S: Simd>(t: Tile) {
    match (S::MR, S::NV) {
        (12, 2) => run::<S, 12, 2>(t),
        (6, 2) => run::<S, 6, 2>(t),
        (8, 2) => run::<S, 8, 2>(t),
        (4, 1) => run::<S, 4, 1>(t),
        _ => unreachable!("an instruction set with another tile"),
    }
}

/// One tile of the full width whose sums run in the order of [`super::dots`]: as if the elements
/// of a row lay in the lanes of a vector, which are added at the end. Panels have their columns
/// lane by lane ([`super::pack::Places::by_lanes`]).
///
/// # Safety
/// As for [`full`].
#[inline(always)]
pub(crate) unsafe fn by_lanes<S: Simd>(t: Tile) {
    match (S::MR, S::NV) {
        (12, 2) => run_by_lanes::<S, 12, 2>(t),
        (6, 2) => run_by_lanes::<S, 6, 2>(t),
        (8, 2) => run_by_lanes::<S, 8, 2>(t),
        (4, 1) => run_by_lanes::<S, 4, 1>(t),
        _ => unreachable!("an instruction set with another tile"),
    }
}

/// One tile of a single vector's width, for the last columns.
///
/// # Safety
/// As for [`full`], with B valid for k rows of LANES.
#[inline(always)]
pub(crate) unsafe fn narrow<S: Simd>(t: Tile) {
    match S::MR {
        12 => run::<S, 12, 1>(t),
        6 => run::<S, 6, 1>(t),
        8 => run::<S, 8, 1>(t),
        4 => run::<S, 4, 1>(t),
        _ => unreachable!("an instruction set with another tile"),
    }
}

/// A strip of MR rows of C and `n` columns, from B with row stride `b_row` whose rows are padded to
/// LANES.
///
/// # Safety
/// As for [`full`], with B valid for k rows of `n` rounded up to LANES.
#[inline(always)]
pub(crate) unsafe fn strip<S: Simd>(t: Tile) {
    let mut j = 0;
    while j < t.n {
        let left = t.n - j;
        let part = Tile { b: t.b.add(j), c: t.c.add(j), n: left.min(S::NR), ..t };
        if left > S::NR - S::LANES {
            full::<S>(part);
            j += S::NR;
        } else {
            narrow::<S>(Tile { n: left.min(S::LANES), ..part });
            j += S::LANES;
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, const R: usize, const W: usize>(t: Tile) {
    let mut sums = [[S::zero(); W]; R];
    if t.add {
        load::<S, R, W>(&t, &mut sums);
    }
    multiply::<S, R, W>(&t, 0, t.k, &mut sums);
    save::<S, R, W>(&t, &sums);
}

/// `n` steps of k from `first` on.
#[inline(always)]
unsafe fn multiply<S: Simd, const R: usize, const W: usize>(
    t: &Tile,
    first: usize,
    n: usize,
    sums: &mut [[S::V; W]; R],
) {
    let (mut a, mut b) = (t.a.add(first * t.a_col), t.b.add(first * t.b_row));
    // One column of A times one row of B in each step, an outer product: R + W loads feed R * W
    // FMAs, whose sums are independent and enough to hide the FMA's latency. Rows and columns that
    // nobody wants are computed all the same, so that the loop has no branch.
    for _ in 0..n {
        let mut row = [S::zero(); W];
        for w in 0..W {
            row[w] = S::load(b.add(w * S::LANES));
        }
        for r in 0..R {
            let x = S::splat(*a.add(r * t.a_row));
            for w in 0..W {
                sums[r][w] = S::fma(x, row[w], sums[r][w]);
            }
        }
        a = a.add(t.a_col);
        b = b.add(t.b_row);
    }
}

/// The sums of two lanes, four and so on; the last level is the result.
const LEVELS: usize = MAX_LANES.ilog2() as usize + 1;

#[inline(always)]
unsafe fn run_by_lanes<S: Simd, const R: usize, const W: usize>(t: Tile) {
    let mut waiting = [const { MaybeUninit::<[[S::V; W]; R]>::uninit() }; LEVELS];
    let mut at = 0;
    // The tree is walked as a binary counter counts: lane i ends as many others as it has ones at
    // its end, and then waits for its own.
    for (i, &lane) in S::SUM_ORDER[..S::LANES].iter().enumerate() {
        let n = of_lane::<S>(t.k, lane);
        let mut sums = [[S::zero(); W]; R];
        multiply::<S, R, W>(&t, at, n, &mut sums);
        at += n;
        let level = i.trailing_ones() as usize;
        for before in &waiting[..level] {
            // Every level below was written since the counter last passed it.
            let before = before.assume_init_ref();
            for r in 0..R {
                for w in 0..W {
                    sums[r][w] = S::add(before[r][w], sums[r][w]);
                }
            }
        }
        waiting[level].write(sums);
    }
    save::<S, R, W>(&t, waiting[S::LANES.ilog2() as usize].assume_init_ref());
}

#[inline(always)]
unsafe fn load<S: Simd, const R: usize, const W: usize>(t: &Tile, sums: &mut [[S::V; W]; R]) {
    let whole = t.n == W * S::LANES;
    for r in 0..R {
        if r < t.m {
            for w in 0..W {
                let c = t.c.add(r * t.c_row + w * S::LANES);
                let n = t.n.saturating_sub(w * S::LANES).min(S::LANES);
                sums[r][w] = if whole { S::load(c) } else { S::load_n(c, n) };
            }
        }
    }
}

#[inline(always)]
unsafe fn save<S: Simd, const R: usize, const W: usize>(t: &Tile, sums: &[[S::V; W]; R]) {
    let whole = t.n == W * S::LANES;
    for r in 0..R {
        if r < t.m {
            for w in 0..W {
                let c = t.c.add(r * t.c_row + w * S::LANES);
                let n = t.n.saturating_sub(w * S::LANES).min(S::LANES);
                if whole {
                    S::store(c, sums[r][w]);
                } else {
                    S::store_n(c, n, sums[r][w]);
                }
            }
        }
    }
}
