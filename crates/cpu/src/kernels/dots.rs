//! Dot products of a few f32 vectors with many stored rows, each row read once from memory.
//!
//! What says where a row is goes from function to function by value (`Copy`). By reference it is
//! called through `Fn` for `&F`, which is inlined only where a build is optimised as it is linked:
//! a call for every row, before which the sums leave their registers.

use std::mem::MaybeUninit;

use crate::simd::elem::Elem;
use crate::simd::stored::Stored;
use crate::simd::{Kernel, MAX_LANES, Simd};

use super::pack;

/// Rows of codes up to this width are widened to memory where many vectors meet them.
const MOST_WIDENED: usize = 256;

/// f32 rows that are read.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub(crate) at: *const f32,
    /// Elements from one row to the next.
    pub(crate) row: usize,
}

/// f32 rows that are written.
#[derive(Clone, Copy)]
pub(crate) struct StridedMut {
    pub(crate) at: *mut f32,
    /// Elements from one row to the next.
    pub(crate) row: usize,
}

impl Strided {
    /// From element `n` on.
    #[inline(always)]
    unsafe fn skip(self, n: usize) -> Self {
        Self { at: self.at.add(n), ..self }
    }
}

impl StridedMut {
    /// From element `n` on.
    #[inline(always)]
    unsafe fn skip(self, n: usize) -> Self {
        Self { at: self.at.add(n), ..self }
    }
}

/// `out[g * out.row + i] = q_g . row(i)` for n rows. Rows of `q` are zero after `k`.
///
/// # Safety
/// `row(i)` is valid for k elements (`ahead(i)` only asks for what will be needed after row i), `q`
/// for `n_q * q.row` with `q.row` at least k rounded up to LANES, `out` for `n_q` rows of n; the
/// instruction set's features are there.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd, R: Stored>(
    q: Strided,
    n_q: usize,
    row: impl Fn(usize) -> R + Copy,
    ahead: impl Fn(usize) + Copy,
    n: usize,
    k: usize,
    out: StridedMut,
) {
    let mut i = 0;
    while i < n {
        let rows = (n - i).min(S::LANES);
        // LANES rows at a time for all vectors: the second group of vectors finds the rows in L1.
        for j in 0..rows {
            ahead(i + j);
        }
        let (part, to) = (|j: usize| row(i + j), out.skip(i));
        let width = k.next_multiple_of(S::LANES);
        if R::IS_CODED && n_q > 4 && width <= MOST_WIDENED {
            let mut wide = MaybeUninit::<[f32; MAX_LANES * MOST_WIDENED]>::uninit();
            let at = wide.as_mut_ptr().cast::<f32>();
            pack::widen::<S, R>(part, rows, k, width, at);
            groups::<S, *const f32>(q, n_q, |j| at.cast_const().add(j * width), rows, k, to);
        } else {
            groups::<S, R>(q, n_q, part, rows, k, to);
        }
        i += S::LANES;
    }
}

/// Up to LANES rows with all vectors.
#[inline(always)]
unsafe fn groups<S: Simd, R: Stored>(
    q: Strided,
    n_q: usize,
    row: impl Fn(usize) -> R + Copy,
    n: usize,
    k: usize,
    out: StridedMut,
) {
    let mut g = 0;
    while g < n_q {
        let (q, out) = (q.skip(g * q.row), out.skip(g * out.row));
        g += match n_q - g {
            1 => group::<S, R, 1>(q, row, n, k, out),
            2 => group::<S, R, 2>(q, row, n, k, out),
            3 => group_of_three::<S, R>(q, row, n, k, out),
            _ => group::<S, R, 4>(q, row, n, k, out),
        };
    }
}

/// H vectors with up to LANES rows, LANES / H rows at a time: one load of a row then serves H
/// vectors, and one of a vector all these rows. Returns H.
#[inline(always)]
unsafe fn group<S: Simd, R: Stored, const H: usize>(
    q: Strided,
    row: impl Fn(usize) -> R + Copy,
    n: usize,
    k: usize,
    out: StridedMut,
) -> usize {
    let step = S::LANES / H;
    let mut i = 0;
    while i < n {
        let rows = (n - i).min(step);
        // A short group repeats its last row: no branch inside, and the spare results are not
        // stored.
        let mut from = [row(i); MAX_LANES];
        for j in 1..step {
            from[j] = row(i + j.min(rows - 1));
        }
        let sums = lane_dots::<S, R, H>(q, &from, k);
        let out = out.skip(i);
        if H == 1 && rows == step {
            S::store(out.at, sums);
        } else {
            let mut t = [0.0f32; MAX_LANES];
            S::store(t.as_mut_ptr(), sums);
            for h in 0..H {
                let to = out.at.add(h * out.row);
                if rows == step {
                    std::ptr::copy_nonoverlapping(t.as_ptr().add(h * step), to, step);
                } else {
                    std::ptr::copy_nonoverlapping(t.as_ptr().add(h * step), to, rows);
                }
            }
        }
        i += step;
    }
    H
}

/// Three vectors with up to LANES rows, LANES / 2 at a time: as many sums as registers allow. (In
/// groups of two and one, each row would be widened twice.) Returns 3.
#[inline(always)]
unsafe fn group_of_three<S: Simd, R: Stored>(
    q: Strided,
    row: impl Fn(usize) -> R + Copy,
    n: usize,
    k: usize,
    out: StridedMut,
) -> usize {
    let step = S::LANES / 2;
    let mut i = 0;
    while i < n {
        let rows = (n - i).min(step);
        // As in `group`.
        let mut from = [row(i); MAX_LANES];
        for j in 1..step {
            from[j] = row(i + j.min(rows - 1));
        }
        // Sums of the first two vectors, then those of the third.
        let mut sums = [[S::zero(); MAX_LANES]; 2];
        let mut p = 0;
        while p < k {
            let whole = k - p >= S::LANES;
            let mut x = [S::zero(); 3];
            for h in 0..3 {
                x[h] = S::load(q.at.add(h * q.row + p));
            }
            for j in 0..step {
                let row = from[j];
                let v = if whole { row.load::<S>(p) } else { row.load_n::<S>(p, k - p) };
                for h in 0..3 {
                    let sum = &mut sums[h / 2][h % 2 * step + j];
                    *sum = S::fma(x[h], v, *sum);
                }
            }
            p += S::LANES;
        }
        let mut t = [0.0f32; 2 * MAX_LANES];
        S::store(t.as_mut_ptr(), S::sums(sums[0]));
        S::store(t.as_mut_ptr().add(S::LANES), S::sums(sums[1]));
        let out = out.skip(i);
        for h in 0..3 {
            let (from, to) = (t.as_ptr().add(h * step), out.at.add(h * out.row));
            if rows == step {
                std::ptr::copy_nonoverlapping(from, to, step);
            } else {
                std::ptr::copy_nonoverlapping(from, to, rows);
            }
        }
        i += step;
    }
    3
}

/// Lane `h * LANES / H + j` is the dot product of vector h with row j.
#[inline(always)]
unsafe fn lane_dots<S: Simd, R: Stored, const H: usize>(
    q: Strided,
    rows: &[R; MAX_LANES],
    k: usize,
) -> S::V {
    let step = S::LANES / H;
    // LANES sums of a vector each, added across lanes only at the end, by one transposition: so all
    // LANES results cost as much as one, and each sum's order is the same whatever the group.
    let mut sums = [S::zero(); MAX_LANES];
    let mut p = 0;
    while p < k {
        let whole = k - p >= S::LANES;
        let mut x = [S::zero(); H];
        for h in 0..H {
            x[h] = S::load(q.at.add(h * q.row + p));
        }
        for j in 0..step {
            let row = rows[j];
            let v = if whole { row.load::<S>(p) } else { row.load_n::<S>(p, k - p) };
            for h in 0..H {
                sums[h * step + j] = S::fma(x[h], v, sums[h * step + j]);
            }
        }
        p += S::LANES;
    }
    S::sums(sums)
}

/// Dot products of `n_q` vectors with a run of rows.
pub(crate) struct Dots<'a, E> {
    /// `[n_q, q_row]`, zeros after `k`, `q_row` a multiple of 16 elements.
    pub(crate) q: &'a [f32],
    pub(crate) q_row: usize,
    /// `[n, k]`.
    pub(crate) rows: &'a [E],
    pub(crate) k: usize,
    /// `[n_q, out_row]`; n of each row are written.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_row: usize,
}

impl<E: Elem> Kernel for Dots<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { q, q_row, rows, k, out, out_row } = self;
        let (n, n_q) = (rows.len() / k, q.len() / q_row);
        assert!(q_row >= k.next_multiple_of(S::LANES) && n <= out_row);
        assert!(n_q == 0 || out.len() >= (n_q - 1) * out_row + n);
        let row = |i: usize| rows.as_ptr().add(i * k);
        // The prefetchers follow a run by themselves.
        let ahead = |_| {};
        let q = Strided { at: q.as_ptr(), row: q_row };
        let out = StridedMut { at: out.as_mut_ptr(), row: out_row };
        dots::<S, _>(q, n_q, row, ahead, n, k, out);
    }
}

/// The same with rows that a list names.
pub(crate) struct ListedDots<'a, E> {
    /// As [`Dots::q`].
    pub(crate) q: &'a [f32],
    pub(crate) q_row: usize,
    /// `[.., k]`.
    pub(crate) all: &'a [E],
    /// Numbers of rows of `all`.
    pub(crate) ids: &'a [u32],
    /// Elements from one row to the next, at least k.
    pub(crate) row: usize,
    pub(crate) k: usize,
    /// `[n_q, out_row]`; as many of each row are written as there are ids.
    pub(crate) out: &'a mut [f32],
    pub(crate) out_row: usize,
}

/// Rows of k elements that `len` elements hold, `step` from one to the next.
pub(crate) fn rows_of(len: usize, step: usize, k: usize) -> usize {
    assert!(step >= k);
    if len < k { 0 } else { (len - k) / step + 1 }
}

/// Rows of a list that are asked for ahead: most of them lie in runs, which end soon.
const LIST_AHEAD: usize = 16;

impl<E: Elem> Kernel for ListedDots<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { q, q_row, all, ids, row: step, k, out, out_row } = self;
        let (n, n_q, n_rows) = (ids.len(), q.len() / q_row, rows_of(all.len(), step, k));
        // As for codes: `all` would be no vector loop.
        let mut is_row = true;
        for id in ids {
            is_row &= (*id as usize) < n_rows;
        }
        assert!(is_row);
        assert!(q_row >= k.next_multiple_of(S::LANES) && n <= out_row);
        assert!(n_q == 0 || out.len() >= (n_q - 1) * out_row + n);
        let row = |i: usize| all.as_ptr().add(ids[i] as usize * step);
        let ahead = |i: usize| {
            if let Some(id) = ids.get(i + LIST_AHEAD) {
                S::prefetch(all.as_ptr().add(*id as usize * step));
            }
        };
        let q = Strided { at: q.as_ptr(), row: q_row };
        let out = StridedMut { at: out.as_mut_ptr(), row: out_row };
        dots::<S, _>(q, n_q, row, ahead, n, k, out);
    }
}

/// `o_r += sum over i of p[r, i] * row(i)` for the rows of `o`.
///
/// # Safety
/// `row(i)` is valid for k elements (`ahead(i)` is as for [`dots`]), `p` for n in each of `n_rows`
/// rows, `o` for `n_rows * o.row`
/// with `o.row` at least k rounded up to LANES; the instruction set's features are there.
#[inline(always)]
pub(crate) unsafe fn weighted<S: Simd, R: Stored>(
    p: Strided,
    row: impl Fn(usize) -> R + Copy,
    ahead: impl Fn(usize) + Copy,
    n: usize,
    k: usize,
    o: StridedMut,
    n_rows: usize,
) {
    let mut r = 0;
    while r < n_rows {
        let (p, o) = (p.skip(r * p.row), o.skip(r * o.row));
        let ahead = move |i: usize| {
            if r == 0 {
                ahead(i);
            }
        };
        match n_rows - r {
            1 => weighted_rows::<S, R, 1>(p, row, ahead, n, k, o),
            2 => weighted_rows::<S, R, 2>(p, row, ahead, n, k, o),
            3 => weighted_rows::<S, R, 3>(p, row, ahead, n, k, o),
            _ => weighted_rows::<S, R, 4>(p, row, ahead, n, k, o),
        }
        r += (n_rows - r).min(4);
    }
}

#[inline(always)]
unsafe fn weighted_rows<S: Simd, R: Stored, const N: usize>(
    p: Strided,
    row: impl Fn(usize) -> R + Copy,
    ahead: impl Fn(usize) + Copy,
    n: usize,
    k: usize,
    o: StridedMut,
) {
    let mut c = 0;
    while c < k {
        let left = k - c;
        let ahead = move |i: usize| {
            if c == 0 {
                ahead(i);
            }
        };
        let (from, to) = (Columns { first: c, last: left.min(S::LANES) }, o.skip(c));
        if left >= 4 * S::LANES {
            weighted_columns::<S, R, N, 4>(p, row, ahead, n, from, to);
            c += 4 * S::LANES;
        } else if left >= 2 * S::LANES {
            weighted_columns::<S, R, N, 2>(p, row, ahead, n, from, to);
            c += 2 * S::LANES;
        } else {
            weighted_columns::<S, R, N, 1>(p, row, ahead, n, from, to);
            c += S::LANES;
        }
    }
}

/// Columns of rows, as many vectors as are asked for.
#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    /// Columns of the last vector.
    last: usize,
}

#[inline(always)]
unsafe fn weighted_columns<S: Simd, R: Stored, const N: usize, const W: usize>(
    p: Strided,
    row: impl Fn(usize) -> R + Copy,
    ahead: impl Fn(usize) + Copy,
    n: usize,
    columns: Columns,
    o: StridedMut,
) {
    // W columns over all rows before the next columns: the N * W sums stay in registers, and `o` is
    // read and written once a tile instead of once a row.
    let mut sums = [[S::zero(); W]; N];
    for r in 0..N {
        for w in 0..W {
            sums[r][w] = S::load(o.at.add(r * o.row + w * S::LANES));
        }
    }
    for i in 0..n {
        ahead(i);
        let from = row(i);
        let mut v = [S::zero(); W];
        for w in 0..W {
            let at = columns.first + w * S::LANES;
            let whole = columns.last == S::LANES;
            v[w] = if whole { from.load::<S>(at) } else { from.load_n::<S>(at, columns.last) };
        }
        for r in 0..N {
            let x = S::splat(*p.at.add(r * p.row + i));
            for w in 0..W {
                sums[r][w] = S::fma(x, v[w], sums[r][w]);
            }
        }
    }
    for r in 0..N {
        for w in 0..W {
            S::store(o.at.add(r * o.row + w * S::LANES), sums[r][w]);
        }
    }
}
