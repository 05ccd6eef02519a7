//! What the device was asked to do, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use longview_ops::DeviceCounters;

/// Totals since the device was opened, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What every device counts.
    pub device: DeviceCounters,
    /// Bytes that kernels must read at least: weights, index, attended rows, inputs.
    pub bytes_read: u64,
    /// Device buffers made.
    pub allocations: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Bind groups made.
    pub bind_groups: u64,
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
            device: DeviceCounters {
                dispatches: get(&self.dispatches),
                submits: get(&self.submits),
                readbacks: get(&self.readbacks),
                bytes_up: get(&self.bytes_up),
                bytes_down: get(&self.bytes_down),
            },
            bytes_read: get(&self.bytes_read),
            allocations: get(&self.allocations),
            pipelines: get(&self.pipelines),
            bind_groups: get(&self.bind_groups),
        }
    }
}
