//! Threads, locks and atomics of the pool: the standard library's, or loom's in models.
//!
//! Loom has no time and takes every look of a spinning thread for another interleaving, so what
//! spins ([`Spin`]) looks only once there.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint,
    sync::{Arc, Condvar, Mutex, atomic},
    thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint,
    sync::{Arc, Condvar, Mutex, atomic},
    thread,
};

#[cfg(not(loom))]
use std::time::{Duration, Instant};

/// How long a worker looks for the next task before it parks.
#[cfg(not(loom))]
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// A cell for unsafe code: the standard library's, with the calls by which loom sees who uses it
/// when.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer that is good for reading.
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer that is good for writing.
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// The patience of a thread that looks again and again.
#[cfg(not(loom))]
pub(crate) struct Spin {
    start: Instant,
    n_looks: u32,
}

#[cfg(not(loom))]
impl Spin {
    /// Begins to be patient.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), n_looks: 0 }
    }

    /// Whether it has looked for longer than [`SPIN`]. It reads the clock at every 64th look
    /// alone, because that takes longer than a look.
    pub(crate) fn is_over(&mut self) -> bool {
        self.n_looks = self.n_looks.wrapping_add(1);
        self.n_looks.is_multiple_of(64) && self.start.elapsed() > SPIN
    }
}

/// No patience.
#[cfg(loom)]
pub(crate) struct Spin;

#[cfg(loom)]
impl Spin {
    pub(crate) fn start() -> Self {
        Self
    }

    pub(crate) fn is_over(&mut self) -> bool {
        true
    }
}
