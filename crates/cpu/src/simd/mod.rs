//! Vectors of f32, one type per instruction set, and the traits that kernels are generic over.
//!
//! A [`Kernel`] is written once over [`Simd`] and compiled once per instruction set:
//! `SupportedIsa::run` enters it through [`Simd::call`], a function that has the set's features,
//! and every other method here is `#[inline(always)]`, so that the intrinsics end up inside that
//! function. That is also the one safety rule of this module: a method of a set may only run inside
//! such an entry, and pointers must be valid for the lanes that are named.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every line is unsafe for the one reason in the module doc; blocks would add nothing"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over lanes index several arrays at once, and must unroll to constants"
)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod bytes;
pub(crate) mod elem;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod pairs;
pub(crate) mod portable;
pub(crate) mod stored;
pub(crate) mod words;

use half::{bf16, f16};

/// The most lanes that any set has.
pub(crate) const MAX_LANES: usize = 16;

/// How many sums of two products of a code of `bits` bits with an activation fit into 16 bits.
#[inline(always)]
const fn pairs_in_16_bits(bits: usize) -> usize {
    // Signed codes of 8 bits are up to 128 in magnitude, others up to 2^bits - 1.
    let code = if bits == 8 { 128 } else { (1 << bits) - 1 };
    i16::MAX as usize / (2 * 127 * code)
}

/// Work that is written once for all instruction sets.
pub(crate) trait Kernel {
    /// What [`Kernel::run`] returns.
    type Output;

    /// Does the work; must be `#[inline(always)]`, with everything hot that it calls but for what
    /// it hands to [`Simd::call`].
    ///
    /// # Safety
    /// Called by [`Simd::call`] only, which has the features of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// One vector instruction set.
///
/// # Safety
/// All methods: the CPU has the set's features, the caller was compiled with them (see the module
/// doc), and pointers are valid for `LANES` elements, or for `n` where a method takes `n <= LANES`.
/// No alignment is needed.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// A vector of f32.
    type V: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Rows of the register tile of a matrix product.
    const MR: usize;
    /// Vectors in a row of that tile.
    const NV: usize;
    /// Columns of the tile.
    const NR: usize = Self::NV * Self::LANES;
    /// The order in which [`Simd::sums`] and [`Simd::sum`] add lanes: neighbours of this list, then
    /// neighbours of the results, and so on.
    const SUM_ORDER: [usize; MAX_LANES];

    /// Runs a kernel in a function of its own, which has the set's features and is never inlined.
    /// A kernel has its large parts run so: a function takes the compiler more time for each of its
    /// loops, the more loops it has.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn load_f16(p: *const f16) -> Self::V;
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    unsafe fn load_i8(p: *const i8) -> Self::V;
    /// One number in all lanes.
    unsafe fn splat_f16(p: *const f16) -> Self::V;
    /// Rounds to nearest even.
    unsafe fn store_f16(p: *mut f16, v: Self::V);
    /// Rounds to nearest even.
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`: with not-a-number in either, `b` (or not-a-number).
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: with not-a-number in either, `b` (or not-a-number).
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? x : y` for each lane; x and y may hold any bits.
    unsafe fn select_gt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `a * 2^n` for integers n in -252..=254, right down to denormals.
    unsafe fn ldexp(a: Self::V, n: Self::V) -> Self::V;

    /// Transposes the first `LANES` vectors as a square.
    unsafe fn transpose(v: &mut [Self::V; MAX_LANES]);

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        Self::splat(0.0)
    }

    /// Element j is the sum of the lanes of `v[j]`, added in [`Simd::SUM_ORDER`].
    #[inline(always)]
    unsafe fn sums(mut v: [Self::V; MAX_LANES]) -> Self::V {
        Self::transpose(&mut v);
        let mut half = Self::LANES / 2;
        while half > 0 {
            for i in 0..half {
                v[i] = Self::add(v[i], v[i + half]);
            }
            half /= 2;
        }
        v[0]
    }

    /// The sum of the lanes, added in [`Simd::SUM_ORDER`].
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let t = spill::<Self>(v);
        let mut half = Self::LANES / 2;
        let mut t = t;
        while half > 0 {
            for i in 0..half {
                t[i] += t[i + half];
            }
            half /= 2;
        }
        t[0]
    }

    /// The first lane.
    #[inline(always)]
    unsafe fn first(v: Self::V) -> f32 {
        spill::<Self>(v)[0]
    }

    /// The largest lane; with not-a-number in some lane, any of the lanes.
    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        let mut t = spill::<Self>(v);
        let mut half = Self::LANES / 2;
        while half > 0 {
            for i in 0..half {
                t[i] = if t[i] > t[i + half] { t[i] } else { t[i + half] };
            }
            half /= 2;
        }
        t[0]
    }

    /// The first `n` elements, then zeros.
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V {
        let mut t = [0.0f32; MAX_LANES];
        std::ptr::copy_nonoverlapping(p, t.as_mut_ptr(), n);
        Self::load(t.as_ptr())
    }

    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: Self::V) {
        let t = spill::<Self>(v);
        std::ptr::copy_nonoverlapping(t.as_ptr(), p, n);
    }

    #[inline(always)]
    unsafe fn load_f16_n(p: *const f16, n: usize) -> Self::V {
        let mut t = [f16::ZERO; MAX_LANES];
        std::ptr::copy_nonoverlapping(p, t.as_mut_ptr(), n);
        Self::load_f16(t.as_ptr())
    }

    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> Self::V {
        let mut t = [bf16::ZERO; MAX_LANES];
        std::ptr::copy_nonoverlapping(p, t.as_mut_ptr(), n);
        Self::load_bf16(t.as_ptr())
    }

    #[inline(always)]
    unsafe fn load_i8_n(p: *const i8, n: usize) -> Self::V {
        let mut t = [0i8; MAX_LANES];
        std::ptr::copy_nonoverlapping(p, t.as_mut_ptr(), n);
        Self::load_i8(t.as_ptr())
    }

    #[inline(always)]
    unsafe fn store_f16_n(p: *mut f16, n: usize, v: Self::V) {
        let mut t = [f16::ZERO; MAX_LANES];
        Self::store_f16(t.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(t.as_ptr(), p, n);
    }

    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut bf16, n: usize, v: Self::V) {
        let mut t = [bf16::ZERO; MAX_LANES];
        Self::store_bf16(t.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(t.as_ptr(), p, n);
    }

    /// Writes `first + lane` for each lane whose word at `p` is in `from..=from + span`, one behind
    /// the other; returns how many. There is room for `LANES` numbers at `to`.
    #[inline(always)]
    unsafe fn list_words(p: *const u32, [from, span]: [u32; 2], first: u32, to: *mut u32) -> usize {
        // Which lanes count is chance, so there is no branch: each is written where the next one
        // goes, and stays if it counts.
        let mut n = 0;
        for lane in 0..Self::LANES {
            *to.add(n) = first + lane as u32;
            n += usize::from((*p.add(lane)).wrapping_sub(from) <= span);
        }
        n
    }

    /// Asks for the cache line of `p` in L2; any address is allowed. Not in L1: its few miss
    /// buffers would be the limit (random rows, Zen 4: 10 GB/s a core against 19).
    #[inline(always)]
    unsafe fn prefetch<T>(_p: *const T) {}

    /// Asks for the cache line of `p` in L1; any address is allowed. For weights of 16 bits that
    /// are in L2 by then: alone it is too slow on Zen 4 (rows of 576: 22 GB/s, through L2 34), and
    /// L2 alone is too slow on Zen 5 (41 GB/s, with L1 45).
    #[inline(always)]
    unsafe fn prefetch_near<T>(_p: *const T) {}
}

#[inline(always)]
unsafe fn spill<S: Simd>(v: S::V) -> [f32; MAX_LANES] {
    let mut t = [0.0f32; MAX_LANES];
    S::store(t.as_mut_ptr(), v);
    t
}
