//! How much memory an input may take: an allocator that refuses what is beyond.
//!
//! A refusal ends the process as the lack of memory does, which fuzzers count as a crash, with the
//! size in the message. Where a program may want too much by right (`within`), a fuzzer's build
//! leaves that program alone; others cannot, as they cannot act on a refusal.

use std::alloc::{GlobalAlloc, Layout, System};
#[cfg(fuzzing)]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that may be taken at a time, of which an input of a megabyte needs a few.
pub const MAX_BYTES: usize = 512 << 20;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(MAX_BYTES);

/// The system's allocator with an end.
struct Limited;

/// Counts `bytes` more as taken, if that many are left.
fn take(bytes: usize) -> bool {
    let before = TAKEN.fetch_add(bytes, Relaxed);
    let fits = before.checked_add(bytes).is_some_and(|sum| sum <= LIMIT.load(Relaxed));
    if !fits {
        TAKEN.fetch_sub(bytes, Relaxed);
    }
    fits
}

// SAFETY: every call that is not refused is handed on to the system's allocator unchanged, and a
// null pointer is what a refusal is.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !take(new_size) {
            return std::ptr::null_mut();
        }
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static LIMITED: Limited = Limited;

/// What `call` returns, if it takes no more than `bytes`; `None` where it wanted more.
#[cfg(fuzzing)]
pub(crate) fn within<T>(bytes: usize, call: impl FnOnce() -> T) -> Option<T> {
    /// What unwinds in place of a panic, which a fuzzer would see.
    struct Refused;
    std::alloc::set_alloc_error_hook(|layout| {
        if LIMIT.load(Relaxed) < MAX_BYTES {
            // What cleans up may allocate.
            LIMIT.store(MAX_BYTES, Relaxed);
            resume_unwind(Box::new(Refused));
        }
        // A fuzzer shows what the process said last.
        panic!("{} bytes were asked for, and {} are taken", layout.size(), TAKEN.load(Relaxed));
    });
    LIMIT.store(TAKEN.load(Relaxed) + bytes, Relaxed);
    let result = catch_unwind(AssertUnwindSafe(call));
    LIMIT.store(MAX_BYTES, Relaxed);
    match result {
        Ok(result) => Some(result),
        Err(payload) if payload.is::<Refused>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// The same in a build that cannot act on a refusal: beyond [`MAX_BYTES`] the process ends.
#[cfg(not(fuzzing))]
pub(crate) fn within<T>(_bytes: usize, call: impl FnOnce() -> T) -> Option<T> {
    Some(call())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_limit_is_refused() {
        let mut bytes: Vec<u8> = Vec::new();
        assert!(bytes.try_reserve_exact(MAX_BYTES + 1).is_err());
        assert!(bytes.try_reserve_exact(MAX_BYTES / 2).is_ok());
        assert!(bytes.try_reserve_exact(MAX_BYTES).is_err(), "half of it is taken");
        drop(bytes);
        let mut bytes: Vec<u8> = Vec::new();
        assert!(bytes.try_reserve_exact(MAX_BYTES / 2).is_ok(), "it was given back");
    }
}
