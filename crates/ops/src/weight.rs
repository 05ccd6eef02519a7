//! Weights on their way to a device.

use half::f16;
use half::slice::HalfFloatSliceExt;
use longview_core::quant::{QuantType, dequantize};
use longview_core::{DType, HostBytes};

use crate::error::{OpError, OpResult};

/// A matrix or vector of weights as the model file has it.
#[derive(Clone, Debug)]
pub struct WeightSource {
    /// The tensor's name, for messages.
    pub name: String,
    /// F32, F16 or BF16.
    pub dtype: DType,
    /// Rows; 1 for a vector.
    pub n_rows: usize,
    /// Elements of a row.
    pub n_cols: usize,
    /// Row-major little-endian elements. A backend may keep this handle and read in place.
    pub bytes: HostBytes,
    /// What products do to activations.
    pub activations: Activations,
}

/// A weight whose bytes are read while it is taken over: a file that is not in memory, and need not
/// be as a whole.
pub struct WeightStream<'a> {
    /// The tensor's name, for messages.
    pub name: String,
    /// F32, F16 or BF16.
    pub dtype: DType,
    /// Rows; 1 for a vector.
    pub n_rows: usize,
    /// Elements of a row.
    pub n_cols: usize,
    /// What products do to activations.
    pub activations: Activations,
    /// Reads the row-major little-endian elements from a byte on.
    pub read: &'a mut ReadBytes<'a>,
}

/// Fills a slice with bytes of a weight, from the given one on.
pub type ReadBytes<'a> = dyn FnMut(usize, &mut [u8]) -> std::io::Result<()> + 'a;

impl WeightStream<'_> {
    /// Reads everything at once.
    ///
    /// # Errors
    /// [`OpError::Weight`] if it cannot be read.
    pub fn collect(self) -> OpResult<WeightSource> {
        let Self { name, dtype, n_rows, n_cols, activations, read } = self;
        let filled = HostBytes::filled(n_rows * n_cols * dtype.size(), |out| read(0, out));
        match filled {
            Ok(bytes) => Ok(WeightSource { name, dtype, n_rows, n_cols, bytes, activations }),
            Err(e) => Err(OpError::Weight { name, what: format!("cannot be read ({e})") }),
        }
    }
}

/// What products do to activations: with quantised weights, and with weights of BF16. Products with
/// weights of F32 and F16 do not round them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// Rounded to 8 bits: 32 in a row, from a column that is a multiple of 32, share the scale
    /// `s = max |x| / 127` and become `round(x * (127 / max |x|))`, ties to even. The rounded
    /// number times s is what is multiplied.
    Int8,
    /// As [`Activations::Int8`] with 16256 = 128 * 127 in place of 127. Kernels multiply such a
    /// number as two of 8 bits, `128 * high + low` with low from -64 to 63, by codes that are
    /// unpacked once.
    #[default]
    Int16,
    /// With weights of BF16: rounded to bf16, the nearest, ties to even, because processors
    /// multiply two bf16 as fast as one f32. With quantised weights as [`Activations::Int16`].
    Bf16,
    /// As they are.
    F32,
}

impl Activations {
    /// What the largest number of 32 becomes; `None` where numbers are not rounded. Of products
    /// with quantised weights, as [`Activations::planes`].
    pub fn largest_code(self) -> Option<i32> {
        match self {
            Self::Int8 => Some(127),
            Self::Int16 | Self::Bf16 => Some(128 * 127),
            Self::F32 => None,
        }
    }

    /// Whether products with plain weights of `dtype` round numbers to bf16.
    pub fn rounds_to_bf16(self, dtype: DType) -> bool {
        dtype == DType::BF16 && self == Self::Bf16
    }

    /// Numbers of 8 bits that stand for one; 0 where numbers are not rounded.
    pub fn planes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int16 | Self::Bf16 => 2,
            Self::F32 => 0,
        }
    }
}

/// A quantised matrix as the model file has it.
#[derive(Clone, Debug)]
pub struct QuantSource {
    /// The tensor's name, for messages.
    pub name: String,
    /// Of the blocks.
    pub ty: QuantType,
    /// Rows.
    pub n_rows: usize,
    /// Elements of a row: whole blocks.
    pub n_cols: usize,
    /// The blocks of row after row. A backend may keep this handle and read in place.
    pub blocks: HostBytes,
    /// What products do to activations.
    pub activations: Activations,
}

impl QuantSource {
    /// Fails unless the blocks are those of the matrix.
    ///
    /// # Errors
    /// [`OpError::Weight`] with the tensor's name.
    pub fn check(&self) -> OpResult<()> {
        let Self { name, ty, n_rows, n_cols, blocks, .. } = self;
        let fail = |what: String| Err(OpError::Weight { name: name.clone(), what });
        if !n_cols.is_multiple_of(ty.block_len()) {
            let block = ty.block_len();
            return fail(format!("rows of {n_cols} elements are no whole {ty} blocks of {block}"));
        }
        let row = n_cols / ty.block_len() * ty.block_bytes();
        if row.checked_mul(*n_rows) != Some(blocks.len()) {
            let have = blocks.len();
            return fail(format!("{have} bytes for {n_rows} x {n_cols} elements of {ty}"));
        }
        Ok(())
    }

    /// The values as f32, row after row.
    ///
    /// # Panics
    /// If [`QuantSource::check`] fails.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_rows * self.n_cols];
        dequantize(self.ty, self.blocks.as_ref(), &mut values);
        values
    }

    /// The values as f16, rounded to the nearest: what a device without kernels for blocks keeps.
    ///
    /// # Errors
    /// As [`QuantSource::check`], and if f16 does not hold a value.
    pub fn into_f16(self) -> OpResult<WeightSource> {
        self.check()?;
        let values = self.values();
        let mut halves = vec![f16::ZERO; values.len()];
        halves.convert_from_f32_slice(&values);
        if let Some(i) = halves.iter().position(|half| !half.is_finite()) {
            let Self { name, ty, .. } = self;
            let what = format!("a block of {ty} holds {}, beyond f16", values[i]);
            return Err(OpError::Weight { name, what });
        }
        let bytes = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        let Self { name, n_rows, n_cols, activations, .. } = self;
        let bytes = HostBytes::from_vec(bytes);
        Ok(WeightSource { name, dtype: DType::F16, n_rows, n_cols, bytes, activations })
    }
}
