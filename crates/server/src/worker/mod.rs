//! The thread that owns the engine and all sessions.
//!
//! Everything that runs gets its turn in each round: one chunk of one prompt, or some pieces of the
//! end of one (`reading`), then one step in which all answers take part. A chunk is as long as
//! answers may wait (`pace`), and files are opened and written elsewhere (`disk`), so nobody waits
//! long, and who leaves is noticed soon.
//! Prompts and answers never share a step: an answer is computed by the same kernels whoever else
//! runs, so its bits do not depend on the others.

mod admit;
mod begun;
mod choice;
mod coming;
mod disk;
mod kept;
mod lookup;
mod pace;
mod prompts;
mod reading;
mod removal;
mod room;
mod round;
mod run;
mod steps;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use longview_engine::{Draft, Engine, EngineError, Session, resolve_policy};
use longview_library::documents::Id;
use longview_ops::Backend;
use longview_scheduler::SchedulerError;
use pollster::block_on;
use tokio::sync::oneshot;
use tracing::field::display;
use tracing::{error, warn};

use self::begun::Begun;
use self::choice::Choice;
use self::disk::{Disk, Done, Waiter};
use self::kept::{Kept, MIN_SHARED};
use self::pace::Pace;
use self::round::{Part, Round};
use self::run::{Phase, Run};
use self::steps::{guarded, step};
use crate::error::ApiError;
use crate::job::{Event, Job, Message, Slots, Summary};
use crate::keys::Scope;
use crate::kv_events::KvEvents;
use crate::metrics::Metrics;
use crate::offers::Offers;
use crate::options::ServerOptions;
use crate::texts::{Facts, common_prefix};

/// How long it waits before a device that could not be opened is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How long the thread sleeps where all clients have yet to take what was sent.
const NAP: Duration = Duration::from_millis(2);

/// A context that is to be removed.
struct Removal {
    scope: Scope,
    id: Id,
    ids: Vec<u32>,
    since: Instant,
    unused: oneshot::Sender<()>,
}

/// The engine with what runs and what is kept.
pub(crate) struct Worker<B: Backend> {
    engine: Engine<B>,
    model: Facts,
    options: ServerOptions,
    metrics: Arc<Metrics>,
    inbox: Receiver<Message>,
    waiting: VecDeque<Job>,
    runs: Vec<Run<B>>,
    /// Requests whose client left in the middle of the prompt: what was read of it is kept as soon
    /// as its end is made.
    left: Vec<Run<B>>,
    kept: Kept<B>,
    disk: Option<Disk<B>>,
    /// Prompts that were begun while what they begin with came.
    begun: Vec<Begun<B>>,
    pace: Pace,
    /// The one that goes on.
    round: Round,
    /// Whether no prompt had its turn in it, or in the last one, for want of time.
    has_skipped: bool,
    /// Requests for which the device had memory when it had none for one more.
    n_fit: usize,
    /// Contexts that go when nobody uses them any more.
    removing: Vec<Removal>,
    draining: Option<Instant>,
    turn: u64,
    slots: Slots,
    offers: Offers<B>,
    /// Who tells routers what is kept.
    events: Option<KvEvents>,
    /// Requests that began, of each scope: their numbers say nothing of others.
    n_started: BTreeMap<Scope, u64>,
}

impl<B: Backend + 'static> Worker<B> {
    /// A worker over an engine that was just loaded, with the library of each scope and shared
    /// storage as it sees it, if there are any.
    pub(crate) fn new(
        engine: Engine<B>,
        model: Facts,
        options: ServerOptions,
        metrics: Arc<Metrics>,
        inbox: Receiver<Message>,
        kept: disk::Kept,
    ) -> Result<Self, ApiError> {
        let kept = (!kept.0.is_empty()).then_some(kept);
        let ctx_size = model.ctx_size;
        let disk = kept.map(|kept| Disk::new(kept, &engine, &model, &metrics)).transpose()?;
        let kept = Kept::new(options.max_kept, (model.n_layers, ctx_size));
        Ok(Self {
            engine,
            model,
            metrics,
            inbox,
            waiting: VecDeque::new(),
            runs: Vec::new(),
            left: Vec::new(),
            kept,
            pace: Pace::new(options.limits.max_stall),
            round: Round::begin(false),
            has_skipped: false,
            options,
            disk,
            begun: Vec::new(),
            n_fit: usize::MAX,
            removing: Vec::new(),
            draining: None,
            turn: 0,
            slots: Slots::default(),
            offers: Offers::default(),
            events: None,
            n_started: BTreeMap::new(),
        })
    }

    /// Says in `slots` what runs.
    pub(crate) fn with_slots(self, slots: Slots) -> Self {
        Self { slots, ..self }
    }

    /// Takes what another part of the program offers.
    pub(crate) fn with_offers(self, offers: Offers<B>) -> Self {
        Self { offers, ..self }
    }

    /// Tells what is kept.
    pub(crate) fn with_events(self, events: Option<KvEvents>) -> Self {
        if let (Some(events), Some(disk)) = (&events, &self.disk) {
            disk.sessions(Scope::default(), self.model.prefill)
                .into_iter()
                .for_each(|sessions| events.watch_disk(sessions));
        }
        Self { events, ..self }
    }

    /// Tells routers what is kept for requests that say nothing else of how they are read.
    fn tell_events(&mut self) {
        if let Some(events) = &mut self.events {
            events.tell(self.kept.tokens_of(Scope::default(), self.model.prefill));
        }
    }

    /// Tells them that a session on disk came or went.
    fn disk_changed(&self) {
        self.events.iter().for_each(KvEvents::disk_changed);
    }

    /// Serves until it is told to drain and nothing runs any more.
    pub(crate) fn serve(mut self) {
        let turns = self.options.turns.clone();
        while self.receive() {
            let mut turn = turns.take();
            self.round = Round::begin(self.answers_wait());
            self.drop_left();
            self.take_offers();
            self.take_from_disk();
            self.round.did(Part::Files);
            self.admit();
            self.round.did(Part::Begin);
            let has_read = self.read();
            self.round.did(Part::Prompt);
            turn.pass();
            let has_answered = self.answer_step();
            self.round.did(Part::Step);
            self.finish();
            self.let_go();
            self.answer_removals();
            self.count();
            self.tell_events();
            self.revive();
            self.round.did(Part::End);
            self.round.end(self.options.limits.max_stall);
            drop(turn);
            if !(has_read || has_answered || self.is_idle()) {
                std::thread::sleep(NAP);
            }
        }
    }

    fn is_idle(&self) -> bool {
        let is_disk_idle = self.disk.as_ref().is_none_or(Disk::is_idle) && !self.is_sending();
        let is_lost = self.metrics.is_device_lost();
        let runs_nothing = self.runs.is_empty() && self.left.is_empty();
        runs_nothing && self.waiting.is_empty() && is_disk_idle && !is_lost
    }

    /// Whether a server that ends waits for what it sends to shared storage.
    fn is_sending(&self) -> bool {
        let may_wait =
            self.draining.is_some_and(|since| since.elapsed() <= self.options.limits.drain);
        may_wait && self.disk.as_ref().is_some_and(Disk::is_sending)
    }

    /// Opens a lost device again. What waits is served then.
    fn revive(&mut self) {
        if !self.engine.backend().is_lost() {
            // A call of the engine may have opened it.
            return self.metrics.set_device_lost(false);
        }
        self.metrics.set_device_lost(true);
        warn!("the device was lost, and is opened again");
        match guarded(|| Ok(block_on(self.engine.revive())?)) {
            Ok(()) => self.metrics.set_device_lost(false),
            Err(error) => {
                error!("it cannot be opened: {}", error.json());
                std::thread::sleep(RETRY);
            }
        }
    }

    /// What a client is told of a failure: where the device is lost, that is why.
    fn reason(&self, error: ApiError) -> ApiError {
        if !self.engine.backend().is_lost() {
            return error;
        }
        // Before the client is told: who asks again at once hears the same.
        self.metrics.set_device_lost(true);
        ApiError::device_lost()
    }

    /// Takes what came; `false` when there will be nothing more to do.
    fn receive(&mut self) -> bool {
        loop {
            if self.is_idle() {
                self.count();
                self.tell_events();
                if self.draining.is_some() {
                    // What others begin with outlives the server.
                    return self.keep_prompts();
                }
                match self.inbox.recv() {
                    Ok(message) => self.take(message),
                    Err(_) => self.draining = Some(Instant::now()),
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
                self.metrics.requests.increment(1);
                self.waiting.push_back(*job);
            }
            Message::Remove { scope, id, ids, unused } => {
                self.cancel_builds(scope, id);
                let since = Instant::now();
                self.removing.push(Removal { scope, id, ids, since, unused });
                self.answer_removals();
            }
            Message::Forget { scope, id, ids } => {
                self.kept.forget(scope, id, &ids);
                self.disk_changed();
            }
            Message::Erase { scope, tokens, erased } => {
                self.kept.erase(scope, &tokens);
                self.count();
                let _ = erased.send(());
            }
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
        self.metrics.cancelled.increment((before - self.waiting.len()) as u64);
        self.drop_begun();
        let stall = self.options.limits.stall;
        let is_left = |run: &Run<B>| {
            run.is_left() || run.stalled.is_some_and(|since| since.elapsed() > stall)
        };
        for i in (0..self.runs.len()).rev() {
            if is_over || is_left(&self.runs[i]) {
                let run = self.runs.swap_remove(i);
                self.metrics.cancelled.increment(1);
                if is_over {
                    run.send(Event::Failed(stopping()));
                }
                // What it has read is of use to others; if it cannot be kept, it is read again.
                if run.is_reading() && !is_over {
                    self.left.push(run);
                } else {
                    self.close(run, None);
                }
            }
        }
        if is_over {
            for run in std::mem::take(&mut self.left) {
                self.close(run, None);
            }
            for job in self.waiting.drain(..) {
                let _ = job.events.try_send(Event::Failed(stopping()));
            }
        }
    }

    /// A session with as much of the prompt as is known or was begun, and how much was known.
    async fn begin(&mut self, job: &Job) -> Result<(Session<B>, usize), ApiError> {
        self.engine.revive().await?;
        self.check_draft(job)?;
        if let Some(begun) = self.take_begun(job) {
            return Ok(begun);
        }
        let session = self.begin_known(job).await?;
        let n_known = session.tokens().len();
        Ok((session, n_known))
    }

    /// A session with as much of the prompt as is known.
    async fn begin_known(&mut self, job: &Job) -> Result<Session<B>, ApiError> {
        let options = &job.how.policy;
        if self.may_use_known(job)?
            && let Some(session) = self.known(job).await
        {
            return Ok(session);
        }
        let prefill = job.how.prefill;
        match self.engine.session_with_prefill(options, prefill) {
            Ok(session) => return Ok(session),
            Err(error) if refuses_prefill(&error) => return Err(error.into()),
            // What is kept may take the memory that it needs.
            Err(_) => self.kept.clear(),
        }
        Ok(self.engine.session_with_prefill(options, prefill)?)
    }

    /// Refuses a request that asks for drafts where there can be none. One that does not say goes
    /// without.
    fn check_draft(&self, job: &Job) -> Result<(), ApiError> {
        if job.how.draft != Some(Draft::Lookup) {
            return Ok(());
        }
        let refused = |why: String| ApiError::bad("invalid_value", why).about("draft");
        if self.engine.options().max_drafted == 0 {
            return Err(refused("draft: this server has no room for drafts".to_owned()));
        }
        let checked = self.engine.check_draft(&job.how.policy);
        checked.map_err(|error| refused(format!("draft: {error}")))
    }

    /// Whether a request goes on from what others have read. What a policy lets go of depends on
    /// all that it has read, so such a one reads for itself.
    fn may_use_known(&self, job: &Job) -> Result<bool, ApiError> {
        let (options, ctx_size) = (&job.how.policy, self.model.ctx_size);
        let policy = resolve_policy(options, self.model.n_layers, ctx_size);
        let policy = policy.map_err(EngineError::from)?.1;
        Ok(job.how.uses_known && !policy.residency.forgets())
    }

    /// Takes what another part of the program has read.
    fn take_offers(&mut self) {
        if let Some((id, session)) = self.offers.take() {
            self.kept.keep(Scope::default(), session, Some(id));
        }
    }

    /// Takes what was opened and written since.
    fn take_from_disk(&mut self) {
        while let Some(done) = self.disk.as_mut().and_then(Disk::next_done) {
            match done {
                Done::Opened { scope, name, session: Ok(session), .. } => {
                    self.metrics.restored.increment(1);
                    self.kept.hold(scope, *session, name);
                }
                Done::Opened { name: Some(name), session: Err(error), .. } => {
                    warn!("context {}: is not opened: {error}", name.short());
                }
                Done::Opened { name: None, session: Err(error), .. } => {
                    warn!("a prompt is read, not opened: {error}");
                }
                Done::Prompts { n_written } => self.prompts_written(n_written),
                Done::Fetched { scope, session: Ok(Some(fetched)), .. } => {
                    self.metrics.shared.fetched.increment(1);
                    self.disk_changed();
                    self.take_fetched(scope, fetched);
                }
                Done::Coming { coming, back } => self.compute_coming(coming, &back),
                Done::Fetched { session: Ok(None), .. } => self.metrics.shared.missed.increment(1),
                Done::Fetched { session: Err(error), .. } => {
                    self.metrics.shared.missed.increment(1);
                    warn!("a context is read, not fetched: {error}");
                }
                Done::Saved { session, waiter, result } => {
                    let scope = waiter.job.scope;
                    let id = waiter.job.document.as_ref().map(|document| document.id);
                    if let Some(session) = session {
                        self.kept.keep(scope, *session, id);
                    }
                    if let (Some(id), Err(error)) = (id, &result)
                        && error.is_not_found()
                    {
                        self.kept.forget(scope, id, &[]);
                    }
                    self.disk_changed();
                    self.tell(*waiter, result);
                }
            }
        }
    }

    async fn known(&mut self, job: &Job) -> Option<Session<B>> {
        self.keep_of_running(job).await;
        let (found, n_known) = self.kept.nearest(job);
        let i = found.filter(|_| n_known > 0)?;
        let n_common = self.kept.most_common(job);
        let lengths = (n_known, n_common);
        let answers_wait = self.answers_wait();
        let forked = self.kept.fork(&mut self.engine, i, lengths, answers_wait).await;
        let mut session = match forked {
            Ok(session) => session,
            Err(error) => {
                warn!("a kept context cannot be gone on from: {}", error.json());
                return None;
            }
        };
        if job.how.policy.text() != self.model.policy.text() {
            self.engine.begin_policy(&mut session, &job.how.policy).await.ok()?;
        }
        session.part_at(n_common);
        Some(session)
    }

    /// Keeps what a request that is being answered has read, where another begins so: it need not
    /// wait for the answer.
    async fn keep_of_running(&mut self, job: &Job) {
        let n_kept = self.kept.nearest(job).1;
        let Some(i) = self.running_like(job, n_kept) else { return };
        let Some(session) = self.runs[i].answering_mut() else { return };
        // Where there is no memory for it the prompt is read again.
        if let Ok(fork) = self.engine.fork(session).await {
            self.kept.keep(job.scope, fork, None);
        }
    }

    /// The request that is being answered and has read most of what a job begins with, where that
    /// is much more than the `n_kept` tokens that are kept.
    fn running_like(&self, job: &Job, n_kept: usize) -> Option<usize> {
        let own = self.model.policy.text();
        let mut best = None;
        for (i, run) in self.runs.iter().enumerate() {
            let how = &run.job.how;
            let is_own = run.job.scope == job.scope && how.prefill == job.how.prefill;
            if !is_own || how.policy.text() != own {
                continue;
            }
            let Some(session) = run.answering() else { continue };
            let common = common_prefix(session.tokens(), &job.ids).min(session.known_tokens());
            if !session.policy().residency.forgets() {
                best = best.max(Some((common, i)));
            }
        }
        best.filter(|(common, _)| *common >= n_kept + MIN_SHARED).map(|(_, i)| i)
    }

    /// While answers wait: puts rows of the session that a request goes on from to where both have
    /// them, in pieces, as a fork would do it in one go. `false` when the request can begin.
    fn waits_for_rows(&mut self, at: usize) -> bool {
        let job = &self.waiting[at];
        if !self.answers_wait() || !self.may_use_known(job).unwrap_or(false) {
            return false;
        }
        let began = self.round.began;
        // What is left of the time that answers may wait is planned for prompts and steps.
        let most = self.options.limits.max_stall / 5;
        let (kept, n_kept) = self.kept.nearest(job);
        let session = match (self.running_like(job, n_kept), kept) {
            (Some(i), _) => self.runs[i].answering_mut(),
            (None, Some(i)) => Some(self.kept.session(i)),
            (None, None) => None,
        };
        let Some(session) = session else { return false };
        let (engine, mut has_shared) = (&mut self.engine, false);
        loop {
            // What fails here fails in the fork, which has somebody to tell.
            let has_worked = guarded(|| Ok(block_on(engine.share_piece(session))?));
            if !has_worked.unwrap_or(false) {
                // It begins in the next round, which has time for that.
                return has_shared;
            }
            has_shared = true;
            if began.elapsed() >= most {
                return true;
            }
        }
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
        let most_rows = self.options.limits.looked_at_rows;
        let mut failed: Vec<(usize, ApiError)> = Vec::new();
        let mut computed: Vec<(usize, usize)> = Vec::new();
        for batch in parts.chunks_mut(most) {
            let places: Vec<_> = batch.iter().map(|(i, choice)| (*i, choice.index)).collect();
            for (place, result) in places.into_iter().zip(step(&mut self.engine, batch, most_rows))
            {
                match result {
                    Ok(()) => computed.push(place),
                    Err(error) => failed.push((place.0, error)),
                }
            }
        }
        self.pace.stepped(began.elapsed());
        self.metrics.stepped(n_parts, began.elapsed());
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
            let tokenizer = &self.model.tokenizer;
            let n_before = choice.n_generated;
            let result = guarded(|| {
                let step = choice.look(how);
                choice.advance(engine, tokenizer, how, &mut events).map(|()| step)
            });
            self.metrics.predicted(choice.n_generated - n_before);
            if let Ok(Some(step)) = &result {
                run.send_step(step);
            }
            match result {
                Ok(_) => events.into_iter().for_each(|event| run.send(event)),
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
        self.metrics.failed.increment(1);
        let error = self.reason(error);
        if error.is_numeric() {
            // What it went on from is no better.
            self.kept.erase(run.job.scope, &run.job.ids);
        }
        let request_id = run.job.request_id.as_ref().map(display);
        error!(request_id, "a request failed: {}", error.json());
        self.count();
        run.send(Event::Failed(error));
    }

    /// Ends requests whose answers are complete.
    fn finish(&mut self) {
        for i in (0..self.runs.len()).rev() {
            if self.runs[i].is_done() {
                let run = self.runs.swap_remove(i);
                let summary = run.summary();
                self.metrics.ended(&summary);
                self.close(run, Some(summary));
            }
        }
    }

    /// Keeps what a request has read and said, gives its place back, and tells who waits.
    fn close(&mut self, run: Run<B>, summary: Option<Summary>) {
        let Run { job, also, phase, .. } = run;
        let waiter = Waiter { job, also, summary };
        let result = match guarded(|| block_on(self.settled(phase))) {
            Ok(Some(session)) => return self.keep(session, waiter),
            Ok(None) => Ok(()),
            Err(error) => Err(self.reason(error)),
        };
        self.tell(waiter, result);
    }

    /// What is worth keeping of a request.
    async fn settled(&mut self, phase: Phase<B>) -> Result<Option<Session<B>>, ApiError> {
        let session = match phase {
            Phase::Reading(mut session) => {
                self.engine.finish_prefill(&mut session).await?;
                Some(*session)
            }
            Phase::Answering(choices) => choices.into_iter().next().map(Choice::into_session),
        };
        let is_kept = |session: &Session<B>| {
            !session.tokens().is_empty() && !session.policy().residency.forgets()
        };
        let Some(mut session) = session.filter(is_kept) else { return Ok(None) };
        self.engine.settle(&mut session).await?;
        Ok(Some(session))
    }

    /// In memory, and on the disk if it is a document.
    fn keep(&mut self, mut session: Session<B>, waiter: Waiter) {
        let scope = waiter.job.scope;
        let is_own = waiter.job.how.policy.text() == self.model.policy.text();
        let id = waiter.job.document.as_ref().map(|document| document.id);
        let Some(disk) = self.disk.as_mut().filter(|_| id.is_some()) else {
            if is_own {
                self.kept.keep(scope, session, None);
            } else {
                self.kept.let_go(scope, session);
            }
            return self.tell(waiter, Ok(()));
        };
        self.metrics.builds.increment(1);
        let files = match self.engine.session_files() {
            Ok(files) => files,
            Err(error) => return self.tell(waiter, Err(error.into())),
        };
        // Others go on from it meanwhile, where there is memory for a second one.
        let fork = guarded(|| Ok(block_on(self.engine.fork(&mut session))?));
        let (written, goes_on) = match fork {
            Ok(fork) => {
                self.kept.keep(scope, session, id);
                (fork, true)
            }
            Err(_) => (session, false),
        };
        if let Err(error) = disk.save(files, written, goes_on, waiter) {
            warn!("a context is not written: {}", error.json());
        }
    }

    /// Tells who waits how it ended; what they held is given back. Who has its answer finds its
    /// place free, and its context counted.
    fn tell(&self, waiter: Waiter, result: Result<(), ApiError>) {
        let Waiter { job, also, summary } = waiter;
        let Some(summary) = summary else { return };
        self.count();
        let last = match result {
            Ok(()) => Event::Done(summary),
            Err(error) => Event::Failed(error),
        };
        for events in also.into_iter().chain([job.events]) {
            let _ = events.try_send(last.clone());
        }
    }

    fn count(&self) {
        let slots: Vec<_> = self.runs.iter().chain(&self.left).map(Run::slot).collect();
        let n_tokens = slots.iter().map(|slot| slot.n_cached + slot.n_read + slot.n_decoded).sum();
        let n_running = slots.len();
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
        self.metrics.set_kv_tokens(n_tokens);
        // Last: who sees that nothing runs any more sees what is kept of it.
        self.metrics.set_kept(self.kept.len(), self.kept.n_tokens());
        self.metrics.set_requests(n_running, self.waiting.len());
    }
}

/// Whether it is not for lack of memory that there is no session.
fn refuses_prefill(error: &EngineError) -> bool {
    matches!(error, EngineError::Scheduler(SchedulerError::NoSparsePrefill { .. }))
}

fn stopping() -> ApiError {
    ApiError::unavailable("stopping", "the server is ending; ask again when it is back")
}
