//! Buffers of the contract: device memory with a data type and a length.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::DeviceBuffer;

use crate::gpu::Gpu;
use crate::raw_buffer::RawBuffer;

/// A device buffer with a data type and a length.
#[derive(Debug)]
pub struct WgpuBuffer {
    pub(crate) raw: Arc<RawBuffer>,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
}

impl WgpuBuffer {
    pub(crate) fn new(
        gpu: &Gpu,
        dtype: DType,
        len: usize,
        label: &str,
    ) -> longview_ops::OpResult<Self> {
        let bytes = len.saturating_mul(dtype.size()) as u64;
        Ok(Self { raw: Arc::new(gpu.storage(bytes, label)?), dtype, len })
    }
}

impl DeviceBuffer for WgpuBuffer {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.len
    }
}
