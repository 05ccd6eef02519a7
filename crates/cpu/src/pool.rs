//! Persistent worker threads for ops of a few microseconds.
//!
//! A decode step is some 200 parallel regions, so a region must start in well under a microsecond: workers
//! spin for a while after each one and park only then. There is one barrier per region and no queue: a task is a
//! borrowed closure that every worker runs once. The price of spinning is a core kept busy for
//! [`SPIN`] after the last op. One of the modules that may use `unsafe`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker looks for the next task before it parks.
const SPIN: Duration = Duration::from_micros(50);

/// What every worker runs: the argument is its number, 0 for the calling thread.
type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// Threads that wait for tasks.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Counts tasks; a change is the start signal.
    epoch: AtomicUsize,
    /// Valid from the start signal until `running` is 0.
    task: UnsafeCell<Option<*const Task<'static>>>,
    /// Workers that have not finished the current task.
    running: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers that are parked or about to be.
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `task` is written only while no worker runs (before the epoch changes, which publishes it), and read only by
// workers between the start signal and their decrement of `running`; the closure behind it is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer is only used as described above; everything else is `Send`.
unsafe impl Send for Shared {}

impl Pool {
    /// `n_workers` threads in all, the calling thread included.
    pub(crate) fn new(n_workers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            task: UnsafeCell::new(None),
            running: AtomicUsize::new(0),
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

    /// Threads in all, the calling thread included.
    #[cfg(test)]
    pub(crate) fn n_workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `task` once on every worker, the calling thread included, and returns when all have finished.
    ///
    /// # Panics
    /// If the task panicked on any worker, after all have finished.
    pub(crate) fn run(&mut self, task: &Task<'_>) {
        self.start(task);
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        self.wait();
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if self.shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("cpu: a worker thread panicked");
        }
    }

    fn start(&mut self, task: &Task<'_>) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. `run` does not return, nor unwind, before `wait` has seen every worker
        // finish, so no worker uses the pointer after the borrow ends.
        let task = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: no worker runs: the last `wait` returned, and `&mut self` excludes another caller.
        unsafe { *shared.task.get() = Some(task) };
        shared.running.store(self.threads.len(), Ordering::Relaxed);
        shared.signal();
    }

    fn wait(&self) {
        let mut spins = 0u32;
        while self.shared.running.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < 4096 {
                std::hint::spin_loop();
            } else {
                // The last worker was preempted: let it have this core.
                std::thread::yield_now();
            }
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
    /// Starts the next epoch and wakes who sleeps.
    fn signal(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        // A worker counts itself as parked before it looks at the epoch for the last time; both orders are
        // sequentially consistent, so one of the two sides sees the other.
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
            // SAFETY: the start signal published the task, and it stays valid until `running` is decremented below.
            let task = unsafe { (*self.task.get()).map(|task| &*task) };
            if let Some(task) = task {
                if catch_unwind(AssertUnwindSafe(|| task(worker))).is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
                self.running.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Waits for an epoch other than `seen`.
    fn next_epoch(&self, seen: usize) -> usize {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let epoch = self.epoch.load(Ordering::Acquire);
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

    fn park(&self, seen: usize) -> usize {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.epoch.load(Ordering::SeqCst) == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        self.epoch.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_task_once() {
        for n in 1..=4 {
            let mut pool = Pool::new(n).unwrap();
            assert_eq!(pool.n_workers(), n);
            let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..2000 {
                pool.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                if round % 500 == 0 {
                    // Long enough for the workers to park.
                    std::thread::sleep(SPIN * 4);
                }
            }
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 2000));
        }
    }

    #[test]
    fn a_panic_on_any_worker_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|worker| assert_ne!(worker, bad, "planned"));
            }));
            assert!(result.is_err(), "worker {bad}");
            let sum = AtomicUsize::new(0);
            pool.run(&|worker| {
                sum.fetch_add(worker, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 3);
        }
    }

    #[test]
    fn two_pools_work_at_the_same_time() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut pool = Pool::new(2).unwrap();
                    let sum = AtomicUsize::new(0);
                    for _ in 0..5000 {
                        pool.run(&|_| {
                            sum.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                    assert_eq!(sum.into_inner(), 10_000);
                });
            }
        });
    }
}
