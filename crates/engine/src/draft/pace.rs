//! How many tokens are drafted: as many as the last drafts earned.

/// Most drafted tokens of a step: with the token before them eight rows, up to which products cost
/// little more than one row's, and CUDA and WGSL have kernels whose rows do not depend on others.
pub const MAX_DRAFTED: usize = 7;

/// Drafted tokens at first.
const FIRST: usize = 3;

/// Full accepts in a row after which drafts are long.
const CONFIDENT: u32 = 2;

/// Tokens of a match that is worth a draft.
const LEAST_MATCH: usize = 3;

/// Where drafts are right, shorter matches are worth one too.
const LEAST_TRUSTED: usize = 2;

/// Rejected drafts in a row make waits longer, up to two to the power of this.
const MOST_DOUBLINGS: u32 = 6;

/// How long drafts are. One for each answer.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Tokens of the last draft that nobody has judged, and how many of them were accepted.
    drafted: usize,
    accepted: usize,
    /// Drafts in a row that were accepted as a whole.
    full: u32,
    /// Drafts in a row of which not half was accepted.
    failed: u32,
    /// Tokens until there is a draft again.
    wait: u32,
}

impl Pace {
    /// A drafted token was the answer's.
    pub(crate) fn count_accepted(&mut self) {
        self.accepted += 1;
    }

    /// So many tokens go into the next step.
    pub(crate) fn count_drafted(&mut self, n: usize) {
        (self.drafted, self.accepted) = (n, 0);
    }

    /// Tokens of the next draft, given what became of the last one, of which `left` tokens were
    /// computed and not accepted: a step may compute fewer than were drafted.
    pub(crate) fn next_length(&mut self, left: usize) -> usize {
        let drafted = std::mem::take(&mut self.drafted).min(self.accepted + left);
        if drafted > 0 {
            self.judge(drafted);
        }
        if self.wait > 0 {
            self.wait -= 1;
            return 0;
        }
        if self.full >= CONFIDENT { MAX_DRAFTED } else { FIRST }
    }

    fn judge(&mut self, drafted: usize) {
        if self.accepted == drafted {
            self.full += 1;
            self.failed = 0;
        } else if 2 * self.accepted >= drafted {
            // Long drafts go on while half of them is right.
            self.failed = 0;
        } else {
            self.full = 0;
            self.failed += 1;
            // Once is no sign: a quotation has ended.
            self.wait = (1 << self.failed.min(MOST_DOUBLINGS)) - 2;
        }
    }

    /// Tokens of a match that is worth a draft: drafts that failed were of matches too short.
    pub(crate) fn least_match(&self) -> usize {
        match (self.full, self.failed) {
            (1.., 0) => LEAST_TRUSTED,
            (_, failed) => LEAST_MATCH + failed.min(MOST_DOUBLINGS) as usize / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of drafts of which `accepted` says how much was right.
    fn lengths(pace: &mut Pace, accepted: &[usize]) -> Vec<usize> {
        let mut left = 0;
        let step = |accepted: &usize| {
            let length = pace.next_length(left);
            pace.count_drafted(length);
            let accepted = *accepted.min(&length);
            (0..accepted).for_each(|_| pace.count_accepted());
            left = length - accepted;
            length
        };
        accepted.iter().map(step).collect()
    }

    #[test]
    fn drafts_grow_when_they_are_right_and_shrink_when_they_are_not() {
        let mut pace = Pace::default();
        assert_eq!(lengths(&mut pace, &[3, 3, 7, 4, 7, 1, 3]), [3, 3, 7, 7, 7, 7, 3]);
    }

    #[test]
    fn drafts_that_fail_again_and_again_are_fewer_and_fewer() {
        let mut pace = Pace::default();
        let drafts = lengths(&mut pace, &[0; 200]).iter().filter(|n| **n > 0).count();
        assert_eq!(drafts, 8, "after 0, 2, 6, 14, 30, 62 and 62 tokens");
        assert_eq!(pace.least_match(), 6);
        lengths(&mut pace, &[7; 70]);
        assert_eq!((pace.least_match(), pace.next_length(0)), (2, 7));
    }

    #[test]
    fn a_draft_that_no_step_computed_says_nothing() {
        let mut pace = Pace::default();
        for _ in 0..5 {
            assert_eq!(pace.next_length(0), 3);
            pace.count_drafted(3);
        }
        pace.count_accepted();
        assert_eq!(pace.next_length(0), 3, "one was computed, and right");
    }
}
