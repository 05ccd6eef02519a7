//! How a sequence is laid out, apart from its policy.

use crate::error::SchedulerError;
use crate::layout::PrefillMode;
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
    /// How prompts are read.
    pub prefill: PrefillMode,
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
    /// With rows in separate buffers: all rows of layers that recall lie on the device too, so that
    /// nothing is fetched. Policies that do not recall, rows of 8 bits, and layers whose rows are
    /// more than one buffer holds go on without.
    pub resident_rows: bool,
    /// Rows of 8 bits also in the device cache, where the host store has them and rows lie in
    /// separate buffers; kernels must read them.
    pub eight_bit_slots: bool,
    /// Most bytes of one buffer on the device: a layer that attends to everything has its rows in
    /// several where they take more. `None` where memory alone bounds it.
    pub max_buffer_bytes: Option<u64>,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self {
            placement: Placement::InPlace,
            store: HostStoreKind::Auto,
            prefill: PrefillMode::Exact,
            chunk: 512,
            tile: 2048,
            overlap: true,
            recall: RecallMode::Exact,
            device_cache: false,
            resident_rows: false,
            eight_bit_slots: false,
            max_buffer_bytes: None,
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
            (RecallMode::Speculative { .. }, Placement::Device) if self.resident_rows => {
                Err(SchedulerError::NothingToSpeculate)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(recall: RecallMode, placement: Placement) -> Result<(), SchedulerError> {
        SequenceOptions { recall, placement, ..SequenceOptions::default() }.check()
    }

    #[test]
    fn only_a_device_that_fetches_can_be_ahead_of_its_fetches() {
        let speculative = RecallMode::Speculative { gate: 0.5 };
        check(RecallMode::Exact, Placement::InPlace).unwrap();
        check(RecallMode::Exact, Placement::Device).unwrap();
        check(speculative, Placement::Device).unwrap();
        let refused = check(speculative, Placement::InPlace);
        assert!(matches!(refused, Err(SchedulerError::NothingToSpeculate)), "{refused:?}");
        let resident = SequenceOptions {
            recall: speculative,
            placement: Placement::Device,
            resident_rows: true,
            ..SequenceOptions::default()
        };
        let refused = resident.check();
        assert!(matches!(refused, Err(SchedulerError::NothingToSpeculate)), "{refused:?}");
    }

    #[test]
    fn a_gate_is_a_cosine_or_more() {
        let gated = |gate| check(RecallMode::Speculative { gate }, Placement::Device);
        for gate in [-1.0, 0.0, 1.0, 2.0] {
            gated(gate).unwrap();
        }
        for gate in [-1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let refused = gated(gate);
            assert!(matches!(refused, Err(SchedulerError::RecallGate(_))), "{gate}: {refused:?}");
        }
        // What the number is comes before where it would be used.
        let both = check(RecallMode::Speculative { gate: f32::NAN }, Placement::InPlace);
        assert!(matches!(both, Err(SchedulerError::RecallGate(_))));
    }
}
