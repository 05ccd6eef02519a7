//! Persistent worker threads for ops of a few microseconds.
//!
//! A decode step is some 200 parallel regions, so a region must start in well under a microsecond:
//! workers spin for a while after each one and park only then. A task is a borrowed closure without
//! a queue; whoever runs it takes items from a cursor, so **no worker is needed**: one that has not
//! joined when the caller has run out of items is left behind, and a busy machine (or a worker
//! still waking up) never stalls an op. The price of spinning is a core kept busy for a while
//! ([`crate::sync::Spin`]) after the last op. One of the modules that may use `unsafe`; `models`
//! below are run by `cargo xtask sanitize`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, Spin, UnsafeCell, hint};

/// What workers run: the argument is the worker's number, 0 for the calling thread.
type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// One task in `Shared::state`: bits 32.. count tasks, bit 31 says that nobody may join any more,
/// the rest counts the workers that have joined and not finished.
const EPOCH: u64 = 1 << 32;
const CLOSED: u64 = 1 << 31;
const ACTIVE: u64 = CLOSED - 1;

/// Threads that wait for tasks.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// See [`EPOCH`]; a change of the epoch is the start signal.
    state: AtomicU64,
    /// Valid while the state is open or somebody is active.
    task: UnsafeCell<Option<*const Task<'static>>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers that are parked or about to be.
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `task` is written only while the state is closed with nobody active, and read only by
// workers that joined while it was open, which the caller waits for; the closure behind it is
// `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer is only used as described above; everything else is `Send`.
unsafe impl Send for Shared {}

impl Pool {
    /// Up to `n_workers` threads for each task, the calling thread included.
    pub(crate) fn new(n_workers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            task: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, threads: Vec::new() };
        for worker in 1..n_workers {
            let shared = Arc::clone(&pool.shared);
            let name = format!("longview-{worker}");
            let builder = thread::Builder::new().name(name);
            pool.threads.push(builder.spawn(move || shared.work(worker))?);
        }
        Ok(pool)
    }

    /// Runs `task` on the calling thread and at most once on each worker, and returns when all that
    /// took part have finished. The task must get everything done when it runs on the calling
    /// thread alone.
    ///
    /// # Panics
    /// If the task panicked on any thread, after all have finished.
    pub(crate) fn run(&mut self, task: &Task<'_>) {
        self.open(task);
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        self.close();
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if self.shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("cpu: a worker thread panicked");
        }
    }

    fn open(&mut self, task: &Task<'_>) {
        // SAFETY: only the lifetime changes. `run` neither returns nor unwinds before `close` has
        // shut the task and seen everybody who joined it finish, so no worker uses the pointer
        // after the borrow ends.
        let task = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: the state is closed and nobody is active since the last `close`; `&mut self`
        // excludes another caller.
        self.shared.task.with_mut(|shared| unsafe { *shared = Some(task) });
        self.shared.signal();
    }

    /// Lets nobody join any more and waits for those who have.
    fn close(&self) {
        let mut state = self.shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0u32;
        while state & ACTIVE > 0 {
            spins += 1;
            if spins < 4096 {
                hint::spin_loop();
            } else {
                // The last worker was preempted: let it have this core.
                thread::yield_now();
            }
            state = self.shared.state.load(Ordering::Acquire);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.signal();
        for thread in self.threads.drain(..) {
            // A worker catches its tasks' panics, so joining cannot fail.
            let _: Result<(), Box<dyn Any + Send>> = thread.join();
        }
    }
}

impl Shared {
    /// Starts the next epoch, open, and wakes who sleeps.
    fn signal(&self) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store((state / EPOCH).wrapping_add(1) * EPOCH, Ordering::Release);
        // A worker counts itself as parked before it looks at the state for the last time. Each
        // side has a fence between its write and its read, so one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if !self.join(seen) {
                continue;
            }
            // SAFETY: this worker joined while the state was open, so the task was published
            // before, and stays valid until this worker is no longer active.
            let task = self.task.with(|task| unsafe { (*task).map(|task| &*task) });
            if let Some(task) = task
                && catch_unwind(AssertUnwindSafe(|| task(worker))).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Becomes active in task `epoch`, unless it is closed or over.
    fn join(&self, epoch: u64) -> bool {
        let active =
            |state: u64| (state / EPOCH == epoch && state & CLOSED == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, active).is_ok()
    }

    /// Waits for an epoch other than `seen`.
    fn next_epoch(&self, seen: u64) -> u64 {
        let mut spin = Spin::start();
        loop {
            let epoch = self.state.load(Ordering::Acquire) / EPOCH;
            if epoch != seen {
                return epoch;
            }
            if spin.is_over() {
                return self.park(seen);
            }
            hint::spin_loop();
        }
    }

    fn park(&self, seen: u64) -> u64 {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::Relaxed);
        // The counterpart of the fence in `signal`.
        fence(Ordering::SeqCst);
        while self.state.load(Ordering::Relaxed) / EPOCH == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::Relaxed);
        self.state.load(Ordering::Acquire) / EPOCH
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync::SPIN;

    /// Takes `n` items from a cursor on whoever runs it.
    fn count(pool: &mut Pool, n: usize, item: impl Fn(usize) + Sync) -> usize {
        let (cursor, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(&|worker| {
            while cursor.fetch_add(1, Ordering::Relaxed) < n {
                item(worker);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        done.into_inner()
    }

    #[test]
    fn every_item_is_done_once_by_any_number_of_workers() {
        for n in 1..=4 {
            let mut pool = Pool::new(n).unwrap();
            for round in 0..2000 {
                assert_eq!(count(&mut pool, round % 40, |worker| assert!(worker < n)), round % 40);
                if round % 500 == 0 {
                    // Long enough for the workers to park.
                    std::thread::sleep(SPIN * 4);
                }
            }
        }
    }

    #[test]
    fn workers_do_take_part() {
        let mut pool = Pool::new(3).unwrap();
        let others = AtomicUsize::new(0);
        count(&mut pool, 50, |worker| {
            others.fetch_add((worker > 0) as usize, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        });
        assert!(others.into_inner() > 0);
    }

    #[test]
    fn a_panic_on_any_worker_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                // Everyone sleeps, so that each worker gets an item.
                count(&mut pool, 60, |worker| {
                    std::thread::sleep(Duration::from_millis(1));
                    assert_ne!(worker, bad, "planned");
                });
            }));
            assert!(result.is_err(), "worker {bad}");
            assert_eq!(count(&mut pool, 7, |_| ()), 7);
        }
    }

    #[test]
    fn two_pools_work_at_the_same_time() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut pool = Pool::new(2).unwrap();
                    for _ in 0..5000 {
                        assert_eq!(count(&mut pool, 3, |_| ()), 3);
                    }
                });
            }
        });
    }
}

/// Models of the pool: loom runs each with every interleaving of its threads, up to a number of
/// preemptions. It fails where all threads wait for each other, and where two use a cell of its own
/// at a time, or one after the other without an order between them.
#[cfg(all(test, loom))]
mod models {
    use super::*;

    /// Counts that loom watches; no atomics on purpose.
    struct Counts(Vec<UnsafeCell<u32>>);

    // SAFETY: loom fails the model where two threads use a cell without an order between them.
    unsafe impl Sync for Counts {}

    impl Counts {
        fn new(n: usize) -> Self {
            Self((0..n).map(|_| UnsafeCell::new(0)).collect())
        }

        fn add(&self, i: usize) {
            // SAFETY: as above.
            self.0[i].with_mut(|count| unsafe { *count += 1 });
        }

        /// What was counted, seen from the calling thread.
        fn all(&self) -> Vec<u32> {
            // SAFETY: as above.
            self.0.iter().map(|count| count.with_mut(|count| unsafe { *count })).collect()
        }
    }

    /// One task of `n` items on `pool`. When it is over, the caller looks at what the workers
    /// wrote: a worker that still used the task would be seen.
    fn run_items(pool: &mut Pool, n_workers: usize, n: usize) {
        let (items, workers) = (Counts::new(n), Counts::new(n_workers));
        let cursor = AtomicUsize::new(0);
        pool.run(&|worker| {
            // Two threads with one number would be seen here.
            workers.add(worker);
            loop {
                let i = cursor.fetch_add(1, Ordering::Relaxed);
                if i >= n {
                    return;
                }
                items.add(i);
            }
        });
        assert_eq!(items.all(), vec![1; n]);
        assert!(workers.all().iter().all(|n| *n <= 1), "a worker ran the task twice");
    }

    #[test]
    fn every_item_is_done_once_before_the_task_ends() {
        loom::model(|| {
            let mut pool = Pool::new(2).unwrap();
            run_items(&mut pool, 2, 2);
        });
    }

    /// Two workers beside the caller race each other too. Three preemptions would take hours.
    #[test]
    fn the_same_holds_for_three_workers() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.map(|most| most.min(2));
        model.check(|| {
            let mut pool = Pool::new(3).unwrap();
            run_items(&mut pool, 3, 2);
        });
    }

    /// Workers that slept through one task, are late for it or still leave it, meet the next.
    #[test]
    fn tasks_follow_each_other() {
        loom::model(|| {
            let mut pool = Pool::new(2).unwrap();
            for _ in 0..2 {
                run_items(&mut pool, 2, 1);
            }
        });
    }

    #[test]
    fn a_pool_without_a_task_ends() {
        loom::model(|| drop(Pool::new(3).unwrap()));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for bad in 0..2 {
            loom::model(move || {
                let mut pool = Pool::new(2).unwrap();
                let took_part = Counts::new(2);
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(&|worker| {
                        took_part.add(worker);
                        if worker == bad {
                            // Without the message of `panic!`, which there would be thousands of.
                            resume_unwind(Box::new("planned"));
                        }
                    });
                }));
                assert_eq!(result.is_err(), took_part.all()[bad] > 0);
                run_items(&mut pool, 2, 1);
            });
        }
    }
}
