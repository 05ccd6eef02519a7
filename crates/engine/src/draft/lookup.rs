//! Finds what followed the last tokens where they stood before.
//!
//! A table of runs of three tokens, each with a chain of the places where it ends, the last one
//! first: 8 to 16 bytes a token in two arrays, appended to and cut token by token. A suffix
//! automaton finds the longest match too, but has up to two states a token, each with edges of its
//! own: 60 bytes a token and more, and a cut makes it anew. What it finds besides, matches beyond
//! the last [`MOST_PLACES`] places of a run, is worth little: a run that stands in so many places
//! says little about what follows.

use smallvec::SmallVec;

/// Tokens of a run: shorter matches are wrong too often to be worth a row.
const RUN: usize = 3;

/// Places of a run that are looked at, the last ones of them.
const MOST_PLACES: usize = 64;

/// Tokens of a match beyond which a longer one is no better.
const LONG_MATCH: usize = 32;

/// Least places of the table.
const LEAST_TABLE: usize = 1 << 10;

/// Tokens of the shortest match.
const PAIR: usize = 2;

/// Tokens in which a match of two is looked for, one by one.
const PAIR_REACH: usize = 2048;

/// Marks the end of a chain.
const NOWHERE: u32 = u32::MAX;

/// Where runs of a session's tokens end. It holds no tokens: whoever asks has them.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// The last place of the runs with this hash; a power of two of them, or none.
    last: Vec<u32>,
    /// For the run that ends at each token, the place before of those with its hash.
    before: Vec<u32>,
}

/// A match of the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    /// The token behind it.
    next: usize,
    /// Its tokens, up to [`LONG_MATCH`].
    len: usize,
}

impl Lookup {
    /// `tokens` will be cut to the first `n_tokens` of them.
    pub fn truncate(&mut self, tokens: &[u32], n_tokens: usize) {
        while self.before.len() > n_tokens {
            let Some(before) = self.before.pop() else { return };
            if let Some(run) = run_at(tokens, self.before.len()) {
                let at = self.place(run);
                self.last[at] = before;
            }
        }
    }

    /// Appends up to `most` tokens to `draft` that may follow `tokens` and `id` behind them: those
    /// that followed the longest match of at least `least` tokens, of equals the last one.
    pub fn propose(
        &mut self,
        tokens: &[u32],
        id: u32,
        (least, most): (usize, usize),
        draft: &mut SmallVec<[u32; 8]>,
    ) {
        self.extend(tokens);
        let found = self.longest(tokens, id).filter(|found| found.len >= least);
        let pair = || if least <= PAIR { last_pair(tokens, id) } else { None };
        let Some(found) = found.or_else(pair) else { return };
        // What follows may run into the end, and go on with what was drafted: a text that repeats
        // itself.
        for at in found.next..found.next + most {
            let ahead = at.checked_sub(tokens.len() + 1);
            let token = match (tokens.get(at), ahead) {
                (Some(token), _) => *token,
                (None, None) => id,
                (None, Some(ahead)) => draft[ahead],
            };
            draft.push(token);
        }
    }

    /// Takes in the tokens that came since.
    fn extend(&mut self, tokens: &[u32]) {
        if tokens.len() > self.last.len() {
            let len = tokens.len().next_power_of_two().max(LEAST_TABLE);
            self.before.clear();
            self.last.clear();
            self.last.resize(len, NOWHERE);
        }
        for end in self.before.len()..tokens.len() {
            let before = match run_at(tokens, end) {
                Some(run) => {
                    let at = self.place(run);
                    std::mem::replace(&mut self.last[at], end as u32)
                }
                None => NOWHERE,
            };
            self.before.push(before);
        }
    }

    fn longest(&self, tokens: &[u32], id: u32) -> Option<Match> {
        let [.., a, b] = *tokens else { return None };
        let mut place = self.last[self.place([a, b, id])];
        let mut best: Option<Match> = None;
        for _ in 0..MOST_PLACES {
            let Some(end) = (place != NOWHERE).then_some(place as usize) else { break };
            if tokens[end] == id {
                // The last tokens before `id`, and those before the place.
                let own = tokens.iter().rev();
                let there = tokens[..end].iter().rev();
                let same = own.zip(there).take(LONG_MATCH - 1).take_while(|(a, b)| a == b);
                let len = 1 + same.count();
                if len >= RUN && best.is_none_or(|best| len > best.len) {
                    best = Some(Match { next: end + 1, len });
                }
                if len == LONG_MATCH {
                    break;
                }
            }
            place = self.before[end];
        }
        best
    }

    /// Where a run is in the table.
    fn place(&self, run: [u32; RUN]) -> usize {
        // The multiplier of Fibonacci hashing: the upper bits depend on all of the run's.
        let mix =
            |hash: u64, token: u32| (hash ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = run.into_iter().fold(0, |hash, token| mix(hash, token).rotate_left(29));
        (hash >> 32) as usize & (self.last.len() - 1)
    }
}

/// Where the last two tokens stood before, among the last [`PAIR_REACH`]: between the values of a
/// form there may be no more that is known.
fn last_pair(tokens: &[u32], id: u32) -> Option<Match> {
    let last = *tokens.last()?;
    let first = tokens.len().saturating_sub(PAIR_REACH);
    let place = tokens[first..].windows(PAIR).rposition(|pair| pair == [last, id])?;
    Some(Match { next: first + place + PAIR, len: PAIR })
}

/// The run that ends with the token `end`.
fn run_at(tokens: &[u32], end: usize) -> Option<[u32; RUN]> {
    let start = (end + 1).checked_sub(RUN)?;
    tokens.get(start..=end)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::*;

    fn propose(lookup: &mut Lookup, tokens: &[u32], most: usize) -> Vec<u32> {
        let (id, tokens) = tokens.split_last().unwrap();
        let mut draft = SmallVec::new();
        lookup.propose(tokens, *id, (RUN, most), &mut draft);
        draft.to_vec()
    }

    #[test]
    fn what_followed_the_longest_match_is_proposed() {
        let mut lookup = Lookup::default();
        let text = [9, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3, 7, 7, 9, 1, 2, 3];
        assert_eq!(propose(&mut lookup, &text, 3), [4, 5, 6], "9 1 2 3, not 1 2 3");
        lookup.truncate(&text[..16], 10);
        assert_eq!(propose(&mut lookup, &text[..11], 2), [4, 5]);
        lookup.truncate(&text[..10], 9);
        assert_eq!(propose(&mut lookup, &text[..10], 2), [0; 0], "two tokens are no run");
        let text = [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2, 3];
        assert_eq!(propose(&mut Lookup::default(), &text, 2), [6, 7], "of equals the last");
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_so() {
        let text = [5, 1, 2, 3, 1, 2, 3];
        assert_eq!(propose(&mut Lookup::default(), &text, 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(propose(&mut Lookup::default(), &[4, 4, 4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn nothing_is_proposed_for_what_is_new() {
        let mut lookup = Lookup::default();
        for text in [&[1][..], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4, 5, 6]] {
            assert_eq!(propose(&mut lookup, text, 3), [0; 0], "{text:?}");
        }
    }

    #[test]
    fn two_tokens_are_enough_where_that_is_asked_for() {
        let text = [7, 1, 2, 8, 9, 3, 1, 2, 5, 5, 4, 1];
        let propose = |least: usize| {
            let mut draft = SmallVec::new();
            Lookup::default().propose(&text, 2, (least, 2), &mut draft);
            draft.to_vec()
        };
        assert_eq!(propose(2), [5, 5], "the last of two");
        assert_eq!(propose(3), [0; 0]);
    }

    #[test]
    fn a_match_must_be_as_long_as_asked_for() {
        let text = [1, 2, 3, 4, 9, 1, 2];
        let mut draft = SmallVec::new();
        Lookup::default().propose(&text, 3, (4, 2), &mut draft);
        assert!(draft.is_empty());
        Lookup::default().propose(&text, 3, (3, 2), &mut draft);
        assert_eq!(draft[..], [4, 9]);
    }

    /// Few tokens, so that runs are frequent, over growth of the table and cuts.
    #[test]
    fn a_search_through_all_of_it_finds_nothing_longer() {
        let mut random = SplitMix64::new(3);
        let (mut lookup, mut text) = (Lookup::default(), Vec::<u32>::new());
        for round in 0..60 {
            let cut = (random.next_u64() as usize % 200).min(text.len());
            let kept = text.len() - cut;
            lookup.truncate(&text, kept);
            text.truncate(kept);
            text.extend((0..150).map(|_| (random.next_u64() % 9) as u32));
            let found = propose(&mut lookup, &text, 4);
            // Among the last places of the run, the longest match that is not the end itself.
            let n = text.len();
            let ends = (RUN - 1..n - 1).filter(|end| text[end + 1 - RUN..=*end] == text[n - RUN..]);
            let len = |end: usize| {
                let same = (0..=end).take_while(|back| text[end - back] == text[n - 1 - back]);
                same.count().min(LONG_MATCH)
            };
            let best = ends.rev().take(MOST_PLACES / 2).map(|end| (len(end), end));
            let best = best.reduce(|best, other| if other.0 > best.0 { other } else { best });
            let want = best.map(|(_, end)| {
                (1..=4).map(|i| text[end + i]).take(n - 1 - end).collect::<Vec<_>>()
            });
            let want = want.unwrap_or_default();
            assert_eq!(found[..want.len()], want, "round {round}, {n} tokens");
        }
        assert!(text.len() > LEAST_TABLE, "the table has grown");
    }
}
