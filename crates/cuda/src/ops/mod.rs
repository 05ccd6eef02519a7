//! One module per op: the struct of arguments of its kernels, and how they are launched.
//!
//! To add an op: write `kernels/<op>.cu`, run `cargo xtask kernels`, list its kernels in
//! `kernels.rs`, write the module here, and call it in `backend.rs`.

pub(crate) mod argmax;
pub(crate) mod attend_chunk;
pub(crate) mod attend_list;
pub(crate) mod block_reduce;
pub(crate) mod centroid_scores;
pub(crate) mod cluster_rest;
pub(crate) mod cluster_rows;
pub(crate) mod cluster_stats;
pub(crate) mod column_mass;
pub(crate) mod embed;
pub(crate) mod gram;
pub(crate) mod kmeans_assign;
pub(crate) mod kmeans_update;
pub(crate) mod kv_gather;
pub(crate) mod kv_keys;
pub(crate) mod kv_scatter;
pub(crate) mod lse_merge;
pub(crate) mod matmul;
pub(crate) mod matvec;
pub(crate) mod pool_scores;
pub(crate) mod project_heads;
pub(crate) mod query_gate;
pub(crate) mod query_sums;
pub(crate) mod resolve_rows;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rotate_rows;
pub(crate) mod select_clusters;
pub(crate) mod silu_mul;
pub(crate) mod split_signs;
pub(crate) mod top_k;

use longview_core::DType;
use longview_ops::KvView;
pub(crate) use longview_ops::{NO_KIND, kind};

use crate::backend::CudaBackend;
use crate::driver::Driver;

/// Of three variants the one for a type of elements; the last for bf16 and for none.
pub(crate) fn by_type<T: Copy>(dtype: DType, [f32, f16, bf16]: [T; 3]) -> T {
    match dtype {
        DType::F32 => f32,
        DType::F16 => f16,
        DType::BF16 | DType::U32 => bf16,
    }
}

/// Ids that a list may name are below this: rows of a head, or of the whole pool. The largest
/// number is never an id.
pub(crate) fn row_limit<D: Driver>(kv: &KvView<'_, CudaBackend<D>>, head_dim: u32) -> u32 {
    u32::try_from(kv.row_limit(head_dim as usize)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use longview_ops::Op;

    use crate::kernels::SOURCES;

    #[test]
    fn an_op_has_a_file_of_its_stem() {
        for op in Op::ALL {
            assert!(SOURCES.iter().any(|source| source.stem == op.stem()), "{op}");
        }
    }
}
