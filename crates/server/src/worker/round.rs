//! What a round of the worker spent its time on, for the log: why an answer waited longer than
//! `--max-stall` for its next token.

use std::time::{Duration, Instant};

use tracing::debug;

/// The parts of a round, in their order.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Sessions from files are taken over.
    Files,
    /// Requests get their places: what they begin with is looked for, and forked.
    Begin,
    /// A chunk of a prompt is read, or pieces of its end are made.
    Prompt,
    /// A step of all answers.
    Step,
    /// Requests that are done are closed, and what they have read is kept.
    End,
}

/// One round.
#[derive(Clone, Copy)]
pub(super) struct Round {
    /// When it began.
    pub(super) began: Instant,
    answers_wait: bool,
    last: Instant,
    took: [Duration; 5],
}

impl Round {
    /// A round that begins. `answers_wait`: somebody waits for the next token of an answer.
    pub(super) fn begin(answers_wait: bool) -> Self {
        let now = Instant::now();
        Self { began: now, answers_wait, last: now, took: [Duration::ZERO; 5] }
    }

    /// `part` is done, and so are all before it.
    pub(super) fn did(&mut self, part: Part) {
        let now = Instant::now();
        self.took[part as usize] += now - self.last;
        self.last = now;
    }

    /// Logs a round in which somebody waited longer than `max_stall`.
    pub(super) fn end(self, max_stall: Duration) {
        let total: Duration = self.took.iter().sum();
        if self.answers_wait && total > max_stall {
            let [files, begin, prompt, step, end] = self.took.map(|took| took.as_millis());
            debug!(
                "answers waited {} ms: files {files}, requests that begin {begin}, prompts \
                 {prompt}, the step {step}, requests that end {end}",
                total.as_millis()
            );
        }
    }
}
