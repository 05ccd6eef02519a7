//! What the host must wait for before it touches mapped memory.
//!
//! Kernels and copies read and write pinned memory at a time of their own. So each queue counts
//! what it was given to do there, and [`Backend::host_bytes`](longview_ops::Backend::host_bytes)
//! waits for the queues whose count says that something may be left. A queue that works on device
//! memory alone, as the clustering worker's does, is never waited for; where a read has waited
//! already, as at the end of every step, nothing is left to wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::driver::Driver;
use crate::lock::lock;
use crate::queue::Queue;

/// A queue's own count, and those of all queues of its device.
pub(crate) struct HostWork<D: Driver> {
    own: Arc<Lane<D>>,
    all: Arc<Mutex<Vec<Weak<Lane<D>>>>>,
}

struct Lane<D: Driver> {
    queue: Arc<Queue<D>>,
    /// Launches and copies that use host memory, so far.
    n_given: AtomicU64,
    /// Of these, how many are surely done.
    n_done: AtomicU64,
}

impl<D: Driver> HostWork<D> {
    /// Of the first queue of a device.
    pub fn new(queue: &Arc<Queue<D>>) -> Self {
        Self::among(queue, Arc::default())
    }

    /// Of a further queue of the same device.
    pub fn fork(&self, queue: &Arc<Queue<D>>) -> Self {
        Self::among(queue, Arc::clone(&self.all))
    }

    fn among(queue: &Arc<Queue<D>>, all: Arc<Mutex<Vec<Weak<Lane<D>>>>>) -> Self {
        let (n_given, n_done) = (AtomicU64::new(0), AtomicU64::new(0));
        let own = Arc::new(Lane { queue: Arc::clone(queue), n_given, n_done });
        let mut lanes = lock(&all);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&own));
        drop(lanes);
        Self { own, all }
    }

    /// This queue was given something to do with host memory. Said after it was given, so that
    /// whoever counts it can wait for it.
    pub fn given(&self) {
        self.own.n_given.fetch_add(1, Ordering::Release);
    }

    /// Runs `wait`, which waits for all that this queue was given before.
    pub fn across<T, E>(&self, wait: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let n_given = self.own.n_given.load(Ordering::Acquire);
        let result = wait();
        if result.is_ok() {
            self.own.n_done.fetch_max(n_given, Ordering::Release);
        }
        result
    }

    /// Waits until no queue uses host memory: those that count something, or all of them. Returns
    /// for how many queues. A device that is lost does nothing more: its bytes are what they are.
    pub fn finish(&self, counts_all: bool) -> u64 {
        let lanes = lock(&self.all);
        let lanes = lanes.iter().filter_map(Weak::upgrade);
        lanes.filter(|lane| lane.finish(counts_all)).count() as u64
    }
}

impl<D: Driver> Lane<D> {
    /// Waits, if there is something to wait for; returns whether.
    fn finish(&self, in_any_case: bool) -> bool {
        let n_given = self.n_given.load(Ordering::Acquire);
        if !in_any_case && self.n_done.load(Ordering::Acquire) >= n_given {
            return false;
        }
        // An error has made the device a lost one, which the next op says.
        let _ = self.queue.synchronize();
        self.n_done.fetch_max(n_given, Ordering::Release);
        true
    }
}

impl<D: Driver> Drop for Lane<D> {
    /// A queue that goes is on no list any more, but its work goes on.
    fn drop(&mut self) {
        self.finish(false);
    }
}
