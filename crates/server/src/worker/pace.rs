//! How many tokens of a prompt are read at a time while answers wait for their next token.

use std::time::Duration;

/// Fewest tokens of a chunk: with fewer, weights are read for too little.
const LEAST: usize = 16;
/// Tokens of the first chunk, as long as nothing was measured.
const FIRST: usize = 32;

/// What chunks and steps took lately.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time that an answer may wait for its next token.
    max_stall: Duration,
    /// Of one token of the last chunk.
    per_token: Option<Duration>,
    /// Of the last step of all answers.
    step: Duration,
}

impl Pace {
    pub(super) fn new(max_stall: Duration) -> Self {
        Self { max_stall, per_token: None, step: Duration::ZERO }
    }

    /// Tokens of the next chunk, at most `most`. Which number this is changes no bit of a result: a
    /// row is computed alike whatever rows are computed with it.
    pub(super) fn chunk(&self, most: usize, answers_wait: bool) -> usize {
        if !answers_wait {
            return most;
        }
        let Some(per_token) = self.per_token else { return FIRST.min(most) };
        let left = self.max_stall.saturating_sub(self.step);
        let n = left.as_secs_f64() / per_token.as_secs_f64().max(1e-9);
        // Whole groups of rows, as kernels take them.
        let n = (n as usize).min(most) / LEAST * LEAST;
        n.max(LEAST).min(most)
    }

    /// A chunk of `n` tokens took so long.
    pub(super) fn read(&mut self, n: usize, took: Duration) {
        if n == 0 {
            return;
        }
        // Short chunks are dear for each token: they would make the next one shorter still.
        if n >= LEAST || self.per_token.is_none() {
            self.per_token = Some(took / n as u32);
        }
    }

    /// A step of all answers took so long.
    pub(super) fn stepped(&mut self, took: Duration) {
        self.step = took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn chunks_are_as_long_as_answers_can_wait() {
        let mut pace = Pace::new(200 * MS);
        assert_eq!(pace.chunk(512, false), 512, "nobody waits");
        assert_eq!(pace.chunk(512, true), 32, "nothing is known yet");
        pace.read(32, 32 * MS);
        assert_eq!(pace.chunk(512, true), 192, "a token takes a millisecond");
        pace.stepped(100 * MS);
        assert_eq!(pace.chunk(512, true), 96, "the step is part of the wait");
        pace.read(96, 960 * MS);
        assert_eq!(pace.chunk(512, true), 16, "a slow device takes a few at least");
        pace.read(16, MS / 10);
        assert_eq!(pace.chunk(512, true), 512, "never more than there is room for");
        assert_eq!(pace.chunk(5, true), 5);
    }

    #[test]
    fn the_end_of_a_prompt_says_nothing_about_the_next() {
        let mut pace = Pace::new(200 * MS);
        pace.read(128, 128 * MS);
        pace.read(1, 10 * MS);
        assert_eq!(pace.chunk(512, true), 192);
    }
}
