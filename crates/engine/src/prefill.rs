//! Prompts and questions: prefill in chunks with exact attention, or token by token through the
//! policy.

use std::ops::ControlFlow;
use std::time::Duration;

use longview_ops::Backend;
use longview_scheduler::{PromptEnd, SpanMode};
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::output::Output;
use crate::session::Session;
use crate::step::SessionStep;

/// How far a prefill is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Prompt tokens computed.
    pub done: usize,
    /// Prompt tokens in all.
    pub total: usize,
    /// Of those computed, the ones that earlier calls computed.
    pub before: usize,
    /// Time since the call.
    pub elapsed: Duration,
}

impl Progress {
    /// Tokens per second so far.
    pub fn tokens_per_s(&self) -> f64 {
        (self.done - self.before) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Time left at this speed, or longer: attention to a longer past makes later tokens dearer.
    pub fn eta(&self) -> Duration {
        let computed = (self.done - self.before).max(1);
        self.elapsed.mul_f64((self.total - self.done) as f64 / computed as f64)
    }
}

impl<B: Backend> Engine<B> {
    /// Computes a prompt, or a further part of one, with exact attention. `progress` is called
    /// after each chunk and may break off: what is computed is kept, and `Ok(false)` says that the
    /// rest is missing. What was generated before it through a policy that leaves tokens out is
    /// read again first, as the beginning of this part of the prompt; where that is broken off, the
    /// session has less of it than before. A cancelled call ends so too, also where all is computed
    /// and the index is not: the next call that needs it makes it.
    pub async fn prefill(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<bool, EngineError> {
        self.read_prompt(session, ids, progress, true).await
    }

    /// [`Engine::prefill`] of a prompt that `progress` may interrupt at a chunk and that goes on as
    /// if it had not been: after `Ok(false)` the index that the policy needs is not made. Meanwhile
    /// [`Engine::save_unfinished`] keeps what was read. Then call this again with the rest, or
    /// [`Engine::finish_prefill`].
    pub async fn prefill_part(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<bool, EngineError> {
        self.read_prompt(session, ids, progress, false).await
    }

    /// `ends`: a prompt that is broken off is ended there.
    async fn read_prompt(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
        ends: bool,
    ) -> Result<bool, EngineError> {
        let start = self.backend.now();
        let mut all = self.with_uncomputed(session, ids)?;
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        let n_known = session.known_tokens();
        if n_known < session.tokens.len() {
            // Tokens of an answer that was computed through a policy: as part of a prompt they are
            // read like the rest of it.
            all.splice(0..0, session.tokens[n_known..].iter().copied());
            session.cut(n_known).await?;
        }
        let mut result = self.prefill_chunks(session, &all, start, progress).await;
        if ends || !matches!(result, Ok(false) | Err(EngineError::Cancelled)) {
            let finished = session.sequence.finish_prefill().await.map_err(EngineError::from);
            // A device that was lost in a chunk is lost here too; the first words say more.
            if let (true, Err(error)) = (result.is_ok(), finished) {
                result = Err(error);
            }
        }
        session.timings.prefill += self.backend.now().saturating_sub(start);
        match result {
            Err(EngineError::Cancelled) => Ok(false),
            other => other,
        }
    }

    async fn prefill_chunks(
        &mut self,
        session: &mut Session<B>,
        all: &[u32],
        start: Duration,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<bool, EngineError> {
        let mut done = 0;
        for ids in all.chunks(self.options.chunk_size) {
            let remaining = all.len() - done - ids.len();
            let mode = SpanMode::Exact { remaining };
            let output = if remaining == 0 { Output::Logits } else { Output::Nothing };
            self.step(&mut [SessionStep::with_output(session, ids, mode, output)]).await?;
            session.uncomputed = None;
            done += ids.len();
            session.timings.prefill_tokens += ids.len() as u64;
            let elapsed = self.backend.now().saturating_sub(start);
            let flow = progress(Progress { done, total: all.len(), before: 0, elapsed });
            if flow.is_break() && remaining > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends a prompt, or a part of one, whose chunks were computed by [`Engine::step_each`] under
    /// [`SpanMode::Exact`], in between other work: what the policy keeps of it is made. Call it
    /// before the next token is computed through the policy, and before the session is saved.
    ///
    /// # Errors
    /// If the device fails; the call may be made again.
    pub async fn finish_prefill(&mut self, session: &mut Session<B>) -> Result<(), EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        Ok(session.sequence.finish_prefill().await?)
    }

    /// A piece of [`Engine::finish_prefill`], so that others have their steps in between: call it
    /// until it is done. What is made does not depend on that, to the bit. Where `may_wait` a piece
    /// lasts until a clustering of a layer is done that runs beside it; otherwise it never waits,
    /// and [`PromptEnd::Waits`] says that it would have to. A session that is cancelled, or left,
    /// between two pieces keeps its tokens.
    ///
    /// # Errors
    /// As there; the next call goes on.
    pub async fn finish_prefill_piece(
        &mut self,
        session: &mut Session<B>,
        may_wait: bool,
    ) -> Result<PromptEnd, EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        Ok(session.sequence.finish_prefill_piece(may_wait).await?)
    }

    /// A piece of what comes before the next chunk of a prompt, so that others have their steps in
    /// between: call it until it is done. A chunk may be computed before that all the same, and
    /// does the rest in one go; what is made does not depend on that, to the bit. `may_wait` and
    /// [`PromptEnd::Waits`] are those of [`Engine::finish_prefill_piece`].
    ///
    /// # Errors
    /// If the device fails.
    pub async fn prepare_chunk_piece(
        &mut self,
        session: &mut Session<B>,
        may_wait: bool,
    ) -> Result<PromptEnd, EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        Ok(session.sequence.prepare_chunk_piece(may_wait).await?)
    }

    /// Computes tokens one at a time through the policy: a question that only sees what is
    /// recalled.
    pub async fn feed(&mut self, session: &mut Session<B>, ids: &[u32]) -> Result<(), EngineError> {
        let all = self.with_uncomputed(session, ids)?;
        for (i, id) in all.iter().enumerate() {
            let output = if i + 1 == all.len() { Output::Logits } else { Output::Nothing };
            self.decode(session, *id, &[], output).await?;
        }
        Ok(())
    }

    /// Computes one token through the policy, and some of `draft` behind it on trial.
    pub(crate) async fn decode(
        &mut self,
        session: &mut Session<B>,
        id: u32,
        draft: &[u32],
        output: Output,
    ) -> Result<(), EngineError> {
        let (start, before) = (self.backend.now(), self.backend.device_counters());
        let ids: SmallVec<[u32; 8]> = std::iter::once(id).chain(draft.iter().copied()).collect();
        let part = SessionStep::with_output(session, &ids, SpanMode::Policy, output);
        self.step(&mut [part]).await?;
        session.uncomputed = None;
        session.timings.decode_tokens += 1;
        if let (Some(before), Some(after)) = (before, self.backend.device_counters()) {
            session.timings.decode_device += after.since(before);
        }
        session.timings.decode += self.backend.now().saturating_sub(start);
        Ok(())
    }

    /// The tokens to compute: a generated one that was not computed yet, then `ids`. Fails before
    /// anything is computed if they do not fit.
    fn with_uncomputed(&self, session: &Session<B>, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let (used, context) = (session.n_tokens(), session.sequence.shape().capacity);
        if used + ids.len() > context {
            return Err(EngineError::PromptTooLong { prompt: ids.len(), used, context });
        }
        Ok(session.uncomputed.into_iter().chain(ids.iter().copied()).collect())
    }
}
