//! What the device was asked to do, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use longview_ops::DeviceCounters;

/// Totals since the device was opened, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What every device counts. A submit is a graph, or a command that is handed over by itself.
    pub device: DeviceCounters,
    /// Graphs made.
    pub graphs: u64,
    /// Graphs that could not be made, updated or launched: their commands went one by one.
    pub graph_failures: u64,
    /// Nodes of graphs that were given other arguments.
    pub nodes_set: u64,
    /// Memories made, device and host.
    pub allocations: u64,
    /// Times that the host waited for a queue before it touched memory that kernels use too.
    pub host_waits: u64,
    /// Bytes of device memory that exist.
    pub bytes_live: u64,
    /// Most bytes of device memory that existed at once.
    pub bytes_peak: u64,
}

/// [`Counters`] that all threads add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub dispatches: AtomicU64,
    pub submits: AtomicU64,
    pub graphs: AtomicU64,
    pub graph_failures: AtomicU64,
    pub nodes_set: AtomicU64,
    pub readbacks: AtomicU64,
    pub bytes_up: AtomicU64,
    pub bytes_down: AtomicU64,
    pub allocations: AtomicU64,
    pub host_waits: AtomicU64,
    bytes_live: AtomicU64,
    bytes_peak: AtomicU64,
}

impl Tally {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Device memory of so many bytes was made.
    pub fn take(&self, bytes: u64) {
        let live = self.bytes_live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes_peak.fetch_max(live, Ordering::Relaxed);
    }

    /// It is gone.
    pub fn give_back(&self, bytes: u64) {
        self.bytes_live.fetch_sub(bytes, Ordering::Relaxed);
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
            graphs: get(&self.graphs),
            graph_failures: get(&self.graph_failures),
            nodes_set: get(&self.nodes_set),
            allocations: get(&self.allocations),
            host_waits: get(&self.host_waits),
            bytes_live: get(&self.bytes_live),
            bytes_peak: get(&self.bytes_peak),
        }
    }
}
