//! The memory that a model and a session take, counted before anything is loaded.

use longview_scheduler::KvPlan;
use serde::Serialize;

use crate::error::EngineError;

/// Bytes that a model and one session take, before anything is loaded.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryPlan {
    /// Weights as stored.
    pub weight_bytes: u64,
    /// Activations, logits and lists of a step.
    pub workspace_bytes: u64,
    /// Whether the device's memory is the host's.
    #[serde(skip)]
    pub unified: bool,
    /// Keys, values and index.
    #[serde(flatten)]
    pub kv: KvPlan,
}

impl MemoryPlan {
    /// Bytes on host and device together.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes + self.workspace_bytes + self.kv.total_bytes()
    }

    /// What lies in host memory on a device with memory of its own.
    pub fn host_bytes(&self) -> u64 {
        self.kv.host_kv_bytes + self.kv.host_index_bytes
    }

    /// What lies on such a device.
    pub fn device_bytes(&self) -> u64 {
        self.total_bytes() - self.host_bytes()
    }

    /// Fails if the device has less. (A host without room for keys and values says so when they are
    /// allocated.)
    ///
    /// # Errors
    /// [`EngineError::Memory`] or [`EngineError::DeviceMemory`], with the numbers.
    pub fn check(&self, available: Option<u64>) -> Result<(), EngineError> {
        let Some(available) = available else { return Ok(()) };
        let weights = self.weight_bytes;
        let (needed, kv) = if self.unified {
            (self.total_bytes(), self.kv.host_kv_bytes)
        } else {
            (self.device_bytes(), self.kv.device_kv_bytes())
        };
        if needed <= available {
            return Ok(());
        }
        let rest = needed - weights - kv;
        Err(if self.unified {
            EngineError::Memory { needed, weights, kv, rest, available }
        } else {
            EngineError::DeviceMemory { needed, weights, kv, rest, available }
        })
    }
}
