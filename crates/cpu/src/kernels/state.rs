//! How far attention of a query row has come, and where that goes.
//!
//! Keys are attended in parts. What a part leaves is kept unscaled, with its largest score and the
//! sum of its weights; parts are merged in their order, whether one worker had them all or each had
//! one, so that both give the same bits.

use std::f32::consts::LN_2;

use crate::simd::{Kernel, Simd, math};
use crate::team::Shared;

use super::vector::Blend;

/// The largest score, in units of log2, and the sum of `2^(score - max)`.
#[derive(Clone, Copy)]
pub(crate) struct Mass {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

impl Mass {
    /// Of no key.
    pub(crate) const NONE: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Adds the keys of a later part: `o` and `part_o` are sums of values times weights.
    ///
    /// # Safety
    /// The instruction set's features are there.
    #[inline(always)]
    pub(crate) unsafe fn add<S: Simd>(&mut self, o: &mut [f32], part: Self, part_o: &[f32]) {
        if part.is_none() {
            return;
        }
        if self.is_none() {
            o.copy_from_slice(part_o);
            *self = part;
            return;
        }
        // The side with the larger maximum keeps its scale.
        let is_larger = part.max > self.max;
        let (small, large) = if is_larger { (self.max, part.max) } else { (part.max, self.max) };
        let factor = S::first(math::exp2::<S>(S::splat(small - large)));
        let (keep, add) = if is_larger { (factor, 1.0) } else { (1.0, factor) };
        Blend { x: part_o, add, keep, out: o }.run::<S>();
        *self = Self { max: large, sum: self.sum * keep + part.sum * add };
    }

    /// Whether nothing was seen; a sum that is not a number was seen.
    fn is_none(self) -> bool {
        self.max == f32::NEG_INFINITY && self.sum == 0.0
    }
}

/// Where finished rows go.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    /// `[T, Hq, Dh]`.
    pub(crate) out: Shared<'a, f32>,
    /// `[T, Hq]`.
    pub(crate) lse: Shared<'a, f32>,
    /// Merge into what `out` and `lse` hold.
    pub(crate) accumulate: bool,
}

impl Results<'_> {
    /// Divides row `at` by the sum of its weights and writes, or merges, it.
    ///
    /// # Safety
    /// Nobody else writes the row; the instruction set's features are there.
    #[inline(always)]
    pub(crate) unsafe fn write<S: Simd>(&self, at: usize, o: &[f32], total: Mass) {
        let out = self.out.slice(at * o.len(), o.len());
        let lse = &mut self.lse.slice(at, 1)[0];
        let (mut new_lse, mut factor) = (f32::NEG_INFINITY, 0.0);
        if total.sum != 0.0 {
            (new_lse, factor) = ((total.max + total.sum.log2()) * LN_2, 1.0 / total.sum);
        }
        let mut keep = 0.0;
        if self.accumulate {
            let (a, b, merged) = merge_weights(*lse, new_lse);
            (keep, factor, new_lse) = (a, factor * b, merged);
        }
        *lse = new_lse;
        if keep == 0.0 {
            // Not a sum with 0 times the old contents: those may be anything.
            out.copy_from_slice(o);
            scale::<S>(out, factor);
        } else {
            Blend { x: o, add: factor, keep, out }.run::<S>();
        }
    }
}

/// Where rows go of which only a part of the keys was attended.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    /// `[n_parts, T, Hq, Dh]`, not divided by the sum of the weights.
    pub(crate) o: Shared<'a, f32>,
    /// `[n_parts, T, Hq]`.
    pub(crate) max: Shared<'a, f32>,
    /// `[n_parts, T, Hq]`.
    pub(crate) sum: Shared<'a, f32>,
    /// `T * Hq`.
    pub(crate) n_heads: usize,
    /// The part that a block's first keys are.
    pub(crate) first: usize,
}

impl Parts<'_> {
    /// Writes row `at` of a block's part.
    ///
    /// # Safety
    /// Nobody else writes the row of this part.
    #[inline(always)]
    unsafe fn write(&self, part: usize, at: usize, o: &[f32], mass: Mass) {
        let at = (self.first + part) * self.n_heads + at;
        self.o.slice(at * o.len(), o.len()).copy_from_slice(o);
        self.max.slice(at, 1)[0] = mass.max;
        self.sum.slice(at, 1)[0] = mass.sum;
    }
}

/// What a block leaves behind.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// Finished rows.
    Results(Results<'a>),
    /// Each part of the keys on its own.
    Parts(Parts<'a>),
}

impl Target<'_> {
    /// The target of a block whose first keys are a part.
    pub(crate) fn of_part(self, first: usize) -> Self {
        match self {
            Self::Results(_) => self,
            Self::Parts(parts) => Self::Parts(Parts { first, ..parts }),
        }
    }

    /// Writes row `at` of a block's part; `false`, with nothing written, where parts are to be
    /// merged first.
    ///
    /// # Safety
    /// As for [`Results::write`].
    #[inline(always)]
    pub(crate) unsafe fn write_part<S: Simd>(
        &self,
        part: usize,
        is_only: bool,
        at: usize,
        o: &[f32],
        mass: Mass,
    ) -> bool {
        match self {
            Self::Results(results) if is_only => results.write::<S>(at, o, mass),
            Self::Results(_) => return false,
            Self::Parts(parts) => parts.write(part, at, o, mass),
        }
        true
    }
}

/// Merges the parts of one row, and writes it.
pub(crate) struct MergeParts<'a, P> {
    /// The parts in their order.
    pub(crate) parts: P,
    /// `[Dh]`.
    pub(crate) o: &'a mut [f32],
    pub(crate) results: Results<'a>,
    /// Index of the row.
    pub(crate) at: usize,
}

impl<'p, P: Iterator<Item = (Mass, &'p [f32])>> Kernel for MergeParts<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut total = Mass::NONE;
        self.o.fill(0.0);
        for (part, part_o) in self.parts {
            total.add::<S>(self.o, part, part_o);
        }
        self.results.write::<S>(self.at, self.o, total);
    }
}

/// How two attentions with log-sum-exps a and b mix: their weights and the merged log-sum-exp.
pub(crate) fn merge_weights(a: f32, b: f32) -> (f32, f32, f32) {
    let max = if a > b { a } else { b };
    if max == f32::NEG_INFINITY {
        return (0.0, 0.0, max);
    }
    let (x, y) = ((a - max).exp(), (b - max).exp());
    let sum = x + y;
    (x / sum, y / sum, max + sum.ln())
}

/// Multiplies all numbers of `x`.
#[inline(always)]
pub(crate) unsafe fn scale<S: Simd>(x: &mut [f32], factor: f32) {
    let (at, factor) = (x.as_mut_ptr(), S::splat(factor));
    let mut i = 0;
    while i + S::LANES <= x.len() {
        S::store(at.add(i), S::mul(S::load(at.add(i)), factor));
        i += S::LANES;
    }
    let n = x.len() - i;
    S::store_n(at.add(i), n, S::mul(S::load_n(at.add(i), n), factor));
}
