//! One module per op: what its shader is launched with.

pub(crate) mod argmax;
pub(crate) mod attend_chunk;
pub(crate) mod attend_list;
pub(crate) mod attention;
pub(crate) mod block_reduce;
pub(crate) mod centroid_scores;
pub(crate) mod cluster_rest;
pub(crate) mod cluster_rows;
pub(crate) mod cluster_stats;
pub(crate) mod column_mass;
pub(crate) mod embed;
pub(crate) mod fused;
pub(crate) mod gram;
pub(crate) mod kmeans_assign;
pub(crate) mod kmeans_update;
pub(crate) mod kv_gather;
pub(crate) mod kv_keys;
pub(crate) mod kv_scatter;
mod linear;
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

pub(crate) use longview_ops::{NO_KIND, kind};

/// Whether rows of `width` f32 elements that follow each other from these offsets can be read as
/// vectors of 4.
fn rows_are_vectors(width: u32, offsets: &[usize]) -> bool {
    width.is_multiple_of(4) && offsets.iter().all(|offset| offset.is_multiple_of(4))
}
