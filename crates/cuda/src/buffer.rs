//! Buffers: a memory with a data type and a length.

use longview_core::DType;
use longview_ops::{DeviceBuffer, KvView, View, ViewMut};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::device::Counted;
use crate::driver::{Driver, Memory};

/// Where the elements lie.
pub(crate) enum Home<D: Driver> {
    Device(Counted<D>),
    Host(Counted<D>),
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
            Home::Device(counted) | Home::Host(counted) => &counted.memory,
        }
    }

    /// Of an element.
    pub(crate) fn address(&self, element: usize) -> Address {
        Address(self.memory().address() + (element * self.dtype.size()) as u64)
    }
}

impl<D: Driver> std::fmt::Debug for CudaBuffer<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let home = if matches!(self.home, Home::Device(_)) { "device" } else { "host" };
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
        self.buffer.address(self.offset)
    }
}

impl<D: Driver> At for ViewMut<'_, CudaBackend<D>> {
    fn at(&self) -> Address {
        self.buffer.address(self.offset)
    }
}

impl<D: Driver> At for KvView<'_, CudaBackend<D>> {
    fn at(&self) -> Address {
        self.buffer.address(self.offset)
    }
}
