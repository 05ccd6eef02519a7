//! How a sequence is laid out, apart from its policy.

use crate::error::SchedulerError;
use crate::recall::RecallMode;
use crate::store::OpenBytes;

/// Where attention reads KV rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In the host store itself: zero-copy recall, for devices that share memory with the host.
    #[default]
    InPlace,
    /// In separate device buffers of fixed size, filled through the hit/miss cache.
    Device,
}

/// Which host store a sequence uses.
#[derive(Clone, Copy, Debug, Default)]
pub enum HostStoreKind {
    /// [`crate::MappedStore`] where the device reads host memory, else [`crate::PlainStore`].
    #[default]
    Auto,
    /// [`crate::PlainStore`] always: what a WGSL device has.
    Plain,
    /// [`crate::PlainStore`] in bytes that this opens: those of a browser lie outside of the
    /// program's memory.
    Elsewhere(OpenBytes),
}

/// How a sequence is laid out, apart from its policy.
#[derive(Clone, Copy, Debug)]
pub struct SequenceOptions {
    /// Where attention reads.
    pub placement: Placement,
    /// Where all rows live.
    pub store: HostStoreKind,
    /// Most tokens of a prefill chunk.
    pub chunk: usize,
    /// Rows of a tile of the past, streamed to the device in prefill.
    pub tile: usize,
    /// Cluster on a thread beside other work.
    pub overlap: bool,
    /// Which query selects what is recalled.
    pub recall: RecallMode,
    /// Let the device look up hits and misses itself: with rows in separate buffers, a mapped host
    /// store and exact recall. Otherwise it says nothing.
    pub device_cache: bool,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self {
            placement: Placement::InPlace,
            store: HostStoreKind::Auto,
            chunk: 512,
            tile: 2048,
            overlap: true,
            recall: RecallMode::Exact,
            device_cache: false,
        }
    }
}

impl SequenceOptions {
    /// Fails for options that mean nothing together.
    pub fn check(&self) -> Result<(), SchedulerError> {
        match (self.recall, self.placement) {
            (RecallMode::Speculative { gate }, _) if !gate.is_finite() || gate < -1.0 => {
                Err(SchedulerError::RecallGate(gate))
            }
            (RecallMode::Speculative { .. }, Placement::InPlace) => {
                Err(SchedulerError::NothingToSpeculate)
            }
            _ => Ok(()),
        }
    }
}
