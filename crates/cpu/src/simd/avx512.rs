//! AVX-512 (F, BW, DQ, VL; VNNI and BF16 where there are): sixteen lanes, thirty-two registers,
//! masks for tails.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::avx2::high_halves;
use super::bytes::{ByteKernel, ByteSimd, RowStarts};
use super::pairs::{PairKernel, PairSimd};
use super::words::{WordKernel, WordSimd};
use super::{Kernel, MAX_LANES, Simd};

/// The set of Zen 4, Ice Lake and later; with `VNNI` also dot products of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool = false>;

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

#[inline(always)]
unsafe fn round_bf16(v: __m512) -> __m256i {
    // Not vcvtneps2bf16: that flushes denormals, and the contract rounds to nearest even.
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
    let rounded = _mm512_mask_mov_epi32(up, nan, quiet);
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded))
}

#[inline(always)]
unsafe fn widen_bf16(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn call_vnni<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true>>()
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn call_widened<K: ByteKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false>>()
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn call_vnni_words<K: WordKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true>>()
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn call_added_words<K: WordKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false>>()
}

impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type V = __m512;
    const LANES: usize = 16;
    const MR: usize = 12;
    const NV: usize = 2;
    const SUM_ORDER: [usize; MAX_LANES] = [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15];

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // Without products of bytes both are the same.
        kernel.run::<Avx512<false>>()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m512 {
        _mm512_maskz_loadu_ps(first(n), p)
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v);
    }

    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: __m512) {
        _mm512_mask_storeu_ps(p, first(n), v);
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }

    #[inline(always)]
    unsafe fn load_f16_n(p: *const f16, n: usize) -> __m512 {
        _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p.cast()))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m512 {
        widen_bf16(_mm256_loadu_si256(p.cast()))
    }

    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> __m512 {
        widen_bf16(_mm256_maskz_loadu_epi16(first(n), p.cast()))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_i8_n(p: *const i8, n: usize) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const f16) -> __m512 {
        _mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned()))
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: __m512) {
        let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        _mm256_storeu_si256(p.cast(), bits);
    }

    #[inline(always)]
    unsafe fn store_f16_n(p: *mut f16, n: usize, v: __m512) {
        let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        _mm256_mask_storeu_epi16(p.cast(), first(n), bits);
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: __m512) {
        _mm256_storeu_si256(p.cast(), round_bf16(v));
    }

    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut bf16, n: usize, v: __m512) {
        _mm256_mask_storeu_epi16(p.cast(), first(n), round_bf16(v));
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }

    #[inline(always)]
    unsafe fn select_gt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), x)
    }

    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }

    #[inline(always)]
    unsafe fn ldexp(a: __m512, n: __m512) -> __m512 {
        _mm512_scalef_ps(a, n)
    }

    #[inline(always)]
    unsafe fn transpose(v: &mut [__m512; MAX_LANES]) {
        // Pairs, then quadruples inside each 128-bit part; then the parts themselves.
        for i in (0..16).step_by(2) {
            let (a, b) = (v[i], v[i + 1]);
            v[i] = _mm512_unpacklo_ps(a, b);
            v[i + 1] = _mm512_unpackhi_ps(a, b);
        }
        for i in (0..16).step_by(4) {
            let (a, b, c, d) = (v[i], v[i + 1], v[i + 2], v[i + 3]);
            v[i] = _mm512_shuffle_ps::<0b01_00_01_00>(a, c);
            v[i + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, c);
            v[i + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(b, d);
            v[i + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(b, d);
        }
        for i in 0..4 {
            let (a, b, c, d) = (v[i], v[i + 4], v[i + 8], v[i + 12]);
            let ab_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let ab_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            let cd_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
            let cd_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
            v[i] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even);
            v[i + 8] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even);
            v[i + 4] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd);
            v[i + 12] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd);
        }
    }

    #[inline(always)]
    unsafe fn sums(mut v: [__m512; MAX_LANES]) -> __m512 {
        // Each round halves the number of vectors: 15 additions and 30 shuffles for 16 sums.
        for i in 0..8 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            v[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        for i in 0..4 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
            v[i] = _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
        }
        for i in 0..2 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            v[i] = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
        }
        let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(v[0], v[1]);
        _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(v[0], v[1]))
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        // Inside each 128-bit part, as `sums` does; then the parts, two and two.
        let pairs = _mm512_add_ps(v, _mm512_permute_ps::<0b01_00_11_10>(v));
        let parts = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
        let twos = _mm512_add_ps(parts, _mm512_shuffle_f32x4::<0b10_11_00_01>(parts, parts));
        let (low, high) = (_mm512_castps512_ps128(twos), _mm512_extractf32x4_ps::<2>(twos));
        _mm_cvtss_f32(_mm_add_ss(low, high))
    }

    #[inline(always)]
    unsafe fn max_lane(v: __m512) -> f32 {
        _mm512_reduce_max_ps(v)
    }

    #[inline(always)]
    unsafe fn list_words(p: *const u32, [from, span]: [u32; 2], first: u32, to: *mut u32) -> usize {
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let word = _mm512_loadu_si512(p.cast());
        let above = _mm512_sub_epi32(word, _mm512_set1_epi32(from.cast_signed()));
        let own = _mm512_cmple_epu32_mask(above, _mm512_set1_epi32(span.cast_signed()));
        let numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(first.cast_signed()));
        // Into a register: the instruction that writes to memory takes 100 cycles on Zen 4.
        _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi32(own, numbers));
        own.count_ones() as usize
    }

    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }

    #[inline(always)]
    unsafe fn prefetch_near<T>(p: *const T) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}

impl<const VNNI: bool> ByteSimd for Avx512<VNNI> {
    type B = __m512i;
    type I = __m512i;
    const BIASED: bool = VNNI;
    const X_ROWS: usize = 8;

    #[inline(always)]
    unsafe fn call_bytes<K: ByteKernel>(kernel: K) -> K::Output {
        if VNNI { call_vnni(kernel) } else { call_widened(kernel) }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }

    #[inline(always)]
    unsafe fn load_rows(rows: impl RowStarts, at: usize) -> [__m512i; 4] {
        let row = |lane| rows.start(lane).add(at).cast();
        // Row 4 i + j in part i of register j; then the words of four rows change places.
        let mut words = [_mm512_setzero_si512(); 4];
        for j in 0..4 {
            let mut word = _mm512_castsi128_si512(_mm_loadu_si128(row(j)));
            word = _mm512_inserti32x4::<1>(word, _mm_loadu_si128(row(4 + j)));
            word = _mm512_inserti32x4::<2>(word, _mm_loadu_si128(row(8 + j)));
            words[j] = _mm512_inserti32x4::<3>(word, _mm_loadu_si128(row(12 + j)));
        }
        let low = _mm512_unpacklo_epi32(words[0], words[1]);
        let low_too = _mm512_unpacklo_epi32(words[2], words[3]);
        let high = _mm512_unpackhi_epi32(words[0], words[1]);
        let high_too = _mm512_unpackhi_epi32(words[2], words[3]);
        [
            _mm512_unpacklo_epi64(low, low_too),
            _mm512_unpackhi_epi64(low, low_too),
            _mm512_unpacklo_epi64(high, high_too),
            _mm512_unpackhi_epi64(high, high_too),
        ]
    }

    #[inline(always)]
    unsafe fn mask(b: __m512i, mask: u8) -> __m512i {
        _mm512_and_si512(b, _mm512_set1_epi8(mask as i8))
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }

    #[inline(always)]
    unsafe fn select(mask: u32, a: __m512i, b: __m512i) -> __m512i {
        // Bit 4 x + 2 y + z of the table is the result of bits x, y and z.
        _mm512_ternarylogic_epi32::<0b1100_1010>(_mm512_set1_epi32(mask.cast_signed()), a, b)
    }

    #[inline(always)]
    unsafe fn flip(b: __m512i, bits: u8) -> __m512i {
        _mm512_xor_si512(b, _mm512_set1_epi8(bits as i8))
    }

    #[inline(always)]
    unsafe fn shift(b: __m512i, n: i32) -> __m512i {
        if n >= 0 {
            _mm512_sllv_epi32(b, _mm512_set1_epi32(n))
        } else {
            _mm512_srlv_epi32(b, _mm512_set1_epi32(-n))
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], b: __m512i) -> __m512i {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, b)
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> __m512i {
        _mm512_set1_epi32(*p)
    }

    #[inline(always)]
    unsafe fn zero_int() -> __m512i {
        _mm512_setzero_si512()
    }

    #[inline(always)]
    unsafe fn add_128(low: __m512i, high: __m512i) -> __m512i {
        _mm512_add_epi32(low, _mm512_slli_epi32::<7>(high))
    }

    #[inline(always)]
    unsafe fn signed_byte(b: __m512i, j: i32) -> __m512i {
        _mm512_srai_epi32::<24>(Self::shift(b, 24 - 8 * j))
    }

    #[inline(always)]
    unsafe fn to_float(i: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(i)
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: usize>(
        start: __m512i,
        w: &[__m512i; 8],
        from: usize,
        a: *const i8,
    ) -> __m512i {
        // Two sums, because a dot product has a latency of four to five cycles.
        let mut sums = [start, _mm512_setzero_si512()];
        if VNNI {
            for i in 0..N {
                let a = _mm512_set1_epi32(a.cast::<i32>().add(i).read_unaligned());
                sums[i % 2] = _mm512_dpbusd_epi32(sums[i % 2], w[from + i], a);
            }
            return _mm512_add_epi32(sums[0], sums[1]);
        }
        // As for AVX2: pairs in 16 bits, as many as fit, then in 32 bits.
        let run = super::pairs_in_16_bits(BITS);
        let ones = _mm512_set1_epi16(1);
        let mut i = 0;
        while i < N {
            let mut pairs = _mm512_setzero_si512();
            for j in i..(i + run).min(N) {
                let w = w[from + j];
                let a = _mm512_set1_epi32(a.cast::<i32>().add(j).read_unaligned());
                let product = if BITS == 8 {
                    let negative = _mm512_movepi8_mask(w);
                    let a = _mm512_mask_sub_epi8(a, negative, _mm512_setzero_si512(), a);
                    _mm512_maddubs_epi16(_mm512_abs_epi8(w), a)
                } else {
                    _mm512_maddubs_epi16(w, a)
                };
                pairs = _mm512_add_epi16(pairs, product);
            }
            let at = i / run % 2;
            sums[at] = _mm512_add_epi32(sums[at], _mm512_madd_epi16(pairs, ones));
            i += run;
        }
        _mm512_add_epi32(sums[0], sums[1])
    }
}

impl<const VNNI: bool> WordSimd for Avx512<VNNI> {
    type W = __m512i;
    const ROWS_OF_WORDS: usize = 12;

    #[inline(always)]
    unsafe fn call_words<K: WordKernel>(kernel: K) -> K::Output {
        if VNNI { call_vnni_words(kernel) } else { call_added_words(kernel) }
    }

    #[inline(always)]
    unsafe fn load_words(p: *const i16) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }

    #[inline(always)]
    unsafe fn store_words(p: *mut i16, words: __m512i) {
        _mm512_storeu_si512(p.cast(), words);
    }

    #[inline(always)]
    unsafe fn splat_words(p: *const i16) -> __m512i {
        _mm512_set1_epi32(p.cast::<i32>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn widen(b: __m512i, offset: i16) -> [__m512i; 2] {
        let words = |places| {
            let wide = _mm512_shuffle_epi8(b, _mm512_broadcast_i32x4(places));
            _mm512_sub_epi16(_mm512_srai_epi16::<8>(wide), _mm512_set1_epi16(offset))
        };
        [words(high_halves(0)), words(high_halves(2))]
    }

    #[inline(always)]
    unsafe fn dot_words(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if VNNI {
            _mm512_dpwssd_epi32(sum, a, b)
        } else {
            _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
        }
    }
}

/// Behind [`PairSimd::call_pairs`], which has AVX512-BF16.
impl<const VNNI: bool> PairSimd for Avx512<VNNI> {
    type P = __m512bh;

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn call_pairs<K: PairKernel>(kernel: K) -> K::Output {
        // Without products of bytes both are the same.
        kernel.run::<Avx512<false>>()
    }

    #[inline(always)]
    unsafe fn load_pairs(p: *const bf16) -> __m512bh {
        std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast()))
    }

    #[inline(always)]
    unsafe fn load_pairs_n(p: *const bf16, n: usize) -> __m512bh {
        let mask = ((1u64 << n) - 1) as __mmask32;
        std::mem::transmute::<__m512i, __m512bh>(_mm512_maskz_loadu_epi16(mask, p.cast()))
    }

    #[inline(always)]
    unsafe fn dot_pairs(sum: __m512, a: __m512bh, b: __m512bh) -> __m512 {
        _mm512_dpbf16_ps(sum, a, b)
    }
}
