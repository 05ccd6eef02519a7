//! The open device: what all queues of it share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use longview_ops::{Capabilities, OpError, OpResult};
use smallvec::SmallVec;

use crate::counters::Tally;
use crate::driver::{Driver, DriverError, DriverResult, Memory};
use crate::fallback::GraphFallback;
use crate::lock::lock;

/// A stream on which work may wait. The device needs no more of it than this.
pub(crate) trait Waiting: Send + Sync {
    /// Hands the work over. An error is kept by the device.
    fn hand_over_now(&self);
}

pub(crate) struct Device<D: Driver> {
    pub driver: D,
    pub capabilities: Capabilities,
    pub tally: Tally,
    pub graph_fallback: GraphFallback,
    /// Whether several ops are one launch where a kernel makes them at once.
    pub is_fused: AtomicBool,
    lost: Mutex<Option<String>>,
    waiting: Mutex<Vec<Weak<dyn Waiting>>>,
    /// Why a vendor's library makes no products.
    no_library: Mutex<String>,
    has_library: AtomicBool,
}

impl<D: Driver> Device<D> {
    pub fn new(driver: D, capabilities: Capabilities) -> Self {
        Self {
            driver,
            capabilities,
            tally: Tally::default(),
            graph_fallback: GraphFallback::default(),
            is_fused: AtomicBool::new(true),
            lost: Mutex::default(),
            waiting: Mutex::default(),
            no_library: Mutex::new("it was not asked for".into()),
            has_library: AtomicBool::new(false),
        }
    }

    /// The error of a device that is gone.
    pub fn check(&self) -> OpResult<()> {
        match &*lock(&self.lost) {
            None => Ok(()),
            Some(reason) => Err(OpError::DeviceLost { backend: D::NAME, reason: reason.clone() }),
        }
    }

    /// Says that the device is gone.
    pub fn lose(&self, reason: &str) {
        lock(&self.lost).get_or_insert_with(|| reason.to_owned());
    }

    /// What a driver's refusal means to the caller. A lost device stays lost.
    pub fn told<T>(&self, result: DriverResult<T>) -> OpResult<T> {
        self.told_of(result, "driver", 0)
    }

    fn told_of<T>(&self, result: DriverResult<T>, label: &str, bytes: u64) -> OpResult<T> {
        result.map_err(|error| match error {
            DriverError::OutOfMemory => {
                OpError::OutOfMemory { backend: D::NAME, label: label.to_owned(), bytes }
            }
            DriverError::Lost(reason) => {
                self.lose(&reason);
                OpError::DeviceLost { backend: D::NAME, reason }
            }
        })
    }

    /// Takes a stream among those that [`Device::hand_over`] is about.
    pub fn know(&self, stream: Weak<dyn Waiting>) {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|known| known.strong_count() > 0);
        waiting.push(stream);
    }

    /// Hands over what waits on any stream: before memory is freed that it may use.
    fn hand_over(&self) {
        let streams: SmallVec<[Arc<dyn Waiting>; 8]> =
            lock(&self.waiting).iter().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|stream| stream.hand_over_now());
    }

    /// Whether the vendor's library makes products.
    pub fn has_library(&self) -> bool {
        self.has_library.load(Ordering::Relaxed)
    }

    /// What came of the check of the library.
    pub fn set_library(&self, result: Result<(), String>) {
        self.has_library.store(result.is_ok(), Ordering::Relaxed);
        *lock(&self.no_library) = result.err().unwrap_or_default();
    }

    /// Why there is none.
    pub fn library(&self) -> Result<(), String> {
        if self.has_library() { Ok(()) } else { Err(lock(&self.no_library).clone()) }
    }

    /// Zeroed device memory that is counted as long as it is there.
    pub fn alloc(self: &Arc<Self>, bytes: u64, label: &str) -> OpResult<Counted<D>> {
        self.check()?;
        // Nothing has no address.
        let memory = self.told_of(self.driver.alloc(bytes.max(1)), label, bytes)?;
        Tally::add(&self.tally.allocations, 1);
        self.tally.take(memory.len());
        Ok(Counted { memory, is_host: false, device: Arc::clone(self) })
    }

    /// Zeroed host memory that kernels reach.
    pub fn alloc_host(self: &Arc<Self>, bytes: u64, label: &str) -> OpResult<Counted<D>> {
        self.check()?;
        let memory = self.told_of(self.driver.alloc_host(bytes.max(1)), &pinned(label), bytes)?;
        Tally::add(&self.tally.allocations, 1);
        Ok(Counted { memory, is_host: true, device: Arc::clone(self) })
    }
}

/// What an error says that host memory of the device is for: there may be far less of it than of
/// other host memory, which a user cannot know.
fn pinned(label: &str) -> String {
    format!(
        "{label} in pinned host memory; the system limits how much a program may pin (Windows: \
         half of the memory or less; containers: the limit for locked memory), and a shorter \
         context or --kv-type q8 needs less"
    )
}

/// Memory that work is handed over for before it goes; device memory is counted as long as it is
/// there.
pub(crate) struct Counted<D: Driver> {
    pub memory: D::Memory,
    is_host: bool,
    device: Arc<Device<D>>,
}

impl<D: Driver> Drop for Counted<D> {
    fn drop(&mut self) {
        self.device.hand_over();
        if !self.is_host {
            self.device.tally.give_back(self.memory.len());
        }
    }
}
