//! Which tokens of a sequence a further prompt may go on from, so that all that follows is, to the
//! bit, what it would be if the whole prompt had been read at once.
//!
//! Two things are not: rows of tokens that were decoded through a policy that leaves some of the past
//! out, and statistics of a prompt of which a part is cut off. Reading such tokens again costs little:
//! an answer is short, and only the first tokens have statistics.

use longview_ops::Backend;

use super::kv_sequence::Sequence;
use crate::layout::LayerMode;
use crate::policy::Policy;

/// First tokens of a sequence, counted as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownTokens {
    /// Tokens of prompts alone.
    read: usize,
    /// Also tokens that were decoded with attention to everything.
    exact: usize,
}

impl KnownTokens {
    /// Of a sequence of which only this is known.
    pub fn of_prompt(n: usize) -> Self {
        Self { read: n, exact: n }
    }

    /// `len` tokens of a prompt come behind `n` tokens.
    pub fn read(&mut self, n: usize, len: usize) {
        for known in [&mut self.read, &mut self.exact] {
            *known += if *known == n { len } else { 0 };
        }
    }

    /// A token that attended to everything comes behind `n` tokens.
    fn decoded(&mut self, n: usize) {
        self.exact += usize::from(self.exact == n);
    }

    /// Only `n` tokens are left.
    pub fn cut(&mut self, n: usize) {
        self.read = self.read.min(n);
        self.exact = self.exact.min(n);
    }

    /// Whether all of `n` tokens are those of prompts.
    pub fn is_prompt(&self, n: usize) -> bool {
        self.read >= n
    }
}

impl<B: Backend> Sequence<B> {
    /// As many of the first `n` tokens as a prompt that begins with them may go on from under
    /// `policy`, so that it has the keys, values, index and answers of one that is read at once. On
    /// the CPU that is so to the bit. What is behind has to be cut off and read again. `most` tokens
    /// may come of it, with the answer.
    pub fn known(&self, policy: &Policy, n: usize, most: usize) -> usize {
        let n = self.known_rows(policy, n);
        if !policy.needs_sums() || most <= policy.attend_all {
            return n;
        }
        let layers = self.shape.layers().zip(&self.layers);
        let summed =
            layers.filter(|(layer, _)| policy.layer_mode(&self.shape, *layer) == LayerMode::Recall);
        summed.map(|(_, layer)| layer.recorded.sums_known(n)).min().unwrap_or(n)
    }

    /// [`Sequence::known`] but for statistics.
    pub fn known_rows(&self, policy: &Policy, n: usize) -> usize {
        let is_exact = policy.index.is_none() && !policy.residency.forgets();
        n.min(if is_exact { self.known.exact } else { self.known.read })
    }

    /// A decoded token is about to count: its keys and values are those of a prompt's token where
    /// every layer attends to all that it sees.
    pub(super) fn know_decoded(&mut self) {
        let attends_all = |mode: LayerMode| matches!(mode, LayerMode::Dense | LayerMode::Local);
        let is_exact = self.backend.capabilities().chunk_rows_are_alike
            && self.layers.iter().all(|layer| attends_all(layer.mode()));
        if is_exact {
            self.known.decoded(self.n_tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{clusters, full, in_place, inject, prefilled, streaming};
    use super::*;
    use crate::policy::Preset;

    #[test]
    fn prompts_count_until_a_token_is_decoded_through_a_policy() {
        let mut known = KnownTokens::default();
        known.read(0, 5);
        known.decoded(5);
        assert_eq!(known, KnownTokens { read: 5, exact: 6 });
        known.read(6, 4);
        assert_eq!(known, KnownTokens { read: 5, exact: 10 });
        known.cut(5);
        known.read(5, 2);
        assert_eq!(known, KnownTokens::of_prompt(7));
        // A token came between that counts nowhere.
        known.read(8, 3);
        assert_eq!(known, KnownTokens::of_prompt(7));
        assert!(known.is_prompt(7) && !known.is_prompt(8));
    }

    #[test]
    fn what_is_known_depends_on_the_policy_that_goes_on() {
        let mut sequence = prefilled(in_place(full()), 12);
        sequence.known = KnownTokens { read: 12, exact: 15 };
        assert_eq!(sequence.known(&full(), 20, 99), 15);
        assert_eq!(sequence.known(&clusters(), 20, 99), 12);
        let kept = sequence.known(&streaming(), 20, 99);
        assert_eq!(kept, 12, "what it keeps follows from the prompt");
        assert_eq!(sequence.known(&clusters(), 7, 99), 7);
        let loki = super::super::fixture::policy(Preset::Loki, 16, |o| {
            (o.sinks, o.recent, o.window, o.rank) = (Some(1), Some(2), Some(2), Some(4));
        });
        sequence.layers.iter_mut().for_each(|layer| layer.recorded.n_summed = 12);
        assert_eq!(sequence.known(&loki, 12, 99), 12);
        assert_eq!(sequence.known(&loki, 11, 99), 0, "sums of fewer tokens are not known");
    }

    #[test]
    fn rows_from_elsewhere_count_as_read() {
        let mut sequence = in_place(clusters());
        inject(&mut sequence, 9);
        assert_eq!(sequence.known(&clusters(), 100, 100), 9);
        pollster::block_on(sequence.truncate(4)).unwrap();
        assert_eq!(sequence.known(&clusters(), 100, 100), 4);
    }
}
