//! The backend as ops see it: what all queues share, and one queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use longview_core::DType;
use longview_core::quant::QuantType;
use longview_ops::Capabilities;

use crate::buffer::SharedPages;
use crate::error::CpuError;
use crate::isa::Isa;
use crate::limits::Limits;
use crate::queue::Queue;
use crate::scratch::Scratch;
use crate::supported_isa::SupportedIsa;
use crate::team::Team;
use crate::{kernels, machine};

/// How to start the backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads for one op, the calling one included; 0: one for each physical core.
    pub threads: usize,
    /// Force an instruction set; `None`: the best that the processor has.
    pub isa: Option<Isa>,
}

/// The CPU as a device. Ops on one value happen one after the other; a second thread that calls
/// waits.
pub struct CpuBackend {
    pub(crate) device: Arc<Device>,
    queue: Mutex<Queue>,
    pub(crate) readbacks: AtomicU64,
}

/// What all queues share.
pub(crate) struct Device {
    /// Threads that compute, the calling one included.
    pub(crate) threads: usize,
    pub(crate) isa: SupportedIsa,
    pub(crate) capabilities: Capabilities,
    pub(crate) allocations: AtomicU64,
    pub(crate) shared_pages: SharedPages,
    pub(crate) start: Instant,
}

impl CpuBackend {
    /// Starts the backend and its threads. Errors: a forced instruction set that the
    /// processor lacks, no threads.
    pub fn new(options: CpuOptions) -> Result<Self, CpuError> {
        let isa = SupportedIsa::choose(options.isa)?;
        let threads = match options.threads {
            0 => machine::physical_cores(),
            n => n,
        };
        let device = Arc::new(Device {
            threads,
            isa,
            capabilities: capabilities(isa, threads),
            allocations: AtomicU64::new(0),
            shared_pages: SharedPages::default(),
            start: Instant::now(),
        });
        let team = Team::with_threads(isa, threads)
            .map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Self::on(device, team))
    }

    /// A queue of `device`.
    pub(crate) fn on(device: Arc<Device>, team: Team) -> Self {
        let queue = Mutex::new(Queue { team, shared: Scratch::default() });
        Self { device, queue, readbacks: AtomicU64::new(0) }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.device.isa.isa()
    }

    /// Measures bandwidth and arithmetic peak with this backend's threads and instructions; takes
    /// about a second.
    pub fn measure_limits(&self) -> Limits {
        Limits::measure(&mut self.queue())
    }

    /// Calls of [`longview_ops::Backend::read`] and [`longview_ops::Backend::read_all`] on this
    /// queue so far: what would be waits for a device with memory of its own.
    pub fn readbacks(&self) -> u64 {
        self.readbacks.load(Ordering::Relaxed)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        // An op that panicked left outputs half written, but nothing of the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn capabilities(isa: SupportedIsa, threads: usize) -> Capabilities {
    let floats = vec![DType::F32, DType::F16, DType::BF16];
    let threads_text = if threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
    Capabilities {
        device: format!("{}, {isa}, {threads_text}", machine::model_name()),
        reads_host_memory: true,
        unified_memory: true,
        takes_host_memory: true,
        overlaps: false,
        matvec_max_rows: kernels::matvec::MAX_ROWS,
        chunk_rows_are_alike: true,
        orders_chunk_rows: true,
        kv_dtypes: floats.iter().copied().chain([DType::Q8]).collect(),
        weight_dtypes: floats,
        quant_types: QuantType::ALL.to_vec(),
        missing_ops: Vec::new(),
        memory_bytes: machine::available_memory(),
        max_buffer_bytes: None,
    }
}
