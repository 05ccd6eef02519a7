//! What a device says it can do.

use longview_core::DType;
use longview_core::quant::QuantType;

use crate::error::{OpError, OpResult};
use crate::op::Op;

/// Totals of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Kernels launched.
    pub dispatches: u64,
    /// Batches of work handed over.
    pub submits: u64,
    /// Times that the host waited for data.
    pub readbacks: u64,
    /// Bytes from host to device.
    pub bytes_up: u64,
    /// Bytes from device to host.
    pub bytes_down: u64,
}

impl DeviceCounters {
    /// What happened since `before`; nothing if the device was opened again in between.
    pub fn since(self, before: Self) -> Self {
        Self {
            dispatches: self.dispatches.saturating_sub(before.dispatches),
            submits: self.submits.saturating_sub(before.submits),
            readbacks: self.readbacks.saturating_sub(before.readbacks),
            bytes_up: self.bytes_up.saturating_sub(before.bytes_up),
            bytes_down: self.bytes_down.saturating_sub(before.bytes_down),
        }
    }
}

impl std::ops::AddAssign for DeviceCounters {
    fn add_assign(&mut self, more: Self) {
        self.dispatches += more.dispatches;
        self.submits += more.submits;
        self.readbacks += more.readbacks;
        self.bytes_up += more.bytes_up;
        self.bytes_down += more.bytes_down;
    }
}

/// Capability flags and limits of a backend; constant after start-up.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The device in words, for `doctor` and reports: processor or adapter, instruction set or
    /// shader level.
    pub device: String,
    /// Kernels read buffers of [`crate::Backend::alloc_host`] directly, so recall can be one
    /// gather, or none at all.
    pub reads_host_memory: bool,
    /// Device memory *is* host memory: recall in place costs nothing.
    pub unified_memory: bool,
    /// Device memory is taken from the host's, though rows there are copies: integrated GPUs.
    pub takes_host_memory: bool,
    /// Work of queues made by [`crate::Backend::background`] runs beside that of the others on the
    /// device, so that copies hide behind kernels.
    pub overlaps: bool,
    /// Most rows for which [`crate::Backend::matvec`] is meant.
    pub matvec_max_rows: usize,
    /// A row of [`crate::Backend::attend_chunk`] has the same bits alone and among others.
    pub chunk_rows_are_alike: bool,
    /// [`crate::Backend::attend_chunk`] reads the rows of a run in the order of a list. Without
    /// that they are attended where they lie: the same sums, in another order.
    pub orders_chunk_rows: bool,
    /// Data types of KV rows that attention reads.
    pub kv_dtypes: Vec<DType>,
    /// Data types of weights.
    pub weight_dtypes: Vec<DType>,
    /// Quantised weights that kernels read as such.
    pub quant_types: Vec<QuantType>,
    /// Ops that are missing, each with the reason; the parity run prints them.
    pub missing_ops: Vec<(Op, String)>,
    /// Memory that may be planned for, in bytes; `None` where the device does not tell.
    pub memory_bytes: Option<u64>,
    /// Most bytes of one buffer that kernels see; `None` where memory alone bounds it.
    pub max_buffer_bytes: Option<u64>,
}

impl Capabilities {
    /// Fails for memory of a type that no kernel reads: KV rows of 8 bits on a device without
    /// attention over them.
    ///
    /// # Errors
    /// [`OpError::Unsupported`].
    pub fn holds(&self, backend: &'static str, dtype: DType) -> OpResult<()> {
        if dtype != DType::Q8 || self.kv_dtypes.contains(&dtype) {
            return Ok(());
        }
        let reason = format!("no kernel reads KV rows of type {dtype}");
        Err(OpError::Unsupported { backend, op: Op::AttendList, reason })
    }
}
