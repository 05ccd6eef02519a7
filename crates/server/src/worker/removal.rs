//! Contexts that are removed: builds of them end at once, requests that use them end first.

use axum::http::StatusCode;
use longview_library::documents::Id;
use longview_ops::Backend;

use super::{Removal, Worker};
use crate::error::ApiError;
use crate::job::{Event, Job};
use crate::keys::Scope;

impl<B: Backend + 'static> Worker<B> {
    /// Ends builds of a context that is to be removed: those that run or wait, and those whose
    /// client left. One that is being written fails when that finds the context gone.
    pub(super) fn cancel_builds(&mut self, scope: Scope, id: Id) {
        let is_build = |job: &Job| {
            job.scope == scope && job.document.as_ref().is_some_and(|document| document.id == id)
        };
        self.left.retain(|run| !is_build(&run.job));
        let runs = self.runs.extract_if(.., |run| is_build(&run.job));
        let builds = runs.map(|run| (run.job.events, run.also));
        let mut builds: Vec<_> = builds.collect();
        for at in (0..self.waiting.len()).rev() {
            if is_build(&self.waiting[at]) {
                builds.extend(self.waiting.remove(at).map(|job| (job.events, Vec::new())));
            }
        }
        self.metrics.failed.increment(builds.len() as u64);
        self.count();
        for events in builds.into_iter().flat_map(|(events, also)| also.into_iter().chain([events]))
        {
            let _ = events.try_send(Event::Failed(removed()));
        }
    }

    /// Lets contexts go that no request uses. Those that came later do not count, nor does a build:
    /// it was ended, or fails by itself.
    pub(super) fn answer_removals(&mut self) {
        let (runs, left, waiting) = (&self.runs, &self.left, &self.waiting);
        let is_used = |removal: &mut Removal| {
            let mut jobs = runs.iter().chain(left).map(|run| &run.job).chain(waiting);
            !removal.ids.is_empty()
                && jobs.any(|job| {
                    let is_own = job.scope == removal.scope;
                    let is_build = job.document.as_ref().is_some_and(|d| d.id == removal.id);
                    is_own
                        && !is_build
                        && job.since <= removal.since
                        && job.ids.starts_with(&removal.ids)
                })
        };
        for removal in self.removing.extract_if(.., |removal| !is_used(removal)) {
            let _ = removal.unused.send(());
        }
    }
}

fn removed() -> ApiError {
    let message = "the context was removed while it was read; what was read of it is not kept";
    ApiError::new(StatusCode::NOT_FOUND, "context_not_found", message)
}
