//! Runs clustering jobs beside the caller's work: on a thread with the backend's background queue,
//! or, where there are no threads, when the result is asked for. When a result is applied is the
//! caller's choice and never depends on how fast the worker was; so the same seed gives the same
//! tokens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longview_core::LayerId;
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
        self.shared.queue.submit(job.task.layer.index(), job);
    }

    /// The oldest finished or unfinished job of `layer`, waited for: a job that has not begun runs
    /// here, on the caller's queue. `None` if there is none.
    ///
    /// # Errors
    /// What the job failed with; [`OpError::DeviceLost`] if the worker panicked.
    pub async fn take(&self, backend: &B, layer: LayerId) -> OpResult<Option<Box<ClusterJob<B>>>> {
        let taken = self.shared.queue.take(layer.index()).map_err(|WorkerEnded| {
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

    /// Whether a thread works on jobs beside the caller.
    pub fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Whether [`ClusterWorker::take`] has the oldest job of `layer`, if there is one, without
    /// computing or waiting. Where there is no thread that works on it a piece of it is computed
    /// here first.
    ///
    /// # Errors
    /// As there, and the job is gone then.
    pub async fn advance(&self, backend: &B, layer: LayerId) -> OpResult<bool> {
        let key = layer.index();
        if self.thread.is_some() {
            return Ok(!self.shared.queue.is_pending(key));
        }
        let Ok(Taken::Waiting(mut job)) = self.shared.queue.take(key) else { return Ok(true) };
        let is_done = job.run_piece(backend).await?;
        self.shared.queue.put_back(key, job);
        Ok(is_done)
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

#[cfg(test)]
mod tests {
    use longview_ops::{Distance, KvView};

    use super::super::kmeans_job::{ClusterTask, TaskKind};
    use super::super::testing::{R, upload};
    use super::*;

    /// Two clusters of four keys of one channel: `row_start` and its neighbours, and keys far away.
    fn task(layer: LayerId, row_start: usize) -> ClusterTask {
        ClusterTask {
            layer,
            row_start,
            kind: TaskKind::Clusters,
            n_kv_heads: 1,
            n_points: 4,
            n_clusters: 2,
            head_dim: 1,
            distance: Distance::L2,
            iterations: 10,
            max_cluster: 4,
            seed: 3,
            is_grouped: false,
        }
    }

    fn job(layer: LayerId, row_start: usize) -> Box<ClusterJob<R>> {
        let mut job = ClusterJob::new(task(layer, row_start));
        let first = row_start as f32;
        job.host_keys().copy_from_slice(&[first, first + 1.0, first + 90.0, first + 91.0]);
        Box::new(job)
    }

    /// A job that fails: its rows are not there.
    fn failing(backend: &R, layer: LayerId) -> Box<ClusterJob<R>> {
        let mut job = ClusterJob::new(task(layer, 0));
        let rows = upload(backend, &[0.0; 4]);
        job.take_keys(backend, KvView::new(&rows, 2), None);
        Box::new(job)
    }

    /// A job that panics: nobody gave it keys.
    fn panicking(layer: LayerId) -> Box<ClusterJob<R>> {
        Box::new(ClusterJob::new(task(layer, 0)))
    }

    fn worker(threaded: bool) -> (Arc<R>, ClusterWorker<R>) {
        let backend = Arc::new(R::new());
        let worker = ClusterWorker::new(&backend, threaded, 4);
        (backend, worker)
    }

    /// Row and smallest centroid of the job that is taken.
    fn taken(backend: &R, worker: &ClusterWorker<R>, layer: LayerId) -> Option<(usize, f32)> {
        let job = pollster::block_on(worker.take(backend, layer)).unwrap()?;
        assert_eq!((job.task.layer, job.heads[0].sizes.iter().sum::<u32>()), (layer, 4));
        let least = job.heads[0].centroids.iter().copied().fold(f32::INFINITY, f32::min);
        Some((job.task.row_start, least))
    }

    /// Waits for what another thread does.
    fn until(is_there: impl Fn() -> bool) {
        for _ in 0..20_000 {
            if is_there() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the worker did nothing for 20 s");
    }

    #[test]
    fn layers_take_their_own_jobs_in_the_order_of_submission() {
        for threaded in [false, true] {
            let (backend, worker) = worker(threaded);
            assert_eq!(taken(&backend, &worker, LayerId(0)), None, "nothing was submitted");
            for (layer, row_start) in [(1, 0), (0, 10), (2, 20)] {
                worker.submit(job(LayerId(layer), row_start));
            }
            assert_eq!(taken(&backend, &worker, LayerId(2)), Some((20, 20.5)), "{threaded}");
            assert_eq!(taken(&backend, &worker, LayerId(0)), Some((10, 10.5)));
            assert_eq!(taken(&backend, &worker, LayerId(0)), None, "a job is taken once");
            assert_eq!(taken(&backend, &worker, LayerId(1)), Some((0, 0.5)));
        }
    }

    #[test]
    fn a_job_comes_forward_in_pieces_or_on_its_thread_and_ends_alike() {
        for threaded in [false, true] {
            let (backend, worker) = worker(threaded);
            let advance = || pollster::block_on(worker.advance(&backend, LayerId(0))).unwrap();
            assert!(advance(), "nothing is waited for");
            worker.submit(job(LayerId(0), 10));
            if threaded {
                until(advance);
            } else {
                let n_pieces = (0..).take_while(|_| !advance()).count();
                // The keys, the iterations; the last piece ends it.
                assert!((2..=11).contains(&n_pieces), "{n_pieces}");
            }
            assert_eq!(taken(&backend, &worker, LayerId(0)), Some((10, 10.5)), "{threaded}");
            assert_eq!(taken(&backend, &worker, LayerId(0)), None);
            assert!(advance());
        }
    }

    #[test]
    fn a_job_that_fails_in_a_piece_is_gone() {
        let (backend, worker) = worker(false);
        worker.submit(failing(&backend, LayerId(0)));
        assert!(pollster::block_on(worker.advance(&backend, LayerId(0))).is_err());
        assert_eq!(taken(&backend, &worker, LayerId(0)), None);
    }

    #[test]
    fn the_oldest_job_of_a_layer_comes_first() {
        let (backend, worker) = worker(false);
        for row_start in [30, 10, 20] {
            worker.submit(job(LayerId(5), row_start));
        }
        let rows = [(); 4].map(|()| taken(&backend, &worker, LayerId(5)).map(|(row, _)| row));
        assert_eq!(rows, [Some(30), Some(10), Some(20), None]);
    }

    #[test]
    fn only_a_thread_spends_time_beside_the_caller() {
        let (backend, alone) = worker(false);
        alone.submit(job(LayerId(0), 0));
        taken(&backend, &alone, LayerId(0)).unwrap();
        assert_eq!(alone.busy(), Duration::ZERO);
        // The reference's clock moves with every look at it, and a job is looked at twice.
        let (backend, threaded) = worker(true);
        threaded.submit(job(LayerId(0), 0));
        until(|| threaded.busy() > Duration::ZERO);
        assert_eq!(taken(&backend, &threaded, LayerId(0)), Some((0, 0.5)), "what the thread made");
    }

    #[test]
    fn a_failed_job_fails_its_own_layer_alone() {
        for threaded in [false, true] {
            let (backend, worker) = worker(threaded);
            worker.submit(failing(&backend, LayerId(0)));
            if threaded {
                until(|| worker.busy() > Duration::ZERO);
            }
            worker.submit(job(LayerId(1), 0));
            assert!(pollster::block_on(worker.take(&backend, LayerId(0))).is_err(), "{threaded}");
            assert_eq!(taken(&backend, &worker, LayerId(0)), None, "it is gone");
            assert_eq!(taken(&backend, &worker, LayerId(1)), Some((0, 0.5)));
            worker.submit(job(LayerId(0), 10));
            assert_eq!(
                taken(&backend, &worker, LayerId(0)),
                Some((10, 10.5)),
                "the worker goes on"
            );
        }
    }

    #[test]
    fn nobody_waits_for_a_worker_that_panicked() {
        let (backend, worker) = worker(true);
        worker.submit(job(LayerId(0), 0));
        worker.submit(panicking(LayerId(1)));
        // A layer without jobs is refused as soon as the worker is gone.
        let other = || pollster::block_on(worker.take(&backend, LayerId(9))).map(|_| ());
        until(|| other().is_err());
        let lost = |result| match result {
            Err(OpError::DeviceLost { backend, reason }) => format!("{backend}: {reason}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a job of a worker that is gone"),
        };
        let message = "reference: the clustering worker panicked";
        assert_eq!(lost(other()), message);
        assert_eq!(
            lost(pollster::block_on(worker.take(&backend, LayerId(1))).map(|_| ())),
            message
        );
        assert_eq!(
            taken(&backend, &worker, LayerId(0)),
            Some((0, 0.5)),
            "what was done stays done"
        );
        worker.submit(job(LayerId(2), 10));
        assert_eq!(
            taken(&backend, &worker, LayerId(2)),
            Some((10, 10.5)),
            "what did not begin runs here"
        );
    }

    #[test]
    fn a_worker_that_nobody_needs_ends() {
        let (_, worker) = worker(true);
        let shared = Arc::downgrade(&worker.shared);
        drop(worker);
        assert!(shared.upgrade().is_none(), "its thread has let go of the queue");
    }
}
