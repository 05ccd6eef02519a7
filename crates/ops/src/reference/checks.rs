//! Checks and sums that several ops share.

use crate::error::{OpError, OpResult};
use crate::op::Op;

/// Fails with the op's [`OpError::Index`] unless `index < limit`.
pub(super) fn below(op: Op, what: &'static str, index: usize, limit: usize) -> OpResult<()> {
    if index < limit { Ok(()) } else { Err(OpError::Index { op, what, index, limit }) }
}

/// Every count of a list must be at most the room that the list has.
pub(super) fn counts_fit(
    op: Op,
    what: &'static str,
    counts: &[usize],
    room: usize,
) -> OpResult<()> {
    counts.iter().try_for_each(|n| below(op, what, *n, room + 1))
}

/// The sum of products, in order.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
