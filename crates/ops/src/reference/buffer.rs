//! Memory of the reference: little-endian bytes with a data type, and how elements go in and out.

use std::ops::Range;

use longview_core::{DType, decode_f32, encode_f32};

use super::{Ref, RefMut, ReferenceBackend};
use crate::{DeviceBuffer, KvView, OpError, OpResult};

/// A vector of little-endian elements; values are rounded to the data type when stored.
#[derive(Clone, Debug)]
pub struct RefBuffer {
    dtype: DType,
    bytes: Vec<u8>,
    host: bool,
}

impl RefBuffer {
    pub(super) fn zeroed(dtype: DType, len: usize, host: bool) -> Self {
        Self { dtype, bytes: vec![0; len * dtype.size()], host }
    }

    pub(super) fn is_host(&self) -> bool {
        self.host
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The bytes of `len` elements from `start`.
    fn span(&self, start: usize, len: usize) -> Range<usize> {
        let size = self.dtype.size();
        start * size..(start + len) * size
    }

    fn floats(&self, start: usize, len: usize) -> Vec<f64> {
        let bytes = &self.bytes[self.span(start, len)];
        decode_f32(self.dtype, bytes).into_iter().map(f64::from).collect()
    }

    /// Rounds `values` to the data type and stores them from element `start`.
    pub(super) fn put_floats(&mut self, start: usize, values: &[f64]) {
        let narrow: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        let range = self.span(start, values.len());
        self.bytes[range].copy_from_slice(&encode_f32(self.dtype, &narrow));
    }

    /// Copies `len` elements of `src` from `src_start` to `start`, bit for bit.
    pub(super) fn copy_from(
        &mut self,
        start: usize,
        src: &RefBuffer,
        src_start: usize,
        len: usize,
    ) {
        let range = self.span(start, len);
        self.bytes[range].copy_from_slice(&src.bytes[src.span(src_start, len)]);
    }
}

impl DeviceBuffer for RefBuffer {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }
}

/// A weight widened to f64.
#[derive(Clone, Debug)]
pub struct RefWeight {
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) values: Vec<f64>,
}

impl RefWeight {
    pub(super) fn row(&self, r: usize) -> &[f64] {
        &self.values[r * self.n_cols..(r + 1) * self.n_cols]
    }
}

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
pub(super) fn held(v: &RefMut<'_>) -> Vec<f64> {
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
pub(super) fn held_ints(v: &RefMut<'_>) -> Vec<usize> {
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
    head: usize,
    row: usize,
) -> Vec<f64> {
    let width = 2 * head_dim;
    kv.buffer.floats(kv.offset + (head * kv.head_stride + row) * width, width)
}

fn ints_in(bytes: &[u8]) -> Vec<usize> {
    let int = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize;
    bytes.chunks_exact(4).map(int).collect()
}
