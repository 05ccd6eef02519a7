//! Rows of stored numbers as kernels read them: widened to f32, a vector at a time.

use half::{bf16, f16};
use longview_core::{DType, kv8};

use super::Simd;
use super::elem::Elem;

/// A row of stored numbers.
///
/// # Safety
/// Both methods: as for [`Simd`]; the row has the numbers that are named, and `at` is a multiple of
/// LANES.
pub(crate) trait Stored: Copy {
    /// Whether it pays to widen a row to memory that is multiplied more than four times.
    const IS_CODED: bool;

    unsafe fn load<S: Simd>(self, at: usize) -> S::V;
    unsafe fn load_n<S: Simd>(self, at: usize, n: usize) -> S::V;
}

impl<E: Elem> Stored for *const E {
    const IS_CODED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::V {
        E::load::<S>(self.add(at))
    }

    #[inline(always)]
    unsafe fn load_n<S: Simd>(self, at: usize, n: usize) -> S::V {
        E::load_n::<S>(self.add(at), n)
    }
}

/// The key of a row of 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct ByteKey {
    codes: *const i8,
    /// One for each [`kv8::KEY_BLOCK`] codes.
    scales: *const f16,
}

impl ByteKey {
    /// The scale of the block that a vector at `at` lies in: blocks are whole vectors.
    #[inline(always)]
    unsafe fn scale<S: Simd>(self, at: usize) -> S::V {
        S::splat_f16(self.scales.add(at / kv8::KEY_BLOCK))
    }
}

impl Stored for ByteKey {
    const IS_CODED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::V {
        S::mul(S::load_i8(self.codes.add(at)), self.scale::<S>(at))
    }

    #[inline(always)]
    unsafe fn load_n<S: Simd>(self, at: usize, n: usize) -> S::V {
        S::mul(S::load_i8_n(self.codes.add(at), n), self.scale::<S>(at))
    }
}

/// The value of a row of 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct ByteValue {
    codes: *const i8,
    scale: *const f16,
}

impl Stored for ByteValue {
    const IS_CODED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::V {
        S::mul(S::load_i8(self.codes.add(at)), S::splat_f16(self.scale))
    }

    #[inline(always)]
    unsafe fn load_n<S: Simd>(self, at: usize, n: usize) -> S::V {
        S::mul(S::load_i8_n(self.codes.add(at), n), S::splat_f16(self.scale))
    }
}

/// The codes of a value of 8 bits, which have one scale.
#[derive(Clone, Copy)]
pub(crate) struct ByteCodes(*const i8);

impl Stored for ByteCodes {
    const IS_CODED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::V {
        S::load_i8(self.0.add(at))
    }

    #[inline(always)]
    unsafe fn load_n<S: Simd>(self, at: usize, n: usize) -> S::V {
        S::load_i8_n(self.0.add(at), n)
    }
}

/// The elements that KV rows are made of.
///
/// # Safety
/// `key` and `value`: `row` is valid for [`KvElem::row_len`] elements, and aligned as an f16 is.
pub(crate) trait KvElem: bytemuck::Pod + Send + Sync {
    /// As in buffers.
    const DTYPE: DType;
    type Key: Stored;
    type Value: Stored;
    /// A value but for its scale.
    type Codes: Stored;

    /// Elements of a row.
    #[inline(always)]
    fn row_len(head_dim: usize) -> usize {
        Self::DTYPE.kv_row_len(head_dim)
    }

    unsafe fn key(row: *const Self, head_dim: usize) -> Self::Key;
    unsafe fn value(row: *const Self, head_dim: usize) -> Self::Value;
    unsafe fn codes(row: *const Self, head_dim: usize) -> Self::Codes;
    /// What the codes of a value are multiplied by; `None` where they are the numbers.
    unsafe fn value_scale(row: *const Self, head_dim: usize) -> Option<f16>;
}

macro_rules! plain_rows {
    ($type:ty, $dtype:ident) => {
        impl KvElem for $type {
            const DTYPE: DType = DType::$dtype;
            type Key = *const Self;
            type Value = *const Self;
            type Codes = *const Self;

            #[inline(always)]
            unsafe fn key(row: *const Self, _head_dim: usize) -> *const Self {
                row
            }

            #[inline(always)]
            unsafe fn value(row: *const Self, head_dim: usize) -> *const Self {
                row.add(head_dim)
            }

            #[inline(always)]
            unsafe fn codes(row: *const Self, head_dim: usize) -> *const Self {
                row.add(head_dim)
            }

            #[inline(always)]
            unsafe fn value_scale(_row: *const Self, _head_dim: usize) -> Option<f16> {
                None
            }
        }
    };
}

plain_rows!(f32, F32);
plain_rows!(f16, F16);
plain_rows!(bf16, BF16);

impl KvElem for i8 {
    const DTYPE: DType = DType::Q8;
    type Key = ByteKey;
    type Value = ByteValue;
    type Codes = ByteCodes;

    #[inline(always)]
    unsafe fn key(row: *const i8, head_dim: usize) -> ByteKey {
        ByteKey { codes: row, scales: row.add(2 * head_dim).cast() }
    }

    #[inline(always)]
    unsafe fn value(row: *const i8, head_dim: usize) -> ByteValue {
        let scales = row.add(2 * head_dim).cast::<f16>();
        let scale = scales.add(kv8::n_key_scales(head_dim));
        ByteValue { codes: row.add(head_dim), scale }
    }

    #[inline(always)]
    unsafe fn codes(row: *const i8, head_dim: usize) -> ByteCodes {
        ByteCodes(row.add(head_dim))
    }

    #[inline(always)]
    unsafe fn value_scale(row: *const i8, head_dim: usize) -> Option<f16> {
        Some(Self::value(row, head_dim).scale.read())
    }
}

/// Runs `$body` with `$E` set to the Rust type of the elements of KV rows of `$dtype`.
macro_rules! with_rows {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            longview_core::DType::Q8 => {
                type $E = i8;
                $body
            }
            dtype => $crate::simd::elem::with_elem!(dtype, $E => $body),
        }
    };
}
pub(crate) use with_rows;
