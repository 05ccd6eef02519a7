//! What the driver refuses, in its own words.

use cudarc::driver::DriverError as CudaError;
use cudarc::driver::sys::CUresult;

use crate::driver::{DriverError, DriverResult};

/// A refusal in the words of the driver.
pub(super) fn told<T>(result: Result<T, CudaError>) -> DriverResult<T> {
    result.map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => DriverError::OutOfMemory,
        _ => DriverError::Lost(in_words(error)),
    })
}

/// The name of an error, and what the driver says about it.
pub(super) fn in_words(error: CudaError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    format!("{:?} ({})", error.0, text.unwrap_or_else(|_| "unknown".into()))
}
