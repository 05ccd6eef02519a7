//! A few rows of activations times a matrix that is streamed once: bound by the bytes of the
//! weights.
//!
//! Weights are widened in registers; activations stay f32. Where a row's sum is short, one row of
//! activations takes weight rows one after the other: that is one stream, which AMD's processors
//! read ahead by themselves better than any prefetch does (Zen 4, two cores, f16, rows of 576 and
//! of 2,048: 57 and 59 GB/s; four rows side by side with prefetches: 37 and 46). Intel's do not
//! (Sapphire Rapids: 18 and 20; 28 and 29). Elsewhere each product of a sum would wait for the one
//! before it, so several weight rows run side by side; what is asked for ahead is one stream all
//! the same.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use super::gemm::totals;
use crate::simd::elem::Elem;
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::team::Shared;

/// Most activation rows.
pub(crate) const MAX_ROWS: usize = 8;

/// Activation rows that share a load of the weights, where the processor has registers for `n_sums`
/// sums. More rows take a second pass over a block of weights that is still in L2.
pub(crate) const fn side(n_sums: usize) -> usize {
    if n_sums >= MANY_SUMS { MAX_ROWS } else { 4 }
}

/// Sums of a processor with 32 registers of 16 lanes.
const MANY_SUMS: usize = 24;

/// Most columns of a slice: eight rows of them take half of L1.
const SLICE: usize = 512;

/// Weight rows that take a slice one after the other: their sums fit into L1 beside it.
const RUN: usize = 24;

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
    /// Whether the processor reads a stream ahead by itself.
    pub(crate) reads_ahead: bool,
}

impl<E: Elem> Kernel for Matvec<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.n_rows <= MAX_ROWS && self.x.len() == packed_len(self.n_rows, self.k));
        let mut first = 0;
        while first < self.n_rows {
            let x = self.x.as_ptr().add(packed_len(first, self.k));
            // As many sums as registers allow: a load of x then serves more rows of weights.
            let n = self.n_rows - first;
            // By a constant, so that nobody compiles the other half.
            if const { S::MR * S::NV >= MANY_SUMS } {
                self.with_many_sums::<S>(x, first, n);
            } else {
                self.with_few_sums::<S>(x, first, n);
            }
            first += side(S::MR * S::NV);
        }
    }
}

/// R rows of activations from row r on, with O rows of weights at a time from begin to end, or in
/// slices of columns.
struct Rows<'a, E, const R: usize, const O: usize, const SLICED: bool> {
    of: &'a Matvec<'a, E>,
    x: *const f32,
    r: usize,
}

impl<E: Elem, const R: usize, const O: usize, const SLICED: bool> Kernel
    for Rows<'_, E, R, O, SLICED>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { of, x, r } = self;
        if SLICED { of.in_slices::<S, R, O>(x, r) } else { of.in_blocks::<S, R, O>(x, r) }
    }
}

impl<E: Elem> Matvec<'_, E> {
    #[inline(always)]
    unsafe fn with_many_sums<S: Simd>(&self, x: *const f32, r: usize, n: usize) {
        match n {
            1 if self.is_alone::<S>() => self.blocks::<S, 1, 1>(x, r),
            1 => self.blocks::<S, 1, 4>(x, r),
            2 => self.blocks::<S, 2, 4>(x, r),
            3 => self.blocks::<S, 3, 4>(x, r),
            4 => self.slices::<S, 4, 4>(x, r),
            5 => self.slices::<S, 5, 4>(x, r),
            6 => self.slices::<S, 6, 4>(x, r),
            7 => self.slices::<S, 7, 3>(x, r),
            _ => self.slices::<S, 8, 3>(x, r),
        }
    }

    #[inline(always)]
    unsafe fn with_few_sums<S: Simd>(&self, x: *const f32, r: usize, n: usize) {
        match n {
            1 => self.blocks::<S, 1, 4>(x, r),
            2 => self.blocks::<S, 2, 4>(x, r),
            3 => self.blocks::<S, 3, 2>(x, r),
            _ => self.blocks::<S, 4, 2>(x, r),
        }
    }

    /// Whether one row of activations takes weight rows one after the other.
    #[inline(always)]
    fn is_alone<S: Simd>(&self) -> bool {
        let is_short = self.k <= MOST_ALONE * S::LANES;
        let has_registers = const { S::LANES == MAX_LANES };
        has_registers && self.reads_ahead && (is_short || size_of::<E>() > 2)
    }

    #[inline(always)]
    unsafe fn blocks<S: Simd, const R: usize, const O: usize>(&self, x: *const f32, r: usize) {
        S::call(Rows::<E, R, O, false> { of: self, x, r });
    }

    #[inline(always)]
    unsafe fn slices<S: Simd, const R: usize, const O: usize>(&self, x: *const f32, r: usize) {
        S::call(Rows::<E, R, O, true> { of: self, x, r });
    }

    #[inline(always)]
    unsafe fn in_blocks<S: Simd, const R: usize, const O: usize>(&self, x: *const f32, r: usize) {
        let (k, n) = (self.k, self.n_weights());
        // Several rows of activations, or short rows: one stream, a whole block ahead, because its
        // rows are read side by side.
        let is_stream = R > 1 || k <= MOST_ALONE * MAX_LANES;
        let mut o = 0;
        while o < n {
            let ahead = (O * k * size_of::<E>()).max(AHEAD);
            let ahead = is_stream.then(|| self.weight(o).cast::<u8>().wrapping_add(ahead));
            let part = Part { r, o, columns: 0..k, ahead, waiting: ptr::null_mut() };
            o += self.rows::<S, R, O>(x, part, n - o);
        }
    }

    /// As [`Self::in_blocks`] for so many rows of activations that they do not fit into L1: a slice
    /// of their columns at a time meets a run of weight rows, whose sums wait meanwhile.
    #[inline(always)]
    unsafe fn in_slices<S: Simd, const R: usize, const O: usize>(&self, x: *const f32, r: usize) {
        let (k, n) = (self.k, self.n_weights());
        let depth = k.div_ceil(k.div_ceil(SLICE)).next_multiple_of(2 * MAX_LANES);
        // Not zeros: to write these takes as long as a small item.
        let mut waiting = [[MaybeUninit::<f32>::uninit(); MANY_SUMS * MAX_LANES]; RUN];
        for start in (0..n).step_by(RUN) {
            let n_run = (n - start).min(RUN);
            for p in (0..k).step_by(depth) {
                let columns = p..k.min(p + depth);
                let mut i = 0;
                while i < n_run {
                    // The run after this one, as far as this one is done.
                    let done = n_run * p + i * columns.len();
                    let ahead = self.weight(start + n_run).wrapping_add(done).cast();
                    let waiting = waiting[i].as_mut_ptr().cast();
                    let columns = columns.clone();
                    let part = Part { r, o: start + i, columns, ahead: Some(ahead), waiting };
                    i += self.rows::<S, R, O>(x, part, n_run - i);
                }
            }
        }
    }

    /// The part of O rows of weights where so many are left, else of one; returns of how many.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize, const O: usize>(
        &self,
        x: *const f32,
        part: Part,
        n_left: usize,
    ) -> usize {
        if O <= n_left {
            self.block::<S, R, O>(x, part);
            O
        } else {
            self.block::<S, R, 1>(x, part);
            1
        }
    }

    /// Weight rows.
    #[inline(always)]
    fn n_weights(&self) -> usize {
        self.weights.len().checked_div(self.k).unwrap_or(0)
    }

    #[inline(always)]
    fn weight(&self, o: usize) -> *const E {
        self.weights.as_ptr().wrapping_add(o * self.k)
    }

    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const O: usize>(&self, x: *const f32, part: Part) {
        let Part { r: first, o, columns: Range { start, end }, ahead, waiting } = part;
        let (k, w) = (self.k, self.weight(o));
        let mut sums = [[S::zero(); O]; R];
        if start > 0 {
            for r in 0..R {
                for j in 0..O {
                    sums[r][j] = S::load(waiting.add((r * O + j) * S::LANES));
                }
            }
        }
        let mut p = start;
        // Two vectors a turn, because with 16-bit weights and 16 lanes they are one cache line: one
        // prefetch each.
        while p + 2 * S::LANES <= end {
            let bytes = 2 * S::LANES * size_of::<E>();
            if O > 1
                && let Some(ahead) = ahead
            {
                let mut at = (p - start) * O * size_of::<E>();
                let last = at + O * bytes;
                while at < last {
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
        if end < k {
            for r in 0..R {
                for j in 0..O {
                    S::store(waiting.add((r * O + j) * S::LANES), sums[r][j]);
                }
            }
            return;
        }
        if p + S::LANES <= k {
            step::<S, E, R, O>(&mut sums, w.add(p), k, x, p);
            p += S::LANES;
        }
        if p < k {
            let mut v = [S::zero(); O];
            for j in 0..O {
                v[j] = E::load_n::<S>(w.add(j * k + p), k - p);
            }
            for r in 0..R {
                let x = S::load_n(x.add(place::<R>(r, p)), k - p);
                for j in 0..O {
                    sums[r][j] = S::fma(v[j], x, sums[r][j]);
                }
            }
        }
        // Of a copy: the compiler would keep what it reads by number in memory, not in registers.
        let mut done = [[S::zero(); O]; R];
        for r in 0..R {
            for j in 0..O {
                done[r][j] = sums[r][j];
            }
        }
        let totals = totals::<S, R, O>(&done);
        for r in 0..R {
            for j in 0..O {
                self.finish(first + r, o + j, totals[r * O + j]);
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

/// Some columns of a few rows of both.
struct Part {
    /// The first row of activations.
    r: usize,
    /// The first row of weights, in the block.
    o: usize,
    /// All but the last part of a row have a multiple of two vectors.
    columns: Range<usize>,
    /// What is asked for ahead, where that is one stream.
    ahead: Option<*const u8>,
    /// Sums that the columns before left, and that wait for those that follow.
    waiting: *mut f32,
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

/// Interleaves as many rows of x as share a load of the weights ([`side`]) in groups of 16
/// elements, so that they are one stream: rows of 8 KiB side by side would fall into the same sets
/// of L1.
pub(crate) fn pack_rows(x: &[f32], k: usize, side: usize, packed: &mut [f32]) {
    let width = k.next_multiple_of(GROUP);
    for (rows, packed) in x.chunks(side * k).zip(packed.chunks_mut(side * width)) {
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
