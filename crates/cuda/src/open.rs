//! Opening a device: what it can do, whether it computes right numbers, and whether a vendor's
//! library may make large products.

use std::sync::Arc;
use std::time::Instant;

use longview_core::DType;
use longview_core::quant::QuantType;
use longview_ops::{Backend, Capabilities, Op, parity};

use crate::backend::CudaBackend;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::StartError;
use crate::host_work::HostWork;
use crate::library;
use crate::library_check;
use crate::nvidia::NvidiaDriver;
use crate::ops;
use crate::options::CudaOptions;
use crate::queue::Queue;
use crate::target::Target;

/// What the self-test runs at the start: one op of each kind of kernel.
const TESTED: &[Op] = &[
    Op::Matvec,
    Op::Matmul,
    Op::RmsNorm,
    Op::KvGather,
    Op::AttendList,
    Op::AttendChunk,
    Op::CentroidScores,
    Op::Argmax,
];

impl CudaBackend<NvidiaDriver> {
    /// Opens a GPU and sees whether it computes right numbers.
    pub async fn new(options: &CudaOptions) -> Result<Self, StartError> {
        let backend = Self::on(NvidiaDriver::open(options)?)?;
        let name = backend.device.driver.facts().name.clone();
        match parity::spot_check(&backend, TESTED).await {
            Ok(()) => {
                // Without it everything works; `doctor` says why.
                let result = backend.try_library().await;
                if !backend.is_lost() {
                    return Ok(backend);
                }
                // The library broke the context: another one, which never meets it.
                let options = CudaOptions { own_products: true, ..*options };
                let backend = Self::on(NvidiaDriver::open(&options)?)?;
                backend.device.set_library(result);
                Ok(backend)
            }
            Err(reason) => Err(StartError::SelfTest { name, reason }),
        }
    }
}

impl<D: Driver> CudaBackend<D> {
    /// The backend on an open device.
    pub fn on(driver: D) -> Result<Self, StartError> {
        let capabilities = capabilities(&driver);
        let device = Arc::new(Device::new(driver, capabilities));
        let queue = Queue::new(&device);
        let queue = queue.map_err(|e| StartError::Device { reason: e.to_string() })?;
        let queue = Arc::new(queue);
        Ok(Self { device, host_work: HostWork::new(&queue), queue, start: Instant::now() })
    }

    /// Has the vendor's library (cuBLASLt) make large products from now on, if there is one and it
    /// agrees with our own kernel. Opening a GPU does this; the result is [`CudaBackend::library`].
    pub async fn try_library(&self) -> Result<(), String> {
        let result = match self.device.driver.library() {
            Ok(()) => self.check_library(library_check::SIZES).await,
            Err(reason) => Err(reason),
        };
        self.device.set_library(result);
        self.library()
    }

    /// Compares products of `[rows, width, rows of W]` made by the library and by our own kernel.
    pub async fn check_library(&self, sizes: [usize; 3]) -> Result<(), String> {
        library_check::check(self, sizes).await
    }
}

fn capabilities<D: Driver>(driver: &D) -> Capabilities {
    let facts = driver.facts();
    let (major, minor) = facts.compute_capability;
    let target = Target::of(facts.compute_capability).map_or("no kernels", Target::name);
    let n = facts.n_multiprocessors;
    let for_library = if driver.library().is_ok() { library::SCRATCH } else { 0 };
    let memory_bytes = facts.memory_bytes.map(|bytes| bytes.saturating_sub(for_library));
    let shared = if facts.unified_memory { ", memory shared with the host" } else { "" };
    Capabilities {
        device: format!(
            "{} (compute capability {major}.{minor}, {n} multiprocessors, {target}{shared})",
            facts.name
        ),
        reads_host_memory: true,
        unified_memory: facts.unified_memory,
        takes_host_memory: facts.unified_memory,
        overlaps: true,
        matvec_max_rows: ops::matvec::MAX_ROWS,
        chunk_rows_are_alike: false,
        orders_chunk_rows: false,
        kv_dtypes: vec![DType::F32, DType::F16, DType::BF16, DType::Q8],
        weight_dtypes: vec![DType::F32, DType::F16, DType::BF16],
        quant_types: QuantType::ALL.to_vec(),
        missing_ops: Vec::new(),
        memory_bytes,
        max_buffer_bytes: None,
    }
}
