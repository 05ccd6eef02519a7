//! What the device was asked to do, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the device was opened, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Compute dispatches.
    pub dispatches: u64,
    /// Command buffers submitted.
    pub submits: u64,
    /// Times that the host waited for data from the device.
    pub readbacks: u64,
    /// Bytes written by the host, parameters included.
    pub bytes_up: u64,
    /// Bytes read by the host.
    pub bytes_down: u64,
    /// Bytes that kernels must read at least: weights, index, attended rows, inputs.
    pub bytes_read: u64,
    /// Device buffers made.
    pub allocations: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Bind groups made.
    pub bind_groups: u64,
}

impl Counters {
    /// What happened since `before`.
    pub fn since(self, before: Counters) -> Counters {
        Counters {
            dispatches: self.dispatches - before.dispatches,
            submits: self.submits - before.submits,
            readbacks: self.readbacks - before.readbacks,
            bytes_up: self.bytes_up - before.bytes_up,
            bytes_down: self.bytes_down - before.bytes_down,
            bytes_read: self.bytes_read - before.bytes_read,
            allocations: self.allocations - before.allocations,
            pipelines: self.pipelines - before.pipelines,
            bind_groups: self.bind_groups - before.bind_groups,
        }
    }
}

/// [`Counters`] that all threads add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub dispatches: AtomicU64,
    pub submits: AtomicU64,
    pub readbacks: AtomicU64,
    pub bytes_up: AtomicU64,
    pub bytes_down: AtomicU64,
    pub bytes_read: AtomicU64,
    pub allocations: AtomicU64,
    pub pipelines: AtomicU64,
    pub bind_groups: AtomicU64,
}

impl Tally {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub fn read(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            dispatches: get(&self.dispatches),
            submits: get(&self.submits),
            readbacks: get(&self.readbacks),
            bytes_up: get(&self.bytes_up),
            bytes_down: get(&self.bytes_down),
            bytes_read: get(&self.bytes_read),
            allocations: get(&self.allocations),
            pipelines: get(&self.pipelines),
            bind_groups: get(&self.bind_groups),
        }
    }
}
