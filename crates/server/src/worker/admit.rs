//! Who gets a place next.

use longview_ops::Backend;
use pollster::block_on;

use super::Worker;
use super::kept::MIN_SHARED;
use super::run::Run;
use super::steps::guarded;
use crate::job::{Event, Job, OnDisk};
use crate::texts::common_prefix;

impl<B: Backend + 'static> Worker<B> {
    /// Gives places to requests in their order. One that begins like a prompt that is being read
    /// waits for that: it will be known then.
    pub(super) fn admit(&mut self) {
        let mut at = 0;
        // Where the device had no memory for one more, one of those that run has to end first.
        if self.runs.len() < self.n_fit {
            self.n_fit = usize::MAX;
        }
        let most = self.options.n_slots.min(self.n_fit);
        while self.runs.len() < most && at < self.waiting.len() {
            if self.joins_build(at) {
                continue;
            }
            if self.is_being_read(&self.waiting[at]) {
                at += 1;
                continue;
            }
            // A session takes its memory when its file is opened.
            if self.waiting[at].on_disk == OnDisk::NotAsked && self.lacks_memory(at) {
                return;
            }
            if self.waits_for_disk(at) || self.waits_for_rows(at) {
                at += 1;
                continue;
            }
            if self.lacks_memory(at) {
                return;
            }
            let Some(job) = self.waiting.remove(at) else { return };
            if let Some(job) = self.start(job) {
                self.waiting.insert(at, job);
                return;
            }
        }
    }

    /// Lets a request for a document that is being read already share that.
    fn joins_build(&mut self, at: usize) -> bool {
        let job = &self.waiting[at];
        let Some(id) = job.document.as_ref().map(|document| document.id) else { return false };
        let (scope, prefill) = (job.scope, job.how.prefill);
        let builds = |run: &&mut Run<B>| {
            run.job.scope == scope
                && run.job.how.prefill == prefill
                && run.job.document.as_ref().is_some_and(|d| d.id == id)
        };
        let Some(run) = self.runs.iter_mut().find(builds) else { return false };
        run.also.extend(self.waiting.remove(at).map(|job| job.events));
        true
    }

    fn is_being_read(&self, job: &Job) -> bool {
        if !job.how.uses_known {
            return false;
        }
        let known = self.kept.nearest(job).1;
        let reads_more = |run: &&Run<B>| {
            let common = common_prefix(&run.job.ids, &job.ids);
            let is_own = run.job.scope == job.scope && run.job.how.prefill == job.how.prefill;
            run.is_reading() && is_own && common >= known + MIN_SHARED
        };
        self.runs.iter().chain(&self.left).any(|run| reads_more(&run))
    }

    /// Begins a request. It comes back where it has to wait until another has ended.
    fn start(&mut self, job: Job) -> Option<Job> {
        match guarded(|| block_on(self.begin(&job))) {
            Ok((session, n_known)) => {
                let mut run = Run::new(job, session);
                run.n_cached = n_known;
                let n_started = self.n_started.entry(run.job.scope).or_default();
                *n_started += 1;
                run.task = *n_started;
                self.metrics.cached(run.n_cached);
                run.send_progress(run.n_cached);
                self.runs.push(run);
            }
            Err(error) if error.is_out_of_memory() && !self.runs.is_empty() => {
                self.n_fit = self.runs.len();
                return Some(job);
            }
            Err(error) => {
                self.metrics.failed.increment(1);
                let _ = job.events.try_send(Event::Failed(self.reason(error)));
            }
        }
        None
    }
}
