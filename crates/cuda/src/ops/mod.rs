//! One module per op: the struct of arguments of its kernels, and how they are launched.
//!
//! To add an op: write `kernels/<op>.cu`, run `cargo xtask kernels`, list its kernels in
//! `kernels.rs`, write the module here, call it in `backend.rs`, and take the op off [`MISSING`].

pub(crate) mod argmax;
pub(crate) mod cluster_stats;
pub(crate) mod centroid_scores;
pub(crate) mod embed;
pub(crate) mod gram;
pub(crate) mod kmeans_assign;
pub(crate) mod kmeans_update;
pub(crate) mod kv_gather;
pub(crate) mod kv_scatter;
pub(crate) mod matmul;
pub(crate) mod matvec;
pub(crate) mod resolve_rows;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod select_clusters;
pub(crate) mod silu_mul;
pub(crate) mod top_k;

use longview_core::DType;
pub(crate) use longview_ops::{NO_KIND, kind};
use longview_ops::{Op, OpError, OpResult};

use crate::driver::Driver;

/// Ops without a kernel.
pub(crate) const MISSING: &[Op] = &[Op::AttendChunk, Op::AttendList, Op::LseMerge, Op::QueryGate];

/// Why an op of [`MISSING`] is missing.
pub(crate) fn missing_reason(op: Op) -> String {
    format!("there is no kernel kernels/{op}.cu")
}

/// The answer of an op of [`MISSING`].
pub(crate) fn missing<D: Driver>(op: Op) -> OpResult<()> {
    Err(OpError::Unsupported { backend: D::NAME, op, reason: missing_reason(op) })
}

/// Of three variants the one for a type of elements; the last for bf16 and for none.
pub(crate) fn by_type<T: Copy>(dtype: DType, [f32, f16, bf16]: [T; 3]) -> T {
    match dtype {
        DType::F32 => f32,
        DType::F16 => f16,
        DType::BF16 | DType::U32 => bf16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::SOURCES;

    #[test]
    fn an_op_has_a_file_of_its_stem_or_is_missing() {
        for op in Op::ALL {
            let has_file = SOURCES.iter().any(|source| source.stem == op.stem());
            assert_ne!(has_file, MISSING.contains(op), "{op}");
        }
    }
}
