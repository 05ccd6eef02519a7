//! The thread that owns the engine and all sessions.
//!
//! Everything that runs gets its turn in each round: one chunk of one prompt, then one step in
//! which all answers take part. So nobody waits for longer than a chunk and a step for each other
//! request, and who leaves is noticed as soon. Prompts and answers never share a step: an answer is
//! computed by the same kernels whoever else runs, so its bits do not depend on the others.

mod choice;
mod disk;
mod kept;
mod run;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use longview_engine::{Engine, EngineError, Session, SessionStep, resolve_policy};
use longview_ops::Backend;
use longview_scheduler::SpanMode;
use pollster::block_on;

use self::choice::Choice;
use self::disk::Disk;
use self::kept::{Kept, MIN_SHARED};
use self::run::{Phase, Run};
use crate::error::ApiError;
use crate::job::{Event, Job, Message, Slots};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::texts::{Facts, common_prefix};

/// How long the thread sleeps where all clients have yet to take what was sent.
const NAP: Duration = Duration::from_millis(2);

/// The engine with what runs and what is kept.
pub(crate) struct Worker<B: Backend> {
    engine: Engine<B>,
    model: Facts,
    options: ServerOptions,
    metrics: Arc<Metrics>,
    inbox: Receiver<Message>,
    waiting: VecDeque<Job>,
    runs: Vec<Run<B>>,
    kept: Kept<B>,
    disk: Option<Disk>,
    draining: Option<Instant>,
    turn: u64,
    slots: Slots,
    n_started: u64,
}

impl<B: Backend> Worker<B> {
    /// A worker over an engine that was just loaded.
    pub(crate) fn new(
        engine: Engine<B>,
        model: Facts,
        options: ServerOptions,
        metrics: Arc<Metrics>,
        inbox: Receiver<Message>,
    ) -> Result<Self, ApiError> {
        let documents = options.documents.clone();
        let disk = documents.map(|documents| Disk::new(documents, &engine, &model)).transpose()?;
        Ok(Self {
            engine,
            model,
            metrics,
            inbox,
            waiting: VecDeque::new(),
            runs: Vec::new(),
            kept: Kept::new(options.max_kept),
            options,
            disk,
            draining: None,
            turn: 0,
            slots: Slots::default(),
            n_started: 0,
        })
    }

    /// Says in `slots` what runs.
    pub(crate) fn with_slots(self, slots: Slots) -> Self {
        Self { slots, ..self }
    }

    /// Serves until it is told to drain and nothing runs any more.
    pub(crate) fn serve(mut self) {
        while self.receive() {
            self.drop_left();
            self.admit();
            let has_read = self.read_chunk();
            let has_answered = self.answer_step();
            self.finish();
            self.count();
            if !(has_read || has_answered || self.is_idle()) {
                std::thread::sleep(NAP);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.waiting.is_empty()
    }

    /// Takes what came; `false` when there will be nothing more to do.
    fn receive(&mut self) -> bool {
        loop {
            if self.is_idle() {
                self.count();
                if self.draining.is_some() {
                    return false;
                }
                match self.inbox.recv() {
                    Ok(message) => self.take(message),
                    Err(_) => return false,
                }
                continue;
            }
            match self.inbox.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => {
                    self.draining.get_or_insert_with(Instant::now);
                    return true;
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Job(job) => {
                self.metrics.requests.add(1);
                self.waiting.push_back(*job);
            }
            Message::Forget(id) => self.kept.forget(id),
            Message::Drain => self.draining = Some(Instant::now()),
        }
    }

    /// Lets go of requests whose client left, and of all when the time to drain is over. What they
    /// have read is kept.
    fn drop_left(&mut self) {
        let is_over =
            self.draining.is_some_and(|since| since.elapsed() > self.options.limits.drain);
        let before = self.waiting.len();
        self.waiting.retain(|job| !job.events.is_closed());
        self.metrics.cancelled.add(before - self.waiting.len());
        let stall = self.options.limits.stall;
        let is_left = |run: &Run<B>| {
            run.is_left() || run.stalled.is_some_and(|since| since.elapsed() > stall)
        };
        for i in (0..self.runs.len()).rev() {
            if is_over || is_left(&self.runs[i]) {
                let run = self.runs.swap_remove(i);
                self.metrics.cancelled.add(1);
                if is_over {
                    run.send(Event::Failed(stopping()));
                }
                // What it has read is of use to others; if it cannot be kept, it is read again.
                let _ = self.close(run);
            }
        }
        if is_over {
            for job in self.waiting.drain(..) {
                let _ = job.events.try_send(Event::Failed(stopping()));
            }
        }
    }

    /// Gives places to requests in their order. One that begins like a prompt that is being read
    /// waits for that: it will be known then.
    fn admit(&mut self) {
        let mut at = 0;
        while self.runs.len() < self.options.n_slots && at < self.waiting.len() {
            if self.joins_build(at) {
                continue;
            }
            if self.is_being_read(&self.waiting[at]) {
                at += 1;
                continue;
            }
            let Some(job) = self.waiting.remove(at) else { return };
            self.start(job);
        }
    }

    /// Lets a request for a document that is being read already share that.
    fn joins_build(&mut self, at: usize) -> bool {
        let Some(id) = self.waiting[at].document.as_ref().map(|document| document.id) else {
            return false;
        };
        let builds = |run: &&mut Run<B>| run.job.document.as_ref().is_some_and(|d| d.id == id);
        let Some(run) = self.runs.iter_mut().find(builds) else { return false };
        run.also.extend(self.waiting.remove(at).map(|job| job.events));
        true
    }

    fn is_being_read(&self, job: &Job) -> bool {
        if !job.how.uses_known {
            return false;
        }
        let known = self.kept.nearest(&job.ids).1;
        let reads_more = |run: &&Run<B>| {
            let common = common_prefix(&run.job.ids, &job.ids);
            run.is_reading() && common >= known + MIN_SHARED
        };
        self.runs.iter().any(|run| reads_more(&run))
    }

    fn start(&mut self, job: Job) {
        match block_on(self.begin(&job)) {
            Ok(session) => {
                let mut run = Run::new(job, session);
                self.n_started += 1;
                run.task = self.n_started;
                self.metrics.cached_tokens.add(run.n_cached);
                run.send_progress(run.n_cached);
                self.runs.push(run);
            }
            Err(error) => {
                self.metrics.failed.add(1);
                let _ = job.events.try_send(Event::Failed(error));
            }
        }
    }

    /// A session with as much of the prompt as is known.
    async fn begin(&mut self, job: &Job) -> Result<Session<B>, ApiError> {
        self.engine.revive().await?;
        let (options, ctx_size) = (&job.how.policy, self.model.ctx_size);
        let policy = resolve_policy(options, self.model.n_layers, ctx_size);
        let policy = policy.map_err(EngineError::from)?.1;
        // What a policy lets go of depends on all that it has read, so it reads for itself.
        if job.how.uses_known
            && !policy.residency.forgets()
            && let Some(session) = self.known(job).await
        {
            return Ok(session);
        }
        if let Ok(session) = self.engine.session(options) {
            return Ok(session);
        }
        // What is kept may take the memory that it needs.
        self.kept.clear();
        Ok(self.engine.session(options)?)
    }

    async fn known(&mut self, job: &Job) -> Option<Session<B>> {
        let n_known = self.kept.nearest(&job.ids).1;
        let log = Arc::clone(&self.options.log);
        if let Some(disk) = &self.disk
            && let Some((session, id)) =
                disk.open(&mut self.engine, &self.model.policy, &job.ids, n_known, &*log)
        {
            self.metrics.restored.add(1);
            self.kept.keep(session, Some(id));
        }
        self.keep_of_running(&job.ids).await;
        let (found, n_common) = self.kept.nearest(&job.ids);
        // The last token is computed anew: what the model says behind it is wanted.
        let n_known = n_common.min(job.ids.len() - 1);
        let i = found.filter(|_| n_known > 0)?;
        let mut session = match self.kept.fork(&mut self.engine, i, n_known).await {
            Ok(session) => session,
            Err(error) => {
                log(&format!("a kept context cannot be gone on from: {}", error.json()));
                return None;
            }
        };
        if job.how.policy.text() != self.model.policy.text() {
            self.engine.set_policy(&mut session, &job.how.policy).await.ok()?;
        }
        Some(session)
    }

    /// Keeps what a request that is being answered has read, where another begins so: it need not
    /// wait for the answer.
    async fn keep_of_running(&mut self, ids: &[u32]) {
        let n_known = self.kept.nearest(ids).1;
        let own = self.model.policy.text();
        let answering = self.runs.iter_mut().filter(|run| run.job.how.policy.text() == own);
        let sessions = answering.filter_map(|run| match &mut run.phase {
            Phase::Answering(choices) => choices.first_mut().map(|choice| &mut choice.session),
            Phase::Reading(_) => None,
        });
        let common = |session: &&mut Session<B>| common_prefix(session.tokens(), ids);
        let Some(session) = sessions.max_by_key(common) else { return };
        if common(&session) < n_known + MIN_SHARED || session.policy().residency.forgets() {
            return;
        }
        // Where there is no memory for it the prompt is read again.
        if let Ok(fork) = self.engine.fork(session).await {
            self.kept.keep(fork, None);
        }
    }

    /// Reads a chunk of the prompt whose turn it is.
    fn read_chunk(&mut self) -> bool {
        let turn = |i: &usize| self.runs[*i].turn;
        let reading = (0..self.runs.len()).filter(|i| self.runs[*i].is_reading());
        let Some(i) = reading.min_by_key(turn) else { return false };
        self.turn += 1;
        self.runs[i].turn = self.turn;
        let result = block_on(self.read_chunk_of(i));
        if let Err(error) = result {
            self.fail(i, error);
        }
        true
    }

    async fn read_chunk_of(&mut self, i: usize) -> Result<(), ApiError> {
        let began = Instant::now();
        let chunk_size = self.engine.options().chunk_size;
        let run = &mut self.runs[i];
        let Phase::Reading(session) = &mut run.phase else { return Ok(()) };
        let rest = &run.job.ids[session.tokens().len()..];
        let chunk = &rest[..rest.len().min(chunk_size)];
        let mode = SpanMode::Exact { remaining: rest.len() - chunk.len() };
        let n_read = chunk.len();
        let step = SessionStep::new(session, chunk, mode);
        self.engine.step_each(&mut [step]).await?.into_iter().collect::<Result<(), _>>()?;
        let n_done = session.tokens().len();
        let is_all = n_done == run.job.ids.len();
        if is_all {
            self.engine.finish_prefill(session).await?;
        }
        self.metrics.prompt_tokens.add(n_read);
        self.metrics.prompt_ms.add(began.elapsed().as_millis() as usize);
        run.send_progress(n_done);
        if is_all {
            self.begin_answers(i).await?;
        }
        Ok(())
    }

    /// The prompt is read: a session for each answer, and the first token of each.
    async fn begin_answers(&mut self, i: usize) -> Result<(), ApiError> {
        let run = &mut self.runs[i];
        run.read = Some(Instant::now());
        let Phase::Reading(session) =
            std::mem::replace(&mut run.phase, Phase::Answering(Vec::new()))
        else {
            return Ok(());
        };
        let (n, n_vocab) = (run.job.how.n, self.model.vocab_size);
        let mut first = Choice::new(*session, 0, &run.job.how, n_vocab)?;
        let mut others = Vec::new();
        for index in 1..n {
            let fork = self.engine.fork(&mut first.session).await?;
            others.push(Choice::new(fork, index, &run.job.how, n_vocab)?);
        }
        let mut choices = vec![first];
        choices.append(&mut others);
        let mut events = Vec::new();
        for choice in &mut choices {
            choice.session.reset_stats();
            choice.advance(&self.engine, &self.model.tokenizer, &run.job.how, &mut events)?;
        }
        run.phase = Phase::Answering(choices);
        events.into_iter().for_each(|event| run.send(event));
        Ok(())
    }

    /// One step for all answers whose clients keep up.
    fn answer_step(&mut self) -> bool {
        let began = Instant::now();
        let mut parts: Vec<(usize, &mut Choice<B>)> = Vec::new();
        for (i, run) in self.runs.iter_mut().enumerate() {
            let has_room = run.has_room();
            let Phase::Answering(choices) = &mut run.phase else { continue };
            if has_room {
                run.stalled = None;
                parts.extend(choices.iter_mut().filter(|c| !c.is_done).map(|c| (i, c)));
            } else {
                run.stalled.get_or_insert_with(Instant::now);
            }
        }
        if parts.is_empty() {
            return false;
        }
        let n_parts = parts.len();
        let most = self.engine.options().max_sequences.max(1);
        let mut failed: Vec<(usize, ApiError)> = Vec::new();
        let mut computed: Vec<(usize, usize)> = Vec::new();
        for batch in parts.chunks_mut(most) {
            let ids: Vec<[u32; 1]> = batch.iter().map(|(_, choice)| [choice.pending]).collect();
            let places: Vec<_> = batch.iter().map(|(i, choice)| (*i, choice.index)).collect();
            let mut steps: Vec<_> = batch
                .iter_mut()
                .zip(&ids)
                .map(|((_, choice), ids)| {
                    let Choice { session, sampler, needs_logits, .. } = &mut **choice;
                    let step = SessionStep::new(session, ids, SpanMode::Policy);
                    if *needs_logits { step } else { step.for_sampler(sampler) }
                })
                .collect();
            match block_on(self.engine.step_each(&mut steps)) {
                Ok(results) => {
                    for (place, result) in places.into_iter().zip(results) {
                        match result {
                            Ok(()) => computed.push(place),
                            Err(error) => failed.push((place.0, error.into())),
                        }
                    }
                }
                // Nothing was computed for anybody, and nobody's is at fault.
                Err(error) => {
                    let error = ApiError::from(error);
                    failed.extend(places.into_iter().map(|(i, _)| (i, error.clone())));
                }
            }
        }
        self.metrics.decode_steps.add(1);
        self.metrics.decode_rows.add(n_parts);
        self.metrics.predicted_tokens.add(n_parts);
        self.metrics.predicted_ms.add(began.elapsed().as_millis() as usize);
        self.advance(&computed, &mut failed);
        self.fail_all(failed);
        true
    }

    /// The next token of each answer that took part in a step.
    fn advance(&mut self, computed: &[(usize, usize)], failed: &mut Vec<(usize, ApiError)>) {
        for (i, index) in computed {
            let run = &mut self.runs[*i];
            let Phase::Answering(choices) = &mut run.phase else { continue };
            let Some(choice) = choices.get_mut(*index) else { continue };
            let mut events = Vec::new();
            let (engine, how) = (&self.engine, &run.job.how);
            match choice.advance(engine, &self.model.tokenizer, how, &mut events) {
                Ok(()) => events.into_iter().for_each(|event| run.send(event)),
                Err(error) => failed.push((*i, error)),
            }
        }
    }

    /// Ends requests that failed, and no others.
    fn fail_all(&mut self, mut failed: Vec<(usize, ApiError)>) {
        // The last first, so that the places of the others stay; one error for each request.
        failed.sort_by_key(|(i, _)| std::cmp::Reverse(*i));
        failed.dedup_by_key(|(i, _)| *i);
        for (i, error) in failed {
            self.fail(i, error);
        }
    }

    fn fail(&mut self, i: usize, error: ApiError) {
        let run = self.runs.swap_remove(i);
        self.metrics.failed.add(1);
        (self.options.log)(&format!("a request failed: {}", error.json()));
        self.count();
        run.send(Event::Failed(error));
    }

    /// Ends requests whose answers are complete.
    fn finish(&mut self) {
        for i in (0..self.runs.len()).rev() {
            if self.runs[i].is_done() {
                let run = self.runs.swap_remove(i);
                let summary = run.summary();
                let (events, also) = (run.job.events.clone(), run.also.clone());
                let closed = self.close(run);
                let last = match closed {
                    Ok(()) => Event::Done(summary),
                    Err(error) => Event::Failed(error),
                };
                // Who has its last event sees itself gone.
                self.count();
                for events in also.into_iter().chain([events]) {
                    let _ = events.try_send(last.clone());
                }
            }
        }
    }

    /// Keeps what a request has read and said, and gives its place back.
    fn close(&mut self, run: Run<B>) -> Result<(), ApiError> {
        let Run { job, phase, .. } = run;
        let session = match phase {
            Phase::Reading(mut session) => {
                block_on(self.engine.finish_prefill(&mut session))?;
                Some(*session)
            }
            Phase::Answering(choices) => choices.into_iter().next().map(|choice| choice.session),
        };
        let Some(mut session) = session.filter(|session| !session.tokens().is_empty()) else {
            return Ok(());
        };
        if session.policy().residency.forgets() {
            return Ok(());
        }
        block_on(self.engine.settle(&mut session))?;
        let mut saved = Ok(());
        if let (Some(document), Some(disk)) = (&job.document, &self.disk) {
            self.metrics.builds.add(1);
            saved = disk.save(&mut self.engine, &mut session, document, job.ids.len());
        }
        // What a full disk refuses is in memory all the same.
        if job.how.policy.text() == self.model.policy.text() {
            let name = job.document.filter(|_| saved.is_ok()).map(|document| document.id);
            self.kept.keep(session, name);
        }
        saved
    }

    fn count(&self) {
        let slots = self.runs.iter().map(Run::slot).collect();
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
        self.metrics.waiting.set(self.waiting.len());
        self.metrics.running.set(self.runs.len());
        self.metrics.kept.set(self.kept.len());
        self.metrics.kept_tokens.set(self.kept.n_tokens());
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("stopping", "the server is ending; ask again when it is back")
}
