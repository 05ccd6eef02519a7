//! How prompts are read beside answers: a chunk, or pieces of what comes before the next chunk or
//! of a prompt's end, in each round.
//!
//! While somebody waits for tokens nothing here waits for the clusterings that run on a thread of
//! their own: the prompt whose turn it is waits instead, and its answer begins a little later.

use std::time::{Duration, Instant};

use longview_engine::{Engine, EngineError, PromptEnd, Session, SessionStep};
use longview_ops::Backend;
use longview_scheduler::SpanMode;
use pollster::block_on;
use tracing::warn;

use super::Worker;
use super::choice::Choice;
use super::disk::Waiter;
use super::pace::{Pace, whole};
use super::run::{Phase, Run};
use super::steps::guarded;
use crate::error::ApiError;

impl<B: Backend + 'static> Worker<B> {
    /// Works on one of the prompts, those of requests whose client left included. Returns whether
    /// anything could be done.
    pub(super) fn read(&mut self) -> bool {
        // What begins took the time of this round: a prompt has its turn in the next one.
        let must_wait = self.spent().is_some_and(|spent| !self.pace.may_begin(spent));
        self.has_skipped = must_wait && !self.has_skipped;
        if self.has_skipped {
            return false;
        }
        self.turn += 1;
        let is_first = self.turn.is_multiple_of(2);
        (is_first && self.end_left()) || self.read_chunk() || (!is_first && self.end_left())
    }

    /// Time of this round that is gone; `None` where nobody waits for its end.
    pub(super) fn spent(&self) -> Option<Duration> {
        self.answers_wait().then(|| self.round.began.elapsed())
    }

    /// Whether somebody waits for the next token of an answer, here or beside the server.
    pub(super) fn answers_wait(&self) -> bool {
        self.options.turns.is_wanted()
            || self.runs.iter().any(|run| !run.is_reading() && run.has_room())
    }

    /// Reads a chunk of the prompt whose turn it is, or makes a part of its end.
    fn read_chunk(&mut self) -> bool {
        let turn = |i: &usize| self.runs[*i].turn;
        let reading = (0..self.runs.len()).filter(|i| self.runs[*i].is_reading());
        let Some(i) = reading.min_by_key(turn) else { return false };
        self.runs[i].turn = self.turn;
        match guarded(|| block_on(self.read_chunk_of(i))) {
            Ok(has_worked) => has_worked,
            Err(error) => {
                self.fail(i, error);
                true
            }
        }
    }

    async fn read_chunk_of(&mut self, i: usize) -> Result<bool, ApiError> {
        let began = Instant::now();
        let waits_since = self.answers_wait().then_some(self.round.began);
        let most = self.engine.options().chunk_size;
        let chunk_size = self.pace.chunk(most, self.spent());
        let run = &mut self.runs[i];
        let Phase::Reading(session) = &mut run.phase else { return Ok(true) };
        let rest = &run.job.ids[session.tokens().len()..];
        let is_read = rest.is_empty();
        if is_read || session.sequence().is_behind() {
            let (engine, pace) = (&mut self.engine, &mut self.pace);
            let (left, n_pieces) =
                pieces_for_now(engine, pace, (session, Piece::End), waits_since).await?;
            self.metrics.prompt.add(0, began.elapsed());
            self.metrics.prompt_pieces.increment(n_pieces as u64);
            if left == PromptEnd::Done && is_read {
                self.begin_answers(i).await?;
            }
            return Ok(left != PromptEnd::Waits);
        }
        if waits_since.is_some() {
            let (engine, pace) = (&mut self.engine, &mut self.pace);
            let (left, n_pieces) =
                pieces_for_now(engine, pace, (session, Piece::Segments), waits_since).await?;
            if n_pieces > 0 {
                self.pace.share_cores();
            }
            // A chunk takes all the time that there is.
            if n_pieces > 0 || left != PromptEnd::Done {
                self.metrics.prompt.add(0, began.elapsed());
                return Ok(n_pieces > 0);
            }
        }
        // Where a segment of the index ends, a chunk does: which rows are in order when the next
        // ones attend to them then does not depend on how long chunks are.
        let to_segment = session.tokens_to_segment().unwrap_or(usize::MAX);
        let n_before = session.tokens().len();
        let n = whole(n_before..n_before + chunk_size, session.chunk_unit(), most);
        let chunk = &rest[..rest.len().min(n).min(to_segment)];
        let n_read = chunk.len();
        let mode = SpanMode::Exact { remaining: rest.len() - n_read };
        let step = SessionStep::new(session, chunk, mode);
        self.engine.step_each(&mut [step]).await?.into_iter().collect::<Result<(), _>>()?;
        let n_done = session.tokens().len();
        self.pace.read(n_read, began.elapsed());
        self.metrics.prompt.add(n_read, began.elapsed());
        run.send_progress(n_done);
        Ok(true)
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
        // Also where no token is wanted of it: others go on from what is kept.
        check_numbers(session.logits())?;
        let n = run.job.how.n;
        let mut first = Choice::new(*session, 0, &run.job.how, &self.model)?;
        let mut others = Vec::new();
        for index in 1..n {
            let fork = self.engine.fork(&mut first.session).await?;
            others.push(Choice::new(fork, index, &run.job.how, &self.model)?);
        }
        let mut choices = vec![first];
        choices.append(&mut others);
        let mut events = Vec::new();
        for choice in &mut choices {
            choice.session.reset_stats();
            choice.advance(&self.engine, &self.model.tokenizer, &run.job.how, &mut events)?;
        }
        self.metrics.predicted(choices.iter().map(|choice| choice.n_generated).sum());
        run.phase = Phase::Answering(choices);
        events.into_iter().for_each(|event| run.send(event));
        Ok(())
    }

    /// Makes a part of the end of a prompt whose client left, and keeps it when that is done.
    fn end_left(&mut self) -> bool {
        if self.left.is_empty() {
            return false;
        }
        let mut run = self.left.remove(0);
        let is_kept = |session: &Session<B>| {
            !session.tokens().is_empty() && !session.policy().residency.forgets()
        };
        let waits_since = self.answers_wait().then_some(self.round.began);
        let left = match &mut run.phase {
            Phase::Reading(session) if is_kept(session) => guarded(|| {
                let (engine, pace) = (&mut self.engine, &mut self.pace);
                let piece = (&mut **session, Piece::End);
                Ok(block_on(pieces_for_now(engine, pace, piece, waits_since))?)
            }),
            _ => return true,
        };
        let (left, n_pieces) = match left {
            Ok(left) => left,
            Err(error) => {
                let error = self.reason(error);
                warn!("what was read is not kept: {}", error.json());
                return true;
            }
        };
        self.metrics.prompt_pieces.increment(n_pieces as u64);
        if left != PromptEnd::Done {
            self.left.insert(0, run);
            return left != PromptEnd::Waits;
        }
        let Run { job, also, phase, .. } = run;
        let waiter = Waiter { job, also, summary: None };
        match phase {
            Phase::Reading(session) => self.keep(*session, waiter),
            Phase::Answering(_) => self.tell(waiter, Ok(())),
        }
        true
    }
}

/// Refuses a prompt behind which the model says what is no number.
fn check_numbers(logits: &[f32]) -> Result<(), EngineError> {
    let is_none = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    match logits.iter().position(is_none) {
        Some(at) => Err(EngineError::NonFinite { token: at as u32 }),
        None => Ok(()),
    }
}

/// What is made in pieces.
#[derive(Clone, Copy)]
enum Piece {
    /// What comes before the next chunk of a prompt.
    Segments,
    /// The end of a prompt.
    End,
}

/// Pieces of a prompt: as many as there is time for while somebody waits for tokens, which is since
/// `waits_since`; else one, which may wait for what runs beside it. Returns what is left, and how
/// many of them did something.
async fn pieces_for_now<B: Backend>(
    engine: &mut Engine<B>,
    pace: &mut Pace,
    (session, piece): (&mut Session<B>, Piece),
    waits_since: Option<Instant>,
) -> Result<(PromptEnd, usize), EngineError> {
    let may_wait = waits_since.is_none();
    let mut n_pieces = 0;
    loop {
        let began = Instant::now();
        let (left, has_worked) = match piece {
            Piece::Segments => {
                let left = engine.prepare_chunk_piece(session, may_wait).await?;
                (left, left == PromptEnd::More)
            }
            Piece::End => {
                let left = engine.finish_prefill_piece(session, may_wait).await?;
                (left, left != PromptEnd::Waits)
            }
        };
        n_pieces += usize::from(has_worked);
        let Some(since) = waits_since else { return Ok((left, n_pieces)) };
        pace.ended(began.elapsed());
        if left != PromptEnd::More || !pace.has_time(since.elapsed()) {
            return Ok((left, n_pieces));
        }
    }
}
