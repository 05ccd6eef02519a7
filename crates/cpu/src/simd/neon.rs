//! NEON on 64-bit ARM: four lanes, thirty-two registers.

use std::arch::aarch64::*;

use half::{bf16, f16};

use super::{MAX_LANES, Simd};

/// The set of every 64-bit ARM processor.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const MR: usize = 8;
    const NV: usize = 2;

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
