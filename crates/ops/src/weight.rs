//! Weights on their way to a device.

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
        let Self { name, dtype, n_rows, n_cols, read } = self;
        let filled = HostBytes::filled(n_rows * n_cols * dtype.size(), |out| read(0, out));
        match filled {
            Ok(bytes) => Ok(WeightSource { name, dtype, n_rows, n_cols, bytes }),
            Err(e) => Err(OpError::Weight { name, what: format!("cannot be read ({e})") }),
        }
    }
}
