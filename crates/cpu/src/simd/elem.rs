//! The element types of weights and KV rows, as kernels see them.

use half::{bf16, f16};

use super::Simd;

/// A stored floating-point type that widens to f32 exactly.
pub(crate) trait Elem: bytemuck::Pod + Send + Sync {
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::V;
    /// # Safety
    /// As for [`Simd`].
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);
    /// # Safety
    /// As for [`Simd`].
    unsafe fn store_n<S: Simd>(p: *mut Self, n: usize, v: S::V);
}

macro_rules! elem {
    ($type:ty, $load:ident, $load_n:ident, $store:ident, $store_n:ident) => {
        impl Elem for $type {
            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const Self) -> S::V {
                S::$load(p)
            }

            #[inline(always)]
            unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::V {
                S::$load_n(p, n)
            }

            #[inline(always)]
            unsafe fn store<S: Simd>(p: *mut Self, v: S::V) {
                S::$store(p, v)
            }

            #[inline(always)]
            unsafe fn store_n<S: Simd>(p: *mut Self, n: usize, v: S::V) {
                S::$store_n(p, n, v)
            }
        }
    };
}

elem!(f32, load, load_n, store, store_n);
elem!(f16, load_f16, load_f16_n, store_f16, store_f16_n);
elem!(bf16, load_bf16, load_bf16_n, store_bf16, store_bf16_n);

/// Runs `$body` with `$E` set to the Rust type of the floating-point `$dtype`.
macro_rules! with_elem {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            longview_core::DType::F32 => {
                type $E = f32;
                $body
            }
            longview_core::DType::F16 => {
                type $E = half::f16;
                $body
            }
            longview_core::DType::BF16 => {
                type $E = half::bf16;
                $body
            }
            longview_core::DType::U32 | longview_core::DType::Q8 | longview_core::DType::I8 => {
                unreachable!("the descriptor's check admits floats only")
            }
        }
    };
}
pub(crate) use with_elem;
