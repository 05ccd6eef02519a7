//! A request that runs: its prompt is read in chunks, then its answers are generated.

use std::time::{Duration, Instant};

use longview_engine::Session;
use longview_ops::Backend;
use longview_reader::LeftOut;
use tokio::sync::mpsc;

use super::choice::Choice;
use crate::job::{Event, Job, Progress, Slot, SlotState, Summary};
use crate::look::StepLook;

/// A request in one of the places of the engine.
pub(super) struct Run<B: Backend> {
    pub(super) job: Job,
    /// Others that wait for the same document.
    pub(super) also: Vec<mpsc::Sender<Event>>,
    pub(super) phase: Phase<B>,
    /// Tokens of the prompt that were known.
    pub(super) n_cached: usize,
    pub(super) began: Instant,
    pub(super) read: Option<Instant>,
    /// Since when its client has taken nothing.
    pub(super) stalled: Option<Instant>,
    /// When it was last served, in turns.
    pub(super) turn: u64,
    /// Its number.
    pub(super) task: u64,
}

pub(super) enum Phase<B: Backend> {
    /// The prompt is being read.
    Reading(Box<Session<B>>),
    /// Answers are being generated.
    Answering(Vec<Choice<B>>),
}

impl<B: Backend> Run<B> {
    pub(super) fn new(job: Job, session: Session<B>) -> Self {
        Self {
            job,
            also: Vec::new(),
            n_cached: session.tokens().len(),
            phase: Phase::Reading(Box::new(session)),
            began: Instant::now(),
            read: None,
            stalled: None,
            turn: 0,
            task: 0,
        }
    }

    pub(super) fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Reading(_))
    }

    /// The session of its prompt, or of its first answer.
    pub(super) fn session(&self) -> Option<&Session<B>> {
        match &self.phase {
            Phase::Reading(session) => Some(session),
            Phase::Answering(choices) => choices.first().map(|choice| &choice.session),
        }
    }

    /// Tokens that it has now, those of all its answers.
    pub(super) fn n_tokens(&self) -> usize {
        match &self.phase {
            Phase::Reading(session) => session.tokens().len(),
            Phase::Answering(choices) => {
                let n_decoded: usize = choices.iter().map(|choice| choice.n_generated).sum();
                self.job.ids.len() + n_decoded
            }
        }
    }

    /// The session of its first answer, where its prompt is read.
    pub(super) fn answering(&self) -> Option<&Session<B>> {
        match &self.phase {
            Phase::Answering(choices) => choices.first().map(|choice| &choice.session),
            Phase::Reading(_) => None,
        }
    }

    /// As [`Run::answering`].
    pub(super) fn answering_mut(&mut self) -> Option<&mut Session<B>> {
        match &mut self.phase {
            Phase::Answering(choices) => choices.first_mut().map(|choice| &mut choice.session),
            Phase::Reading(_) => None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match &self.phase {
            Phase::Reading(_) => false,
            Phase::Answering(choices) => choices.iter().all(|choice| choice.is_done),
        }
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_left(&self) -> bool {
        self.job.events.is_closed() && self.also.iter().all(mpsc::Sender::is_closed)
    }

    /// Whether its client has taken what was sent, but for a little.
    pub(super) fn has_room(&self) -> bool {
        self.job.events.capacity() >= self.n_reserved()
    }

    /// Events of one step, and the last one: a text, a rest of it and an end for each answer.
    fn n_reserved(&self) -> usize {
        3 * self.job.how.n + 1
    }

    /// Sends to all who wait for it. Who does not listen any more is found by [`Run::is_left`].
    pub(super) fn send(&self, mut event: Event) {
        if let Event::Piece { timings, .. } = &mut event
            && self.job.how.timings_per_token
        {
            *timings = Some(Box::new(self.figures()));
        }
        for events in self.also.iter().chain([&self.job.events]) {
            let _ = events.try_send(event.clone());
        }
    }

    /// Says how far the prompt was read, where that was asked for.
    pub(super) fn send_progress(&self, processed: usize) {
        if !self.job.how.return_progress {
            return;
        }
        let progress = Progress {
            total: self.job.ids.len(),
            cached: self.n_cached,
            processed,
            time_ms: self.began.elapsed().as_millis() as u64,
            is_timed: self.job.how.timings_per_token,
        };
        // Who does not keep up misses some of it, but not the end.
        let all = self.also.iter().chain([&self.job.events]);
        for events in all.filter(|events| events.capacity() > self.n_reserved()) {
            let _ = events.try_send(Event::Progress(progress));
        }
    }

    /// Says what a step did. Who does not keep up misses some of it, but nothing of the answer.
    pub(super) fn send_step(&self, step: &StepLook) {
        if self.job.events.capacity() > self.n_reserved() {
            let _ = self.job.events.try_send(Event::Step(step.clone()));
        }
    }

    pub(super) fn prompt_time(&self) -> Duration {
        self.read.unwrap_or_else(Instant::now) - self.began
    }

    /// How far it is.
    pub(super) fn slot(&self) -> Slot {
        let n_prompt = self.job.ids.len();
        let (n_known, n_decoded, session) = match &self.phase {
            Phase::Reading(session) => (session.tokens().len(), 0, Some(&**session)),
            Phase::Answering(choices) => {
                let n_decoded = choices.iter().map(|choice| choice.n_generated).sum();
                (n_prompt, n_decoded, choices.first().map(|choice| &choice.session))
            }
        };
        let state = match &self.phase {
            Phase::Answering(_) => SlotState::Answering,
            Phase::Reading(_) if n_known == n_prompt || self.is_left() => SlotState::Indexing,
            Phase::Reading(_) => SlotState::Reading,
        };
        Slot {
            scope: self.job.scope,
            task: self.task,
            n_prompt,
            n_cached: self.n_cached,
            n_read: n_known.saturating_sub(self.n_cached),
            n_decoded,
            policy: self.job.how.policy.preset.name().to_owned(),
            state,
            prefill: self.job.how.prefill,
            blocks: session.map(|session| session.sequence().block_counts()).unwrap_or_default(),
            builds: self.job.document.as_ref().map(|document| document.id),
        }
    }

    /// Tokens and times so far.
    fn figures(&self) -> Summary {
        let answer_time = self.read.map_or(Duration::ZERO, |read| read.elapsed());
        let how = &self.job.how;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut summary = Summary {
            n_prompt: self.job.ids.len(),
            n_cached: self.n_cached,
            prompt_ms: ms(self.prompt_time()),
            predicted_ms: ms(answer_time),
            waited_ms: ms(self.began - self.job.since),
            policy: how.policy.preset.name().to_owned(),
            n_tokens: self.job.ids.len(),
            ..Summary::default()
        };
        if let Phase::Answering(choices) = &self.phase {
            summary.n_predicted = choices.iter().map(|choice| choice.n_generated).sum();
            summary.n_drafts = choices.iter().map(|choice| choice.n_drafts).sum();
            for timings in choices.iter().map(|choice| choice.session.timings()) {
                summary.n_drafted += timings.drafted_tokens as usize;
                summary.n_accepted += timings.accepted_tokens as usize;
            }
        }
        summary
    }

    /// What it took.
    pub(super) fn summary(&self) -> Summary {
        let how = &self.job.how;
        let is_drawn = how.max_tokens != Some(0) && how.sampling.temperature > 0.0;
        let seed = is_drawn.then_some(how.sampling.seed);
        let mut summary = Summary { seed, ..self.figures() };
        if let Phase::Answering(choices) = &self.phase {
            let bounds = choices.iter().filter_map(|choice| LeftOut::of(&choice.session));
            summary.left_out = bounds.reduce(LeftOut::with);
            if let Some(first) = choices.first() {
                let sequence = first.session.sequence();
                (summary.prefill, summary.blocks) = (sequence.was_read(), sequence.block_counts());
                summary.attended = first.session.stats().mean_attended();
                summary.n_tokens = first.session.tokens().len();
                summary.left = Some(first.session.tokens().into());
                summary.seen = first.seen(&self.job.how);
            }
        }
        summary
    }
}
