//! Any processor: arrays of eight that the compiler turns into what the target has (SSE2, simd128).

use half::{bf16, f16};

use super::{MAX_LANES, Simd};

/// No intrinsics.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Eight floats; aligned so that two SSE registers or one AVX register hold them.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct F32x8([f32; 8]);

#[inline(always)]
fn zip(a: F32x8, b: F32x8, f: impl Fn(f32, f32) -> f32) -> F32x8 {
    let mut out = a;
    for i in 0..8 {
        out.0[i] = f(a.0[i], b.0[i]);
    }
    out
}

/// Widens without a branch: the multiplication by 2^112 also normalises denormals.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let wide = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(wide.to_bits() | (u32::from(bits & 0x8000) << 16))
}

/// `2^n` for an integer n in -126..=127.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Simd for Portable {
    type V = F32x8;
    const LANES: usize = 8;
    const MR: usize = 4;
    const NV: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F32x8 {
        F32x8([x; 8])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F32x8 {
        F32x8(p.cast::<[f32; 8]>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F32x8) {
        p.cast::<[f32; 8]>().write_unaligned(v.0);
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> F32x8 {
        let bits = p.cast::<[u16; 8]>().read_unaligned();
        F32x8(bits.map(widen_f16))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F32x8 {
        let bits = p.cast::<[u16; 8]>().read_unaligned();
        F32x8(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: F32x8) {
        p.cast::<[f16; 8]>().write_unaligned(v.0.map(f16::from_f32));
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: F32x8) {
        p.cast::<[bf16; 8]>().write_unaligned(v.0.map(bf16::from_f32));
    }

    #[inline(always)]
    unsafe fn add(a: F32x8, b: F32x8) -> F32x8 {
        zip(a, b, |x, y| x + y)
    }

    #[inline(always)]
    unsafe fn sub(a: F32x8, b: F32x8) -> F32x8 {
        zip(a, b, |x, y| x - y)
    }

    #[inline(always)]
    unsafe fn mul(a: F32x8, b: F32x8) -> F32x8 {
        zip(a, b, |x, y| x * y)
    }

    #[inline(always)]
    unsafe fn div(a: F32x8, b: F32x8) -> F32x8 {
        zip(a, b, |x, y| x / y)
    }

    #[inline(always)]
    unsafe fn fma(a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
        // Two roundings: without the instruction, `mul_add` is a call into libm.
        Self::add(Self::mul(a, b), c)
    }

    #[inline(always)]
    unsafe fn max(a: F32x8, b: F32x8) -> F32x8 {
        zip(a, b, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    unsafe fn min(a: F32x8, b: F32x8) -> F32x8 {
        zip(a, b, |x, y| if x < y { x } else { y })
    }

    #[inline(always)]
    unsafe fn select_gt(a: F32x8, b: F32x8, x: F32x8, y: F32x8) -> F32x8 {
        let mut out = y;
        for i in 0..8 {
            let mask = u32::from(a.0[i] > b.0[i]).wrapping_neg();
            out.0[i] = f32::from_bits((x.0[i].to_bits() & mask) | (y.0[i].to_bits() & !mask));
        }
        out
    }

    #[inline(always)]
    unsafe fn round(a: F32x8) -> F32x8 {
        // Adding and subtracting 1.5 * 2^23 leaves the integer; exact below 2^22, which is all that
        // is asked for.
        let magic = 12_582_912.0;
        F32x8(a.0.map(|x| (x + magic) - magic))
    }

    #[inline(always)]
    unsafe fn ldexp(a: F32x8, n: F32x8) -> F32x8 {
        zip(a, n, |x, n| {
            // Not-a-number becomes 0 here; x is not a number then, too.
            let n = n.clamp(-252.0, 254.0) as i32;
            let half = n >> 1;
            x * pow2(half) * pow2(n - half)
        })
    }

    #[inline(always)]
    unsafe fn transpose(v: &mut [F32x8; MAX_LANES]) {
        for i in 0..8 {
            for j in 0..i {
                let (x, y) = (v[i].0[j], v[j].0[i]);
                v[i].0[j] = y;
                v[j].0[i] = x;
            }
        }
    }
}
