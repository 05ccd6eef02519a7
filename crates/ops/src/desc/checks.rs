//! Checks that several descriptors make.

use longview_core::DType;

use crate::buffer::{DeviceBuffer, Storage, View, ViewMut};
use crate::error::{OpError, OpResult};
use crate::op::Op;

/// Fails with the op's [`OpError::Shape`] unless `ok`.
pub(crate) fn ensure(op: Op, ok: bool, what: impl FnOnce() -> String) -> OpResult<()> {
    if ok { Ok(()) } else { Err(OpError::shape(op, what())) }
}

/// The length and place of a view that is read.
pub(crate) fn reads<B: Storage>(
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
pub(crate) fn writes<B: Storage>(
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

/// Any type of landmarks.
pub(crate) fn of_landmarks(op: Op, buffer: &'static str, found: DType) -> OpResult<()> {
    if found.is_float() || found == DType::I8 {
        return Ok(());
    }
    Err(OpError::Type { op, buffer, found, expected: "f32, f16, bf16 or i8" })
}

/// Any type of KV rows.
pub(crate) fn of_rows(op: Op, buffer: &'static str, found: DType) -> OpResult<()> {
    if found.is_float() || found == DType::Q8 {
        return Ok(());
    }
    Err(OpError::Type { op, buffer, found, expected: "f32, f16, bf16 or q8" })
}

/// Heads that form whole groups, none of them empty.
pub(crate) fn grouped(op: Op, n_q_heads: u32, n_kv_heads: u32, head_dim: u32) -> OpResult<()> {
    ensure(
        op,
        n_kv_heads > 0 && head_dim > 0 && n_q_heads > 0 && n_q_heads.is_multiple_of(n_kv_heads),
        || format!("{n_q_heads} query heads, {n_kv_heads} KV heads, head width {head_dim}"),
    )
}
