//! Which tokens of a sequence a further prompt may go on from, so that all that follows is, to the
//! bit, what it would be if the whole prompt had been read at once.
//!
//! Two things are not: rows of tokens that were decoded through a policy that leaves some of the
//! past out, and statistics of a prompt of which a part is cut off. Reading such tokens again costs
//! little: an answer is short, and only the first and the last tokens have statistics.

use longview_ops::Backend;

use super::kv_sequence::Sequence;
use super::layer_state::Layer;
use crate::layout::{LAST_QUERIES, LayerMode};
use crate::policy::Policy;

/// Prompts about one document part at about the same token: some questions begin alike.
const PART_EVERY: usize = 64;

/// How long a prompt is that goes on from a known one.
#[derive(Clone, Copy, Debug)]
pub struct PromptLength {
    /// Its tokens, the known ones with them.
    pub len: usize,
    /// The most that there may be of them and of its answer.
    pub most: usize,
}

impl<B: Backend> Sequence<B> {
    /// As many of the first `n` tokens as a prompt that begins with them may go on from under
    /// `policy`, so that it has the keys, values, index and answers of one that is read at once. On
    /// the CPU that is so to the bit. What is behind has to be cut off and read again.
    pub fn known(&self, policy: &Policy, n: usize, prompt: PromptLength) -> usize {
        let mut n = self.known_rows(policy, n);
        for (layer, Layer { recorded, .. }) in self.shape.layers().zip(&self.layers) {
            let mode = policy.layer_mode(&self.shape, layer);
            let is_indexed = mode == LayerMode::Recall && prompt.most > policy.attend_all;
            if is_indexed && policy.needs_sums() {
                n = n.min(recorded.sums_known(n));
            }
            if let Some(window) = policy.local_window().filter(|_| is_indexed) {
                let queries = recorded.queries.as_ref().filter(|queries| queries.serves(window));
                n = queries.map_or(0, |queries| queries.known(n));
            }
            let observes = is_indexed || mode == LayerMode::Kept;
            if observes && policy.needs_last_queries() && !recorded.has_last_queries(&self.shape, n)
            {
                n = n.min(prompt.len.saturating_sub(LAST_QUERIES));
            }
        }
        n
    }

    /// Says that prompts have the first `n` tokens in common, of which this one does not know all:
    /// whoever comes next goes on from there, or from a little before.
    pub fn part_at(&mut self, n: usize) {
        let place = n / PART_EVERY * PART_EVERY;
        self.layers.iter_mut().for_each(|layer| layer.recorded.part_at(place));
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
    use super::super::fixture::{
        TestSequence, clusters, full, in_place, inject, policy, prefilled, streaming,
    };
    use super::super::known_tokens::KnownTokens;
    use super::*;
    use crate::policy::Preset;

    /// For a prompt that goes on for longer than last queries are observed.
    fn known(sequence: &TestSequence, policy: &Policy, n: usize) -> usize {
        sequence.known(policy, n, PromptLength { len: 999, most: 999 })
    }

    #[test]
    fn what_is_known_depends_on_the_policy_that_goes_on() {
        let mut sequence = prefilled(in_place(full()), 12);
        sequence.known = KnownTokens::of(12, 15);
        assert_eq!(known(&sequence, &full(), 20), 15);
        assert_eq!(known(&sequence, &clusters(), 20), 12);
        let kept = known(&sequence, &streaming(), 20);
        assert_eq!(kept, 12, "what it keeps follows from the prompt");
        assert_eq!(known(&sequence, &clusters(), 7), 7);
        let loki = policy(Preset::Loki, 16, |o| {
            (o.sinks, o.recent, o.window, o.rank) = (Some(1), Some(2), Some(2), Some(4));
        });
        sequence.layers.iter_mut().for_each(|layer| layer.recorded.n_summed = 12);
        assert_eq!(known(&sequence, &loki, 12), 12);
        assert_eq!(known(&sequence, &loki, 11), 0, "sums of fewer tokens are not known");
    }

    #[test]
    fn rows_from_elsewhere_count_as_read() {
        let mut sequence = in_place(clusters());
        inject(&mut sequence, 9);
        assert_eq!(known(&sequence, &clusters(), 100), 9);
        pollster::block_on(sequence.truncate(4)).unwrap();
        assert_eq!(known(&sequence, &clusters(), 100), 4);
    }
}
