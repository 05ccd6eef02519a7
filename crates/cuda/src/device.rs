//! The open device: what all queues of it share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use longview_ops::{Capabilities, OpError, OpResult};
use smallvec::SmallVec;

use crate::counters::Tally;
use crate::driver::{Driver, DriverError, DriverResult, Memory};
use crate::stream::Stream;

/// Locks; whoever panicked in between left counts and buffers whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Device<D: Driver> {
    pub driver: D,
    pub capabilities: Capabilities,
    pub tally: Tally,
    lost: Mutex<Option<String>>,
    streams: Mutex<Vec<Weak<Stream<D>>>>,
    /// Why there are none any more.
    no_graphs: Mutex<Option<String>>,
    has_graphs: AtomicBool,
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
            lost: Mutex::default(),
            streams: Mutex::default(),
            no_graphs: Mutex::default(),
            has_graphs: AtomicBool::new(true),
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
    pub fn know(&self, stream: &Arc<Stream<D>>) {
        let mut streams = lock(&self.streams);
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// Hands over what waits on any stream: before memory is freed that it may use.
    fn hand_over(&self) {
        let streams: SmallVec<[Arc<Stream<D>>; 8]> =
            lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        // An error is kept by the device.
        streams.iter().for_each(|stream| drop(stream.hand_over()));
    }

    /// Whether runs of commands become graphs.
    pub fn has_graphs(&self) -> bool {
        self.has_graphs.load(Ordering::Relaxed)
    }

    /// From now on commands are handed over one by one.
    pub fn give_up_graphs(&self, reason: &str) {
        lock(&self.no_graphs).get_or_insert_with(|| reason.to_owned());
        self.has_graphs.store(false, Ordering::Relaxed);
    }

    /// Why there are no graphs any more.
    pub fn no_graphs(&self) -> Option<String> {
        lock(&self.no_graphs).clone()
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
        let memory = self.told_of(self.driver.alloc_host(bytes.max(1)), label, bytes)?;
        Tally::add(&self.tally.allocations, 1);
        Ok(Counted { memory, is_host: true, device: Arc::clone(self) })
    }
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
