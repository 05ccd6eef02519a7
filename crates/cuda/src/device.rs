//! The open device: what all queues of it share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longview_ops::{Capabilities, OpError, OpResult};

use crate::counters::Tally;
use crate::driver::{Driver, DriverError, DriverResult, Memory};

/// Locks; whoever panicked in between left counts and buffers whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Device<D: Driver> {
    pub driver: D,
    pub capabilities: Capabilities,
    pub tally: Tally,
    lost: Mutex<Option<String>>,
}

impl<D: Driver> Device<D> {
    pub fn new(driver: D, capabilities: Capabilities) -> Self {
        Self { driver, capabilities, tally: Tally::default(), lost: Mutex::default() }
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

    /// Zeroed device memory that is counted as long as it is there.
    pub fn alloc(self: &Arc<Self>, bytes: u64, label: &str) -> OpResult<Counted<D>> {
        self.check()?;
        // Nothing has no address.
        let memory = self.told_of(self.driver.alloc(bytes.max(1)), label, bytes)?;
        Tally::add(&self.tally.allocations, 1);
        self.tally.take(memory.len());
        Ok(Counted { memory, device: Arc::clone(self) })
    }

    /// Zeroed host memory that kernels reach.
    pub fn alloc_host(&self, bytes: u64, label: &str) -> OpResult<D::Memory> {
        self.check()?;
        let memory = self.told_of(self.driver.alloc_host(bytes.max(1)), label, bytes)?;
        Tally::add(&self.tally.allocations, 1);
        Ok(memory)
    }
}

/// Device memory that is counted as long as it is there.
pub(crate) struct Counted<D: Driver> {
    pub memory: D::Memory,
    device: Arc<Device<D>>,
}

impl<D: Driver> Drop for Counted<D> {
    fn drop(&mut self) {
        self.device.tally.give_back(self.memory.len());
    }
}
