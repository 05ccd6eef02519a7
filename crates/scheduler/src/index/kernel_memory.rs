//! Where what kernels read of an index lies.

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
