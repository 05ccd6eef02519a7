//! One module per op: what its shader is launched with.

pub(crate) mod argmax;
pub(crate) mod attend_chunk;
pub(crate) mod attend_list;
pub(crate) mod centroid_scores;
pub(crate) mod cluster_stats;
pub(crate) mod embed;
pub(crate) mod gram;
pub(crate) mod kmeans_assign;
pub(crate) mod kmeans_update;
pub(crate) mod kv_gather;
pub(crate) mod kv_scatter;
pub(crate) mod lse_merge;
pub(crate) mod matmul;
pub(crate) mod matvec;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod select_clusters;
pub(crate) mod silu_mul;
