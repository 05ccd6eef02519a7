//! The backend as ops see it: the open device, and the record of one queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use longview_ops::{Capabilities, OpResult};

use crate::counters::{Counters, Tally};
use crate::gpu::Gpu;
#[cfg(not(target_arch = "wasm32"))]
use crate::kernel_list::KernelList;
use crate::lock::lock;
use crate::options::WgpuOptions;
use crate::readback::ReadRing;
use crate::recorder::{Dispatch, Recorder};
use crate::scratch::Scratch;
use crate::shader_level::ShaderLevel;
use crate::weight::WeightArena;

/// An open device in words and numbers.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The adapter's name; browsers may tell none.
    pub adapter: String,
    /// Whether the CPU computes.
    pub is_software: bool,
    /// Most bytes of one buffer that a kernel sees; a multiple of 256.
    pub max_buffer_bytes: u64,
}

/// A GPU through wgpu.
pub struct WgpuBackend {
    /// The thread that compiles ahead; before the device, which it must not outlive.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) kernel_list: Option<Arc<KernelList>>,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) options: WgpuOptions,
    pub(crate) capabilities: Arc<Capabilities>,
    pub(crate) weights: Arc<Mutex<WeightArena>>,
    /// Norms and biases: they lie together, so that one binding shows all of a call.
    pub(crate) vectors: Arc<Mutex<WeightArena>>,
    pub(crate) recorder: Mutex<Recorder>,
    pub(crate) ring: Mutex<ReadRing>,
    pub(crate) scratch: Scratch,
    pub(crate) start: Instant,
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) type Instant = std::time::Instant;

/// A browser has no clock in `std`.
#[cfg(target_arch = "wasm32")]
pub(crate) type Instant = web_time::Instant;

impl WgpuBackend {
    /// The shader level in use.
    pub fn shader_level(&self) -> ShaderLevel {
        self.gpu.level
    }

    /// What is known of the device.
    pub fn info(&self) -> DeviceInfo {
        DeviceInfo {
            adapter: self.gpu.info.name.clone(),
            is_software: self.gpu.is_software(),
            max_buffer_bytes: self.gpu.max_storage_bytes(),
        }
    }

    /// What the device was asked to do so far, over all queues.
    pub fn counters(&self) -> Counters {
        self.gpu.tally.read()
    }

    /// How often each kernel was launched so far, by its entry point, over all queues.
    pub fn launches(&self) -> BTreeMap<&'static str, u64> {
        self.gpu.launches()
    }

    /// Destroys the device, as a driver fault would: everything after fails with
    /// [`longview_ops::OpError::DeviceLost`]. For tests of recovery.
    pub fn destroy_device(&self) {
        self.gpu.destroy();
    }

    /// Records a dispatch whose kernel has to read `bytes_read` bytes.
    pub(crate) fn record(&self, dispatch: &Dispatch<'_>, bytes_read: u64) -> OpResult<()> {
        self.gpu.check()?;
        if self.options.lists_only {
            self.gpu.list(dispatch.variant);
            return Ok(());
        }
        if self.options.left_out == Some(dispatch.variant.stem) {
            return Ok(());
        }
        Tally::add(&self.gpu.tally.bytes_read, bytes_read);
        lock(&self.recorder).dispatch(&self.gpu, dispatch)
    }
}
