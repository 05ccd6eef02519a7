//! Vectors of words of 16 bits for products of quantised weights with many rows: a lane is a row of
//! weights with two of them.

use super::bytes::ByteSimd;

/// As [`Kernel`](super::Kernel), for products of words.
pub(crate) trait WordKernel {
    /// What [`WordKernel::run`] returns.
    type Output;

    /// As [`Kernel::run`](super::Kernel::run).
    ///
    /// # Safety
    /// Called by [`WordSimd::call_words`] only, which has the features of `S`.
    unsafe fn run<S: WordSimd>(self) -> Self::Output;
}

/// Vectors of `2 * LANES` words beside those of bytes.
///
/// # Safety
/// As for [`ByteSimd`]; pointers are valid for `2 * LANES` words unless a method says otherwise.
pub(crate) trait WordSimd: ByteSimd {
    /// Two words in each lane.
    type W: Copy;
    /// Rows of activations in a register tile.
    const ROWS_OF_WORDS: usize = 4;

    /// As [`Simd::call`](super::Simd::call).
    unsafe fn call_words<K: WordKernel>(kernel: K) -> K::Output;

    unsafe fn load_words(p: *const i16) -> Self::W;
    unsafe fn store_words(p: *mut i16, words: Self::W);
    /// The two words at `p` in every lane.
    unsafe fn splat_words(p: *const i16) -> Self::W;
    /// The bytes of each lane, with their signs and less `offset`: the first two of them, and the
    /// last two.
    unsafe fn widen(b: Self::B, offset: i16) -> [Self::W; 2];
    /// In each lane `sum` and both products.
    unsafe fn dot_words(sum: Self::I, a: Self::W, b: Self::W) -> Self::I;
}
