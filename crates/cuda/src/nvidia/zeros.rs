//! Zeros in host memory, written by several threads: one fills some 10 GB/s, and the rows of a long
//! context may be hundreds of gigabytes.

use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use crate::lock::lock;

/// Less is not worth a thread.
const PART: usize = 64 << 20;
/// More threads than these find no more memory bandwidth on a desktop, and enough on a server.
const MOST_THREADS: usize = 16;

/// Writes zeros to all of it.
pub(super) fn fill(memory: &mut [MaybeUninit<u8>]) {
    let n_processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    fill_by(memory, n_processors.min(MOST_THREADS), PART);
}

/// By so many threads at most, in parts of `least` bytes or more but for the last.
fn fill_by(memory: &mut [MaybeUninit<u8>], n_threads: usize, least: usize) {
    let part = memory.len().div_ceil(n_threads).max(least);
    let n_parts = memory.len().div_ceil(part);
    let parts = Mutex::new(memory.chunks_mut(part));
    let next = || lock(&parts).next();
    let work = || {
        while let Some(part) = next() {
            part.fill(MaybeUninit::new(0));
        }
    };
    thread::scope(|scope| {
        for _ in 1..n_parts {
            // Where the system has no thread left, those that are there do all.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::{MaybeUninit, fill, fill_by};

    #[test]
    fn every_byte_becomes_zero_whatever_the_length() {
        for len in [0, 1, 6, 7, 8, 29, 1000, 4097] {
            for n_threads in [1, 2, 3, 7] {
                let mut memory = vec![MaybeUninit::new(0xab); len];
                fill_by(&mut memory, n_threads, 7);
                // SAFETY: all of it was written at its begin.
                assert!(memory.iter().all(|byte| unsafe { byte.assume_init() } == 0), "{len}");
            }
        }
        let mut memory = vec![MaybeUninit::new(0xab); 130 << 20];
        fill(&mut memory);
        // SAFETY: as above.
        assert!(memory.iter().all(|byte| unsafe { byte.assume_init() } == 0));
    }
}
