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

/// Calls a function for the rows and vectors that a tile of the instruction set's full width has.
macro_rules! of_full_width {
    ($set:ident, $run:ident($of:expr)) => {
        match ($set::MR, $set::NV) {
            (12, 2) => $run::<$set, 12, 2>($of),
            (6, 2) => $run::<$set, 6, 2>($of),
            (8, 2) => $run::<$set, 8, 2>($of),
            (4, 1) => $run::<$set, 4, 1>($of),
            _ => unreachable!("an instruction set with another tile"),
        }
    };
}

/// One tile of the instruction set's full width.
///
/// # Safety
/// A is valid for MR x k elements, B for k rows of NR, C for m x n; the instruction set's features
/// are there.
#[inline(always)]
pub(crate) unsafe fn full<S: Simd>(t: Tile) {
    of_full_width!(S, run(t));
}

/// One tile of the full width whose sums run in the order of [`super::dots`]: as if the elements
/// of a row lay in the lanes of a vector, which are added at the end. Panels have their columns
/// lane by lane ([`super::pack::Places::by_lanes`]).
///
/// # Safety
/// As for [`full`].
#[inline(always)]
pub(crate) unsafe fn by_lanes<S: Simd>(t: Tile) {
    of_full_width!(S, run_by_lanes(t));
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
    steps::<S, R, W, false>(t, first, n, 0, sums);
}

/// [`multiply`]; where it `ASKS`, what lies `ahead` bytes behind A is prefetched.
#[inline(always)]
unsafe fn steps<S: Simd, const R: usize, const W: usize, const ASKS: bool>(
    t: &Tile,
    first: usize,
    n: usize,
    ahead: isize,
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
        if ASKS {
            S::prefetch(a.wrapping_byte_offset(ahead));
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

/// Sums of a tile that wait for those of other lanes, one place for each level of their tree.
pub(crate) const fn waiting_len<S: Simd>() -> usize {
    (S::LANES.ilog2() as usize + 1) * S::MR * S::NR
}

/// Steps of one lane of a tile of the full width, A and B packed as for [`by_lanes`].
pub(crate) struct LanePart {
    /// Of A and B the first step.
    pub(crate) a: *const f32,
    pub(crate) b: *const f32,
    pub(crate) steps: usize,
    /// Bytes from A to that of the next part, which no processor expects: it is asked for.
    pub(crate) ahead: isize,
    /// As long as [`waiting_len`] says.
    pub(crate) waiting: *mut f32,
    /// How many lanes of [`Simd::SUM_ORDER`] came before.
    pub(crate) lane: usize,
    /// Whether these are the lane's first steps, and its last.
    pub(crate) begins: bool,
    pub(crate) ends: bool,
}

/// The same sums as of [`by_lanes`], for whoever goes over many tiles lane by lane. Those of the
/// tile are in the last place of `waiting` when the last lane has ended.
///
/// # Safety
/// As for [`full`].
#[inline(always)]
pub(crate) unsafe fn part_of_lane<S: Simd>(part: LanePart) {
    of_full_width!(S, run_part_of_lane(part));
}

#[inline(always)]
unsafe fn run_part_of_lane<S: Simd, const R: usize, const W: usize>(part: LanePart) {
    let LanePart { a, b, steps: n, ahead, waiting, lane, begins, ends } = part;
    // As in `run_by_lanes`: the places below wait for this lane.
    let level = lane.trailing_ones() as usize;
    let place = |level: usize| Tile {
        k: n,
        a,
        a_row: 1,
        a_col: R,
        b,
        b_row: W * S::LANES,
        c: waiting.add(level * R * W * S::LANES),
        c_row: W * S::LANES,
        m: R,
        n: W * S::LANES,
        add: false,
    };
    let own = place(level);
    let mut sums = [[S::zero(); W]; R];
    if !begins {
        load::<S, R, W>(&own, &mut sums);
    }
    steps::<S, R, W, true>(&own, 0, n, ahead, &mut sums);
    if ends {
        for before in 0..level {
            let before = place(before).c;
            for r in 0..R {
                for w in 0..W {
                    let before = S::load(before.add((r * W + w) * S::LANES));
                    sums[r][w] = S::add(before, sums[r][w]);
                }
            }
        }
    }
    save::<S, R, W>(&own, &sums);
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
