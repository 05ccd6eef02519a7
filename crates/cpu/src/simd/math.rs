//! Exponentials of vectors, 1 to 2 units in the last place.

use super::Simd;

/// `2^x`; 0 for minus infinity and below -150, not-a-number kept.
///
/// Cephes exp2f: x = n + r with |r| <= 1/2, a polynomial of degree 6 for `2^r`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::V) -> S::V {
    // The constant is the first operand: then not-a-number in x survives.
    let x = S::min(S::splat(129.0), S::max(S::splat(-152.0), x));
    let n = S::round(x);
    let r = S::sub(x, n);
    let mut p = S::splat(1.535_336_2e-4);
    for c in [1.339_887_4e-3, 9.618_437e-3, 5.550_332_6e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0] {
        p = S::fma(p, r, S::splat(c));
    }
    S::ldexp(p, n)
}

/// `e^x`; 0 for minus infinity, infinity above 88.8, not-a-number kept.
///
/// Cephes expf: the logarithm of 2 in two parts, so that r keeps its low bits for large x.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    exp_falling::<S>(S::min(S::splat(89.5), x))
}

/// [`exp`] of what is at most 89.5, with the same bits.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp_falling<S: Simd>(x: S::V) -> S::V {
    let x = S::max(S::splat(-105.0), x);
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    let r = S::fma(n, S::splat(-0.693_359_4), x);
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let mut p = S::splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = S::fma(p, r, S::splat(c));
    }
    let p = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
    S::ldexp(p, n)
}
