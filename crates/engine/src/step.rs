//! A step of the model over several sessions: what each of them gets of it, and what is undone.
//!
//! Sessions of a step share its launches and nothing else. One that is cancelled between two layers
//! is left out of the attention from there on; its rows of the other ops are computed for nothing,
//! which in decode costs next to nothing. One whose tokens cannot be computed is found before the
//! step begins. What fails in the middle of a step does not say whose part it was: then all parts
//! are undone and computed one after the other, which the cause fails alone.

use std::ops::Range;

use longview_core::{LayerId, TokenPos};
use longview_model::attention::{Attention, AttentionTensors};
use longview_model::batch::{Batch, BatchError, Span};
use longview_ops::{Backend, View};
use longview_scheduler::{
    LayerTensors, PolicyOptions, PrefillMode, ReadParts, Sequence, SequenceOptions, SpanMode, Step,
    StepScratch, StepSpan, StepVerdict,
};
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::CancelToken;
use crate::output::Output;
use crate::policy::resolve_policy;
use crate::sampler::Sampler;
use crate::session::Session;

/// One session's part of a step.
pub struct SessionStep<'a, B: Backend> {
    /// Whose tokens they are; it has them when its part is complete.
    pub session: &'a mut Session<B>,
    /// New tokens. Under [`SpanMode::Policy`] the first one is the session's, and those behind it
    /// are a draft ([`Session::draft`]), of which a step may compute some on trial: the session
    /// does not have them, but a later step whose first token was computed so costs nothing.
    pub ids: &'a [u32],
    /// How they attend.
    pub mode: SpanMode,
    output: Output,
    state: PartState,
    /// The places of the tokens in the step about which it says something.
    rows: Range<usize>,
}

/// How far a session's part of a step has come.
enum PartState {
    /// To be computed, or to be computed again.
    Due,
    /// Computed; the session has its tokens.
    Done,
    /// Left out or undone for this reason.
    Failed(EngineError),
}

/// What a step did for each of its sessions, in their order.
pub type StepResults = SmallVec<[Result<(), EngineError>; 4]>;

impl<'a, B: Backend> SessionStep<'a, B> {
    /// A step that ends with logits in the session.
    pub fn new(session: &'a mut Session<B>, ids: &'a [u32], mode: SpanMode) -> Self {
        Self::with_output(session, ids, mode, Output::Logits)
    }

    /// The step ends with what [`Sampler::next_token`] needs: the device chooses where it can.
    pub fn for_sampler(self, sampler: &Sampler) -> Self {
        Self { output: sampler.params().output(), ..self }
    }

    pub(crate) fn with_output(
        session: &'a mut Session<B>,
        ids: &'a [u32],
        mode: SpanMode,
        output: Output,
    ) -> Self {
        Self { session, ids, mode, output, state: PartState::Due, rows: 0..0 }
    }

    /// Drafted tokens of this part.
    fn n_drafted(&self) -> usize {
        match self.mode {
            SpanMode::Policy => self.ids.len().saturating_sub(1),
            SpanMode::Exact { .. } => 0,
        }
    }

    /// Tokens about which the step says something.
    fn n_rows(&self) -> usize {
        match self.output {
            Output::Nothing => 0,
            _ => 1 + self.n_drafted(),
        }
    }

    /// Leaves out drafted tokens behind the first `most`. Where nobody asks what follows a token,
    /// nobody knows whether a drafted one does.
    fn trim_draft(&mut self, most: usize) {
        let most = if self.output == Output::Nothing { 0 } else { most };
        if self.n_drafted() > most {
            self.ids = &self.ids[..1 + most];
        }
    }

    fn is_due(&self) -> bool {
        matches!(self.state, PartState::Due)
    }

    /// This part as the model sees it, from token `start` of the step on.
    pub(crate) fn span(&self, start: usize) -> Span {
        let first_pos = TokenPos(self.session.tokens.len() as u32);
        Span { start, len: self.ids.len(), first_pos, n_wanted: self.n_rows() }
    }

    /// The scheduler's view of a span of this part.
    pub(crate) fn sequence_span(&mut self, start: usize) -> StepSpan<'_, B> {
        StepSpan {
            sequence: &mut self.session.sequence,
            start,
            len: self.ids.len(),
            mode: self.mode,
            is_read: self.output != Output::Nothing,
        }
    }
}

/// Puts the scheduler where the model calls for attention.
pub(crate) struct SchedulerAttention<'s, 'a, B: Backend> {
    /// The sequences of the step; the first `n_live` of them still take part.
    pub(crate) spans: &'s mut [StepSpan<'a, B>],
    /// What cancels each of them, in the same order.
    pub(crate) cancels: &'s mut [Cancel],
    pub(crate) n_live: usize,
    pub(crate) scratch: &'s mut StepScratch<B>,
}

/// What cancels a part of a step.
pub(crate) struct Cancel {
    /// The part's place in the batch.
    pub(crate) part: usize,
    pub(crate) token: CancelToken,
}

impl<'a, B: Backend> SchedulerAttention<'_, 'a, B> {
    /// Leaves out what was cancelled since the last layer.
    fn leave_out_cancelled(&mut self) {
        let mut i = 0;
        while i < self.n_live {
            if self.cancels[i].token.is_cancelled() {
                self.n_live -= 1;
                self.spans.swap(i, self.n_live);
                self.cancels.swap(i, self.n_live);
            } else {
                i += 1;
            }
        }
    }

    /// Fails if the spans do not fit, before anything is stored.
    pub(crate) fn check(&mut self) -> Result<(), EngineError> {
        Ok(self.step().check()?)
    }

    /// Lets the tokens count.
    pub(crate) fn finish(&mut self) {
        self.step().finish();
    }

    fn step(&mut self) -> Step<'_, 'a, B> {
        Step { spans: &mut self.spans[..self.n_live], scratch: &mut *self.scratch }
    }
}

impl<B: Backend> Attention<B> for SchedulerAttention<'_, '_, B> {
    type Error = EngineError;

    async fn attend(
        &mut self,
        layer: LayerId,
        _batch: &Batch<'_>,
        t: AttentionTensors<'_, B>,
    ) -> Result<(), EngineError> {
        self.leave_out_cancelled();
        if self.n_live == 0 {
            return Err(EngineError::Cancelled);
        }
        let tensors = LayerTensors { q: t.q, k: t.k, v: t.v, out: t.out };
        Ok(self.step().attend(layer, tensors).await?)
    }

    fn wants_prefetch(&mut self, layer: LayerId) -> bool {
        self.step().wants_prefetch(layer)
    }

    async fn prefetch(
        &mut self,
        layer: LayerId,
        _batch: &Batch<'_>,
        q: View<'_, B>,
    ) -> Result<(), EngineError> {
        Ok(self.step().prefetch(layer, q).await?)
    }
}

impl<B: Backend> Engine<B> {
    /// An empty session on the device as it is: call [`Engine::revive`] first where it may be lost.
    pub fn session(&self, policy: &PolicyOptions) -> Result<Session<B>, EngineError> {
        self.session_with_prefill(policy, self.options.prefill)
    }

    /// [`Engine::session`] that reads its prompts in a way of its own, not as the engine's options
    /// say.
    ///
    /// # Errors
    /// As there; and where sparse prefill is not possible: with this policy, on this device, with
    /// this type of keys and values.
    pub fn session_with_prefill(
        &self,
        policy: &PolicyOptions,
        prefill: PrefillMode,
    ) -> Result<Session<B>, EngineError> {
        let config = self.model.config();
        let (options, policy) = resolve_policy(policy, config.n_layers, self.options.ctx_size)?;
        let layout = SequenceOptions { prefill, ..self.layout() };
        let sequence = Sequence::new(&self.backend, self.shape(), policy, layout)?;
        Ok(Session::new(sequence, options, config.vocab_size))
    }

    /// One step of the model over a list of sessions.
    ///
    /// # Errors
    /// The first of the errors that [`Engine::step_each`] gives, which says whose it is. Sessions
    /// without one have their tokens all the same.
    pub async fn step(&mut self, batch: &mut [SessionStep<'_, B>]) -> Result<(), EngineError> {
        self.step_each(batch).await?.into_iter().collect()
    }

    /// One step of the model over a list of sessions, with a result for each. Where it is an error
    /// the session is as it was before the step; the others go on as if it had not been there.
    ///
    /// # Errors
    /// Where nothing was computed for anybody: a batch that is larger than the engine was made for,
    /// a device that was lost. After [`longview_ops::OpError::DeviceLost`] the sessions keep every
    /// complete step, and the next call opens the device again and goes on.
    pub async fn step_each(
        &mut self,
        batch: &mut [SessionStep<'_, B>],
    ) -> Result<StepResults, EngineError> {
        self.trim_drafts(batch);
        self.check_size(batch)?;
        self.revive().await?;
        for part in batch.iter_mut() {
            part.state = match self.prepare(part).await {
                Ok(state) => state,
                Err(error) if self.backend.is_lost() => return Err(error),
                Err(error) => PartState::Failed(error),
            };
        }
        self.compute(batch).await?;
        let result = |part: &mut SessionStep<'_, B>| match std::mem::replace(
            &mut part.state,
            PartState::Due,
        ) {
            PartState::Failed(error) => Err(error),
            PartState::Due | PartState::Done => Ok(()),
        };
        Ok(batch.iter_mut().map(result).collect())
    }

    /// Changes a session's policy without a second prefill: [`Session::set_policy`], also after the
    /// device was lost. Its rows lie where the engine's options say now.
    ///
    /// # Errors
    /// As [`Session::set_policy`], or if the device cannot be opened again.
    pub async fn set_policy(
        &mut self,
        session: &mut Session<B>,
        options: &PolicyOptions,
    ) -> Result<(), EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        let resident_rows = self.layout().resident_rows;
        session.set_policy_and_residency(options, resident_rows).await
    }

    /// [`Engine::set_policy`] of a session whose prompt goes on, in pieces: the index of what is
    /// there is left for [`Engine::finish_prefill_piece`]. Call that until it is done before more
    /// of the prompt is read.
    ///
    /// # Errors
    /// As [`Engine::set_policy`]. What shows only as the index is made is an error of its pieces.
    pub async fn begin_policy(
        &mut self,
        session: &mut Session<B>,
        options: &PolicyOptions,
    ) -> Result<(), EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        session.begin_policy(options).await
    }

    /// Brings a session into the state that its next token needs, also after the device was lost:
    /// the device is opened again, and what a failed call left undone is made.
    ///
    /// # Errors
    /// What went wrong before, if it goes wrong again.
    pub async fn settle(&mut self, session: &mut Session<B>) -> Result<(), EngineError> {
        self.revive().await?;
        session.restore_on(&self.backend).await?;
        Ok(session.sequence.make_ready().await?)
    }

    /// Leaves drafted tokens out for which the buffers of a step have no room, and with which a
    /// step would have more rows than the kernels of few rows take: on some devices a row's bits
    /// are others among more.
    fn trim_drafts(&self, batch: &mut [SessionStep<'_, B>]) {
        let n_tokens: usize = batch.iter().map(|part| part.ids.len() - part.n_drafted()).sum();
        let n_rows: usize = batch.iter().map(|part| part.n_rows() - part.n_drafted()).sum();
        let few = self.backend.capabilities().matvec_max_rows;
        let tokens = self.workspace.max_tokens().min(few).saturating_sub(n_tokens);
        let mut left = tokens.min(self.workspace.max_logit_rows().saturating_sub(n_rows));
        for part in batch {
            part.trim_draft(left);
            left -= part.n_drafted();
        }
    }

    /// Refuses what the buffers of a step have no room for.
    fn check_size(&self, batch: &[SessionStep<'_, B>]) -> Result<(), BatchError> {
        let n_tokens: usize = batch.iter().map(|part| part.ids.len()).sum();
        let n_rows: usize = batch.iter().map(SessionStep::n_rows).sum();
        let (max_tokens, max_rows) = (self.workspace.max_tokens(), self.workspace.max_logit_rows());
        if n_tokens > max_tokens {
            return Err(BatchError::TooManyTokens { n_tokens, max_tokens });
        }
        if n_rows > max_rows {
            return Err(BatchError::TooManyRows { n_rows, max_rows });
        }
        Ok(())
    }

    /// Brings a session into the state that its part of a step needs, and checks that it fits. A
    /// token that the step before has computed on trial is done.
    async fn prepare(&mut self, part: &mut SessionStep<'_, B>) -> Result<PartState, EngineError> {
        if part.mode == SpanMode::Policy
            && part.session.sequence.is_on(&self.backend)
            && part.session.accept_drafted(part.ids[0], part.output)
        {
            return Ok(PartState::Done);
        }
        part.session.restore_on(&self.backend).await?;
        if part.mode == SpanMode::Policy {
            part.session.sequence.make_ready().await?;
            part.trim_draft(part.session.sequence.most_drafted(part.n_drafted()));
        }
        let spans = &mut [part.sequence_span(0)];
        Step { spans, scratch: &mut self.scratch }.check()?;
        self.model.check(&Batch { ids: part.ids, spans: &[part.span(0)] })?;
        Ok(PartState::Due)
    }

    /// Computes all parts that are due, together if that can be done.
    async fn compute(&mut self, batch: &mut [SessionStep<'_, B>]) -> Result<(), EngineError> {
        let Err(error) = self.compute_together(batch).await else {
            for part in batch.iter_mut().filter(|part| !part.is_due()) {
                undo(part).await;
            }
            return Ok(());
        };
        if self.backend.is_lost() {
            return Err(error);
        }
        let is_only = batch.iter().filter(|part| part.is_due()).count() == 1;
        if is_only && let Some(part) = batch.iter_mut().find(|part| part.is_due()) {
            part.state = PartState::Failed(error);
        }
        for part in batch.iter_mut() {
            undo(part).await;
        }
        for part in batch.iter_mut().filter(|part| part.is_due()) {
            if let Err(error) = self.compute_together(std::slice::from_mut(part)).await {
                part.state = PartState::Failed(error);
                undo(part).await;
            }
        }
        Ok(())
    }

    /// A step, and once more for the sessions whose speculation failed: these then recall exactly,
    /// so the second time stands.
    async fn compute_together(
        &mut self,
        batch: &mut [SessionStep<'_, B>],
    ) -> Result<(), EngineError> {
        while batch.iter().any(SessionStep::is_due) {
            self.forward(batch).await?;
        }
        Ok(())
    }

    /// Runs the step for the parts that are due. Those for which it does not stand stay due, those
    /// that are cancelled fail; both are left unfinished.
    async fn forward(&mut self, batch: &mut [SessionStep<'_, B>]) -> Result<(), EngineError> {
        let mut spans: SmallVec<[Span; 4]> = SmallVec::new();
        let mut parts: SmallVec<[StepSpan<'_, B>; 4]> = SmallVec::new();
        let mut cancels: SmallVec<[Cancel; 4]> = SmallVec::new();
        self.ids.clear();
        for (i, part) in batch.iter_mut().enumerate().filter(|(_, part)| part.is_due()) {
            let start = self.ids.len();
            self.ids.extend_from_slice(part.ids);
            spans.push(part.span(start));
            cancels.push(Cancel { part: i, token: part.session.cancel.clone() });
            part.session.step_is_unfinished = true;
            part.rows = self.ids.len() - part.n_rows()..self.ids.len();
            parts.push(part.sequence_span(start));
        }
        let mut attention = SchedulerAttention {
            n_live: parts.len(),
            spans: &mut parts,
            cancels: &mut cancels,
            scratch: &mut self.scratch,
        };
        let tokens = Batch { ids: &self.ids, spans: &spans };
        let model = &self.model;
        let result =
            model.forward(&*self.backend, &mut self.workspace, &tokens, &mut attention).await;
        let n_live = attention.n_live;
        if result.is_ok() {
            attention.finish();
        }
        drop(parts);
        for cancel in &cancels[n_live..] {
            batch[cancel.part].state = PartState::Failed(EngineError::Cancelled);
        }
        if n_live == 0 {
            return Ok(());
        }
        result?;
        self.collect(batch).await
    }

    /// Reads what the step says about the last tokens of the parts that are due, together with rows
    /// that the host store does not have yet and with what speculation needs: one wait for the
    /// device.
    pub(crate) async fn collect(
        &mut self,
        batch: &mut [SessionStep<'_, B>],
    ) -> Result<(), EngineError> {
        let n_vocab = self.model.config().vocab_size;
        let due = || batch.iter().filter(|part| part.is_due());
        let rows: SmallVec<[usize; 8]> = due().flat_map(|part| part.rows.clone()).collect();
        let all = self.model.logits(&*self.backend, &mut self.workspace, &rows)?;
        let rows_of = |rows: Range<usize>| {
            View::part(all.buffer, all.offset + rows.start * n_vocab, rows.len() * n_vocab)
        };
        let outputs = due().flat_map(|part| part.rows.clone().map(|_| part.output));
        for (row, output) in outputs.enumerate() {
            self.choices.choose(&*self.backend, output, rows_of(row..row + 1), row)?;
        }
        let mut parts = ReadParts::<B>::new();
        let mut row = 0;
        for part in batch.iter_mut().filter(|part| part.is_due()) {
            let Session { sequence, said, last, .. } = &mut *part.session;
            parts.extend(sequence.writeback_parts());
            // What the step before said is written over.
            *last = Output::Nothing;
            if part.output != Output::Nothing {
                let rows = row..row + part.rows.len();
                row = rows.end;
                said.read(part.output, rows_of(rows.clone()), &self.choices, rows, &mut parts);
            }
        }
        let is_silent = parts.is_empty();
        if !is_silent {
            self.backend.read_all(&mut parts).await?;
        }
        drop(parts);
        let mut due = batch.iter_mut().filter(|part| part.is_due());
        if is_silent && due.any(|part| part.session.sequence.rows_come_later()) {
            // The step is complete when its rows are on the host: what is lost later leaves them.
            let any = View::part(all.buffer, all.offset, 1);
            self.backend.read(any, &mut [0; 4]).await?;
        }
        for part in batch.iter_mut().filter(|part| part.is_due()) {
            let (own, drafted) = part.ids.split_at(part.ids.len() - part.n_drafted());
            let session = &mut *part.session;
            if session.sequence.finish_writeback() == StepVerdict::Stands {
                session.last = part.output;
                session.tokens.extend_from_slice(own);
                session.last_drafted = part.output;
                session.drafted.extend_from_slice(drafted);
                session.timings.drafted_tokens += drafted.len() as u64;
                session.step_is_unfinished = false;
                part.state = PartState::Done;
            }
        }
        Ok(())
    }
}

/// Undoes what is unfinished of a part. Where that fails the part has failed.
async fn undo<B: Backend>(part: &mut SessionStep<'_, B>) {
    if !part.session.is_unfinished() {
        return;
    }
    if let Err(error) = part.session.undo_unfinished().await
        && part.is_due()
    {
        part.state = PartState::Failed(error);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use longview_cpu::{CpuBackend, CpuOptions};
    use longview_model::folder::ModelFolder;
    use longview_scheduler::Preset;
    use pollster::block_on;

    use super::*;
    use crate::options::EngineOptions;
    use crate::sampler::SamplingParams;

    type Cpu = CpuBackend;

    /// Fewer than until a window of decoded tokens counts as clusters: where a step is undone in
    /// which one falls due, the scheduler clusters it anew, and it counts a step later.
    const N_STEPS: usize = 18;

    fn clusterkv() -> PolicyOptions {
        let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(96);
        (policy.window, policy.recent) = (Some(16), Some(16));
        policy
    }

    fn engine() -> Engine<Cpu> {
        let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/llama3-gqa");
        let folder = ModelFolder::open(folder.as_ref()).expect("a sound fixture");
        let options = EngineOptions {
            ctx_size: 256,
            chunk_size: 64,
            max_sequences: 2,
            ..EngineOptions::default()
        };
        Engine::load(backend, folder, options, &clusterkv()).expect("it loads")
    }

    fn start(engine: &mut Engine<Cpu>, policy: &PolicyOptions, n: u32) -> Session<Cpu> {
        let mut session = engine.session(policy).expect("a session");
        let n_vocab = engine.model.config().vocab_size as u32;
        let ids: Vec<u32> = (0..n).map(|i| (i * 31 + 7) % n_vocab).collect();
        let mut go_on = |_| ControlFlow::Continue(());
        assert!(block_on(engine.prefill(&mut session, &ids, &mut go_on)).expect("prefill"));
        session
    }

    fn sessions(engine: &mut Engine<Cpu>) -> [Session<Cpu>; 2] {
        let full = PolicyOptions::new(Preset::Full);
        [start(engine, &clusterkv(), 120), start(engine, &full, 90)]
    }

    /// The scratch memory holds one token, so the attention of two fails when the rows of both are
    /// stored, in the first layer.
    #[test]
    fn a_step_that_fails_in_the_middle_for_all_is_made_for_each_alone() {
        let mut engine = engine();
        let (mut alone, mut together) = (sessions(&mut engine), sessions(&mut engine));
        let tile = engine.options.tile_rows;
        let placement = engine.layout().placement;
        let scratch = StepScratch::new(&*engine.backend, &engine.shape(), 1, tile, placement);
        engine.scratch = scratch.expect("memory");
        let n_vocab = engine.model.config().vocab_size;
        let mut sampler = Sampler::new(SamplingParams::default(), n_vocab).expect("parameters");
        for i in 0..N_STEPS {
            for session in &mut alone {
                let id = [sampler.next_token(session).expect("numbers")];
                let mut part = [SessionStep::new(session, &id, SpanMode::Policy)];
                block_on(engine.forward(&mut part)).expect("a step");
            }
            let ids = together.each_ref().map(|s| [sampler.next_token(s).expect("numbers")]);
            let [a, b] = &mut together;
            let mut batch = [
                SessionStep::new(a, &ids[0], SpanMode::Policy),
                SessionStep::new(b, &ids[1], SpanMode::Policy),
            ];
            block_on(engine.forward(&mut batch)).expect_err("there is room for one");
            let results = block_on(engine.step_each(&mut batch)).expect("each has its step");
            assert!(results.iter().all(Result::is_ok), "step {i}: {results:?}");
            for (alone, together) in alone.iter().zip(&together) {
                assert_eq!(alone.tokens(), together.tokens(), "step {i}");
            }
        }
    }
}
