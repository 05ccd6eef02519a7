//! Runs clustering jobs beside the caller's work: on a thread with the backend's background queue,
//! or, where there are no threads, when the result is asked for. When a result is applied is the
//! caller's choice and never depends on how fast the worker was; so the same seed gives the same
//! tokens.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use longview_ops::{Backend, OpError, OpResult};

use super::kmeans_job::ClusterJob;

/// Runs jobs beside the caller's work, first come first served.
pub struct ClusterWorker<B: Backend> {
    shared: Arc<Shared<B>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A layer's job, as far as it is.
enum Taken<B: Backend> {
    Nothing,
    Waiting(Box<ClusterJob<B>>),
    Done(Box<ClusterJob<B>>),
}

struct Shared<B: Backend> {
    state: Mutex<State<B>>,
    changed: Condvar,
}

struct State<B: Backend> {
    waiting: VecDeque<Box<ClusterJob<B>>>,
    running: usize,
    done: VecDeque<(Box<ClusterJob<B>>, OpResult<()>)>,
    busy: Duration,
    stop: bool,
    /// The worker panicked.
    dead: bool,
}

impl<B: Backend> ClusterWorker<B> {
    /// A worker with a thread of its own (`threaded`) or one that works when it is waited for.
    /// `most` is a reservation of queue places.
    pub fn new(backend: &Arc<B>, threaded: bool, most: usize) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting: VecDeque::with_capacity(most),
                running: 0,
                done: VecDeque::with_capacity(most),
                busy: Duration::ZERO,
                stop: false,
                dead: false,
            }),
            changed: Condvar::new(),
        });
        let thread = threaded.then(|| {
            let (shared, queue) = (Arc::clone(&shared), backend.background());
            std::thread::Builder::new()
                .name("longview-cluster".into())
                .spawn(move || pollster::block_on(shared.serve(&queue)))
                .expect("the system can start a thread")
        });
        Self { shared, thread }
    }

    /// Hands a job over.
    pub fn submit(&self, job: Box<ClusterJob<B>>) {
        self.shared.lock().waiting.push_back(job);
        self.shared.changed.notify_all();
    }

    /// The oldest finished or unfinished job of `layer`, waited for: a job that has not begun runs
    /// here, on the caller's queue. `None` if there is none.
    pub async fn take(&self, backend: &B, layer: usize) -> OpResult<Option<Box<ClusterJob<B>>>> {
        match self.wait_for(backend, layer)? {
            Taken::Nothing => Ok(None),
            Taken::Done(job) => Ok(Some(job)),
            Taken::Waiting(mut job) => {
                job.run(backend).await?;
                Ok(Some(job))
            }
        }
    }

    /// Waits while the layer's job, or one before it, is running.
    fn wait_for(&self, backend: &B, layer: usize) -> OpResult<Taken<B>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(at) = state.done.iter().position(|(job, _)| job.task.layer == layer) {
                let (job, result) = state.done.remove(at).expect("a place just found");
                return result.map(|()| Taken::Done(job));
            }
            if let Some(at) = state.waiting.iter().position(|job| job.task.layer == layer) {
                return Ok(Taken::Waiting(state.waiting.remove(at).expect("a place just found")));
            }
            if state.dead {
                let reason = "the clustering worker panicked".into();
                return Err(OpError::DeviceLost { backend: backend.name(), reason });
            }
            if state.running == 0 {
                return Ok(Taken::Nothing);
            }
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Time that the worker's thread has spent on jobs.
    pub fn busy(&self) -> Duration {
        self.shared.lock().busy
    }
}

impl<B: Backend> Drop for ClusterWorker<B> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has already left its message; nothing is lost by going on.
            let _ = thread.join();
        }
    }
}

impl<B: Backend> Shared<B> {
    fn lock(&self) -> std::sync::MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The worker's life. One future for all jobs: an executor may allocate for each that it
    /// drives.
    async fn serve(&self, queue: &B) {
        let _notice = PanicNotice(self);
        while let Some(mut job) = self.next_job() {
            let start = queue.now();
            let result = job.run(queue).await;
            let spent = queue.now().saturating_sub(start);
            let mut state = self.lock();
            state.running -= 1;
            state.busy += spent;
            state.done.push_back((job, result));
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for a job; `None` when the owner is gone.
    fn next_job(&self) -> Option<Box<ClusterJob<B>>> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                state.running += 1;
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// Tells those who wait that the worker panicked, so that nobody waits for ever.
struct PanicNotice<'a, B: Backend>(&'a Shared<B>);

impl<B: Backend> Drop for PanicNotice<'_, B> {
    fn drop(&mut self) {
        self.0.lock().dead = std::thread::panicking();
        self.0.changed.notify_all();
    }
}
