//! Where what kernels read of an index lies.

use std::ops::Range;

use longview_core::DType;
use longview_ops::{Backend, OpResult};

/// Memory that kernels read: that of the host, which forks may share, where they are one.
pub(super) fn alloc<B: Backend>(
    backend: &B,
    dtype: DType,
    len: usize,
    label: &str,
) -> OpResult<B::Buffer> {
    let is_one = backend.capabilities().unified_memory;
    match if is_one { backend.alloc_host(dtype, len, label)? } else { None } {
        Some(buffer) => Ok(buffer),
        None => backend.alloc(dtype, len, label),
    }
}

/// Elements of the units of each head from `first` to before `end`, in a buffer of room for
/// `capacity` units a head, of `width` elements each: what a fork takes over.
pub(super) fn unit_spans(
    (first, end): (&[usize], &[usize]),
    (capacity, width): (usize, usize),
) -> Vec<Range<usize>> {
    let at = |h: usize, unit: usize| (h * capacity + unit) * width;
    let heads = first.iter().zip(end).enumerate();
    heads.map(|(h, (first, end))| at(h, *first.min(end))..at(h, *end)).collect()
}
