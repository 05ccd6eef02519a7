//! The memory that a model and a session take, counted before anything is loaded.

use longview_scheduler::KvPlan;
use serde::Serialize;

use crate::advice::Advice;
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

/// Bytes that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Of the device; `None` if nobody knows.
    pub device: Option<u64>,
    /// Of the host, for a device with memory of its own; `None` if nobody knows.
    pub host: Option<u64>,
}

/// A memory that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Which memory.
    pub place: MemoryPlace,
    /// Bytes that are needed there.
    pub needed: u64,
    /// Bytes that are available there.
    pub available: u64,
}

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// One memory for device and host.
    Unified,
    /// A device's own.
    Device,
    /// The host's, beside a device with its own.
    Host,
}

impl MemoryPlace {
    /// What it is called in messages.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPlace::Unified => "memory",
            MemoryPlace::Device => "device memory",
            MemoryPlace::Host => "host memory",
        }
    }
}

impl Memory {
    /// A little less: what is available changes from one moment to the next, so what is chosen now
    /// should still fit when it is loaded.
    #[must_use]
    pub fn with_room(self) -> Self {
        let less = |bytes: u64| bytes - bytes / 16;
        Self { device: self.device.map(less), host: self.host.map(less) }
    }
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

    /// The memory that does not suffice, if one does not.
    pub fn shortage(&self, memory: Memory) -> Option<Shortage> {
        let needs = if self.unified {
            [
                (MemoryPlace::Unified, self.total_bytes(), memory.device),
                (MemoryPlace::Host, 0, None),
            ]
        } else {
            [
                (MemoryPlace::Device, self.device_bytes(), memory.device),
                (MemoryPlace::Host, self.host_bytes(), memory.host),
            ]
        };
        needs.into_iter().find_map(|(place, needed, available)| {
            let available = available.filter(|available| needed > *available)?;
            Some(Shortage { place, needed, available })
        })
    }

    /// The error for a shortage, with the numbers and what would help.
    pub fn error(&self, shortage: Shortage, advice: Advice) -> EngineError {
        let Shortage { place, needed, available } = shortage;
        let (weights, kv) = match place {
            MemoryPlace::Unified => (self.weight_bytes, self.kv.host_kv_bytes),
            MemoryPlace::Device => (self.weight_bytes, self.kv.device_kv_bytes()),
            MemoryPlace::Host => (0, self.kv.host_kv_bytes),
        };
        let rest = needed - weights - kv;
        match place {
            MemoryPlace::Device => {
                EngineError::DeviceMemory { needed, weights, kv, rest, available, advice }
            }
            MemoryPlace::Unified => {
                EngineError::Memory { needed, weights, kv, rest, available, advice }
            }
            MemoryPlace::Host => EngineError::HostMemory { needed, kv, rest, available, advice },
        }
    }
}
