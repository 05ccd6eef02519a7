//! Where rows of tokens lie in a store whose rows an index has put out of token order.
//!
//! A file has rows in the order of tokens, which nothing changes any more: a prompt that goes on
//! may be clustered anew, and its rows then lie in other places, but what an append costs is still
//! what is added.

use std::ops::Range;

use crate::sequence::PlacesRecord;

/// The row of each token, for every KV head, as far as rows are out of token order.
pub(super) struct TokenRows {
    heads: Vec<Vec<u32>>,
}

impl TokenRows {
    /// Of rows of which `order` says which token each is; every token has one of them.
    pub fn of(order: &PlacesRecord) -> Self {
        let rows_of = |tokens: &Vec<u32>| {
            let mut rows = vec![0; tokens.len()];
            for (row, token) in (0..).zip(tokens) {
                rows[*token as usize] = row;
            }
            rows
        };
        Self { heads: order.positions.iter().map(rows_of).collect() }
    }

    /// Runs of rows that follow each other; one behind the other they are those of `tokens`.
    pub fn runs(&self, head: usize, tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (rows, mut token) = (&self.heads[head], tokens.start);
        std::iter::from_fn(move || {
            if token >= tokens.end {
                return None;
            }
            let Some(first) = rows.get(token).map(|row| *row as usize) else {
                // Behind these each row is the token of its number.
                return Some(std::mem::replace(&mut token, tokens.end)..tokens.end);
            };
            let end = rows.len().min(tokens.end);
            let following = rows[token..end].iter().zip(first..);
            let n = following.take_while(|(row, follows)| **row as usize == *follows).count();
            token += n;
            Some(first..first + n)
        })
    }

    /// The rows of the first of `tokens`; each token behind these is in the row of its number.
    pub fn rows(&self, head: usize, tokens: Range<usize>) -> &[u32] {
        let rows = &self.heads[head];
        &rows[tokens.start.min(rows.len())..tokens.end.min(rows.len())]
    }

    /// First rows that are tokens of their own numbers, in every head.
    pub fn n_in_order(&self) -> usize {
        let in_order = |rows: &Vec<u32>| {
            (0..).zip(rows).position(|(token, row)| token != *row).unwrap_or(usize::MAX)
        };
        self.heads.iter().map(in_order).min().unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_tokens_come_in_runs() {
        let positions = vec![vec![0, 3, 4, 1, 2], vec![0, 1, 2, 3, 4]];
        let rows = TokenRows::of(&PlacesRecord { permuted_to: 5, positions });
        let runs = |head, tokens| rows.runs(head, tokens).collect::<Vec<_>>();
        assert_eq!(runs(0, 0..9), [0..1, 3..5, 1..3, 5..9]);
        assert_eq!(runs(0, 2..4), [4..5, 1..2]);
        assert_eq!(runs(0, 4..4), []);
        assert_eq!(runs(1, 1..7), [1..5, 5..7]);
        assert_eq!(
            [rows.rows(0, 1..3), rows.rows(0, 3..9), rows.rows(0, 6..9)],
            [&[3, 4][..], &[1, 2], &[]]
        );
        assert_eq!(rows.n_in_order(), 1);
        let none = PlacesRecord { permuted_to: 0, positions: vec![vec![]; 2] };
        assert_eq!(TokenRows::of(&none).n_in_order(), usize::MAX);
    }
}
