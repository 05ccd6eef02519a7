//! A queue between an owner, who submits jobs and takes their results, and one worker thread.
//!
//! Each job has a key, and jobs of one key come back in the order in which they were submitted.
//! The owner takes by key: a job that has not begun is handed back, so that the owner can do it
//! itself instead of waiting for those before it; one that is running is waited for. The queue
//! knows nothing of what a job is, so its models (`models` below, run by `cargo xtask sanitize`)
//! try all interleavings of the threads with jobs that are plain numbers.

use std::collections::VecDeque;
use std::sync::PoisonError;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// Jobs `J` that wait and results `D` that nobody has taken yet.
pub(crate) struct JobQueue<J, D> {
    state: Mutex<State<J, D>>,
    /// Wakes the worker and those who wait for it alike: notified after every change of the state
    /// that either may wait for, and always all, since several may wait for one key.
    changed: Condvar,
}

struct State<J, D> {
    waiting: VecDeque<(usize, J)>,
    /// The key of the job that the worker has.
    running: Option<usize>,
    done: VecDeque<(usize, D)>,
    stop: bool,
    worker_ended: bool,
}

/// The oldest job of a key, as far as it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<J, D> {
    /// There is none.
    Nothing,
    /// It had not begun: it is the caller's now.
    Waiting(J),
    /// The worker has done it.
    Done(D),
}

/// The worker ended without finishing what it had: it panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerEnded;

/// Tells those who wait that the worker's thread ends, by a return or by a panic, so that nobody
/// waits for ever. The worker holds it for as long as it takes jobs.
pub(crate) struct EndNotice<'a, J, D>(&'a JobQueue<J, D>);

impl<J, D> JobQueue<J, D> {
    /// An empty queue with memory for `most` jobs and as many results.
    pub(crate) fn new(most: usize) -> Self {
        let state = State {
            waiting: VecDeque::with_capacity(most),
            running: None,
            done: VecDeque::with_capacity(most),
            stop: false,
            worker_ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Hands a job over.
    pub(crate) fn submit(&self, key: usize, job: J) {
        self.lock().waiting.push_back((key, job));
        self.changed.notify_all();
    }

    /// Takes the oldest job of `key` out of the queue, and waits for it while the worker has it.
    ///
    /// # Errors
    /// If the worker has ended: with this job in its hands, or without any job of `key` left.
    /// Results from before, and jobs that it had not begun, are still handed out.
    pub(crate) fn take(&self, key: usize) -> Result<Taken<J, D>, WorkerEnded> {
        let mut state = self.lock();
        loop {
            if let Some(done) = remove_first(&mut state.done, key) {
                return Ok(Taken::Done(done));
            }
            // A job that the worker has is older than those of its key that still wait.
            let is_running = state.running == Some(key);
            if !is_running && let Some(job) = remove_first(&mut state.waiting, key) {
                return Ok(Taken::Waiting(job));
            }
            if state.worker_ended {
                return Err(WorkerEnded);
            }
            if !is_running {
                return Ok(Taken::Nothing);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether [`JobQueue::take`] of `key` would find a job that is not done, and wait for it or
    /// hand it back.
    pub(crate) fn is_pending(&self, key: usize) -> bool {
        let state = self.lock();
        let is_waiting = || state.waiting.iter().any(|(of, _)| *of == key);
        !state.worker_ended
            && state.done.iter().all(|(of, _)| *of != key)
            && (state.running == Some(key) || is_waiting())
    }

    /// Puts back a job that [`JobQueue::take`] handed out last: it is the oldest of its key again.
    pub(crate) fn put_back(&self, key: usize, job: J) {
        self.lock().waiting.push_front((key, job));
        self.changed.notify_all();
    }

    /// For the worker: the next job, waited for; `None` once the owner has called
    /// [`JobQueue::stop`], whatever still waits.
    pub(crate) fn next_job(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some((key, job)) = state.waiting.pop_front() {
                state.running = Some(key);
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// For the worker: the result of the job that [`JobQueue::next_job`] returned last.
    ///
    /// # Panics
    /// If the worker has no job.
    pub(crate) fn finish(&self, done: D) {
        let mut state = self.lock();
        let key = state.running.take().expect("the worker finishes what it has taken");
        state.done.push_back((key, done));
        drop(state);
        self.changed.notify_all();
    }

    /// For the worker: what tells the others when it ends. Made before the first job is taken.
    pub(crate) fn end_notice(&self) -> EndNotice<'_, J, D> {
        EndNotice(self)
    }

    /// Tells the worker to end after the job that it has.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// No code of others runs while the lock is held, so a panic leaves the state whole.
    fn lock(&self) -> MutexGuard<'_, State<J, D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, D> Drop for EndNotice<'_, J, D> {
    fn drop(&mut self) {
        self.0.lock().worker_ended = true;
        self.0.changed.notify_all();
    }
}

/// Removes the oldest entry of `key`.
fn remove_first<T>(queue: &mut VecDeque<(usize, T)>, key: usize) -> Option<T> {
    let at = queue.iter().position(|(of, _)| *of == key)?;
    queue.remove(at).map(|(_, entry)| entry)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Jobs are numbers, and the result of a job is ten times its number.
    type Numbers = JobQueue<u32, u32>;

    fn filled(jobs: &[(usize, u32)]) -> Numbers {
        let queue = Numbers::new(4);
        jobs.iter().for_each(|(key, job)| queue.submit(*key, *job));
        queue
    }

    #[test]
    fn a_job_that_has_not_begun_goes_back_to_who_asks_for_it() {
        let queue = filled(&[(0, 1), (1, 2), (0, 3)]);
        assert_eq!(queue.take(0), Ok(Taken::Waiting(1)));
        assert_eq!(queue.take(0), Ok(Taken::Waiting(3)));
        assert_eq!(queue.take(0), Ok(Taken::Nothing));
        assert_eq!(queue.take(1), Ok(Taken::Waiting(2)));
    }

    #[test]
    fn a_job_is_pending_until_it_is_done_and_again_when_it_is_put_back() {
        let queue = filled(&[(0, 1), (1, 2), (0, 3)]);
        assert!(queue.is_pending(0) && queue.is_pending(1) && !queue.is_pending(2));
        assert_eq!(queue.take(0), Ok(Taken::Waiting(1)));
        queue.put_back(0, 1);
        assert_eq!(queue.next_job(), Some(1), "it is the oldest again");
        assert!(queue.is_pending(0), "it runs");
        queue.finish(10);
        assert!(!queue.is_pending(0), "the oldest is done");
        assert_eq!(queue.take(0), Ok(Taken::Done(10)));
        assert!(queue.is_pending(0), "the next one is not");
    }

    #[test]
    fn results_come_by_key_and_in_order() {
        let queue = filled(&[(0, 1), (1, 2), (0, 3), (0, 4)]);
        for job in 1..=3 {
            assert_eq!(queue.next_job(), Some(job));
            queue.finish(10 * job);
        }
        assert_eq!(queue.take(1), Ok(Taken::Done(20)));
        assert_eq!(queue.take(0), Ok(Taken::Done(10)));
        assert_eq!(queue.take(0), Ok(Taken::Done(30)));
        assert_eq!(queue.take(0), Ok(Taken::Waiting(4)));
        assert_eq!(queue.take(0), Ok(Taken::Nothing));
    }

    #[test]
    fn who_asks_waits_for_its_own_key_alone() {
        let queue = filled(&[(0, 1), (1, 2)]);
        assert_eq!(queue.next_job(), Some(1));
        assert_eq!(queue.take(1), Ok(Taken::Waiting(2)));
        assert_eq!(queue.take(1), Ok(Taken::Nothing));
    }

    /// The job that waits is younger than the one that runs: it must not be handed out first.
    #[test]
    fn a_running_job_comes_before_those_that_wait_behind_it() {
        let queue = filled(&[(0, 1), (0, 2)]);
        assert_eq!(queue.next_job(), Some(1));
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| [queue.take(0), queue.take(0)]);
            // Long enough for the other thread to take the wrong one, were it offered.
            std::thread::sleep(std::time::Duration::from_millis(50));
            queue.finish(10);
            assert_eq!(taken.join().unwrap(), [Ok(Taken::Done(10)), Ok(Taken::Waiting(2))]);
        });
    }

    #[test]
    fn a_stopped_worker_gets_no_more_jobs() {
        let queue = filled(&[(0, 1)]);
        queue.stop();
        assert_eq!(queue.next_job(), None);
    }

    #[test]
    fn a_worker_that_panics_is_told_to_who_waits() {
        let queue = filled(&[(0, 1), (0, 2), (1, 3)]);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                while queue.lock().running.is_none() {
                    std::thread::yield_now();
                }
                queue.take(0)
            });
            let worker = scope.spawn(|| {
                let _notice = queue.end_notice();
                queue.next_job();
                panic!("planned");
            });
            assert!(worker.join().is_err());
            assert_eq!(waits.join().unwrap(), Err(WorkerEnded));
        });
        // What it had not begun can still be done by others, but nothing overtakes a lost job.
        assert_eq!(queue.take(1), Ok(Taken::Waiting(3)));
        assert_eq!(queue.take(0), Err(WorkerEnded));
    }
}

/// Models of the queue: loom runs each with every interleaving of its threads, up to a number of
/// preemptions, and fails where all threads wait for each other.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread::{self, JoinHandle};

    use super::*;

    type Numbers = JobQueue<u32, u32>;

    /// A worker that does at most `most` jobs and then ends as one that panics does: the notice
    /// goes, and the next job that it takes stays unfinished.
    fn worker(queue: &Arc<Numbers>, most: usize) -> JoinHandle<()> {
        let queue = Arc::clone(queue);
        thread::spawn(move || {
            let _notice = queue.end_notice();
            let mut n_done = 0;
            while let Some(job) = queue.next_job() {
                if n_done == most {
                    return;
                }
                queue.finish(10 * job);
                n_done += 1;
            }
        })
    }

    /// The number of the oldest job of `key`, whoever did it.
    fn taken(queue: &Numbers, key: usize) -> Option<u32> {
        match queue.take(key).expect("the worker is alive") {
            Taken::Nothing => None,
            Taken::Waiting(job) => Some(job),
            Taken::Done(done) => Some(done / 10),
        }
    }

    fn stop(queue: &Numbers, worker: JoinHandle<()>) {
        queue.stop();
        worker.join().expect("the worker returns");
    }

    #[test]
    fn jobs_of_a_key_come_back_once_and_in_order() {
        loom::model(|| {
            let queue = Arc::new(Numbers::new(4));
            let worker = worker(&queue, usize::MAX);
            for (key, job) in [(0, 1), (1, 2), (0, 3)] {
                queue.submit(key, job);
            }
            let jobs = [0, 0, 1, 0].map(|key| taken(&queue, key));
            assert_eq!(jobs, [Some(1), Some(3), Some(2), None]);
            stop(&queue, worker);
        });
    }

    /// Nobody asks for the job here, so nobody but the worker can do it.
    #[test]
    fn a_sleeping_worker_hears_of_a_job() {
        loom::model(|| {
            let queue = Arc::new(Numbers::new(4));
            let worker = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.finish(10 * queue.next_job().unwrap()))
            };
            queue.submit(0, 1);
            worker.join().unwrap();
            assert_eq!(queue.take(0), Ok(Taken::Done(10)));
        });
    }

    /// Two threads want the same job: one of them gets it, and the other hears that it is gone.
    #[test]
    fn everybody_who_waits_hears_of_the_end_of_a_job() {
        loom::model(|| {
            let queue = Arc::new(Numbers::new(4));
            let worker = worker(&queue, usize::MAX);
            queue.submit(0, 1);
            let other = Arc::clone(&queue);
            let other = thread::spawn(move || taken(&other, 0));
            let both = [taken(&queue, 0), other.join().unwrap()];
            assert!(both == [Some(1), None] || both == [None, Some(1)], "{both:?}");
            stop(&queue, worker);
        });
    }

    #[test]
    fn a_stop_ends_the_worker_whatever_still_waits() {
        loom::model(|| {
            let queue = Arc::new(Numbers::new(4));
            let worker = worker(&queue, usize::MAX);
            queue.submit(0, 1);
            queue.submit(0, 2);
            stop(&queue, worker);
        });
    }

    /// The worker ends with the first or the second job in its hands.
    #[test]
    fn a_worker_that_dies_is_told_to_who_waits() {
        for most in 0..2 {
            loom::model(move || {
                let queue = Arc::new(Numbers::new(4));
                let worker = worker(&queue, most);
                queue.submit(0, 1);
                queue.submit(0, 2);
                let (first, second) = (queue.take(0), queue.take(0));
                match &first {
                    Ok(Taken::Waiting(job)) => assert_eq!(*job, 1),
                    Ok(Taken::Done(done)) => assert_eq!((most, *done), (1, 10)),
                    other => assert_eq!(*other, Err(WorkerEnded)),
                }
                match &second {
                    // A job behind one that was lost is not handed out in its place.
                    Ok(Taken::Waiting(job)) => assert_eq!((first.is_ok(), *job), (true, 2)),
                    Ok(Taken::Done(done)) => assert_eq!((most, *done), (1, 20)),
                    other => assert_eq!(*other, Err(WorkerEnded)),
                }
                stop(&queue, worker);
            });
        }
    }
}
