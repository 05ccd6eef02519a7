//! The backend as ops see it: the open device, one queue of it, and the way to a launch.
//!
//! What ops need and no more, so that they lie above it and the contract, which calls them, above
//! both.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use longview_ops::OpResult;

use crate::args::KernelArgs;
use crate::counters::Counters;
use crate::device::Device;
use crate::driver::{Driver, Grid};
use crate::host_work::HostWork;
use crate::kernels::Kernel;
use crate::queue::Queue;

/// A device behind a [`Driver`].
pub struct CudaBackend<D: Driver> {
    pub(crate) device: Arc<Device<D>>,
    pub(crate) queue: Arc<Queue<D>>,
    pub(crate) host_work: HostWork<D>,
    pub(crate) start: Instant,
}

impl<D: Driver> CudaBackend<D> {
    /// What runs the kernels.
    pub fn driver(&self) -> &D {
        &self.device.driver
    }

    /// Whether several ops are one launch where a kernel makes them at once, as they are from the
    /// start, or each op has a launch of its own: for what such kernels are worth. Results are the
    /// same.
    pub fn set_fused(&self, on: bool) {
        self.device.is_fused.store(on, Ordering::Relaxed);
    }

    /// See [`CudaBackend::set_fused`].
    pub(crate) fn is_fused(&self) -> bool {
        self.device.is_fused.load(Ordering::Relaxed)
    }

    /// What the device was asked to do so far, over all queues.
    pub fn counters(&self) -> Counters {
        self.device.tally.read()
    }

    /// Why the graph of a run of commands failed, as long as such a run goes one by one; `None`
    /// while all that come again are graphs. Everything works without, but a decode step costs as
    /// many launches as it has kernels. The graph is tried again after a while.
    pub fn no_graphs(&self) -> Option<String> {
        self.device.graph_fallback.read().map(|(_, reason)| reason)
    }

    /// Whether the vendor's library makes large products, or why our own kernels make all.
    pub fn library(&self) -> Result<(), String> {
        self.device.library()
    }

    /// As [`CudaBackend::library`], for ops.
    pub(crate) fn has_library(&self) -> bool {
        self.device.has_library()
    }

    /// Takes the device for lost, as a fault of a kernel would: everything after fails with
    /// [`OpError::DeviceLost`](longview_ops::OpError::DeviceLost). For tests of recovery.
    pub fn lose_device(&self) {
        self.device.lose("taken for lost");
    }

    /// Launches a kernel on this queue; see [`Queue::launch`].
    pub(crate) fn launch<A: KernelArgs>(
        &self,
        kernel: Kernel,
        grid: Grid,
        args: &A,
    ) -> OpResult<()> {
        self.queue.launch(kernel, grid, args)
    }

    /// Runs an op that takes rows; where any of them are in host memory the queue counts it.
    pub(crate) fn with_rows(
        &self,
        is_host: bool,
        op: impl FnOnce() -> OpResult<()>,
    ) -> OpResult<()> {
        let result = op();
        if is_host {
            self.host_work.given();
        }
        result
    }
}
