//! Persistent worker threads for ops of a few microseconds.
//!
//! A decode step is some 200 parallel regions, so a region must start in well under a microsecond:
//! workers spin for a while after each one and park only then. A task is a borrowed closure without
//! a queue; whoever runs it takes items from a cursor, so **no worker is needed**: one that has not
//! joined when the caller has run out of items is left behind, and a busy machine (or a worker
//! still waking up) never stalls an op. The price of spinning is a core kept busy for [`SPIN`]
//! after the last op. One of the modules that may use `unsafe`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker looks for the next task before it parks.
const SPIN: Duration = Duration::from_micros(50);

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
            let builder = std::thread::Builder::new().name(name);
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
        unsafe { *self.shared.task.get() = Some(task) };
        self.shared.signal();
    }

    /// Lets nobody join any more and waits for those who have.
    fn close(&self) {
        let mut state = self.shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0u32;
        while state & ACTIVE > 0 {
            spins += 1;
            if spins < 4096 {
                std::hint::spin_loop();
            } else {
                // The last worker was preempted: let it have this core.
                std::thread::yield_now();
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
        self.state.store((state / EPOCH).wrapping_add(1) * EPOCH, Ordering::SeqCst);
        // A worker counts itself as parked before it looks at the state for the last time; both
        // orders are sequentially consistent, so one of the two sides sees the other.
        if self.parked.load(Ordering::SeqCst) > 0 {
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
            let task = unsafe { (*self.task.get()).map(|task| &*task) };
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
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let epoch = self.state.load(Ordering::Acquire) / EPOCH;
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                return self.park(seen);
            }
        }
    }

    fn park(&self, seen: u64) -> u64 {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.state.load(Ordering::SeqCst) / EPOCH == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        self.state.load(Ordering::Acquire) / EPOCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
