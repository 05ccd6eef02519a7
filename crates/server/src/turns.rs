//! Turns at a device that the server shares with other parts of its program.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Who computes, and who waits for it: each in the order in which they came, so that nobody who
/// asks again at once keeps the others out. Clones are of the same device.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    /// The number that the next one who comes gets.
    next: u64,
    /// The number of whoever computes, or may.
    now: u64,
}

/// The right to compute, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
}

impl Turns {
    /// Waits until all who came before have had their turn.
    pub fn take(&self) -> Turn {
        let mut tickets = self.tickets();
        let own = tickets.draw();
        self.wait(tickets, own);
        Turn { turns: self.clone() }
    }

    /// Whether somebody waits while another one computes.
    pub fn is_wanted(&self) -> bool {
        self.tickets().are_wanted()
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        // Nothing that holds the lock can leave it half changed.
        self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, mut tickets: MutexGuard<'_, Tickets>, own: u64) {
        while tickets.now != own {
            tickets = self.0.changed.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Tickets {
    fn draw(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn are_wanted(&self) -> bool {
        self.next - self.now > 1
    }
}

impl Turn {
    /// Lets those who wait have theirs first, then computes on.
    pub fn pass(&mut self) {
        let mut tickets = self.turns.tickets();
        if tickets.are_wanted() {
            let own = tickets.draw();
            tickets.now += 1;
            self.turns.0.changed.notify_all();
            self.turns.wait(tickets, own);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.tickets().now += 1;
        self.turns.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn one_computes_at_a_time_and_all_have_their_turns() {
        let (turns, inside) = (Turns::default(), AtomicUsize::new(0));
        let own = [const { AtomicUsize::new(0) }; 3];
        let step = |count: &AtomicUsize| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "nobody else computes");
            thread::yield_now();
            count.fetch_add(1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            for count in &own {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut turn = turns.take();
                        for _ in 0..20 {
                            step(count);
                            turn.pass();
                        }
                    }
                });
            }
        });
        assert!(own.iter().all(|count| count.load(Ordering::SeqCst) == 1000));
        assert!(!turns.is_wanted());
    }

    #[test]
    fn who_passes_comes_after_who_waits() {
        let turns = Turns::default();
        let mut turn = turns.take();
        turn.pass();
        assert!(!turns.is_wanted(), "nobody waits: it is its turn still");
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = turns.take();
                order.lock().unwrap().push("who waited");
            });
            while !turns.is_wanted() {
                thread::yield_now();
            }
            turn.pass();
            order.lock().unwrap().push("who passed");
        });
        assert_eq!(*order.lock().unwrap(), ["who waited", "who passed"]);
    }
}
