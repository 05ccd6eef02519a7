//! AVX2 with FMA and F16C: eight lanes, sixteen registers.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::bytes::{ByteKernel, ByteSimd, RowStarts};
use super::words::{WordKernel, WordSimd};
use super::{Kernel, MAX_LANES, Simd};

/// The set of most x86-64 processors since 2013.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// The mask of the first `n` lanes.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes)
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const MR: usize = 6;
    const NV: usize = 2;
    const SUM_ORDER: [usize; MAX_LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0];

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m256 {
        _mm256_maskload_ps(p, first(n))
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        _mm256_storeu_ps(p, v);
    }

    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: __m256) {
        _mm256_maskstore_ps(p, first(n), v);
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m256 {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const f16) -> __m256 {
        _mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned()))
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: __m256) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: __m256) {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
        let packed = _mm256_packus_epi32(high, high);
        let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
        _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed));
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        _mm256_div_ps(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }

    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        _mm256_min_ps(a, b)
    }

    #[inline(always)]
    unsafe fn select_gt(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b))
    }

    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }

    #[inline(always)]
    unsafe fn ldexp(a: __m256, n: __m256) -> __m256 {
        // Two factors, because 2^n alone may be denormal or too large.
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let rest = _mm256_sub_epi32(n, half);
        let bias = _mm256_set1_epi32(127);
        let x = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
        let y = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
        _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(x)), _mm256_castsi256_ps(y))
    }

    #[inline(always)]
    unsafe fn transpose(v: &mut [__m256; MAX_LANES]) {
        for i in (0..8).step_by(2) {
            let (a, b) = (v[i], v[i + 1]);
            v[i] = _mm256_unpacklo_ps(a, b);
            v[i + 1] = _mm256_unpackhi_ps(a, b);
        }
        for i in [0, 4] {
            let (a, b, c, d) = (v[i], v[i + 1], v[i + 2], v[i + 3]);
            v[i] = _mm256_shuffle_ps::<0b01_00_01_00>(a, c);
            v[i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, c);
            v[i + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(b, d);
            v[i + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(b, d);
        }
        for i in 0..4 {
            let (a, b) = (v[i], v[i + 4]);
            v[i] = _mm256_permute2f128_ps::<0x20>(a, b);
            v[i + 4] = _mm256_permute2f128_ps::<0x31>(a, b);
        }
    }

    #[inline(always)]
    unsafe fn sums(v: [__m256; MAX_LANES]) -> __m256 {
        let a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
        let b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
        let low = _mm256_permute2f128_ps::<0x20>(a, b);
        let high = _mm256_permute2f128_ps::<0x31>(a, b);
        _mm256_add_ps(low, high)
    }

    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        // Neighbours, pairs of them, then the halves, as `sums` does.
        let x = _mm256_add_ps(v, _mm256_movehdup_ps(v));
        let x = _mm256_add_ps(x, _mm256_permute_ps::<0b11_10_11_10>(x));
        _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)))
    }

    #[inline(always)]
    unsafe fn max_lane(v: __m256) -> f32 {
        let x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
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

impl ByteSimd for Avx2 {
    type B = __m256i;
    type I = __m256i;
    const BIASED: bool = false;
    const X_ROWS: usize = 4;

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn call_bytes<K: ByteKernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m256i {
        _mm256_loadu_si256(p.cast())
    }

    #[inline(always)]
    unsafe fn load_rows(rows: impl RowStarts, at: usize) -> [__m256i; 4] {
        let row = |lane| rows.start(lane).add(at).cast();
        // Row 4 i + j in half i of register j; then the words of four rows change places.
        let mut words = [_mm256_setzero_si256(); 4];
        for j in 0..4 {
            let word = _mm256_castsi128_si256(_mm_loadu_si128(row(j)));
            let upper = _mm_loadu_si128(row(4 + j));
            words[j] = _mm256_inserti128_si256::<1>(word, upper);
        }
        let low = _mm256_unpacklo_epi32(words[0], words[1]);
        let low_too = _mm256_unpacklo_epi32(words[2], words[3]);
        let high = _mm256_unpackhi_epi32(words[0], words[1]);
        let high_too = _mm256_unpackhi_epi32(words[2], words[3]);
        [
            _mm256_unpacklo_epi64(low, low_too),
            _mm256_unpackhi_epi64(low, low_too),
            _mm256_unpacklo_epi64(high, high_too),
            _mm256_unpackhi_epi64(high, high_too),
        ]
    }

    #[inline(always)]
    unsafe fn mask(b: __m256i, mask: u8) -> __m256i {
        _mm256_and_si256(b, _mm256_set1_epi8(mask as i8))
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        _mm256_or_si256(a, b)
    }

    #[inline(always)]
    unsafe fn select(mask: u32, a: __m256i, b: __m256i) -> __m256i {
        let mask = _mm256_set1_epi32(mask.cast_signed());
        _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b))
    }

    #[inline(always)]
    unsafe fn flip(b: __m256i, bits: u8) -> __m256i {
        _mm256_xor_si256(b, _mm256_set1_epi8(bits as i8))
    }

    #[inline(always)]
    unsafe fn shift(b: __m256i, n: i32) -> __m256i {
        if n >= 0 {
            _mm256_sllv_epi32(b, _mm256_set1_epi32(n))
        } else {
            _mm256_srlv_epi32(b, _mm256_set1_epi32(-n))
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], b: __m256i) -> __m256i {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, b)
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> __m256i {
        _mm256_set1_epi32(*p)
    }

    #[inline(always)]
    unsafe fn zero_int() -> __m256i {
        _mm256_setzero_si256()
    }

    #[inline(always)]
    unsafe fn add_128(low: __m256i, high: __m256i) -> __m256i {
        _mm256_add_epi32(low, _mm256_slli_epi32::<7>(high))
    }

    #[inline(always)]
    unsafe fn signed_byte(b: __m256i, j: i32) -> __m256i {
        _mm256_srai_epi32::<24>(Self::shift(b, 24 - 8 * j))
    }

    #[inline(always)]
    unsafe fn to_float(i: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(i)
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const BITS: usize>(
        start: __m256i,
        w: &[__m256i; 8],
        from: usize,
        a: *const i8,
    ) -> __m256i {
        let run = super::pairs_in_16_bits(BITS);
        let ones = _mm256_set1_epi16(1);
        let mut sum = start;
        let mut i = 0;
        while i < N {
            let mut pairs = _mm256_setzero_si256();
            for j in i..(i + run).min(N) {
                let w = w[from + j];
                let a = _mm256_set1_epi32(a.cast::<i32>().add(j).read_unaligned());
                // The instruction saturates, and two products of 8 bits without and with a sign
                // overflow: so the sign moves to the activations.
                let product = if BITS == 8 {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
                } else {
                    _mm256_maddubs_epi16(w, a)
                };
                pairs = _mm256_add_epi16(pairs, product);
            }
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
            i += run;
        }
        sum
    }
}

/// What a shuffle takes two bytes of each lane by, from byte `first` on, to the high halves of its
/// words, from where a shift brings them down with their signs.
#[inline(always)]
pub(super) unsafe fn high_halves(first: i32) -> __m128i {
    let word = |lane: i32| (lane + first + 1) << 24 | 0x80 << 16 | (lane + first) << 8 | 0x80;
    _mm_setr_epi32(word(0), word(4), word(8), word(12))
}

impl WordSimd for Avx2 {
    type W = __m256i;

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn call_words<K: WordKernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn load_words(p: *const i16) -> __m256i {
        _mm256_loadu_si256(p.cast())
    }

    #[inline(always)]
    unsafe fn store_words(p: *mut i16, words: __m256i) {
        _mm256_storeu_si256(p.cast(), words);
    }

    #[inline(always)]
    unsafe fn splat_words(p: *const i16) -> __m256i {
        _mm256_set1_epi32(p.cast::<i32>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn widen(b: __m256i, offset: i16) -> [__m256i; 2] {
        let words = |places| {
            let wide = _mm256_shuffle_epi8(b, _mm256_broadcastsi128_si256(places));
            _mm256_sub_epi16(_mm256_srai_epi16::<8>(wide), _mm256_set1_epi16(offset))
        };
        [words(high_halves(0)), words(high_halves(2))]
    }

    #[inline(always)]
    unsafe fn dot_words(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
    }
}
