//! One descriptor struct per op, its parameter block, and its checks.

mod attention;
mod cluster;
mod dense;
mod fused;
mod index;
mod kv;
mod mass;
mod resolve;
mod tail;

pub use attention::*;
pub use cluster::*;
pub use dense::*;
pub use fused::*;
pub use index::*;
pub use kv::*;
pub use mass::*;
pub use resolve::*;
pub use tail::*;

use longview_core::DType;

use crate::{Backend, DeviceBuffer, Op, OpError, OpResult, View, ViewMut};

/// What shaders and kernels call a type of stored elements.
pub fn kind(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::U32 => NO_KIND,
    }
}

/// The kind of something that is not there.
pub const NO_KIND: u32 = 3;

/// Fails with the op's [`OpError::Shape`] unless `ok`.
pub(crate) fn ensure(op: Op, ok: bool, what: impl FnOnce() -> String) -> OpResult<()> {
    if ok { Ok(()) } else { Err(OpError::shape(op, what())) }
}

/// The length and place of a view that is read.
pub(crate) fn reads<B: Backend>(
    op: Op,
    name: &'static str,
    view: &View<'_, B>,
    dtype: DType,
    len: usize,
) -> OpResult<()> {
    ensure(op, view.len == len, || format!("{name} has {} elements, expected {len}", view.len))?;
    ensure(op, view.in_bounds(), || format!("{name} reaches past the end of its buffer"))?;
    of_type(op, name, view.buffer.dtype(), dtype)
}

/// The length and place of a view that is written.
pub(crate) fn writes<B: Backend>(
    op: Op,
    name: &'static str,
    view: &ViewMut<'_, B>,
    dtype: DType,
    len: usize,
) -> OpResult<()> {
    ensure(op, view.len == len, || format!("{name} has {} elements, expected {len}", view.len))?;
    ensure(op, view.in_bounds(), || format!("{name} reaches past the end of its buffer"))?;
    of_type(op, name, view.buffer.dtype(), dtype)
}

/// The data type of a buffer.
pub(crate) fn of_type(op: Op, buffer: &'static str, found: DType, expected: DType) -> OpResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(OpError::Type { op, buffer, found, expected: expected.name() })
}

/// Any floating-point type.
pub(crate) fn of_float(op: Op, buffer: &'static str, found: DType) -> OpResult<()> {
    if found.is_float() {
        return Ok(());
    }
    Err(OpError::Type { op, buffer, found, expected: "f32, f16 or bf16" })
}

/// Heads that form whole groups, none of them empty.
pub(crate) fn grouped(op: Op, n_q_heads: u32, n_kv_heads: u32, head_dim: u32) -> OpResult<()> {
    ensure(
        op,
        n_kv_heads > 0 && head_dim > 0 && n_q_heads > 0 && n_q_heads.is_multiple_of(n_kv_heads),
        || format!("{n_q_heads} query heads, {n_kv_heads} KV heads, head width {head_dim}"),
    )
}
