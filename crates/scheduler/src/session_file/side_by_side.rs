//! Work that several threads share: parts of a file are independent of each other, and to hash and
//! to place what was read takes longer than to read it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, scope};

/// Threads that share work at most: each has a record in memory, and a few read and write as fast
/// as memory allows.
const MOST: usize = 8;

/// What `work` makes of each item, in the order of items, on up to `n_threads` threads, of which
/// each has what `begin` makes. Where there are no threads this one does it all.
///
/// # Errors
/// That of the first item that fails. Items behind it may not have been begun.
pub(super) fn side_by_side<S, T: Send, R: Send, E: Send>(
    n_threads: usize,
    items: Vec<T>,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let n_threads = n_threads.min(MOST).min(items.len());
    if n_threads < 2 {
        let mut state = begin();
        return items.into_iter().map(|item| work(&mut state, item)).collect();
    }
    let made = Mutex::new(items.iter().map(|_| None).collect::<Vec<_>>());
    let (items, has_failed) = (Mutex::new(items.into_iter().enumerate()), AtomicBool::new(false));
    let take_part = || {
        let _told = TellsPanic(&has_failed);
        let mut state = begin();
        while !has_failed.load(Ordering::Relaxed) {
            let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((i, item)) = next else { return };
            let result = work(&mut state, item);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            made.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(result);
        }
    };
    scope(|scope| {
        for _ in 1..n_threads {
            if Builder::new().spawn_scoped(scope, take_part).is_err() {
                break;
            }
        }
        take_part();
    });
    // Items are begun in order: all before the first that failed were done.
    made.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Ends the others too where this thread panics: they would go on through all that is left before
/// anybody learns of it.
struct TellsPanic<'a>(&'a AtomicBool);

impl Drop for TellsPanic<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(thread::panicking(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn all_items_are_done_in_their_order() {
        for n_threads in [0, 1, 2, 5] {
            let n_begun = AtomicUsize::new(0);
            let begin = || n_begun.fetch_add(1, Ordering::Relaxed);
            let squares =
                side_by_side(n_threads, (0..40).collect(), begin, |_, i: u64| Ok::<_, ()>(i * i));
            assert_eq!(squares.unwrap(), (0..40).map(|i| i * i).collect::<Vec<_>>());
            let n_begun = n_begun.into_inner();
            assert!((1..=n_threads.max(1)).contains(&n_begun), "{n_begun} of {n_threads}");
            let none = side_by_side(n_threads, Vec::new(), || (), |(), i: u64| Ok::<_, ()>(i));
            assert_eq!(none.unwrap(), []);
        }
    }

    #[test]
    fn a_thread_that_panics_ends_the_others() {
        let done = AtomicUsize::new(0);
        let work = |(): &mut (), i: usize| {
            assert!(i > 0, "the first one panics");
            // Until that is seen.
            thread::sleep(std::time::Duration::from_millis(5));
            done.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ()>(())
        };
        let all = || side_by_side(2, (0..1000).collect(), || (), work);
        assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
        assert!(done.into_inner() < 900);
    }

    #[test]
    fn the_first_item_that_fails_is_told() {
        for n_threads in [1, 2, 5] {
            for first in [0, 7, 39] {
                let fails = |(): &mut (), i: u64| {
                    // A later one may be done before.
                    if i == first {
                        std::thread::sleep(std::time::Duration::from_millis(3));
                    }
                    if i == first || i > first + 1 { Err(i) } else { Ok(()) }
                };
                let error = side_by_side(n_threads, (0..40).collect(), || (), fails).unwrap_err();
                assert_eq!(error, first, "{n_threads} threads");
            }
        }
    }
}
