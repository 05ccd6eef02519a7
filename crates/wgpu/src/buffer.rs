//! Device buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longview_core::DType;
use longview_ops::DeviceBuffer;

use crate::gpu::Gpu;

/// Memory on the device. Its number is what bind groups are remembered by.
#[derive(Debug)]
pub(crate) struct RawBuffer {
    pub id: u64,
    pub buffer: wgpu::Buffer,
    pub size: u64,
    /// Ids of buffers that are gone, for those who keep bind groups.
    dropped: Arc<AtomicU64>,
}

impl RawBuffer {
    pub fn new(id: u64, buffer: wgpu::Buffer, dropped: &Arc<AtomicU64>) -> Self {
        let size = buffer.size();
        Self { id, buffer, size, dropped: Arc::clone(dropped) }
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        // Bind groups hold the memory; recorders see the count change and let go of theirs.
        self.dropped.fetch_add(1, Ordering::Release);
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
