//! A few rows of activations times a matrix that is streamed once: bound by the bytes of the
//! weights.
//!
//! Weights are widened in registers; activations stay f32. Where a row's sum is short, one row of
//! activations takes weight rows one after the other: that is one stream, which the processor reads
//! ahead by itself better than any prefetch does (Zen 4, two cores, f16, rows of 576 and of 2,048:
//! 57 and 59 GB/s; four rows side by side with prefetches: 37 and 46). Elsewhere each product of a
//! sum would wait for the one before it, so several weight rows run side by side; what is asked for
//! ahead is one stream all the same.

use crate::simd::elem::Elem;
use crate::simd::{MAX_LANES, Simd};
use crate::supported_isa::Kernel;
use crate::team::Shared;

/// Most activation rows.
pub(crate) const MAX_ROWS: usize = 8;

/// Activation rows that share a load of the weights: more would not stay in L1, and take a second
/// pass over a block of weights that is still in L2.
const SIDE: usize = 4;

/// Most vectors of 16 bits in a row that is read alone: the processor then works on the next row
/// before the sums of this one are done. (Rows of 8,192: 27 GB/s alone, 45 side by side.)
const MOST_ALONE: usize = 128;

/// Bytes from a weight that is multiplied to the one that then comes from L2 into L1.
const NEAR: usize = 256;

/// Bytes of weights that are asked for ahead, at least.
const AHEAD: usize = 8192;

/// `out[r, first..] = x_r . w_o (+ bias) (+ out)` for a block of weight rows.
pub(crate) struct Matvec<'a, E> {
    /// `[n, k]`: the block.
    pub(crate) weights: &'a [E],
    /// As [`pack_rows`] makes it.
    pub(crate) x: &'a [f32],
    /// At most [`MAX_ROWS`].
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
        assert!(self.n_rows <= MAX_ROWS && self.x.len() == packed_len(self.n_rows, self.k));
        let mut first = 0;
        while first < self.n_rows {
            let x = self.x.as_ptr().add(packed_len(first, self.k));
            match self.n_rows - first {
                1 if self.is_alone::<S>() => self.blocks::<S, 1, 1>(x, first),
                1 => self.blocks::<S, 1, 4>(x, first),
                2 => self.blocks::<S, 2, 4>(x, first),
                // As many sums as registers allow: a load of x then serves more rows of weights.
                3 if S::MR * S::NV >= 24 => self.blocks::<S, 3, 4>(x, first),
                3 => self.blocks::<S, 3, 2>(x, first),
                _ if S::MR * S::NV >= 24 => self.blocks::<S, 4, 4>(x, first),
                _ => self.blocks::<S, 4, 2>(x, first),
            }
            first += SIDE;
        }
    }
}

impl<E: Elem> Matvec<'_, E> {
    /// Whether one row of activations takes weight rows one after the other.
    #[inline(always)]
    fn is_alone<S: Simd>(&self) -> bool {
        let is_wide = S::LANES == MAX_LANES;
        is_wide && (self.k <= MOST_ALONE * S::LANES || size_of::<E>() > 2)
    }

    #[inline(always)]
    unsafe fn blocks<S: Simd, const R: usize, const O: usize>(&self, x: *const f32, r: usize) {
        let n = self.weights.len().checked_div(self.k).unwrap_or(0);
        let mut o = 0;
        while o + O <= n {
            self.block::<S, R, O>(x, r, o);
            o += O;
        }
        while o < n {
            self.block::<S, R, 1>(x, r, o);
            o += 1;
        }
    }

    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const O: usize>(
        &self,
        x: *const f32,
        first: usize,
        o: usize,
    ) {
        let k = self.k;
        let w = self.weights.as_ptr().add(o * k);
        let mut sums = [[S::zero(); O]; R];
        let mut p = 0;
        // Several rows of activations, or short rows: one stream, a whole block ahead, because its
        // rows are read side by side.
        let is_stream = R > 1 || k <= MOST_ALONE * MAX_LANES;
        let ahead = w.cast::<u8>().wrapping_add((O * k * size_of::<E>()).max(AHEAD));
        // Two vectors a turn, because with 16-bit weights and 16 lanes they are one cache line: one
        // prefetch each.
        while p + 2 * S::LANES <= k {
            let bytes = 2 * S::LANES * size_of::<E>();
            if O > 1 && is_stream {
                let mut at = p * O * size_of::<E>();
                let end = at + O * bytes;
                while at < end {
                    S::prefetch(ahead.wrapping_add(at));
                    at += 64;
                }
            } else if O > 1 {
                for j in 0..O {
                    let at = w.wrapping_add(j * k + p).cast::<u8>();
                    // The same place of the next block.
                    let next = at.wrapping_add(O * k * size_of::<E>());
                    let mut line = 0;
                    while line < bytes {
                        S::prefetch(next.wrapping_add(line));
                        if size_of::<E>() == 2 {
                            S::prefetch_near(at.wrapping_add(NEAR + line));
                        }
                        line += 64;
                    }
                }
            }
            step::<S, E, R, O>(&mut sums, w.add(p), k, x, p);
            p += S::LANES;
            step::<S, E, R, O>(&mut sums, w.add(p), k, x, p);
            p += S::LANES;
        }
        if p + S::LANES <= k {
            step::<S, E, R, O>(&mut sums, w.add(p), k, x, p);
            p += S::LANES;
        }
        if p < k {
            for j in 0..O {
                let v = E::load_n::<S>(w.add(j * k + p), k - p);
                for r in 0..R {
                    let x = S::load_n(x.add(place::<R>(r, p)), k - p);
                    sums[r][j] = S::fma(v, x, sums[r][j]);
                }
            }
        }
        for r in 0..R {
            for j in 0..O {
                self.finish(first + r, o + j, S::sum(sums[r][j]));
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

/// Elements of a row of x that lie together.
const GROUP: usize = 16;

/// Where element p of row r is.
#[inline(always)]
fn place<const R: usize>(r: usize, p: usize) -> usize {
    (p / GROUP * R + r) * GROUP + p % GROUP
}

/// Length of what [`pack_rows`] makes. A single row needs no packing and stays as it is.
pub(crate) fn packed_len(n_rows: usize, k: usize) -> usize {
    n_rows * if n_rows == 1 { k } else { k.next_multiple_of(GROUP) }
}

/// Interleaves [`SIDE`] rows of x at a time in groups of 16 elements, so that they are one stream:
/// rows of 8 KiB side by side would fall into the same sets of L1.
pub(crate) fn pack_rows(x: &[f32], k: usize, packed: &mut [f32]) {
    let width = k.next_multiple_of(GROUP);
    for (rows, packed) in x.chunks(SIDE * k).zip(packed.chunks_mut(SIDE * width)) {
        for (g, group) in packed.chunks_exact_mut(rows.len() / k * GROUP).enumerate() {
            let columns = g * GROUP..((g + 1) * GROUP).min(k);
            for (row, to) in rows.chunks_exact(k).zip(group.chunks_exact_mut(GROUP)) {
                to[..columns.len()].copy_from_slice(&row[columns.clone()]);
                to[columns.len()..].fill(0.0);
            }
        }
    }
}

/// One vector of each weight row against each row of x.
#[inline(always)]
unsafe fn step<S: Simd, E: Elem, const R: usize, const O: usize>(
    sums: &mut [[S::V; O]; R],
    w: *const E,
    k: usize,
    x: *const f32,
    p: usize,
) {
    let mut v = [S::zero(); O];
    for j in 0..O {
        v[j] = E::load::<S>(w.add(j * k));
    }
    for r in 0..R {
        let x = S::load(x.add(place::<R>(r, p)));
        for j in 0..O {
            sums[r][j] = S::fma(v[j], x, sums[r][j]);
        }
    }
}
