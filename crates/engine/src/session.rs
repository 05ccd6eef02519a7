//! A session: one sequence of tokens with its keys and values, and what the model said last.

use std::sync::Arc;
use std::time::Duration;

use longview_core::{HeadId, LayerId};
use longview_ops::{ArgmaxParams, Backend, DeviceCounters};
use longview_scheduler::{FillRows, Policy, PolicyOptions, Sequence, Stats};
use serde::Serialize;
use smallvec::SmallVec;

use crate::draft::{Lookup, Pace};
use crate::error::EngineError;
use crate::options::CancelToken;
use crate::output::{Output, Said};
use crate::policy::resolve_policy;
use crate::sampler::Sampler;

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
    /// Drafted tokens that steps computed on trial.
    pub drafted_tokens: u64,
    /// Of these, the ones that the answer had; they are among `decode_tokens`.
    pub accepted_tokens: u64,
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
    pub(crate) uncomputed: Option<u32>,
    /// Tokens behind the last one that are computed, and that nobody has accepted.
    pub(crate) drafted: SmallVec<[u32; 8]>,
    /// Where runs of the tokens stand, once somebody has asked for a draft.
    pub(crate) lookup: Lookup,
    pub(crate) said: Said,
    /// What `said` says about the token after the last one.
    pub(crate) last: Output,
    /// What it says about the tokens after drafted ones.
    pub(crate) last_drafted: Output,
    pub(crate) timings: Timings,
    pub(crate) cancel: CancelToken,
    /// A step began and did not end: layers disagree about the length; or it ended, was taken back
    /// and has to be run again.
    pub(crate) step_is_unfinished: bool,
}

impl<B: Backend> Session<B> {
    pub(crate) fn new(mut sequence: Sequence<B>, options: PolicyOptions, n_vocab: usize) -> Self {
        let capacity = sequence.shape().capacity;
        let cancel = CancelToken::default();
        sequence.stop_with(cancel.flag());
        Self {
            sequence,
            options,
            tokens: Vec::with_capacity(capacity),
            uncomputed: None,
            drafted: SmallVec::new(),
            lookup: Lookup::default(),
            said: Said::new(n_vocab),
            last: Output::Nothing,
            last_drafted: Output::Nothing,
            timings: Timings::default(),
            cancel,
            step_is_unfinished: false,
        }
    }

    /// The tokens so far, computed or about to be.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len() + usize::from(self.uncomputed.is_some())
    }

    /// The tokens whose keys and values are stored.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Copies queries and attention of every decode step to the host from now on, or no longer: see
    /// [`Sequence::traced`]. Each layer then waits for the device.
    pub fn trace(&mut self, on: bool) {
        self.sequence.trace(on);
    }

    /// Looks at a layer and a KV head of it, or at none: see [`Sequence::token_places`].
    pub fn look_at(&mut self, place: Option<(LayerId, HeadId)>) {
        self.sequence.track_head(place);
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        self.sequence.policy()
    }

    /// Tokens of a prompt after which a chunk should end, so that results do not depend on the
    /// length of chunks; see [`Sequence::tokens_to_segment`].
    pub fn tokens_to_segment(&self) -> Option<usize> {
        self.sequence.tokens_to_segment()
    }

    /// Where a chunk of a prompt should end, for the same reason: at a multiple of so many of the
    /// session's tokens; see [`Sequence::chunk_unit`].
    pub fn chunk_unit(&self) -> usize {
        self.sequence.chunk_unit()
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
            Output::Logits => self.said.logits(),
            Output::Nothing | Output::Best | Output::Candidates(_) => &[],
        }
    }

    /// A token to cancel calls on this session from elsewhere.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Lets `token` cancel calls on this session, in place of its own: one for several sessions.
    pub fn cancel_with(&mut self, token: CancelToken) {
        self.sequence.stop_with(token.flag());
        self.cancel = token;
    }

    /// Changes the policy without a second prefill.
    ///
    /// # Errors
    /// What the new policy needs and cannot have; the one before stays in force then.
    pub async fn set_policy(&mut self, options: &PolicyOptions) -> Result<(), EngineError> {
        let (options, policy) = self.other_policy(options).await?;
        self.sequence.set_policy(policy).await?;
        self.options = options;
        Ok(())
    }

    /// [`Session::set_policy`], and [`Sequence::set_policy_and_residency`].
    pub(crate) async fn set_policy_and_residency(
        &mut self,
        options: &PolicyOptions,
        resident_rows: bool,
    ) -> Result<(), EngineError> {
        let (options, policy) = self.other_policy(options).await?;
        self.sequence.set_policy_and_residency(policy, resident_rows).await?;
        self.options = options;
        Ok(())
    }

    /// [`Sequence::begin_policy`].
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn begin_policy(
        &mut self,
        options: &PolicyOptions,
    ) -> Result<(), EngineError> {
        let (options, policy) = self.other_policy(options).await?;
        self.sequence.begin_policy(policy).await?;
        self.options = options;
        Ok(())
    }

    /// What a change of the policy needs: no step is half done.
    async fn other_policy(
        &mut self,
        options: &PolicyOptions,
    ) -> Result<(PolicyOptions, Policy), EngineError> {
        let shape = self.sequence.shape();
        let resolved = resolve_policy(options, shape.n_layers, shape.capacity)?;
        self.undo_unfinished().await?;
        Ok(resolved)
    }

    /// Adds tokens whose keys and values come from elsewhere; see [`Sequence::inject`].
    pub async fn inject(
        &mut self,
        ids: &[u32],
        fill: &mut FillRows<'_>,
    ) -> Result<(), EngineError> {
        self.undo_unfinished().await?;
        self.sequence.inject(ids.len(), fill).await?;
        self.tokens.extend_from_slice(ids);
        self.last = Output::Nothing;
        Ok(self.sequence.finish_prefill().await?)
    }

    /// As many of the session's first tokens as a prompt goes on from: all but those of an answer
    /// that was computed through a policy which leaves tokens out. See [`Sequence::known`].
    pub fn known_tokens(&self) -> usize {
        let (sequence, n) = (&self.sequence, self.tokens.len());
        sequence.known_rows(sequence.policy(), n)
    }

    /// [`Sequence::part_at`].
    pub fn part_at(&mut self, n_tokens: usize) {
        self.sequence.part_at(n_tokens);
    }

    /// Cuts the session back to its first `n_tokens` tokens. If the device is lost, the next call
    /// of the engine opens it again and cuts there.
    pub async fn truncate(&mut self, n_tokens: usize) -> Result<(), EngineError> {
        self.cut(n_tokens).await?;
        match self.sequence.make_ready().await {
            Err(_) if self.sequence.is_lost() => Ok(()),
            result => Ok(result?),
        }
    }

    /// [`Session::truncate`] before a further part of a prompt: what only the end of a prompt needs
    /// is made at the end of that, and not of what is left.
    pub async fn cut(&mut self, n_tokens: usize) -> Result<(), EngineError> {
        self.cut_tokens(n_tokens);
        match self.undo_unfinished().await {
            Err(_) if self.sequence.is_lost() => Ok(()),
            result => result,
        }
    }

    /// [`Session::cut`] in pieces: while [`Sequence::is_behind`],
    /// [`finish_prefill_piece`](crate::Engine::finish_prefill_piece) has to be called before more
    /// of a prompt is read.
    pub async fn begin_cut(&mut self, n_tokens: usize) -> Result<(), EngineError> {
        self.cut_tokens(n_tokens);
        self.drop_drafted()?;
        match self.sequence.begin_cut(self.tokens.len()).await {
            // It is cut there when the device is open again.
            Err(_) if self.sequence.is_lost() => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.step_is_unfinished = false;
                Ok(())
            }
        }
    }

    fn cut_tokens(&mut self, n_tokens: usize) {
        self.uncomputed = None;
        self.last = Output::Nothing;
        self.lookup.truncate(&self.tokens, n_tokens);
        self.tokens.truncate(n_tokens);
        self.step_is_unfinished = true;
    }

    /// Brings the session to `backend` if it lives on another one, and undoes what a call before
    /// left unfinished: after this it is as it was when its last complete step ended.
    pub(crate) async fn restore_on(&mut self, backend: &Arc<B>) -> Result<(), EngineError> {
        if !self.sequence.is_on(backend) {
            self.sequence.recover(backend)?;
        }
        self.undo_unfinished().await
    }

    /// Fails where no step of this session holds drafted tokens, with the reason: policies whose
    /// state every token changes for good.
    pub fn check_draft(&self) -> Result<(), EngineError> {
        Ok(self.sequence.check_draft()?)
    }

    /// Tokens that may follow the token `id`, which comes next, to go behind it in
    /// [`SessionStep::ids`]: what followed the same tokens earlier in the session. At most `most`,
    /// and as many as `pace` thinks worth it; none while drafted tokens of the last step are left.
    ///
    /// [`SessionStep::ids`]: crate::SessionStep::ids
    pub fn draft(&mut self, id: u32, most: usize, pace: &mut Pace) -> SmallVec<[u32; 8]> {
        if self.drafted.first() == Some(&id) {
            pace.count_accepted();
            return SmallVec::new();
        }
        let mut draft = SmallVec::new();
        let most = most.min(pace.next_length(self.drafted.len()));
        if most > 0 && self.sequence.check_draft().is_ok() {
            self.lookup.propose(&self.tokens, id, (pace.least_match(), most), &mut draft);
        }
        pace.count_drafted(draft.len());
        draft
    }

    /// Whether the next token was computed on trial by the step before, with what `output` asks
    /// for. It is one of the session's then.
    pub(crate) fn accept_drafted(&mut self, id: u32, output: Output) -> bool {
        let is_next = self.drafted.first() == Some(&id);
        if !is_next
            || self.step_is_unfinished
            || ![self.last_drafted, Output::Nothing].contains(&output)
        {
            return false;
        }
        self.drafted.remove(0);
        self.sequence.accept_drafted();
        self.tokens.push(id);
        self.said.next();
        self.last = output;
        self.timings.accepted_tokens += 1;
        true
    }

    /// Whether something is to be undone before the next step.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.step_is_unfinished || self.sequence.needs_rebuild()
    }

    /// Forgets what was computed on trial and not accepted.
    fn drop_drafted(&mut self) -> Result<(), EngineError> {
        self.drafted.clear();
        Ok(self.sequence.drop_drafted()?)
    }

    /// Undoes a step, or a change of the policy, that did not end.
    pub(crate) async fn undo_unfinished(&mut self) -> Result<(), EngineError> {
        self.drop_drafted()?;
        if self.step_is_unfinished {
            self.sequence.cut(self.tokens.len()).await?;
            self.step_is_unfinished = false;
        }
        if self.sequence.needs_rebuild() {
            self.sequence.make_ready().await?;
        }
        Ok(())
    }
}

impl Sampler {
    /// Chooses the token after the session's last one from what the last step said about it: that
    /// step was one [`SessionStep::for_sampler`] of these parameters, or said all logits. Fails on
    /// logits that are not numbers, and where nothing was computed to continue from.
    ///
    /// [`SessionStep::for_sampler`]: crate::SessionStep::for_sampler
    pub fn next_token<B: Backend>(&mut self, session: &Session<B>) -> Result<u32, EngineError> {
        let said = &session.said;
        match session.last {
            Output::Nothing => Err(EngineError::EmptyPrompt),
            Output::Best => match said.ids()[0] {
                id if id & ArgmaxParams::NOT_FINITE == 0 => Ok(id),
                id => Err(EngineError::NonFinite { token: id ^ ArgmaxParams::NOT_FINITE }),
            },
            Output::Candidates(_) => self.sample_candidates(said.logits(), said.ids()),
            Output::Logits => self.sample(said.logits(), &session.tokens),
        }
    }
}
