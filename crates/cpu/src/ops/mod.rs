//! One module for each op, named by its stem: check, cut into items, call kernels. Safe code only.

pub(crate) mod argmax;
pub(crate) mod attend_chunk;
pub(crate) mod attend_list;
pub(crate) mod block_reduce;
pub(crate) mod centroid_scores;
pub(crate) mod cluster_rest;
pub(crate) mod cluster_rows;
pub(crate) mod cluster_stats;
pub(crate) mod column_mass;
pub(crate) mod copy;
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
mod partials;
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

use longview_ops::{Op, OpError, OpResult};

/// Fails unless every index is below `limit`.
fn ensure_below(op: Op, what: &'static str, indices: &[u32], limit: usize) -> OpResult<()> {
    // The maximum is one vector loop; who it was is looked up only when it matters.
    let largest = indices.iter().copied().max();
    match largest {
        Some(index) if index as usize >= limit => {
            Err(OpError::Index { op, what, index: index as usize, limit })
        }
        _ => Ok(()),
    }
}

/// Fails unless every count is at most `limit`.
fn ensure_at_most(op: Op, what: &'static str, counts: &[u32], limit: usize) -> OpResult<()> {
    ensure_below(op, what, counts, limit.saturating_add(1))
}
