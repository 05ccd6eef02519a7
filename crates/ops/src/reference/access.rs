//! How elements go into views of reference buffers, and out of them.

use std::ops::Range;

use longview_core::{DType, HeadId, kv8};

use super::buffer::RefBuffer;
use super::device::{Ref, RefMut, ReferenceBackend};
use crate::buffer::{DeviceBuffer, KvView};
use crate::error::{OpError, OpResult};

/// The bytes of a view that a copy of `n_bytes` fills exactly.
pub(super) fn byte_range(
    buffer: &RefBuffer,
    offset: usize,
    len: usize,
    n_bytes: usize,
) -> OpResult<Range<usize>> {
    let view_bytes = len * buffer.dtype.size();
    if n_bytes != view_bytes || offset + len > buffer.len() {
        return Err(OpError::Copy { bytes: n_bytes, view_bytes });
    }
    Ok(buffer.span(offset, len))
}

/// The elements of a view of numbers.
pub(super) fn floats(v: &Ref<'_>) -> Vec<f64> {
    v.buffer.floats(v.offset, v.len)
}

/// The elements that a writable view holds now.
pub(super) fn present(v: &RefMut<'_>) -> Vec<f64> {
    v.buffer.floats(v.offset, v.len)
}

/// Stores numbers from element `at` of the view.
pub(super) fn put(v: &mut RefMut<'_>, at: usize, values: &[f64]) {
    assert!(at + values.len() <= v.len, "reference: a store past the end of a view");
    v.buffer.put_floats(v.offset + at, values);
}

/// The elements of a view of indices.
pub(super) fn ints(v: &Ref<'_>) -> Vec<usize> {
    ints_in(&v.buffer.bytes[v.buffer.span(v.offset, v.len)])
}

/// The indices that a writable view holds now.
pub(super) fn present_ints(v: &RefMut<'_>) -> Vec<usize> {
    ints_in(&v.buffer.bytes[v.buffer.span(v.offset, v.len)])
}

/// Stores indices from element `at` of the view.
pub(super) fn put_ints(v: &mut RefMut<'_>, at: usize, values: &[usize]) {
    assert!(at + values.len() <= v.len, "reference: a store past the end of a view");
    let range = v.buffer.span(v.offset + at, values.len());
    let bytes: Vec<u8> = values.iter().flat_map(|i| (*i as u32).to_le_bytes()).collect();
    v.buffer.bytes[range].copy_from_slice(&bytes);
}

/// Row `row` of KV head `head`: Dh elements of the key, then Dh of the value.
pub(super) fn kv_row(
    kv: &KvView<'_, ReferenceBackend>,
    head_dim: usize,
    head: HeadId,
    row: usize,
) -> Vec<f64> {
    let width = kv.row_len(head_dim);
    let start = kv.offset + (head.index() * kv.head_stride + row) * width;
    if kv.buffer.dtype() != DType::Q8 {
        return kv.buffer.floats(start, width);
    }
    let mut numbers = vec![0.0; 2 * head_dim];
    kv8::decode(&kv.buffer.bytes[start..start + width], &mut numbers);
    numbers.into_iter().map(f64::from).collect()
}

fn ints_in(bytes: &[u8]) -> Vec<usize> {
    let int = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize;
    bytes.chunks_exact(4).map(int).collect()
}
