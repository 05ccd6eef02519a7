//! Events in the order of their time.
//!
//! A simulation needs no more than this of a framework: the standard library's heap, with a number
//! that keeps events of one moment in the order in which they were added, so that a run is a
//! function of its seed. Frameworks were looked at: `docs/scale.md` says why none is used.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds since the beginning.
pub type Time = u64;

/// Seconds as [`Time`].
pub fn time(seconds: f64) -> Time {
    (seconds.max(0.0) * 1e9).round() as Time
}

/// A [`Time`] in seconds.
pub fn seconds(time: Time) -> f64 {
    time as f64 / 1e9
}

/// What will happen, the earliest first.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<(Time, u64, E)>>,
    n_added: u64,
}

impl<E: Ord> Queue<E> {
    /// An empty one.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), n_added: 0 }
    }

    /// Adds an event.
    pub fn add(&mut self, at: Time, event: E) {
        self.heap.push(Reverse((at, self.n_added, event)));
        self.n_added += 1;
    }

    /// The next event; of those of one moment the one that was added first.
    pub fn next(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_added() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'e'), (1, 'z'), (5, 'a'), (1, 'b')] {
            queue.add(at, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(order, [(1, 'z'), (1, 'b'), (5, 'e'), (5, 'a')]);
    }
}
