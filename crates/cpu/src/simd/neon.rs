//! NEON on 64-bit ARM: four lanes, thirty-two registers.

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};

use super::bytes::{ByteKernel, ByteSimd};
use super::{Kernel, MAX_LANES, Simd};

/// The set of every 64-bit ARM processor, with products of bytes as `BYTES` says: [`WIDENED`],
/// [`DOTS`] or [`MATRICES`].
#[derive(Clone, Copy)]
pub(crate) struct Neon<const BYTES: u8>;

/// Products of bytes become 16 bits, then 32: any processor.
pub(crate) const WIDENED: u8 = 0;
/// Dot products of four bytes are one instruction: the feature `dotprod`.
pub(crate) const DOTS: u8 = 1;
/// So are products of two rows of eight bytes with two others: the feature `i8mm`, beside
/// `dotprod`.
pub(crate) const MATRICES: u8 = 2;

#[inline(never)]
unsafe fn call_widened<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<WIDENED>>()
}

#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
unsafe fn call_dots<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<DOTS>>()
}

#[inline(never)]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn call_matrices<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<MATRICES>>()
}

impl<const BYTES: u8> Simd for Neon<BYTES> {
    type V = float32x4_t;
    const LANES: usize = 4;
    const MR: usize = 8;
    const NV: usize = 2;
    const SUM_ORDER: [usize; MAX_LANES] = [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    #[inline(never)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // Without products of bytes all are the same, and need what every processor has.
        kernel.run::<Neon<WIDENED>>()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        vdupq_n_f32(x)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        vld1q_f32(p)
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        vst1q_f32(p, v);
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> float32x4_t {
        // As in portable code: 2^112 scales the exponent, denormals included.
        let bits = vmovl_u16(vld1_u16(p.cast()));
        let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
        let finite = vmulq_n_f32(vreinterpretq_f32_u32(magnitude), f32::from_bits(0x7780_0000));
        let special = vorrq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
        let exponent = vdupq_n_u32(0x7c00);
        let is_special = vceqq_u32(vandq_u32(bits, exponent), exponent);
        let wide = vbslq_u32(is_special, special, vreinterpretq_u32_f32(finite));
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        vreinterpretq_f32_u32(vorrq_u32(wide, sign))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> float32x4_t {
        vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> float32x4_t {
        let wide = vmovl_s8(vcreate_s8(u64::from(p.cast::<u32>().read_unaligned())));
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const f16) -> float32x4_t {
        vdupq_n_f32(p.read_unaligned().to_f32())
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: float32x4_t) {
        let mut t = [0.0f32; 4];
        vst1q_f32(t.as_mut_ptr(), v);
        p.cast::<[f16; 4]>().write_unaligned(t.map(f16::from_f32));
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: float32x4_t) {
        let bits = vreinterpretq_u32_f32(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        let rounded = vbslq_u32(vceqq_f32(v, v), up, quiet);
        vst1_u16(p.cast(), vshrn_n_u32::<16>(rounded));
    }

    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vaddq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vsubq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmulq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vdivq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmaxq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vminq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn select_gt(
        a: float32x4_t,
        b: float32x4_t,
        x: float32x4_t,
        y: float32x4_t,
    ) -> float32x4_t {
        vbslq_f32(vcgtq_f32(a, b), x, y)
    }

    #[inline(always)]
    unsafe fn round(a: float32x4_t) -> float32x4_t {
        vrndnq_f32(a)
    }

    #[inline(always)]
    unsafe fn ldexp(a: float32x4_t, n: float32x4_t) -> float32x4_t {
        // Two factors, because 2^n alone may be denormal or too large.
        let n = vcvtnq_s32_f32(n);
        let half = vshrq_n_s32::<1>(n);
        let rest = vsubq_s32(n, half);
        let bias = vdupq_n_s32(127);
        let x = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(half, bias)));
        let y = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(rest, bias)));
        vmulq_f32(vmulq_f32(a, x), y)
    }

    #[inline(always)]
    unsafe fn transpose(v: &mut [float32x4_t; MAX_LANES]) {
        let (a, b) = (vtrn1q_f32(v[0], v[1]), vtrn2q_f32(v[0], v[1]));
        let (c, d) = (vtrn1q_f32(v[2], v[3]), vtrn2q_f32(v[2], v[3]));
        let wide = vreinterpretq_f64_f32;
        let back = vreinterpretq_f32_f64;
        v[0] = back(vtrn1q_f64(wide(a), wide(c)));
        v[1] = back(vtrn1q_f64(wide(b), wide(d)));
        v[2] = back(vtrn2q_f64(wide(a), wide(c)));
        v[3] = back(vtrn2q_f64(wide(b), wide(d)));
    }

    #[inline(always)]
    unsafe fn sums(v: [float32x4_t; MAX_LANES]) -> float32x4_t {
        vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]))
    }

    #[inline(always)]
    unsafe fn sum(v: float32x4_t) -> f32 {
        vaddvq_f32(v)
    }

    #[inline(always)]
    unsafe fn max_lane(v: float32x4_t) -> f32 {
        vmaxvq_f32(v)
    }
}

impl<const BYTES: u8> ByteSimd for Neon<BYTES> {
    type B = uint8x16_t;
    type I = int32x4_t;
    const BIASED: bool = false;
    const X_ROWS: usize = 8;
    const TWO_ROWS: bool = BYTES == MATRICES;

    #[inline(always)]
    unsafe fn call_bytes<K: ByteKernel>(kernel: K) -> K::Output {
        match BYTES {
            WIDENED => call_widened(kernel),
            DOTS => call_dots(kernel),
            _ => call_matrices(kernel),
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> uint8x16_t {
        vld1q_u8(p)
    }

    #[inline(always)]
    unsafe fn mask(b: uint8x16_t, mask: u8) -> uint8x16_t {
        vandq_u8(b, vdupq_n_u8(mask))
    }

    #[inline(always)]
    unsafe fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        vorrq_u8(a, b)
    }

    #[inline(always)]
    unsafe fn select(mask: u32, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        vbslq_u8(vreinterpretq_u8_u32(vdupq_n_u32(mask)), a, b)
    }

    #[inline(always)]
    unsafe fn flip(b: uint8x16_t, bits: u8) -> uint8x16_t {
        veorq_u8(b, vdupq_n_u8(bits))
    }

    #[inline(always)]
    unsafe fn shift(b: uint8x16_t, n: i32) -> uint8x16_t {
        // A negative count shifts to the right.
        vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(b), vdupq_n_s32(n)))
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], b: uint8x16_t) -> uint8x16_t {
        vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table.as_ptr())), b)
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> int32x4_t {
        vdupq_n_s32(*p)
    }

    #[inline(always)]
    unsafe fn zero_int() -> int32x4_t {
        vdupq_n_s32(0)
    }

    #[inline(always)]
    unsafe fn add_128(low: int32x4_t, high: int32x4_t) -> int32x4_t {
        vaddq_s32(low, vshlq_n_s32::<7>(high))
    }

    #[inline(always)]
    unsafe fn signed_byte(b: uint8x16_t, j: i32) -> int32x4_t {
        vshrq_n_s32::<24>(vreinterpretq_s32_u8(Self::shift(b, 24 - 8 * j)))
    }

    #[inline(always)]
    unsafe fn to_float(i: int32x4_t) -> float32x4_t {
        vcvtq_f32_s32(i)
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> float32x4_t {
        let four = vdup_n_u32(p.cast::<u32>().read_unaligned());
        let wide = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(four))));
        vcvtq_f32_u32(wide)
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: usize>(
        start: int32x4_t,
        w: &[uint8x16_t; 8],
        from: usize,
        a: *const i8,
    ) -> int32x4_t {
        if BYTES != WIDENED {
            // Two sums, because a dot product has a latency of three to four cycles.
            let mut sums = [start, vdupq_n_s32(0)];
            for i in 0..N {
                let a = vdupq_n_s32(a.cast::<i32>().add(i).read_unaligned());
                let (w, a) = (vreinterpretq_s8_u8(w[from + i]), vreinterpretq_s8_s32(a));
                sums[i % 2] = dot_of_fours(sums[i % 2], w, a);
            }
            return vaddq_s32(sums[0], sums[1]);
        }
        // A lane of 16 bits takes one product a turn: twice as many turns as sums of pairs.
        let run = 2 * super::pairs_in_16_bits(BITS);
        let mut sum = start;
        let mut i = 0;
        while i < N {
            let (mut low, mut high) = (vdupq_n_s16(0), vdupq_n_s16(0));
            for j in i..(i + run).min(N) {
                let w = vreinterpretq_s8_u8(w[from + j]);
                let a = vdupq_n_s32(a.cast::<i32>().add(j).read_unaligned());
                let a = vreinterpretq_s8_s32(a);
                low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(a));
                high = vmlal_s8(high, vget_high_s8(w), vget_high_s8(a));
            }
            sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
            i += run;
        }
        sum
    }

    #[inline(always)]
    unsafe fn dot_two<const N: usize, const BITS: usize>(
        start: [int32x4_t; 2],
        w: &[uint8x16_t; 8],
        from: usize,
        a: [*const i8; 2],
    ) -> [int32x4_t; 2] {
        if BYTES != MATRICES {
            let one = |i: usize| Self::dot::<N, BITS>(start[i], w, from, a[i]);
            return [one(0), one(1)];
        }
        // Lanes of a sum: a row of codes with the first activations, with the second ones, then the
        // next row of codes.
        let mut low = vzip1q_s32(start[0], start[1]);
        let mut high = vzip2q_s32(start[0], start[1]);
        let mut i = 0;
        while i < N {
            let eight = |row: *const i8| vld1_s8(row.add(4 * i));
            let both = vcombine_s8(eight(a[0]), eight(a[1]));
            let first = vreinterpretq_s32_u8(w[from + i]);
            let second = vreinterpretq_s32_u8(w[from + i + 1]);
            let upper = vreinterpretq_s8_s32(vzip1q_s32(first, second));
            let lower = vreinterpretq_s8_s32(vzip2q_s32(first, second));
            low = product_of_eights(low, upper, both);
            high = product_of_eights(high, lower, both);
            i += 2;
        }
        [vuzp1q_s32(low, high), vuzp2q_s32(low, high)]
    }
}

/// `sum` and, in each lane, the dot product of its four bytes. (The intrinsic is not stable.)
///
/// # Safety
/// The processor has `dotprod`, and so has the function that this is inlined into.
#[inline(always)]
unsafe fn dot_of_fours(mut sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    asm!(
        "sdot {sum:v}.4s, {w:v}.16b, {a:v}.16b",
        sum = inout(vreg) sum,
        w = in(vreg) w,
        a = in(vreg) a,
        options(pure, nomem, nostack, preserves_flags)
    );
    sum
}

/// `sum` and the products of the halves of `w` with those of `a`, eight bytes each: first with
/// first, first with second, second with first, second with second. (The intrinsic is not stable.)
///
/// # Safety
/// The processor has `i8mm`, and so has the function that this is inlined into.
#[inline(always)]
unsafe fn product_of_eights(mut sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    asm!(
        "smmla {sum:v}.4s, {w:v}.16b, {a:v}.16b",
        sum = inout(vreg) sum,
        w = in(vreg) w,
        a = in(vreg) a,
        options(pure, nomem, nostack, preserves_flags)
    );
    sum
}
