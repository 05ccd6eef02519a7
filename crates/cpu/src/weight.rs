//! Weights: matrices stay where the model file is mapped, vectors become f32.

use longview_core::{DType, HostBytes, decode_f32};
use longview_ops::{Op, OpError, OpResult, WeightSource};

use crate::buffer::AlignedBytes;
use crate::error::NAME;

/// A weight of the CPU backend.
pub struct CpuWeight {
    name: String,
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
    data: Data,
}

enum Data {
    /// In place, aligned to its elements.
    Mapped(HostBytes),
    /// Converted, or copied because it was not aligned.
    Owned(AlignedBytes),
}

impl CpuWeight {
    /// Takes a weight over; an error says which tensor and why.
    pub(crate) fn load(source: WeightSource) -> OpResult<Self> {
        let WeightSource { name, dtype, n_rows, n_cols, bytes } = source;
        let fail = |what: String| OpError::Weight { name: name.clone(), what };
        if !dtype.is_float() {
            return Err(fail(format!("data type {dtype} is not f32, f16 or bf16")));
        }
        let expected = n_rows.checked_mul(n_cols).and_then(|n| n.checked_mul(dtype.size()));
        if expected != Some(bytes.len()) {
            let have = bytes.len();
            return Err(fail(format!("{have} bytes for {n_rows} x {n_cols} elements of {dtype}")));
        }
        let no_memory = |bytes: usize| OpError::OutOfMemory {
            backend: NAME,
            label: name.clone(),
            bytes: bytes as u64,
        };
        if n_rows == 1 {
            let wide = decode_f32(dtype, bytes.as_ref());
            let data = copy(bytemuck::cast_slice(&wide)).ok_or_else(|| no_memory(4 * n_cols))?;
            return Ok(Self { name, dtype: DType::F32, n_rows, n_cols, data });
        }
        let is_aligned = (bytes.as_ref().as_ptr() as usize).is_multiple_of(dtype.size());
        let data = if is_aligned {
            Data::Mapped(bytes)
        } else {
            copy(bytes.as_ref()).ok_or_else(|| no_memory(bytes.len()))?
        };
        Ok(Self { name, dtype, n_rows, n_cols, data })
    }

    /// The type of the elements as they are kept.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows of the matrix.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The elements; `E` must be the Rust type of [`CpuWeight::dtype`].
    pub(crate) fn elements<E: bytemuck::Pod>(&self) -> &[E] {
        bytemuck::cast_slice(match &self.data {
            Data::Mapped(bytes) => bytes.as_ref(),
            Data::Owned(bytes) => &bytes.as_ref()[..self.n_rows * self.n_cols * self.dtype.size()],
        })
    }

    /// Fails with `op`'s shape error unless the weight is `[n_rows, n_cols]`.
    pub(crate) fn expect(&self, op: Op, n_rows: usize, n_cols: usize) -> OpResult<()> {
        if (self.n_rows, self.n_cols) == (n_rows, n_cols) {
            return Ok(());
        }
        let (name, r, c) = (&self.name, self.n_rows, self.n_cols);
        Err(OpError::shape(op, format!("weight {name} is {r} x {c}, expected {n_rows} x {n_cols}")))
    }

    /// Fails with `op`'s shape error unless rows have `n_cols` elements.
    pub(crate) fn expect_cols(&self, op: Op, n_cols: usize) -> OpResult<()> {
        self.expect(op, self.n_rows, n_cols)
    }
}

fn copy(bytes: &[u8]) -> Option<Data> {
    let mut owned = AlignedBytes::zeroed(bytes.len())?;
    owned.as_mut().copy_from_slice(bytes);
    Some(Data::Owned(owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(dtype: DType, n_rows: usize, n_cols: usize, bytes: HostBytes) -> WeightSource {
        WeightSource { name: "w".into(), dtype, n_rows, n_cols, bytes }
    }

    #[test]
    fn aligned_matrices_stay_in_place_and_others_are_copied() {
        let words: Vec<u8> = (0..36).collect();
        let bytes = HostBytes::from_vec(words.clone());
        let base = bytes.as_ref().as_ptr() as usize;
        for start in 0..4 {
            let part = bytes.slice(start..start + 32);
            let weight = CpuWeight::load(source(DType::F32, 2, 4, part)).unwrap();
            let kept: &[f32] = weight.elements();
            assert_eq!(bytemuck::cast_slice::<f32, u8>(kept), &words[start..start + 32]);
            assert_eq!(kept.as_ptr() as usize == base + start, (base + start).is_multiple_of(4));
        }
    }

    #[test]
    fn a_wrong_byte_count_names_the_tensor() {
        let bytes = HostBytes::from_vec(vec![0; 10]);
        let error = CpuWeight::load(source(DType::F16, 2, 3, bytes)).err().unwrap();
        assert_eq!(error.to_string(), "weight w: 10 bytes for 2 x 3 elements of f16");
    }
}
