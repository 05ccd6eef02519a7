//! One descriptor struct per op, its parameter block, and its checks.

mod attention;
pub(crate) mod checks;
mod cluster;
mod dense;
mod fused;
mod index;
mod kv;
mod look_up;
mod mass;
mod residual;
mod search;
mod sparse;
mod token_rest;

pub use attention::*;
pub use cluster::*;
pub use dense::*;
pub use fused::*;
pub use index::*;
pub use kv::*;
pub use look_up::*;
pub use mass::*;
pub use residual::*;
pub use search::*;
pub use sparse::*;
pub use token_rest::*;

use longview_core::DType;

/// What shaders and kernels call a type of stored elements.
pub fn kind(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::U32 => NO_KIND,
        DType::Q8 => 4,
        DType::I8 => 5,
    }
}

/// The kind of something that is not there.
pub const NO_KIND: u32 = 3;
