//! A prompt of which a part was computed before its request has a place.

use longview_engine::Session;
use longview_ops::Backend;

use crate::job::Job;
use crate::keys::Scope;

/// A prompt that was begun, and not given a place yet.
pub(super) struct Begun<B: Backend> {
    pub(super) scope: Scope,
    pub(super) session: Session<B>,
    /// Tokens that came.
    pub(super) n_known: usize,
}

impl<B: Backend> Begun<B> {
    /// Whether a request goes on from it.
    pub(super) fn is_of(&self, job: &Job) -> bool {
        let tokens = self.session.tokens();
        self.scope == job.scope
            && job.how.uses_known
            && self.session.sequence().prefill_mode() == job.how.prefill
            && job.ids.len() > tokens.len()
            && job.ids.starts_with(tokens)
    }
}
