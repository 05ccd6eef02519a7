//! Runs clustering jobs beside the caller's work: on a thread with the backend's background queue,
//! or, where there are no threads, when the result is asked for. When a result is applied is the
//! caller's choice and never depends on how fast the worker was; so the same seed gives the same
//! tokens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longview_ops::{Backend, OpError, OpResult};

use super::job_queue::{JobQueue, Taken, WorkerEnded};
use super::kmeans_job::ClusterJob;

/// Runs jobs beside the caller's work, first come first served.
pub struct ClusterWorker<B: Backend> {
    shared: Arc<Shared<B>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A job that was run, and how that went.
type Finished<B> = (Box<ClusterJob<B>>, OpResult<()>);

/// What the worker's thread and its owner share. The key of a job is its layer.
struct Shared<B: Backend> {
    queue: JobQueue<Box<ClusterJob<B>>, Finished<B>>,
    busy: Mutex<Duration>,
}

impl<B: Backend> ClusterWorker<B> {
    /// A worker with a thread of its own (`threaded`) or one that works when it is waited for.
    /// `most` is a reservation of queue places.
    pub fn new(backend: &Arc<B>, threaded: bool, most: usize) -> Self {
        let busy = Mutex::new(Duration::ZERO);
        let shared = Arc::new(Shared { queue: JobQueue::new(most), busy });
        let thread = threaded.then(|| {
            let (shared, backend) = (Arc::clone(&shared), backend.background());
            std::thread::Builder::new()
                .name("longview-cluster".into())
                .spawn(move || pollster::block_on(shared.serve(&backend)))
                .expect("the system can start a thread")
        });
        Self { shared, thread }
    }

    /// Hands a job over.
    pub fn submit(&self, job: Box<ClusterJob<B>>) {
        self.shared.queue.submit(job.task.layer, job);
    }

    /// The oldest finished or unfinished job of `layer`, waited for: a job that has not begun runs
    /// here, on the caller's queue. `None` if there is none.
    ///
    /// # Errors
    /// What the job failed with; [`OpError::DeviceLost`] if the worker panicked.
    pub async fn take(&self, backend: &B, layer: usize) -> OpResult<Option<Box<ClusterJob<B>>>> {
        let taken = self.shared.queue.take(layer).map_err(|WorkerEnded| {
            let reason = "the clustering worker panicked".into();
            OpError::DeviceLost { backend: backend.name(), reason }
        })?;
        match taken {
            Taken::Nothing => Ok(None),
            Taken::Done((job, result)) => result.map(|()| Some(job)),
            Taken::Waiting(mut job) => {
                job.run(backend).await?;
                Ok(Some(job))
            }
        }
    }

    /// Time that the worker's thread has spent on jobs.
    pub fn busy(&self) -> Duration {
        *self.shared.busy()
    }
}

impl<B: Backend> Drop for ClusterWorker<B> {
    fn drop(&mut self) {
        self.shared.queue.stop();
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has already left its message; nothing is lost by going on.
            let _ = thread.join();
        }
    }
}

impl<B: Backend> Shared<B> {
    /// The worker's life. One future for all jobs: an executor may allocate for each that it
    /// drives.
    async fn serve(&self, backend: &B) {
        let _notice = self.queue.end_notice();
        while let Some(mut job) = self.queue.next_job() {
            let start = backend.now();
            let result = job.run(backend).await;
            *self.busy() += backend.now().saturating_sub(start);
            self.queue.finish((job, result));
        }
    }

    fn busy(&self) -> MutexGuard<'_, Duration> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
