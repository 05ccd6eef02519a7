//! Device buffers.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::DeviceBuffer;

use crate::counters::Tally;
use crate::gpu::Gpu;

/// Memory on the device. Its number is what bind groups are remembered by.
#[derive(Debug)]
pub(crate) struct RawBuffer {
    pub id: u64,
    pub buffer: wgpu::Buffer,
    pub size: u64,
    tally: Arc<Tally>,
}

impl RawBuffer {
    pub fn new(id: u64, buffer: wgpu::Buffer, tally: &Arc<Tally>) -> Self {
        let size = buffer.size();
        tally.take(size);
        Self { id, buffer, size, tally: Arc::clone(tally) }
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        // Bind groups still hold the memory; recorders let go of theirs.
        self.tally.give_back(self.size);
    }
}

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
