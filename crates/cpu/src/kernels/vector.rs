//! Elementwise and row-wise loops of the small ops.

use longview_core::kv8;
use longview_ops::ArgmaxParams;

use crate::simd::elem::Elem;
use crate::simd::{Kernel, Simd, math};

/// Runs the body for each vector of `len` elements, with its offset and its length, LANES but for
/// the last.
///
/// A macro and not a function with a closure: a closure that is not inlined would be compiled
/// without the instruction set's target features, and every intrinsic in it would be a call.
macro_rules! vectors {
    ($S:ty, $len:expr, |$i:ident, $n:ident| $body:block) => {
        let (len, mut at) = ($len, 0);
        while at < len {
            let ($i, $n) = (at, (len - at).min(<$S>::LANES));
            $body
            at += <$S>::LANES;
        }
    };
}

#[inline(always)]
unsafe fn load<S: Simd>(p: *const f32, n: usize) -> S::V {
    if n == S::LANES { S::load(p) } else { S::load_n(p, n) }
}

#[inline(always)]
unsafe fn store<S: Simd>(p: *mut f32, n: usize, v: S::V) {
    if n == S::LANES { S::store(p, v) } else { S::store_n(p, n, v) }
}

/// `to = from` with widening or rounding (nearest even); equal lengths.
pub(crate) struct Convert<'a, A, B> {
    pub(crate) from: &'a [A],
    pub(crate) to: &'a mut [B],
}

impl<A: Elem, B: Elem> Kernel for Convert<'_, A, B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert_eq!(self.from.len(), self.to.len());
        let (from, to) = (self.from.as_ptr(), self.to.as_mut_ptr());
        vectors!(S, self.from.len(), |i, n| {
            if n == S::LANES {
                B::store::<S>(to.add(i), A::load::<S>(from.add(i)));
            } else {
                B::store_n::<S>(to.add(i), n, A::load_n::<S>(from.add(i), n));
            }
        });
    }
}

/// Root-mean-square norm of rows of `weight.len()` elements, written to `out` or added to it.
pub(crate) struct Norm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) accumulate: bool,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.weight.len();
        assert!(width > 0 && self.x.len() == self.out.len());
        let rows = self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width));
        let weight = self.weight.as_ptr();
        for (x, out) in rows {
            let squares = dot::<S>(x, x);
            let scale = S::splat(1.0 / (squares / width as f32 + self.eps).sqrt());
            let (x, out) = (x.as_ptr(), out.as_mut_ptr());
            vectors!(S, width, |i, n| {
                let y = S::mul(load::<S>(x.add(i), n), scale);
                let mut y = S::mul(y, load::<S>(weight.add(i), n));
                if self.accumulate {
                    y = S::add(y, load::<S>(out.add(i), n));
                }
                store::<S>(out.add(i), n, y);
            });
        }
    }
}

/// The dot product of equal lengths.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a, b, len) = (a.as_ptr(), b.as_ptr(), a.len());
    let mut sums = [S::zero(); 4];
    let mut i = 0;
    while i + 4 * S::LANES <= len {
        for (u, sum) in sums.iter_mut().enumerate() {
            let at = i + u * S::LANES;
            *sum = S::fma(S::load(a.add(at)), S::load(b.add(at)), *sum);
        }
        i += 4 * S::LANES;
    }
    vectors!(S, len - i, |j, n| {
        let (x, y) = (load::<S>(a.add(i + j), n), load::<S>(b.add(i + j), n));
        sums[0] = S::fma(x, y, sums[0]);
    });
    S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])))
}

/// The mean cosine of vectors of `width` elements with their partners; 0 counts for a vector of
/// zeros.
pub(crate) struct MeanCosine<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) width: usize,
}

impl Kernel for MeanCosine<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        assert!(self.width > 0 && self.a.len() == self.b.len() && self.a.len() >= self.width);
        let mut sum = 0.0;
        let pairs = self.a.chunks_exact(self.width).zip(self.b.chunks_exact(self.width));
        for (a, b) in pairs {
            // Two roots: the product of both squares can leave the range of f32.
            let lengths = dot::<S>(a, a).sqrt() * dot::<S>(b, b).sqrt();
            sum += if lengths == 0.0 { 0.0 } else { dot::<S>(a, b) / lengths };
        }
        sum / (self.a.len() / self.width) as f32
    }
}

/// `out = gate / (1 + exp(-gate)) * up`.
pub(crate) struct Silu<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Silu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.gate.len() == self.out.len() && self.up.len() == self.out.len());
        let (gate, up, out) = (self.gate.as_ptr(), self.up.as_ptr(), self.out.as_mut_ptr());
        vectors!(S, self.out.len(), |i, n| {
            let x = load::<S>(gate.add(i), n);
            let e = math::exp::<S>(S::sub(S::zero(), x));
            let y = S::div(x, S::add(S::splat(1.0), e));
            store::<S>(out.add(i), n, S::mul(y, load::<S>(up.add(i), n)));
        });
    }
}

/// `out = gate / (1 + exp(-2 u)) * up`, `u = sqrt(2 / pi) (gate + 0.044715 gate^3)`.
pub(crate) struct Gelu<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        /// `-2 sqrt(2 / pi)`, and the same times 0.044715.
        const LINEAR: f32 = -1.595_769;
        const CUBIC: f32 = -0.071_354_814;
        assert!(self.gate.len() == self.out.len() && self.up.len() == self.out.len());
        let (gate, up, out) = (self.gate.as_ptr(), self.up.as_ptr(), self.out.as_mut_ptr());
        vectors!(S, self.out.len(), |i, n| {
            let x = load::<S>(gate.add(i), n);
            let by = S::fma(S::splat(CUBIC), S::mul(x, x), S::splat(LINEAR));
            let e = math::exp::<S>(S::mul(x, by));
            let y = S::div(x, S::add(S::splat(1.0), e));
            store::<S>(out.add(i), n, S::mul(y, load::<S>(up.add(i), n)));
        });
    }
}

/// The rotation of one head: `2 h` elements, `h` cosines, `h` sines.
pub(crate) struct Rotate<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) table: &'a [f32],
    /// Elements of a head; the rotated ones come first, the rest is copied.
    pub(crate) head_dim: usize,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let h = self.table.len() / 2;
        assert!(2 * h <= self.head_dim && self.x.len() == self.out.len());
        let heads = self.x.chunks_exact(self.head_dim);
        for (x, out) in heads.zip(self.out.chunks_exact_mut(self.head_dim)) {
            out[2 * h..].copy_from_slice(&x[2 * h..]);
            let (x, out, table) = (x.as_ptr(), out.as_mut_ptr(), self.table.as_ptr());
            vectors!(S, h, |i, n| {
                let (cos, sin) = (load::<S>(table.add(i), n), load::<S>(table.add(h + i), n));
                let (a, b) = (load::<S>(x.add(i), n), load::<S>(x.add(h + i), n));
                let minus = S::sub(S::zero(), S::mul(b, sin));
                store::<S>(out.add(i), n, S::fma(a, cos, minus));
                store::<S>(out.add(h + i), n, S::fma(b, cos, S::mul(a, sin)));
            });
        }
    }
}

/// `out = out * keep + x * add`.
pub(crate) struct Blend<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) add: f32,
    pub(crate) keep: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Blend<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert_eq!(self.x.len(), self.out.len());
        let (x, out) = (self.x.as_ptr(), self.out.as_mut_ptr());
        let (add, keep) = (S::splat(self.add), S::splat(self.keep));
        vectors!(S, self.out.len(), |i, n| {
            let kept = S::mul(load::<S>(out.add(i), n), keep);
            store::<S>(out.add(i), n, S::fma(load::<S>(x.add(i), n), add, kept));
        });
    }
}

/// Index of the largest of a row; the first not-a-number if there is one. With a bit where that is
/// no finite number.
pub(crate) struct Largest<'a> {
    pub(crate) x: &'a [f32],
}

impl Kernel for Largest<'_> {
    type Output = u32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u32 {
        let (x, len) = (self.x.as_ptr(), self.x.len());
        let mut best = S::splat(f32::NEG_INFINITY);
        // x - x is 0 for numbers; infinities are rare enough to be looked at twice.
        let mut odd = S::zero();
        let mut i = 0;
        while i + S::LANES <= len {
            let v = S::load(x.add(i));
            best = S::max(v, best);
            odd = S::add(odd, S::sub(v, v));
            i += S::LANES;
        }
        let tail = &self.x[i..];
        let mut max = S::max_lane(best);
        for &v in tail {
            max = if v > max { v } else { max };
        }
        let is_odd = S::sum(odd) != 0.0 || tail.iter().any(|v| v.is_nan());
        let nan = if is_odd { self.x.iter().position(|v| v.is_nan()) } else { None };
        let at = nan.or_else(|| self.x.iter().position(|v| *v == max));
        let is_finite = nan.is_none() && max < f32::INFINITY;
        at.unwrap_or(0) as u32 | if is_finite { 0 } else { ArgmaxParams::NOT_FINITE }
    }
}

/// Squared distance and dot product of a point and a centre, and the squared norms of both.
pub(crate) struct Pair<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
}

/// What [`Pair`] measures.
pub(crate) struct Measures {
    pub(crate) dot: f32,
    pub(crate) distance2: f32,
    pub(crate) a2: f32,
    pub(crate) b2: f32,
}

impl Kernel for Pair<'_> {
    type Output = Measures;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Measures {
        assert_eq!(self.a.len(), self.b.len());
        let (a, b) = (self.a.as_ptr(), self.b.as_ptr());
        let [mut ab, mut d2, mut a2, mut b2] = [S::zero(); 4];
        vectors!(S, self.a.len(), |i, n| {
            let (x, y) = (load::<S>(a.add(i), n), load::<S>(b.add(i), n));
            let d = S::sub(x, y);
            ab = S::fma(x, y, ab);
            d2 = S::fma(d, d, d2);
            a2 = S::fma(x, x, a2);
            b2 = S::fma(y, y, b2);
        });
        let sum = |v| S::sum(v);
        Measures { dot: sum(ab), distance2: sum(d2), a2: sum(a2), b2: sum(b2) }
    }
}

/// Turns logits into the terms of a softmax, for a softmax over blocks: `x = weight * exp(x -
/// largest)`.
pub(crate) struct SoftmaxTerms<'a> {
    /// Logits, then terms.
    pub(crate) x: &'a mut [f32],
    /// Multiplies each term; none for 1.
    pub(crate) weights: Option<&'a [u32]>,
}

impl Kernel for SoftmaxTerms<'_> {
    /// The largest logit and the sum of the terms.
    type Output = (f32, f32);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (f32, f32) {
        let max = largest::<S>(self.x);
        let (x, len) = (self.x.as_mut_ptr(), self.x.len());
        let shift = S::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
        let (mut sum, mut done) = (S::zero(), 0);
        // Whole vectors without weights: the same as below, without asking which case it is.
        while self.weights.is_none() && done + S::LANES <= len {
            let e = math::exp_falling::<S>(S::sub(S::load(x.add(done)), shift));
            S::store(x.add(done), e);
            sum = S::add(sum, e);
            done += S::LANES;
        }
        let (x, rest) = (x.add(done), len - done);
        vectors!(S, rest, |i, n| {
            let mut e = math::exp_falling::<S>(S::sub(load::<S>(x.add(i), n), shift));
            if let Some(weights) = self.weights {
                e = S::mul(e, counts::<S>(&weights[i..i + n]));
            } else if n < S::LANES {
                let mut ones = [0.0; crate::simd::MAX_LANES];
                ones[..n].fill(1.0);
                e = S::mul(e, S::load(ones.as_ptr()));
            }
            store::<S>(x.add(i), n, e);
            sum = S::add(sum, e);
        });
        (max, S::sum(sum))
    }
}

/// The largest number; not-a-number counts for nothing.
#[inline(always)]
unsafe fn largest<S: Simd>(x: &[f32]) -> f32 {
    // Side by side: one alone would wait for each comparison.
    const SIDE_BY_SIDE: usize = 4;
    let mut best = [S::splat(f32::NEG_INFINITY); SIDE_BY_SIDE];
    let rows = x.chunks_exact(SIDE_BY_SIDE * S::LANES);
    let mut max = f32::NEG_INFINITY;
    for &v in rows.remainder() {
        max = if v > max { v } else { max };
    }
    for row in rows {
        for j in 0..SIDE_BY_SIDE {
            best[j] = S::max(S::load(row.as_ptr().add(j * S::LANES)), best[j]);
        }
    }
    let best = S::max(S::max(best[0], best[1]), S::max(best[2], best[3]));
    let best = S::max_lane(best);
    if best > max { best } else { max }
}

/// Whole numbers as floats, zeros after the last.
#[inline(always)]
unsafe fn counts<S: Simd>(words: &[u32]) -> S::V {
    let mut t = [0.0f32; crate::simd::MAX_LANES];
    for (f, w) in t.iter_mut().zip(words) {
        *f = *w as f32;
    }
    S::load(t.as_ptr())
}

/// `out (+)= terms * factor`, or the maximum with what `out` holds.
pub(crate) struct SoftmaxPool<'a> {
    pub(crate) terms: &'a [f32],
    pub(crate) factor: f32,
    /// Take the larger instead of the sum.
    pub(crate) take_max: bool,
    /// Nothing in `out` yet.
    pub(crate) is_first: bool,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for SoftmaxPool<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert_eq!(self.terms.len(), self.out.len());
        let (terms, out) = (self.terms.as_ptr(), self.out.as_mut_ptr());
        let factor = S::splat(self.factor);
        vectors!(S, self.out.len(), |i, n| {
            let mut p = S::mul(load::<S>(terms.add(i), n), factor);
            if !self.is_first {
                let old = load::<S>(out.add(i), n);
                p = if self.take_max { S::max(old, p) } else { S::add(old, p) };
            }
            store::<S>(out.add(i), n, p);
        });
    }
}

/// A row of 8 bits. Compiled for each instruction set, it becomes vector code by itself, of the
/// same results.
pub(crate) struct EncodeRow<'a> {
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32],
    pub(crate) row: &'a mut [u8],
}

impl Kernel for EncodeRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        kv8::encode(self.key, self.value, self.row);
    }
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::*;
    use crate::isa::Isa;
    use crate::supported_isa::SupportedIsa;

    fn sets() -> impl Iterator<Item = SupportedIsa> {
        let available = Isa::ALL.iter().filter(|isa| isa.is_available());
        available.map(|isa| SupportedIsa::choose(Some(*isa)).unwrap())
    }

    /// Terms, their largest logit and their sum.
    fn terms(isa: SupportedIsa, logits: &[f32], weights: Option<&[u32]>) -> (Vec<f32>, f32, f32) {
        let mut x = logits.to_vec();
        let (max, sum) = isa.run(SoftmaxTerms { x: &mut x, weights });
        (x, max, sum)
    }

    #[test]
    fn terms_of_a_softmax_are_those_of_f64_and_weights_of_one_change_no_bit() {
        let mut rng = SplitMix64::new(3);
        for len in (1..=130).chain([511, 512]) {
            let logits: Vec<f32> = (0..len).map(|_| 9.0 * rng.next_normal()).collect();
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let want: Vec<f64> =
                logits.iter().map(|x| (f64::from(*x) - f64::from(most)).exp()).collect();
            let all: f64 = want.iter().sum();
            for isa in sets() {
                let (found, max, sum) = terms(isa, &logits, None);
                assert_eq!(max, most, "{len} on {:?}", isa.isa());
                for (found, want) in found.iter().zip(&want) {
                    assert!((f64::from(*found) - want).abs() <= 2e-6 * want, "{found}, {want}");
                }
                assert!((f64::from(sum) - all).abs() <= 1e-5 * all, "{sum}, {all}");
                let ones = vec![1; len];
                assert_eq!(terms(isa, &logits, Some(&ones)), (found, max, sum));
            }
        }
    }

    #[test]
    fn without_any_logit_above_minus_infinity_there_is_no_term() {
        for isa in sets() {
            for len in [1, 16, 70] {
                let logits = vec![f32::NEG_INFINITY; len];
                assert_eq!(terms(isa, &logits, None), (vec![0.0; len], f32::NEG_INFINITY, 0.0));
            }
        }
    }
}
