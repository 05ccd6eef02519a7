//! The state of indexes and statistics as plain data: what a session file holds of them.

use std::borrow::Cow;

/// Sums of queries over blocks of positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueriesRecord {
    /// Tokens behind a key whose queries count, l_L.
    pub window: usize,
    /// Queries before this position are in the sums.
    pub covered: usize,
    /// `[Hkv, blocks, Dh]`.
    pub sums: Vec<f32>,
    /// Queries before this position are in `saved`.
    pub saved_tokens: usize,
    /// `[Hkv, blocks, Dh]`: the sums as of the last finished prefill.
    pub saved: Vec<f32>,
    /// The first row of a window that is about to be indexed.
    pub pending_row: Option<usize>,
    /// What that window needs, `[Hkv, n]`.
    pub pending: Vec<f32>,
}

/// A layer's projections, `[Hkv, Dh, r]` each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProjectionRecord {
    /// Numbers of a projected key, r.
    pub rank: usize,
    /// Of queries.
    pub w_q: Vec<f32>,
    /// Of keys.
    pub w_k: Vec<f32>,
}

/// Bases of the KV heads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LowRankRecord {
    /// Numbers of a projected key, r.
    pub rank: usize,
    /// The row of the first pending low rank.
    pub first: usize,
    /// `B_Q`, `B_K` and `W_K` of each head, `r * Dh` numbers each, by columns, and the pending low
    /// ranks `[n, r]`.
    pub heads: Vec<[Vec<f64>; 4]>,
}

/// An index.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct IndexRecord<'a> {
    /// Numbers that describe a unit.
    pub width: usize,
    /// Whether they are codes of 8 bits; else they are of the KV data type.
    pub is_coded: bool,
    /// Rows indexed, and units of each head, after each batch.
    pub batches: Vec<(usize, Vec<u32>)>,
    /// The units of each head.
    pub heads: Vec<ClustersRecord<'a>>,
}

/// The units of one head, in the order of their rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClustersRecord<'a> {
    /// Rows of each.
    pub sizes: Vec<u32>,
    /// Of each, or of none.
    pub radius: Vec<f32>,
    /// `[n, width]`, in the type of rows.
    pub centroids: Cow<'a, [u8]>,
    /// `[n, 2, width]` or nothing.
    pub pairs: Cow<'a, [u8]>,
    /// Of the first ones: whether a step may choose them.
    pub open: Vec<bool>,
}

impl IndexRecord<'_> {
    /// Whether every head's units cover the rows from `first` to `end`, batch by batch, none of
    /// them empty.
    pub fn covers(&self, first: usize, end: usize) -> bool {
        let last = self.batches.last();
        let counts = |head: usize| self.batches.iter().map(move |(_, counts)| counts[head]);
        last.map_or(first, |(end, _)| *end) == end
            && self.heads.iter().enumerate().all(|(h, head)| {
                let n = last.map_or(0, |(_, counts)| counts[h] as usize);
                // Of 64 bits: on a machine of 32 sizes could wrap around to the right sum.
                let (mut unit, mut row) = (0, first as u64);
                let whole = self.batches.iter().zip(counts(h)).all(|((end, _), count)| {
                    let units = head.sizes.get(unit..count as usize).unwrap_or_default();
                    let is_full = units.iter().all(|size| *size > 0);
                    row += units.iter().map(|size| u64::from(*size)).sum::<u64>();
                    unit += units.len();
                    is_full && row == *end as u64 && unit == count as usize
                });
                n == head.sizes.len() && whole
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(batches: &[(usize, &[u32])], sizes: &[&[u32]]) -> IndexRecord<'static> {
        let head = |sizes: &&[u32]| ClustersRecord { sizes: sizes.to_vec(), ..Default::default() };
        IndexRecord {
            is_coded: false,
            width: 2,
            batches: batches.iter().map(|(end, counts)| (*end, counts.to_vec())).collect(),
            heads: sizes.iter().map(head).collect(),
        }
    }

    #[test]
    fn units_cover_their_rows_batch_by_batch() {
        let batches: &[(usize, &[u32])] = &[(7, &[2, 1]), (9, &[3, 3])];
        let covers = |sizes: &[&[u32]]| record(batches, sizes).covers(2, 9);
        assert!(covers(&[&[3, 2, 2], &[5, 1, 1]]));
        assert!(!covers(&[&[3, 3, 1], &[5, 1, 1]]), "the first batch ends at row 8");
        assert!(!covers(&[&[3, 2, 2], &[5, 2, 0]]), "a unit of nothing");
        assert!(!covers(&[&[3, 2], &[5, 1, 1]]), "a unit is missing");
        assert!(!covers(&[&[3, 2, 2, 1], &[5, 1, 1]]), "a unit belongs to no batch");
        let whole = record(batches, &[&[3, 2, 2], &[5, 1, 1]]);
        assert!(!whole.covers(2, 10) && !whole.covers(2, 8) && !whole.covers(1, 9));
    }

    #[test]
    fn an_index_of_nothing_covers_no_rows() {
        let empty = record(&[], &[&[], &[]]);
        assert!(empty.covers(4, 4) && !empty.covers(4, 5));
        assert!(!record(&[], &[&[1]]).covers(4, 4));
    }
}
