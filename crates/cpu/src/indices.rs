//! Checks of indices and counts that an op finds in a buffer.

use longview_ops::{Op, OpError, OpResult};

/// Fails unless every index is below `limit`.
pub(crate) fn ensure_below(
    op: Op,
    what: &'static str,
    indices: &[u32],
    limit: usize,
) -> OpResult<()> {
    // Below 2^31 an index that is too large leaves a sign, and signs are joined in one vector loop
    // of any instruction set. Which index it was is looked up only when it matters.
    let sign = 1u32 << 31;
    if let Some(last) = limit.checked_sub(1)
        && last < sign as usize
    {
        let last = last as u32;
        let signs = indices.iter().fold(0, |signs, i| signs | i | last.wrapping_sub(*i));
        if signs < sign {
            return Ok(());
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_refused_where_it_reaches_the_limit() {
        let big = u32::MAX as usize;
        for limit in [0, 1, 2, 77, 1 << 31, (1 << 31) + 1, big, big + 1] {
            for i in [0, 1, 76, 77, 78, i32::MAX as u32, 1 << 31, (1 << 31) + 1, u32::MAX] {
                let found = ensure_below(Op::AttendList, "row", &[0, i, 0].repeat(9)[1..], limit);
                let is_below = (i as usize) < limit && limit > 0;
                assert_eq!(found.is_ok(), is_below, "{i} below {limit}");
                if let Err(OpError::Index { index, .. }) = found {
                    assert_eq!(index, i as usize);
                }
            }
        }
        assert!(ensure_below(Op::AttendList, "row", &[], 0).is_ok());
    }
}
