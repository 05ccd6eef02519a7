//! Buffers: a memory with a data type and a length.

use std::sync::atomic::{AtomicBool, Ordering};

use longview_core::DType;
use longview_ops::{DeviceBuffer, KvView, View, ViewMut};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::device::Counted;
use crate::driver::{Driver, Memory};

/// Where the elements lie.
pub(crate) enum Home<D: Driver> {
    Device(Counted<D>),
    Host(HostMemory<D>),
}

/// Memory of the host that kernels reach.
pub(crate) struct HostMemory<D: Driver> {
    pub counted: Counted<D>,
    /// An op took it that takes device memory as a rule: any queue may use it.
    is_used_anywhere: AtomicBool,
}

impl<D: Driver> HostMemory<D> {
    pub fn new(counted: Counted<D>) -> Self {
        Self { counted, is_used_anywhere: AtomicBool::new(false) }
    }

    /// Whether any queue may use it, since the last time that somebody asked.
    pub fn take_used_anywhere(&self) -> bool {
        self.is_used_anywhere.swap(false, Ordering::AcqRel)
    }
}

/// A buffer in device memory, or in host memory that kernels read.
pub struct CudaBuffer<D: Driver> {
    pub(crate) home: Home<D>,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
}

impl<D: Driver> CudaBuffer<D> {
    pub(crate) fn memory(&self) -> &D::Memory {
        match &self.home {
            Home::Device(counted) => &counted.memory,
            Home::Host(host) => &host.counted.memory,
        }
    }

    /// Whether it is in host memory: work on it is counted, see `host_work`.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.home, Home::Host(_))
    }

    /// Says that a queue which nobody counts uses it.
    fn used_anywhere(&self) {
        if let Home::Host(host) = &self.home {
            host.is_used_anywhere.store(true, Ordering::Release);
        }
    }

    /// Where kernels find element number `element`.
    pub(crate) fn address(&self, element: usize) -> Address {
        Address(self.memory().address() + (element * self.dtype.size()) as u64)
    }
}

impl<D: Driver> std::fmt::Debug for CudaBuffer<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let home = if self.is_host() { "host" } else { "device" };
        write!(f, "CudaBuffer({} {} on the {home})", self.len, self.dtype)
    }
}

impl<D: Driver> DeviceBuffer for CudaBuffer<D> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Where a kernel finds what a view shows.
pub(crate) trait At {
    fn at(&self) -> Address;
}

impl<D: Driver> At for View<'_, CudaBackend<D>> {
    fn at(&self) -> Address {
        self.buffer.used_anywhere();
        self.buffer.address(self.offset)
    }
}

impl<D: Driver> At for ViewMut<'_, CudaBackend<D>> {
    fn at(&self) -> Address {
        self.buffer.used_anywhere();
        self.buffer.address(self.offset)
    }
}

/// The backend counts the ops that take rows.
impl<D: Driver> At for KvView<'_, CudaBackend<D>> {
    fn at(&self) -> Address {
        self.buffer.address(self.offset)
    }
}
