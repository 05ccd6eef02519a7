//! Vectors of bytes for products of quantised weights: a lane is a row with four codes.

use super::{MAX_LANES, Simd};

/// Where each of up to [`MAX_LANES`] rows of bytes begins.
pub(crate) trait RowStarts: Copy {
    /// Where row `lane` begins.
    ///
    /// # Safety
    /// There is such a row.
    unsafe fn start(self, lane: usize) -> *const u8;
}

/// Rows one behind the other.
#[derive(Clone, Copy)]
pub(crate) struct InTurn {
    pub(crate) first: *const u8,
    /// Bytes from one row to the next.
    pub(crate) step: usize,
}

impl RowStarts for InTurn {
    #[inline(always)]
    unsafe fn start(self, lane: usize) -> *const u8 {
        self.first.add(lane * self.step)
    }
}

impl RowStarts for &[*const u8; MAX_LANES] {
    #[inline(always)]
    unsafe fn start(self, lane: usize) -> *const u8 {
        *self.get_unchecked(lane)
    }
}

/// As [`Kernel`](super::Kernel), for products of quantised weights.
pub(crate) trait ByteKernel {
    /// What [`ByteKernel::run`] returns.
    type Output;

    /// As [`Kernel::run`](super::Kernel::run).
    ///
    /// # Safety
    /// Called by [`ByteSimd::call_bytes`] only, which has the features of `S`.
    unsafe fn run<S: ByteSimd>(self) -> Self::Output;
}

/// Vectors of `4 * LANES` bytes and of `LANES` whole numbers beside those of f32.
///
/// # Safety
/// As for [`Simd`]; pointers to bytes are valid for `4 * LANES` of them unless a method says
/// otherwise.
pub(crate) trait ByteSimd: Simd {
    /// Four bytes in each lane.
    type B: Copy;
    /// An i32 in each lane.
    type I: Copy;
    /// Whether codes of 8 bits are multiplied without a sign, biased by 128. Otherwise they are
    /// signed bytes.
    const BIASED: bool;
    /// Rows of activations in a register tile.
    const X_ROWS: usize;
    /// Whether [`ByteSimd::dot_two`] is less work than [`ByteSimd::dot`] twice.
    const TWO_ROWS: bool = false;

    /// As [`Simd::call`].
    unsafe fn call_bytes<K: ByteKernel>(kernel: K) -> K::Output;

    unsafe fn load_bytes(p: *const u8) -> Self::B;
    /// 16 bytes of each of the first `LANES` rows, from byte `at` of them on: lane l of register j
    /// has bytes `4 j..4 j + 4` of row l's.
    #[inline(always)]
    unsafe fn load_rows(rows: impl RowStarts, at: usize) -> [Self::B; 4] {
        let mut lanes = [[0u8; 4 * MAX_LANES]; 4];
        for l in 0..Self::LANES {
            let bytes = rows.start(l).add(at).cast::<[[u8; 4]; 4]>().read_unaligned();
            for (to, four) in lanes.iter_mut().zip(bytes) {
                to[4 * l..4 * l + 4].copy_from_slice(&four);
            }
        }
        [
            Self::load_bytes(lanes[0].as_ptr()),
            Self::load_bytes(lanes[1].as_ptr()),
            Self::load_bytes(lanes[2].as_ptr()),
            Self::load_bytes(lanes[3].as_ptr()),
        ]
    }
    /// Every byte masked by `mask`.
    unsafe fn mask(b: Self::B, mask: u8) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// The bits of `a` where `mask`, the same in every lane, has ones, and those of `b` elsewhere.
    unsafe fn select(mask: u32, a: Self::B, b: Self::B) -> Self::B;
    /// Every byte with its bits in `bits` turned over.
    unsafe fn flip(b: Self::B, bits: u8) -> Self::B;
    /// The four bytes of a lane as one word, shifted left by `n` bits, or right where `n` is
    /// negative.
    unsafe fn shift(b: Self::B, n: i32) -> Self::B;
    /// The element of a table that each byte, which is below 16, names.
    unsafe fn look_up(table: &[i8; 16], b: Self::B) -> Self::B;

    /// The whole number at `p` in every lane.
    unsafe fn splat_int(p: *const i32) -> Self::I;
    unsafe fn zero_int() -> Self::I;
    /// `low + 128 * high`.
    unsafe fn add_128(low: Self::I, high: Self::I) -> Self::I;
    /// Byte `j` of each lane, with its sign.
    unsafe fn signed_byte(b: Self::B, j: i32) -> Self::I;
    unsafe fn to_float(i: Self::I) -> Self::V;
    /// `LANES` bytes as floats.
    unsafe fn load_u8(p: *const u8) -> Self::V;

    /// `start` and, in each lane, the products of its codes in `w` with the `4 * N` activations at
    /// `a`. Codes have `BITS` bits; with 8 of them see [`ByteSimd::BIASED`]. Activations are in
    /// -127..=127.
    unsafe fn dot<const N: usize, const BITS: usize>(
        start: Self::I,
        w: &[Self::B; 8],
        from: usize,
        a: *const i8,
    ) -> Self::I;

    /// [`ByteSimd::dot`] of the same codes with two rows of activations.
    #[inline(always)]
    unsafe fn dot_two<const N: usize, const BITS: usize>(
        start: [Self::I; 2],
        w: &[Self::B; 8],
        from: usize,
        a: [*const i8; 2],
    ) -> [Self::I; 2] {
        [
            Self::dot::<N, BITS>(start[0], w, from, a[0]),
            Self::dot::<N, BITS>(start[1], w, from, a[1]),
        ]
    }
}
