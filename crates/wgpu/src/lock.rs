//! Mutexes whose content is whole at any time.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; whoever panicked in between left counts and caches whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
