//! Checks of indices and counts that an op finds in a buffer.

use longview_ops::{Op, OpError, OpResult};

/// Fails unless every index is below `limit`.
pub(crate) fn ensure_below(
    op: Op,
    what: &'static str,
    indices: &[u32],
    limit: usize,
) -> OpResult<()> {
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
pub(crate) fn ensure_at_most(
    op: Op,
    what: &'static str,
    counts: &[u32],
    limit: usize,
) -> OpResult<()> {
    ensure_below(op, what, counts, limit.saturating_add(1))
}
