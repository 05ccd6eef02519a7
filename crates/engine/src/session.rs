//! A session: one sequence of tokens with its keys and values, and what the model said last.

use std::ops::ControlFlow;
use std::time::Duration;

use longview_core::{LayerId, TokenPos};
use longview_model::attention::{Attention, AttentionTensors};
use longview_model::batch::{Batch, Span};
use longview_ops::{Backend, DeviceCounters, View};
use longview_scheduler::{
    FillRows, LayerTensors, Policy, PolicyOptions, ReadParts, Sequence, SpanMode, Stats, Step,
    StepSpan, StepVerdict,
};
use serde::Serialize;
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::CancelToken;
use crate::output::{Output, Said};
use crate::sampler::Sampler;

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

/// Tokens and time of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Tokens computed by prefill.
    pub prefill_tokens: u64,
    /// Time in prefill.
    pub prefill: Duration,
    /// Tokens computed one at a time, through the policy.
    pub decode_tokens: u64,
    /// Time in decode.
    pub decode: Duration,
    /// What decode asked of the device; zero on the CPU.
    #[serde(skip)]
    pub decode_device: DeviceCounters,
}

impl Timings {
    /// Prefill speed; `None` before any.
    pub fn prefill_tokens_per_s(&self) -> Option<f64> {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Decode speed; `None` before any.
    pub fn decode_tokens_per_s(&self) -> Option<f64> {
        rate(self.decode_tokens, self.decode)
    }
}

fn rate(tokens: u64, time: Duration) -> Option<f64> {
    (tokens > 0).then(|| tokens as f64 / time.as_secs_f64().max(1e-9))
}

/// One sequence under one policy.
pub struct Session<B: Backend> {
    pub(crate) sequence: Sequence<B>,
    /// What the policy in force was made of.
    pub(crate) options: PolicyOptions,
    /// Tokens whose keys and values are stored.
    pub(crate) tokens: Vec<u32>,
    /// A generated token that was not computed yet: it goes first in the next step.
    pub(crate) unfed: Option<u32>,
    pub(crate) said: Said,
    /// What `said` says about the token after the last one.
    pub(crate) last: Output,
    pub(crate) timings: Timings,
    pub(crate) cancel: CancelToken,
    /// A step began and did not end: layers disagree about the length; or it ended, was taken back
    /// and has to be run again.
    pub(crate) torn: bool,
}

/// One session's part of a step.
pub struct SessionStep<'a, B: Backend> {
    /// The session.
    pub session: &'a mut Session<B>,
    /// New tokens; exactly one under [`SpanMode::Policy`].
    pub ids: &'a [u32],
    /// How they attend.
    pub mode: SpanMode,
    pub(crate) output: Output,
}

impl<'a, B: Backend> SessionStep<'a, B> {
    /// A step that ends with logits in the session.
    pub fn new(session: &'a mut Session<B>, ids: &'a [u32], mode: SpanMode) -> Self {
        Self { session, ids, mode, output: Output::Logits }
    }

    /// The step ends with what [`Sampler::next_token`] needs: the device chooses where it can.
    pub fn for_sampler(self, sampler: &Sampler) -> Self {
        Self { output: sampler.params().output(), ..self }
    }

    /// The same once more, borrowed for less long.
    fn again(&mut self) -> SessionStep<'_, B> {
        let Self { ids, mode, output, .. } = *self;
        SessionStep { session: &mut *self.session, ids, mode, output }
    }
}

impl<B: Backend> Session<B> {
    pub(crate) fn new(sequence: Sequence<B>, options: PolicyOptions, n_vocab: usize) -> Self {
        let capacity = sequence.shape().capacity;
        Self {
            sequence,
            options,
            tokens: Vec::with_capacity(capacity),
            unfed: None,
            said: Said::new(n_vocab),
            last: Output::Nothing,
            timings: Timings::default(),
            cancel: CancelToken::default(),
            torn: false,
        }
    }

    /// The tokens so far, computed or about to be.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len() + usize::from(self.unfed.is_some())
    }

    /// The tokens whose keys and values are stored.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Copies queries and attention of every decode step to the host from now on, or no longer: see
    /// [`Sequence::watched`]. Each layer then waits for the device.
    pub fn watch(&mut self, on: bool) {
        self.sequence.trace(on);
    }

    /// Looks at a layer and a KV head of it, or at none: see [`Sequence::token_places`].
    pub fn look_at(&mut self, place: Option<(usize, usize)>) {
        self.sequence.track_head(place);
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        self.sequence.policy()
    }

    /// The sequence, for probes.
    pub fn sequence(&self) -> &Sequence<B> {
        &self.sequence
    }

    /// The scheduler's counters.
    pub fn stats(&self) -> &Stats {
        self.sequence.stats()
    }

    /// Tokens and time.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Sets counters and times to zero.
    pub fn reset_stats(&mut self) {
        self.sequence.reset_stats();
        self.timings = Timings::default();
    }

    /// The logits after the last prompt, or after the last step that kept them; empty before.
    pub fn logits(&self) -> &[f32] {
        match self.last {
            Output::Logits => &self.said.logits,
            Output::Nothing | Output::Best | Output::Candidates(_) => &[],
        }
    }

    /// A token to cancel calls on this session from elsewhere.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Lets `token` cancel calls on this session, in place of its own: one for several sessions.
    pub fn cancel_with(&mut self, token: CancelToken) {
        self.cancel = token;
    }

    /// Changes the policy without a second prefill.
    ///
    /// # Errors
    /// What the new policy needs and cannot have; the one before stays in force then.
    pub async fn set_policy(&mut self, options: &PolicyOptions) -> Result<(), EngineError> {
        let shape = self.sequence.shape();
        let options = options.clone().for_depth(shape.n_layers);
        let policy = Policy::resolve(&options, shape.capacity)?;
        self.mend().await?;
        self.sequence.set_policy(policy).await?;
        self.options = options;
        Ok(())
    }

    /// Adds tokens whose keys and values come from elsewhere; see [`Sequence::inject`].
    pub async fn inject(
        &mut self,
        ids: &[u32],
        fill: &mut FillRows<'_>,
    ) -> Result<(), EngineError> {
        self.mend().await?;
        self.sequence.inject(ids.len(), fill).await?;
        self.tokens.extend_from_slice(ids);
        self.last = Output::Nothing;
        Ok(self.sequence.finish_prefill().await?)
    }

    /// Cuts the session back to its first `n_tokens` tokens. If the device is lost, the next call
    /// of the engine opens it again and cuts there.
    pub async fn truncate(&mut self, n_tokens: usize) -> Result<(), EngineError> {
        self.unfed = None;
        self.last = Output::Nothing;
        self.tokens.truncate(n_tokens);
        self.torn = true;
        match self.mend().await {
            Err(_) if self.sequence.is_lost() => Ok(()),
            result => result,
        }
    }

    /// Undoes a step, or a change of the policy, that did not end.
    pub(crate) async fn mend(&mut self) -> Result<(), EngineError> {
        if self.torn {
            self.sequence.truncate(self.tokens.len()).await?;
            self.torn = false;
        }
        match self.sequence.needs_rebuild() {
            true => Ok(self.sequence.make_ready().await?),
            false => Ok(()),
        }
    }
}

/// Puts the scheduler where the model calls for attention.
struct SchedulerAttention<'s, 'a, B: Backend> {
    step: Step<'s, 'a, B>,
    cancel: CancelToken,
}

impl<B: Backend> Attention<B> for SchedulerAttention<'_, '_, B> {
    type Error = EngineError;

    async fn attend(
        &mut self,
        layer: LayerId,
        _batch: &Batch<'_>,
        t: AttentionTensors<'_, B>,
    ) -> Result<(), EngineError> {
        if self.cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let tensors = LayerTensors { q: t.q, k: t.k, v: t.v, out: t.out };
        Ok(self.step.attend(layer.index(), tensors).await?)
    }

    fn wants_ahead(&self, layer: LayerId) -> bool {
        self.step.wants_prefetch(layer.index())
    }

    async fn ahead(
        &mut self,
        layer: LayerId,
        _batch: &Batch<'_>,
        q: View<'_, B>,
    ) -> Result<(), EngineError> {
        Ok(self.step.prefetch(layer.index(), q).await?)
    }
}

impl<B: Backend> Engine<B> {
    /// One step of the model over a list of sessions. Nothing is stored if it fails.
    ///
    /// After [`longview_ops::OpError::DeviceLost`] the sessions keep every complete step, and the
    /// next call opens the device again and goes on.
    pub async fn step(&mut self, batch: &mut [SessionStep<'_, B>]) -> Result<(), EngineError> {
        self.revive().await?;
        for part in batch.iter_mut() {
            self.welcome(part.session).await?;
            if part.mode == SpanMode::Policy {
                part.session.sequence.make_ready().await?;
            }
        }
        let result = self.forward_until_it_stands(batch).await;
        if result.is_err() && !self.backend.is_lost() {
            for part in batch.iter_mut() {
                part.session.mend().await?;
            }
        }
        result
    }

    /// Changes a session's policy without a second prefill: [`Session::set_policy`], also after the
    /// device was lost.
    ///
    /// # Errors
    /// As [`Session::set_policy`], or if the device cannot be opened again.
    pub async fn set_policy(
        &mut self,
        session: &mut Session<B>,
        options: &PolicyOptions,
    ) -> Result<(), EngineError> {
        self.revive().await?;
        self.welcome(session).await?;
        session.set_policy(options).await
    }

    /// Brings a session into the state that its next token needs, also after the device was lost:
    /// the device is opened again, and what a failed call left undone is made.
    ///
    /// # Errors
    /// What went wrong before, if it goes wrong again.
    pub async fn settle(&mut self, session: &mut Session<B>) -> Result<(), EngineError> {
        self.revive().await?;
        self.welcome(session).await?;
        Ok(session.sequence.make_ready().await?)
    }

    /// Brings a session to the device in use and undoes a step of it that did not end.
    pub(crate) async fn welcome(&self, session: &mut Session<B>) -> Result<(), EngineError> {
        if !session.sequence.is_on(&self.backend) {
            session.sequence.recover(&self.backend)?;
        }
        session.mend().await
    }

    /// A step, and once more for the sessions whose speculation failed: these then recall exactly,
    /// so the second time stands.
    async fn forward_until_it_stands(
        &mut self,
        batch: &mut [SessionStep<'_, B>],
    ) -> Result<(), EngineError> {
        self.forward(batch).await?;
        let mut failed: SmallVec<[SessionStep<'_, B>; 4]> =
            batch.iter_mut().filter(|p| p.session.torn).map(SessionStep::again).collect();
        match failed.is_empty() {
            true => Ok(()),
            false => self.forward(&mut failed).await,
        }
    }

    /// Runs the step. Sessions for which it does not stand are left as they were, torn.
    async fn forward(&mut self, batch: &mut [SessionStep<'_, B>]) -> Result<(), EngineError> {
        let mut spans: SmallVec<[Span; 4]> = SmallVec::new();
        let mut rows: SmallVec<[usize; 4]> = SmallVec::new();
        self.ids.clear();
        for part in batch.iter() {
            let first_pos = TokenPos(part.session.tokens.len() as u32);
            spans.push(Span { start: self.ids.len(), len: part.ids.len(), first_pos });
            self.ids.extend_from_slice(part.ids);
            if part.output != Output::Nothing {
                rows.push(self.ids.len() - 1);
            }
        }
        let cancel = batch.first().map(|part| part.session.cancel.clone()).unwrap_or_default();
        let mut parts: SmallVec<[StepSpan<'_, B>; 4]> = SmallVec::new();
        for (part, span) in batch.iter_mut().zip(&spans) {
            part.session.torn = true;
            part.session.last = Output::Nothing;
            parts.push(StepSpan {
                sequence: &mut part.session.sequence,
                start: span.start,
                len: span.len,
                mode: part.mode,
            });
        }
        let step = Step { spans: &mut parts, scratch: &mut self.scratch };
        step.check()?;
        let mut attention = SchedulerAttention { step, cancel };
        let tokens = Batch { ids: &self.ids, spans: &spans };
        self.model.forward(&*self.backend, &mut self.workspace, &tokens, &mut attention).await?;
        attention.step.finish();
        drop(parts);
        self.collect(batch, &rows).await
    }

    /// Computes the logits of `rows` and reads what they say into the sessions, together with rows
    /// that the host tier does not have yet and with what speculation needs: one wait for the
    /// device.
    async fn collect(
        &mut self,
        batch: &mut [SessionStep<'_, B>],
        rows: &[usize],
    ) -> Result<(), EngineError> {
        let n_vocab = self.model.config().vocab_size;
        let all = self.model.logits(&*self.backend, &mut self.workspace, rows)?;
        let row_of = |row: usize| View::part(all.buffer, all.offset + row * n_vocab, n_vocab);
        let wanted = batch.iter().filter(|part| part.output != Output::Nothing);
        for (row, part) in wanted.enumerate() {
            self.choices.choose(&*self.backend, part.output, row_of(row), row)?;
        }
        let mut parts = ReadParts::<B>::new();
        let mut row = 0;
        for part in batch.iter_mut() {
            let Session { sequence, said, .. } = &mut *part.session;
            parts.extend(sequence.writeback_parts());
            if part.output != Output::Nothing {
                said.read(part.output, row_of(row), &self.choices, row, &mut parts);
                row += 1;
            }
        }
        let is_silent = parts.is_empty();
        if !is_silent {
            self.backend.read_all(&mut parts).await?;
        }
        drop(parts);
        if is_silent && batch.iter().any(|part| part.session.sequence.rows_come_later()) {
            // The step is complete when its rows are on the host: what is lost later leaves them.
            let any = View::part(all.buffer, all.offset, 1);
            self.backend.read(any, &mut [0; 4]).await?;
        }
        for part in batch.iter_mut() {
            let session = &mut *part.session;
            if session.sequence.finish_writeback() == StepVerdict::Stands {
                session.last = part.output;
                session.tokens.extend_from_slice(part.ids);
                session.torn = false;
            }
        }
        Ok(())
    }

    /// Computes a prompt, or a further part of one, with exact attention. `progress` is called
    /// after each chunk and may break off: what is computed is kept, and `Ok(false)` says that the
    /// rest is missing.
    pub async fn prefill(
        &mut self,
        session: &mut Session<B>,
        ids: &[u32],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<bool, EngineError> {
        let start = self.backend.now();
        let all = self.with_unfed(session, ids)?;
        self.revive().await?;
        self.welcome(session).await?;
        let result = self.prefill_chunks(session, &all, start, progress).await;
        let finished = session.sequence.finish_prefill().await;
        // A device that was lost in a chunk is lost here too; the first words say more.
        if result.is_ok() {
            finished?;
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
            self.step(&mut [SessionStep { session, ids, mode, output }]).await?;
            session.unfed = None;
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

    /// Computes tokens one at a time through the policy: a question that only sees what is
    /// recalled.
    pub async fn feed(&mut self, session: &mut Session<B>, ids: &[u32]) -> Result<(), EngineError> {
        let all = self.with_unfed(session, ids)?;
        for (i, id) in all.iter().enumerate() {
            let output = if i + 1 == all.len() { Output::Logits } else { Output::Nothing };
            self.decode(session, *id, output).await?;
        }
        Ok(())
    }

    /// Computes one token through the policy.
    pub(crate) async fn decode(
        &mut self,
        session: &mut Session<B>,
        id: u32,
        output: Output,
    ) -> Result<(), EngineError> {
        let (start, before) = (self.backend.now(), self.backend.device_counters());
        self.step(&mut [SessionStep { session, ids: &[id], mode: SpanMode::Policy, output }])
            .await?;
        session.unfed = None;
        session.timings.decode_tokens += 1;
        if let (Some(before), Some(after)) = (before, self.backend.device_counters()) {
            session.timings.decode_device += after.since(before);
        }
        session.timings.decode += self.backend.now().saturating_sub(start);
        Ok(())
    }

    /// The tokens to compute: one that is still owed, then `ids`. Fails before anything is computed
    /// if they do not fit.
    fn with_unfed(&self, session: &Session<B>, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let (used, context) = (session.n_tokens(), session.sequence.shape().capacity);
        if used + ids.len() > context {
            return Err(EngineError::PromptTooLong { prompt: ids.len(), used, context });
        }
        Ok(session.unfed.into_iter().chain(ids.iter().copied()).collect())
    }
}
