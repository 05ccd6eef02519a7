//! The device of the reference: its memory, and what it says it can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longview_core::DType;
use longview_core::quant::QuantType;

use super::buffer::{RefBuffer, RefWeight};
use crate::buffer::{Storage, View, ViewMut};
use crate::capability::Capabilities;

/// A view of a reference buffer.
pub(super) type Ref<'a> = View<'a, ReferenceBackend>;
/// A writable view of a reference buffer.
pub(super) type RefMut<'a> = ViewMut<'a, ReferenceBackend>;

/// The backend that defines the right answer. Clones and [`crate::Backend::background`] queues are
/// the same device.
#[derive(Clone, Debug)]
pub struct ReferenceBackend {
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) allocations: Arc<AtomicU64>,
    pub(super) ticks: Arc<AtomicU64>,
}

impl ReferenceBackend {
    /// A reference device. It can do everything and has unified memory.
    pub fn new() -> Self {
        let floats = vec![DType::F32, DType::F16, DType::BF16];
        let capabilities = Capabilities {
            device: "reference (f64, one thread)".into(),
            reads_host_memory: true,
            unified_memory: true,
            takes_host_memory: true,
            overlaps: false,
            matvec_max_rows: usize::MAX,
            chunk_rows_are_alike: true,
            orders_chunk_rows: true,
            kv_dtypes: floats.iter().copied().chain([DType::Q8]).collect(),
            weight_dtypes: floats,
            quant_types: QuantType::ALL.to_vec(),
            missing_ops: Vec::new(),
            memory_bytes: None,
            max_buffer_bytes: None,
        };
        Self::with_capabilities(capabilities)
    }

    /// A reference that says to lack something, to test how callers cope. Only host memory really
    /// goes away.
    pub fn with_capabilities(capabilities: Capabilities) -> Self {
        Self {
            capabilities: Arc::new(capabilities),
            allocations: Arc::default(),
            ticks: Arc::default(),
        }
    }

    pub(super) fn make(&self, dtype: DType, len: usize, host: bool) -> RefBuffer {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        RefBuffer::zeroed(dtype, len, host)
    }
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Storage for ReferenceBackend {
    type Buffer = RefBuffer;
    type Weight = RefWeight;
}
