//! What a device says it can do.

use longview_core::DType;

/// Capability flags and limits of a backend; constant after start-up.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The device in words, for `doctor` and reports: processor or adapter, instruction set or
    /// tier.
    pub device: String,
    /// Kernels read buffers of [`crate::Backend::alloc_host`] directly, so recall can be one
    /// gather, or none at all.
    pub reads_host_memory: bool,
    /// Device memory *is* host memory: recall in place costs nothing.
    pub unified_memory: bool,
    /// Most rows for which [`crate::Backend::matvec`] is meant.
    pub matvec_max_rows: usize,
    /// Data types of KV rows that attention reads.
    pub kv_dtypes: Vec<DType>,
    /// Data types of weights.
    pub weight_dtypes: Vec<DType>,
    /// Ops that are missing, each with the reason; the parity run prints them.
    pub missing_ops: Vec<(crate::Op, String)>,
    /// Memory that may be planned for, in bytes; `None` where the device does not tell.
    pub memory_bytes: Option<u64>,
}
