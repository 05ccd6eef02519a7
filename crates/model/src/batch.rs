//! The tokens of one step: several sequences, one after the other.

use std::ops::Range;

use longview_core::TokenPos;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first token among the step's tokens.
    pub start: usize,
    /// Its tokens; positions follow each other.
    pub len: usize,
    /// The place of its first token in its sequence.
    pub first_pos: TokenPos,
    /// How many of its last tokens have logits that are read
    /// ([`crate::transformer::Model::logits`]). Of the others the last layer computes keys, values
    /// and queries alone.
    pub n_wanted: usize,
}

/// The tokens of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Token ids of all sequences, concatenated.
    pub ids: &'a [u32],
    /// The sequences, in the order of `ids`, without gaps.
    pub spans: &'a [Span],
}

/// A batch that the model cannot run; nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// More tokens than the workspace holds.
    #[error("a step of {n_tokens} tokens is larger than the workspace's {max_tokens}")]
    TooManyTokens {
        /// Tokens of the step.
        n_tokens: usize,
        /// Tokens planned for.
        max_tokens: usize,
    },
    /// More rows of logits than the workspace holds.
    #[error("{n_rows} rows of logits are more than the workspace's {max_rows}")]
    TooManyRows {
        /// Rows asked for.
        n_rows: usize,
        /// Rows planned for.
        max_rows: usize,
    },
    /// A row that the step did not compute.
    #[error("row {row} of logits: the last step had {n_tokens} tokens")]
    NoSuchRow {
        /// The row asked for.
        row: usize,
        /// Tokens of the last step.
        n_tokens: usize,
    },
    /// A token whose logits were not to be read ([`Span::n_wanted`]).
    #[error("row {row} of logits: the last step was told that it is not read")]
    NotWanted {
        /// The row asked for.
        row: usize,
    },
    /// A token without an embedding.
    #[error("token id {id} is not below the vocabulary size {vocab_size}")]
    TokenId {
        /// What was given as a token.
        id: u32,
        /// Tokens of the vocabulary, V.
        vocab_size: usize,
    },
    /// Spans that overlap, leave a gap or do not cover the tokens, or of which more is wanted than
    /// there is.
    #[error("spans must follow each other and cover all {n_tokens} tokens; one starts at {start}")]
    Spans {
        /// Tokens of the step.
        n_tokens: usize,
        /// Where the first span at fault starts.
        start: usize,
    },
    /// Beyond the context that the model was loaded for.
    #[error("position {position} is beyond the planned context of {planned_context} tokens")]
    BeyondPlan {
        /// The last position of a span.
        position: usize,
        /// Tokens planned for.
        planned_context: usize,
    },
}

impl Batch<'_> {
    /// Tokens of all sequences together.
    pub fn n_tokens(&self) -> usize {
        self.ids.len()
    }

    /// Checks ids, spans and positions.
    pub(crate) fn check(
        &self,
        vocab_size: usize,
        planned_context: usize,
    ) -> Result<(), BatchError> {
        if let Some(&id) = self.ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(BatchError::TokenId { id, vocab_size });
        }
        let n_tokens = self.n_tokens();
        let mut covered = 0;
        for span in self.spans {
            let start = span.start;
            let is_sound = start == covered
                && (1..=n_tokens - covered).contains(&span.len)
                && span.n_wanted <= span.len;
            if !is_sound {
                return Err(BatchError::Spans { n_tokens, start });
            }
            covered += span.len;
            let position = span.first_pos.index() + span.len - 1;
            if position >= planned_context {
                return Err(BatchError::BeyondPlan { position, planned_context });
            }
        }
        if covered != n_tokens {
            return Err(BatchError::Spans { n_tokens, start: covered });
        }
        Ok(())
    }

    /// The places of wanted tokens, in runs as long as they are.
    pub(crate) fn wanted(&self, runs: &mut Vec<Range<usize>>) {
        runs.clear();
        for span in self.spans.iter().filter(|span| span.n_wanted > 0) {
            let end = span.start + span.len;
            let start = end - span.n_wanted;
            match runs.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => runs.push(start..end),
            }
        }
    }

    /// The position of every token, in the order of `ids`.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u32> + '_ {
        self.spans.iter().flat_map(|span| (0..span.len as u32).map(|i| span.first_pos.0 + i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, len: usize, first_pos: u32) -> Span {
        Span { start, len, first_pos: TokenPos(first_pos), n_wanted: len }
    }

    #[test]
    fn wanted_tokens_are_the_last_of_each_span() {
        let wanted = |spans: &[(usize, usize)]| {
            let mut start = 0;
            let spans: Vec<Span> = spans
                .iter()
                .map(|&(len, n_wanted)| {
                    start += len;
                    Span { n_wanted, ..span(start - len, len, 0) }
                })
                .collect();
            let ids = vec![0; start];
            let batch = Batch { ids: &ids, spans: &spans };
            batch.check(1, 100).unwrap();
            let mut runs = vec![7..9, 2..3];
            batch.wanted(&mut runs);
            runs
        };
        assert_eq!(wanted(&[(1, 1), (1, 1), (3, 3), (2, 1)]), [0..5, 6..7]);
        assert_eq!(wanted(&[(4, 1), (2, 2), (5, 0), (2, 1)]), [3..6, 12..13]);
        assert!(wanted(&[(9, 0)]).is_empty());
    }

    #[test]
    fn positions_follow_each_sequence() {
        let batch = Batch { ids: &[1, 2, 3], spans: &[span(0, 1, 7), span(1, 2, 0)] };
        assert_eq!(batch.check(4, 8), Ok(()));
        assert_eq!(batch.positions().collect::<Vec<_>>(), [7, 0, 1]);
    }

    #[test]
    fn batches_that_cannot_run_say_why() {
        let ids = &[1, 2, 3];
        let message = |spans: &[Span], vocab_size| {
            Batch { ids, spans }.check(vocab_size, 8).unwrap_err().to_string()
        };
        assert_eq!(message(&[span(0, 3, 0)], 3), "token id 3 is not below the vocabulary size 3");
        for bad in [&[][..], &[span(0, 2, 0)], &[span(1, 2, 0)], &[span(0, 4, 0)]] {
            assert!(message(bad, 9).starts_with("spans must follow each other and cover all 3"));
        }
        assert!(message(&[span(0, 2, 0), span(1, 1, 0)], 9).ends_with("one starts at 1"));
        let greedy = Span { n_wanted: 4, ..span(0, 3, 0) };
        assert!(message(&[greedy], 9).ends_with("one starts at 0"));
        assert_eq!(
            message(&[span(0, 3, 6)], 9),
            "position 8 is beyond the planned context of 8 tokens"
        );
    }
}
