//! How to open a device, for every driver.

/// Which device, and how it is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Its number, as the driver counts: the fastest is 0 unless `CUDA_DEVICE_ORDER` says
    /// otherwise. `None` takes the first.
    pub device: Option<usize>,
    /// Multiprocessors that work is cut for; `None` asks the device. With few of them small shapes
    /// get the kernels of large ones: for tests.
    pub n_multiprocessors: Option<u32>,
    /// Every product by our own kernels, whatever libraries there are: for comparisons.
    pub own_products: bool,
}
