//! The loops that take the time, generic over the instruction set and the element type.
//!
//! Everything here is `unsafe fn`, `#[inline(always)]`, reached through `SupportedIsa::run` from a
//! [`crate::simd::Kernel`] whose safe constructor (in the same file) checks lengths.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "kernels are unsafe line by line, for the reason their `# Safety` section gives"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "loops over register tiles index several arrays at once, and must unroll to constants"
)]

pub(crate) mod attend;
pub(crate) mod blocks;
pub(crate) mod codes;
pub(crate) mod dots;
pub(crate) mod gemm;
pub(crate) mod gram;
pub(crate) mod limits;
pub(crate) mod mass;
pub(crate) mod matvec;
pub(crate) mod nearest;
pub(crate) mod pack;
pub(crate) mod pairs;
pub(crate) mod panels;
pub(crate) mod quant;
pub(crate) mod rank;
pub(crate) mod state;
pub(crate) mod tile;
pub(crate) mod vector;
pub(crate) mod words;
