//! Prompts that are begun while what they begin with comes from shared storage.
//!
//! A session comes layer by layer. Between two layers it is lent to this thread, which computes the
//! prompt in those that are there: one chunk of it, in as many turns as there are waits. Nobody who
//! is answered waits for the storage.

use std::sync::mpsc::Sender;
use std::time::Instant;

use longview_engine::{BegunChunk, ComingSession, Session};
use longview_ops::Backend;
use pollster::block_on;
use tracing::warn;

use super::Worker;
use super::begun::Begun;
use super::disk::Fetched;
use super::steps::guarded;
use crate::error::ApiError;
use crate::job::Job;
use crate::keys::Scope;

impl<B: Backend + 'static> Worker<B> {
    /// Computes a prompt in the layers that came. Where that fails nothing goes back, and the
    /// prompt is read.
    pub(super) fn compute_coming(
        &mut self,
        mut coming: Box<ComingSession<B>>,
        back: &Sender<Box<ComingSession<B>>>,
    ) {
        let began = Instant::now();
        let most = self.pace.chunk(self.engine.options().chunk_size, self.spent());
        let computed = guarded(|| Ok(block_on(self.engine.begin_chunk(&mut coming, most))?));
        self.metrics.prompt.add(0, began.elapsed());
        match computed {
            Ok(()) => {
                let _ = back.send(coming);
            }
            Err(error) => {
                let error = self.reason(error);
                warn!("a prompt is not begun: {}", error.json());
            }
        }
    }

    /// Takes a session that came, and what was begun of the prompt behind it.
    pub(super) fn take_fetched(&mut self, scope: Scope, fetched: Fetched<B>) {
        let Fetched { document, session, begun } = fetched;
        let mut session = *session;
        let n_known = session.tokens().len();
        if let Some(chunk) = begun {
            match guarded(|| block_on(self.end_begun(&mut session, chunk))) {
                Ok(alone) => {
                    self.begun.push(Begun { scope, session, n_known });
                    session = alone;
                }
                Err(error) => {
                    let error = self.reason(error);
                    warn!("a prompt is begun again: {}", error.json());
                    // No memory for a second session: what came is of use to more than one.
                    if session.tokens().len() > n_known
                        && guarded(|| Ok(block_on(session.cut(n_known))?)).is_err()
                    {
                        return;
                    }
                }
            }
        }
        self.kept.hold(scope, session, Some(document));
    }

    /// Computes what was begun in the layers that came last. Returns a session of what came alone,
    /// for others that begin so.
    async fn end_begun(
        &mut self,
        session: &mut Session<B>,
        chunk: BegunChunk,
    ) -> Result<Session<B>, ApiError> {
        let began = Instant::now();
        let (n_known, n_tokens) = (session.tokens().len(), chunk.n_tokens());
        let n_layers = chunk.n_layers();
        self.engine.end_chunk(session, chunk).await?;
        self.metrics.shared.begun_layers.increment(n_layers as u64);
        self.metrics.prompt.add(n_tokens, began.elapsed());
        let mut alone = self.engine.fork(session).await?;
        alone.truncate(n_known).await?;
        self.engine.settle(&mut alone).await?;
        Ok(alone)
    }

    /// The session of a prompt that was begun, with the tokens that came.
    pub(super) fn take_begun(&mut self, job: &Job) -> Option<(Session<B>, usize)> {
        let own = self.model.policy.text();
        if job.how.policy.text() != own {
            return None;
        }
        let i = self.begun.iter().position(|begun| begun.is_of(job))?;
        let Begun { session, n_known, .. } = self.begun.swap_remove(i);
        Some((session, n_known))
    }

    /// Lets prompts go that nobody waits for any more. What came is kept.
    pub(super) fn drop_begun(&mut self) {
        let waiting = &self.waiting;
        self.begun.retain(|begun| waiting.iter().any(|job| begun.is_of(job)));
    }
}
