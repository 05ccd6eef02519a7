//! Any processor: arrays of eight that the compiler turns into what the target has (SSE2, simd128).

use half::{bf16, f16};

use super::bytes::{ByteKernel, ByteSimd};
use super::pairs::{PairKernel, PairSimd};
use super::words::{WordKernel, WordSimd};
use super::{Kernel, MAX_LANES, Simd};

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
    const SUM_ORDER: [usize; MAX_LANES] = [0, 4, 2, 6, 1, 5, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0];

    #[inline(never)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

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
    unsafe fn load_i8(p: *const i8) -> F32x8 {
        F32x8(p.cast::<[i8; 8]>().read_unaligned().map(f32::from))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const f16) -> F32x8 {
        F32x8([p.read_unaligned().to_f32(); 8])
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

impl ByteSimd for Portable {
    type B = [u32; 8];
    type I = [i32; 8];
    const BIASED: bool = false;
    const X_ROWS: usize = 4;

    #[inline(never)]
    unsafe fn call_bytes<K: ByteKernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> [u32; 8] {
        p.cast::<[u32; 8]>().read_unaligned()
    }

    #[inline(always)]
    unsafe fn mask(b: [u32; 8], mask: u8) -> [u32; 8] {
        b.map(|word| word & u32::from_ne_bytes([mask; 4]))
    }

    #[inline(always)]
    unsafe fn or(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn select(mask: u32, a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        std::array::from_fn(|i| a[i] & mask | b[i] & !mask)
    }

    #[inline(always)]
    unsafe fn flip(b: [u32; 8], bits: u8) -> [u32; 8] {
        b.map(|word| word ^ u32::from_ne_bytes([bits; 4]))
    }

    #[inline(always)]
    unsafe fn shift(b: [u32; 8], n: i32) -> [u32; 8] {
        if n >= 0 { b.map(|word| word << n) } else { b.map(|word| word >> -n) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], b: [u32; 8]) -> [u32; 8] {
        let one = |byte: u8| table[usize::from(byte & 15)] as u8;
        b.map(|word| u32::from_ne_bytes(word.to_ne_bytes().map(one)))
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> [i32; 8] {
        [*p; 8]
    }

    #[inline(always)]
    unsafe fn zero_int() -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    unsafe fn add_128(low: [i32; 8], high: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| low[i] + (high[i] << 7))
    }

    #[inline(always)]
    unsafe fn signed_byte(b: [u32; 8], j: i32) -> [i32; 8] {
        b.map(|word| (word << (24 - 8 * j)).cast_signed() >> 24)
    }

    #[inline(always)]
    unsafe fn to_float(i: [i32; 8]) -> F32x8 {
        F32x8(i.map(|i| i as f32))
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F32x8 {
        F32x8(p.cast::<[u8; 8]>().read_unaligned().map(f32::from))
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: usize>(
        start: [i32; 8],
        w: &[[u32; 8]; 8],
        from: usize,
        a: *const i8,
    ) -> [i32; 8] {
        let mut sums = start;
        for i in 0..N {
            let a = a.cast::<[i8; 4]>().add(i).read_unaligned();
            for lane in 0..8 {
                let w = w[from + i][lane].to_ne_bytes();
                for j in 0..4 {
                    sums[lane] += i32::from(w[j] as i8) * i32::from(a[j]);
                }
            }
        }
        sums
    }
}

impl PairSimd for Portable {
    type P = [bf16; 16];

    #[inline(never)]
    unsafe fn call_pairs<K: PairKernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn load_pairs(p: *const bf16) -> [bf16; 16] {
        p.cast::<[bf16; 16]>().read_unaligned()
    }

    #[inline(always)]
    unsafe fn load_pairs_n(p: *const bf16, n: usize) -> [bf16; 16] {
        let mut pairs = [bf16::ZERO; 16];
        std::ptr::copy_nonoverlapping(p, pairs.as_mut_ptr(), n);
        pairs
    }

    #[inline(always)]
    unsafe fn dot_pairs(sum: F32x8, a: [bf16; 16], b: [bf16; 16]) -> F32x8 {
        let mut out = sum;
        for i in 0..8 {
            for at in [2 * i + 1, 2 * i] {
                out.0[i] += a[at].to_f32() * b[at].to_f32();
            }
        }
        out
    }
}

impl WordSimd for Portable {
    type W = [[i16; 2]; 8];

    #[inline(never)]
    unsafe fn call_words<K: WordKernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn load_words(p: *const i16) -> [[i16; 2]; 8] {
        p.cast::<[[i16; 2]; 8]>().read_unaligned()
    }

    #[inline(always)]
    unsafe fn store_words(p: *mut i16, words: [[i16; 2]; 8]) {
        p.cast::<[[i16; 2]; 8]>().write_unaligned(words);
    }

    #[inline(always)]
    unsafe fn splat_words(p: *const i16) -> [[i16; 2]; 8] {
        [p.cast::<[i16; 2]>().read_unaligned(); 8]
    }

    #[inline(always)]
    unsafe fn widen(b: [u32; 8], offset: i16) -> [[[i16; 2]; 8]; 2] {
        let word = |lane: u32, i: usize| i16::from(lane.to_ne_bytes()[i] as i8) - offset;
        [b.map(|lane| [word(lane, 0), word(lane, 1)]), b.map(|lane| [word(lane, 2), word(lane, 3)])]
    }

    #[inline(always)]
    unsafe fn dot_words(sum: [i32; 8], a: [[i16; 2]; 8], b: [[i16; 2]; 8]) -> [i32; 8] {
        let mut out = sum;
        for lane in 0..8 {
            for i in 0..2 {
                out[lane] += i32::from(a[lane][i]) * i32::from(b[lane][i]);
            }
        }
        out
    }
}
