//! How many tokens of a prompt are read at a time while answers wait for their next token.

use std::ops::Range;
use std::time::Duration;

/// Fewest tokens of a chunk: with fewer, weights are read for too little.
const LEAST: usize = 16;
/// Tokens of the first chunk, as long as nothing was measured.
const FIRST: usize = 32;

/// Of the time that answers may wait, what chunks and steps are planned to take, in percent: the
/// next one may take half as long again as the last ones did (`bench/record/2026-11-26-stall.md`).
const PLANNED: u32 = 65;
/// What is left after each round of a time that was longer than the last one, in percent.
const REMEMBERED: u32 = 90;

/// What chunks and steps took lately. A slow one counts at once and is forgotten slowly, so that a
/// machine whose speed changes keeps the bound.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time that an answer may wait for its next token.
    max_stall: Duration,
    /// Of one token of a chunk.
    per_token: Option<Duration>,
    /// Of a step of all answers.
    step: Duration,
    /// Of a piece of the end of a prompt.
    piece: Duration,
    /// A clustering has begun beside chunks since the last one was measured.
    shares_cores: bool,
}

impl Pace {
    pub(super) fn new(max_stall: Duration) -> Self {
        Self {
            max_stall,
            per_token: None,
            step: Duration::ZERO,
            piece: Duration::ZERO,
            shares_cores: false,
        }
    }

    /// Tokens of the next chunk, at most `most`, after `spent` in this round; `None` where nobody
    /// waits. Which number this is changes no bit of a result: a row is computed alike whatever
    /// rows are computed with it.
    pub(super) fn chunk(&self, most: usize, spent: Option<Duration>) -> usize {
        let Some(spent) = spent else { return most };
        let Some(per_token) = self.per_token else { return FIRST.min(most) };
        let per_token = if self.shares_cores { per_token * 3 / 2 } else { per_token };
        let left = self.left().saturating_sub(spent);
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
        self.shares_cores = false;
        // Short chunks are dear for each token: they would make the next one shorter still.
        match self.per_token {
            Some(_) if n < LEAST => {}
            Some(before) => self.per_token = Some(slowest(before, took / n as u32)),
            None => self.per_token = Some(took / n as u32),
        }
    }

    /// A clustering begins beside chunks, and takes a part of the cores that they had: until that
    /// is measured, a token is planned to take half as long again.
    pub(super) fn share_cores(&mut self) {
        self.shares_cores = true;
    }

    /// A step of all answers took so long.
    pub(super) fn stepped(&mut self, took: Duration) {
        self.step = slowest(self.step, took);
    }

    /// A piece of the end of a prompt took so long.
    pub(super) fn ended(&mut self, took: Duration) {
        self.piece = slowest(self.piece, took);
    }

    /// Whether there is time for a prompt after `spent` in this round, or so little is spent that
    /// the next round has no more.
    pub(super) fn may_begin(&self, spent: Duration) -> bool {
        spent < self.max_stall / 10 || self.has_time(spent)
    }

    /// Whether there is time for another piece of the end of a prompt, after `spent` in this round.
    pub(super) fn has_time(&self, spent: Duration) -> bool {
        spent + self.piece <= self.left()
    }

    /// Time for a prompt between two steps of answers.
    fn left(&self) -> Duration {
        (self.max_stall * PLANNED / 100).saturating_sub(self.step)
    }
}

/// What the next one is planned to take, after one that took `now`.
fn slowest(before: Duration, now: Duration) -> Duration {
    now.max(before * REMEMBERED / 100)
}

/// Tokens of a chunk over these places of a sequence, at most `most`: it ends at a multiple of
/// `unit`, at the next one where there is none in it.
pub(super) fn whole(places: Range<usize>, unit: usize, most: usize) -> usize {
    let end = places.end / unit * unit;
    let end = if end > places.start { end } else { places.end.next_multiple_of(unit) };
    (end - places.start).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_ends_where_a_tile_does() {
        assert_eq!(whole(10..110, 1, 512), 100);
        assert_eq!(whole(0..100, 32, 512), 96);
        assert_eq!(whole(90..110, 32, 512), 6, "the first end is the next chunk's");
        assert_eq!(whole(100..116, 64, 512), 28, "to the end of a tile at least");
        assert_eq!(whole(0..16, 128, 64), 64, "and never more than there is room for");
    }

    const MS: Duration = Duration::from_millis(1);
    /// Nothing of the round is spent.
    const SOON: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn chunks_are_as_long_as_answers_can_wait() {
        let mut pace = Pace::new(200 * MS);
        assert_eq!(pace.chunk(512, None), 512, "nobody waits");
        assert_eq!(pace.chunk(512, SOON), 32, "nothing is known yet");
        pace.read(32, 32 * MS);
        assert_eq!(pace.chunk(512, SOON), 128, "a token takes a millisecond, of 130");
        assert_eq!(pace.chunk(512, Some(80 * MS)), 48, "of what is left of them");
        assert_eq!(pace.chunk(512, Some(400 * MS)), 16, "a few at least");
        pace.stepped(80 * MS);
        assert_eq!(pace.chunk(512, SOON), 48, "the step is part of the wait");
        pace.read(48, 480 * MS);
        assert_eq!(pace.chunk(512, SOON), 16, "a slow device takes a few at least");
        for _ in 0..100 {
            pace.read(16, MS / 10);
            pace.stepped(MS);
        }
        assert_eq!(pace.chunk(512, SOON), 512, "never more than there is room for");
        assert_eq!(pace.chunk(5, SOON), 5);
    }

    #[test]
    fn chunks_are_shorter_when_a_clustering_begins_beside_them() {
        let mut pace = Pace::new(200 * MS);
        pace.share_cores();
        assert_eq!(pace.chunk(512, SOON), 32, "nothing is known yet");
        pace.read(100, 100 * MS);
        pace.share_cores();
        pace.share_cores();
        assert_eq!(pace.chunk(512, SOON), 80, "a token is planned to take half as long again");
        pace.read(96, 96 * MS);
        assert_eq!(pace.chunk(512, SOON), 128, "it does not");
    }

    #[test]
    fn the_end_of_a_prompt_says_nothing_about_the_next() {
        let mut pace = Pace::new(200 * MS);
        pace.read(128, 128 * MS);
        pace.read(1, 10 * MS);
        assert_eq!(pace.chunk(512, SOON), 128);
    }

    #[test]
    fn what_was_slow_is_forgotten_slowly() {
        let mut pace = Pace::new(200 * MS);
        pace.read(100, 200 * MS);
        assert_eq!(pace.chunk(512, SOON), 64, "two milliseconds each");
        for _ in 0..2 {
            pace.read(64, 64 * MS);
        }
        assert_eq!(pace.chunk(512, SOON), 80, "1.6 of them");
        for _ in 0..6 {
            pace.read(64, 64 * MS);
        }
        assert_eq!(pace.chunk(512, SOON), 128);
    }

    #[test]
    fn pieces_of_an_end_share_the_time_of_a_round() {
        let mut pace = Pace::new(200 * MS);
        assert!(pace.has_time(130 * MS) && !pace.has_time(131 * MS));
        pace.ended(40 * MS);
        pace.stepped(10 * MS);
        assert!(pace.has_time(80 * MS) && !pace.has_time(81 * MS));
        assert!(pace.may_begin(80 * MS) && !pace.may_begin(81 * MS));
        pace.ended(190 * MS);
        assert!(pace.may_begin(10 * MS), "no round has more time than this one");
    }
}
