//! Memory of the reference: little-endian bytes with a data type.

use std::ops::Range;

use longview_core::{DType, decode_f32, encode_f32};

use crate::buffer::DeviceBuffer;

/// A vector of little-endian elements; values are rounded to the data type when stored.
#[derive(Clone, Debug)]
pub struct RefBuffer {
    pub(super) dtype: DType,
    pub(super) bytes: Vec<u8>,
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
    pub(super) fn span(&self, start: usize, len: usize) -> Range<usize> {
        let size = self.dtype.size();
        start * size..(start + len) * size
    }

    pub(super) fn floats(&self, start: usize, len: usize) -> Vec<f64> {
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
    /// Whether products round activations.
    pub(super) rounding: Rounding,
}

/// What products do to activations.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rounding {
    Nothing,
    /// To bf16.
    Bf16,
    /// To codes up to this one, 32 of which share a scale.
    Units(i32),
}

impl RefWeight {
    pub(super) fn row(&self, r: usize) -> &[f64] {
        &self.values[r * self.n_cols..(r + 1) * self.n_cols]
    }
}
