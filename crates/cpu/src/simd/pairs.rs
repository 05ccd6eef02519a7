//! Vectors of pairs of bf16: a lane is two neighbours of a row.

use half::bf16;

use super::Simd;

/// As [`Kernel`](super::Kernel), for products of bf16.
pub(crate) trait PairKernel {
    /// What [`PairKernel::run`] returns.
    type Output;

    /// As [`Kernel::run`](super::Kernel::run).
    ///
    /// # Safety
    /// Called by [`PairSimd::call_pairs`] only, which has the features of `S`.
    unsafe fn run<S: PairSimd>(self) -> Self::Output;
}

/// Vectors of `2 * LANES` numbers of bf16 beside those of f32.
///
/// # Safety
/// As for [`Simd`]; pointers are valid for `2 * LANES` numbers, or for `n` where a method takes `n
/// <= 2 * LANES`.
pub(crate) trait PairSimd: Simd {
    /// Two numbers in each lane.
    type P: Copy;

    /// As [`Simd::call`].
    unsafe fn call_pairs<K: PairKernel>(kernel: K) -> K::Output;

    unsafe fn load_pairs(p: *const bf16) -> Self::P;
    /// The first `n` numbers, then zeros.
    unsafe fn load_pairs_n(p: *const bf16, n: usize) -> Self::P;
    /// In each lane `sum` and both products, each of which is rounded in as an f32. Where it is one
    /// instruction, denormals count as 0.
    unsafe fn dot_pairs(sum: Self::V, a: Self::P, b: Self::P) -> Self::V;
}
