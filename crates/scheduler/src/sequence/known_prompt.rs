//! Which tokens of a sequence a further prompt may go on from, so that all that follows is, to the
//! bit, what it would be if the whole prompt had been read at once.
//!
//! Two things are not: rows of tokens that were decoded through a policy that leaves some of the
//! past out, and statistics of a prompt of which a part is cut off. Reading such tokens again costs
//! little: an answer is short, and only the first tokens have statistics.

use longview_ops::Backend;

use super::kv_sequence::Sequence;
use crate::layout::LayerMode;
use crate::policy::Policy;

impl<B: Backend> Sequence<B> {
    /// As many of the first `n` tokens as a prompt that begins with them may go on from under
    /// `policy`, so that it has the keys, values, index and answers of one that is read at once. On
    /// the CPU that is so to the bit. What is behind has to be cut off and read again. With its
    /// answer the prompt may have `most` tokens.
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
        n.min(if is_exact { self.known.n_exact() } else { self.known.n_read() })
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
    use super::super::fixture::{clusters, full, in_place, inject, policy, prefilled, streaming};
    use super::super::known_tokens::KnownTokens;
    use crate::policy::Preset;

    #[test]
    fn what_is_known_depends_on_the_policy_that_goes_on() {
        let mut sequence = prefilled(in_place(full()), 12);
        sequence.known = KnownTokens::of(12, 15);
        assert_eq!(sequence.known(&full(), 20, 99), 15);
        assert_eq!(sequence.known(&clusters(), 20, 99), 12);
        let kept = sequence.known(&streaming(), 20, 99);
        assert_eq!(kept, 12, "what it keeps follows from the prompt");
        assert_eq!(sequence.known(&clusters(), 7, 99), 7);
        let loki = policy(Preset::Loki, 16, |o| {
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
