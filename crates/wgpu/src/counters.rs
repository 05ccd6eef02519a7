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
    /// Bytes of the device buffers that exist.
    pub bytes_live: u64,
    /// Most bytes of device buffers that existed at once.
    pub bytes_peak: u64,
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
    pub bytes_live: AtomicU64,
    pub bytes_peak: AtomicU64,
    pub pipelines: AtomicU64,
    pub bind_groups: AtomicU64,
    /// Buffers that are gone, for those who keep bind groups.
    pub buffers_dropped: AtomicU64,
}

impl Tally {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// A device buffer of so many bytes was made.
    pub fn take(&self, bytes: u64) {
        Self::add(&self.allocations, 1);
        let live = self.bytes_live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes_peak.fetch_max(live, Ordering::Relaxed);
    }

    /// It is gone.
    pub fn give_back(&self, bytes: u64) {
        self.bytes_live.fetch_sub(bytes, Ordering::Relaxed);
        // Recorders that see the count change let go of bind groups.
        self.buffers_dropped.fetch_add(1, Ordering::Release);
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
            bytes_live: get(&self.bytes_live),
            bytes_peak: get(&self.bytes_peak),
            pipelines: get(&self.pipelines),
            bind_groups: get(&self.bind_groups),
        }
    }
}
