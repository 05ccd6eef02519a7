//! Memory for what runs: a request begins when there is enough for its prompt and its answer.
//!
//! A session takes memory as its tokens come, so what the system has left now does not say what
//! those that run will take yet. Each counts as long as it may get, and what is kept goes first.

use longview_engine::Session;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;
use serde_json::json;

use super::Worker;
use super::disk::Disk;
use super::kept::MIN_SHARED;
use super::run::Run;
use crate::error::ApiError;
use crate::job::{Event, Job};

/// Tokens of an answer whose request does not say how long it may be.
const ANSWER: usize = 2048;

/// Whether there is memory for a request.
pub(super) enum Room {
    Enough,
    /// When something that runs has ended, or was written.
    Later,
    /// Not with all of it.
    Never(ApiError),
}

impl<B: Backend + 'static> Worker<B> {
    /// Whether request `at` of those that wait has to wait for memory. One for which there will be
    /// none fails, and is no more among them then.
    pub(super) fn lacks_memory(&mut self, at: usize) -> bool {
        match self.room_for(at) {
            Room::Enough => false,
            Room::Later => true,
            Room::Never(error) => {
                if let Some(job) = self.waiting.remove(at) {
                    self.metrics.failed.increment(1);
                    let _ = job.events.try_send(Event::Failed(error));
                }
                true
            }
        }
    }

    fn room_for(&mut self, at: usize) -> Room {
        loop {
            let job = &self.waiting[at];
            let (nearest, n_known) = self.kept.nearest(job);
            let needed = self.needed(job, n_known);
            let promised: u64 = self.runs.iter().chain(&self.left).map(|r| self.promised(r)).sum();
            let wanted = needed.saturating_add(promised);
            let is_busy = !self.runs.is_empty()
                || !self.left.is_empty()
                || self.disk.as_ref().is_some_and(|disk| !Disk::is_idle(disk));
            let Some(free) = self.free_bytes(is_busy) else { return Room::Enough };
            if wanted <= free {
                return Room::Enough;
            }
            // Where all of what is kept would not do, it stays until somebody has ended.
            let kept = self.kept.bytes(|session| self.taken(session));
            if is_busy && wanted > free.saturating_add(kept) {
                return Room::Later;
            }
            // What is being written gives its memory back soon: nothing more has to go.
            if self.disk.as_ref().is_some_and(|disk| disk.n_saving() > 0) {
                return Room::Later;
            }
            // What it goes on from goes last: to read that again takes long.
            let goes_on = nearest.filter(|_| n_known >= MIN_SHARED);
            if self.kept.make_less(goes_on) || (!is_busy && self.kept.make_less(None)) {
                self.let_go();
            } else if is_busy {
                return Room::Later;
            } else {
                return Room::Never(no_memory(needed, free));
            }
        }
    }

    /// Bytes that sessions may still take; `None`: nobody knows, and there is no limit.
    fn free_bytes(&self, is_busy: bool) -> Option<u64> {
        let system = self.options.free_memory.and_then(|free| free());
        // What others take changes from one moment to the next. Who is alone has what there is.
        let system = system.map(|free| if is_busy { free - free / 16 } else { free });
        let limit = self.options.session_memory.map(|most| {
            let runs = self.runs.iter().chain(&self.left).map(|run| {
                let session = run.session();
                let shared = session.map_or(0, |s| s.sequence().shared_host_kv_bytes());
                self.run_bytes(run).0.saturating_sub(shared)
            });
            let kept = self.kept.bytes(|session| self.taken(session));
            most.saturating_sub(runs.sum::<u64>() + kept)
        });
        system.into_iter().chain(limit).min()
    }

    /// What a request takes that goes on from `n_known` tokens: it has their rows in common with
    /// what is kept.
    fn needed(&self, job: &Job, n_known: usize) -> u64 {
        let policy = &job.how.policy;
        let shared = self.engine.kv_plan_of(policy, n_known).map_or(0, |plan| plan.host_kv_bytes);
        let shared = if n_known > 0 { shared } else { 0 };
        self.bytes(policy, self.most_tokens(job)).saturating_sub(shared)
    }

    /// What a request that runs may take yet.
    fn promised(&self, run: &Run<B>) -> u64 {
        let (now, most) = self.run_bytes(run);
        most.saturating_sub(now)
    }

    /// What a request that runs takes now, and may take at its end.
    fn run_bytes(&self, run: &Run<B>) -> (u64, u64) {
        let policy = &run.job.how.policy;
        let now = self.bytes(policy, run.n_tokens());
        (now, self.bytes(policy, self.most_tokens(&run.job)).max(now))
    }

    /// What a session takes that is kept.
    fn taken(&self, session: &Session<B>) -> u64 {
        self.bytes(&self.model.policy, session.tokens().len())
    }

    /// Tokens that a request may have at its end, those of all its answers.
    fn most_tokens(&self, job: &Job) -> usize {
        let answer = job.how.max_tokens.unwrap_or(ANSWER);
        let answer = answer.min(self.model.ctx_size.saturating_sub(job.ids.len()));
        job.ids.len().saturating_add(answer.saturating_mul(job.how.n))
    }

    /// Bytes of the host's memory that a session of so many tokens takes. A policy that cannot be
    /// had fails when it begins.
    fn bytes(&self, policy: &PolicyOptions, n_tokens: usize) -> u64 {
        let is_unified = self.engine.backend().capabilities().unified_memory;
        let Ok(plan) = self.engine.kv_plan_of(policy, n_tokens) else { return 0 };
        if is_unified { plan.total_bytes() } else { plan.host_kv_bytes + plan.host_index_bytes }
    }
}

fn no_memory(needed: u64, free: u64) -> ApiError {
    let message = format!(
        "the request takes {} of memory, and {} are free for it; shorten the prompt, set \
         max_tokens, or start the server where there is more (--session-memory limits it too)",
        longview_library::Size(needed),
        longview_library::Size(free)
    );
    let error = ApiError::no_memory(message);
    error.with("needed_bytes", json!(needed)).with("free_bytes", json!(free))
}
