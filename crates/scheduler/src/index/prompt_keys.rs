//! Keys of a prompt as they were computed, where the host store rounds rows, until their index is
//! made.
//!
//! Clusters are made of them, so that a text has the same clusters however its rows are kept: for
//! the least change of a key k-means may end elsewhere. They are kept in the type of attended rows,
//! and of prompts that are indexed in segments alone, of which at most two are waiting: a prompt
//! that is indexed as a whole would be held as a whole.

use std::ops::Range;

use longview_core::{HeadId, decode_f32_into, encode_f32_into};
use longview_ops::Backend;

use crate::layout::KvShape;
use crate::store::LayerRows;

/// Keys of the last rows of a layer, as far as they are not indexed.
#[derive(Debug, Default)]
pub(crate) struct PromptKeys {
    /// Of each KV head, `[rows, Dh]`.
    heads: Vec<Vec<u8>>,
    /// The rows that they are of.
    rows: Range<usize>,
    /// Memory to reuse.
    numbers: Vec<f32>,
    bytes: Vec<u8>,
}

impl PromptKeys {
    /// Rows whose keys may be held at once, of prompts that are indexed in segments of `segment`
    /// tokens: one that is being indexed, one that is not complete, and what is never indexed.
    pub fn most_rows(segment: usize, recent: usize, chunk: usize) -> usize {
        2 * segment + recent + chunk
    }

    /// Takes the keys of new rows, which the store has as they were written.
    pub fn take<B: Backend>(&mut self, of: LayerRows<'_, B>, rows: Range<usize>) {
        let KvShape { head_dim: d, kv_dtype, .. } = *of.shape;
        if self.rows.end != rows.start {
            // Others were decoded in between: these do not follow those that are held.
            self.forget();
            self.rows = rows.start..rows.start;
        }
        self.heads.resize_with(of.shape.n_kv_heads, Vec::new);
        self.numbers.resize(rows.len() * d, 0.0);
        for (head, held) in of.shape.heads().zip(&mut self.heads) {
            of.keys(head, rows.clone(), &mut self.bytes, &mut self.numbers);
            encode_f32_into(kv_dtype, &self.numbers, held);
        }
        self.rows.end = rows.end;
    }

    /// Puts the keys that are held of rows `rows` of a head into `keys`, F32 `[rows, Dh]`.
    pub fn put(&self, shape: &KvShape, head: HeadId, rows: Range<usize>, keys: &mut [f32]) {
        let held = rows.start.max(self.rows.start)..rows.end.min(self.rows.end);
        if held.is_empty() {
            return;
        }
        let d = shape.head_dim;
        let place = |row: usize, first: usize| (row - first) * d;
        let to = &mut keys[place(held.start, rows.start)..place(held.end, rows.start)];
        let size = shape.kv_dtype.size();
        let from =
            place(held.start, self.rows.start) * size..place(held.end, self.rows.start) * size;
        decode_f32_into(shape.kv_dtype, &self.heads[head][from], to);
    }

    /// Lets go of rows below `row`, which are indexed.
    pub fn forget_below(&mut self, row: usize) {
        let n = row.clamp(self.rows.start, self.rows.end) - self.rows.start;
        if let Some(per_row) = self.row_bytes() {
            self.heads.iter_mut().for_each(|held| drop(held.drain(..n * per_row)));
        }
        self.rows.start += n;
    }

    /// Lets go of rows from `row` on, which were taken back.
    pub fn truncate(&mut self, row: usize) {
        let n = row.clamp(self.rows.start, self.rows.end) - self.rows.start;
        if let Some(per_row) = self.row_bytes() {
            self.heads.iter_mut().for_each(|held| held.truncate(n * per_row));
        }
        self.rows.end = self.rows.start + n;
    }

    /// Lets go of all, and of their memory.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    fn row_bytes(&self) -> Option<usize> {
        self.heads.first().map(Vec::len)?.checked_div(self.rows.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longview_core::LayerId;
    use longview_ops::ReferenceBackend;

    use super::*;
    use crate::store::fixture::{full_stores, row, shape};

    const HEAD: HeadId = HeadId(1);

    fn taken(parts: &[Range<usize>]) -> PromptKeys {
        let (backend, shape) = (Arc::new(ReferenceBackend::new()), shape());
        let [_, store] = full_stores(&backend, &shape);
        let rows = LayerRows { shape: &shape, store: &*store, layer: LayerId(1) };
        let mut keys = PromptKeys::default();
        parts.iter().for_each(|part| keys.take(rows, part.clone()));
        keys
    }

    /// The rows of 8 whose keys are held.
    #[track_caller]
    fn check(keys: &PromptKeys, held: Range<usize>) {
        let mut got = vec![-1.0; 8 * 4];
        keys.put(&shape(), HEAD, 0..8, &mut got);
        for (r, key) in got.chunks_exact(4).enumerate() {
            let want = row(LayerId(1), HEAD, r);
            let want = if held.contains(&r) { &want[..4] } else { &[-1.0; 4] };
            assert_eq!(key, want, "row {r}");
        }
    }

    #[test]
    fn keys_are_held_from_when_they_come_until_they_are_indexed() {
        let mut keys = taken(&[1..3, 3..7]);
        check(&keys, 1..7);
        keys.forget_below(0);
        check(&keys, 1..7);
        keys.forget_below(4);
        check(&keys, 4..7);
        keys.truncate(6);
        check(&keys, 4..6);
        keys.truncate(8);
        check(&keys, 4..6);
        let mut part = vec![-1.0; 8];
        keys.put(&shape(), HEAD, 5..7, &mut part);
        assert_eq!(part[..4], row(LayerId(1), HEAD, 5)[..4]);
        assert_eq!(part[4..], [-1.0; 4]);
        keys.forget_below(9);
        check(&keys, 6..6);
        keys.forget();
        check(&keys, 0..0);
    }

    #[test]
    fn keys_behind_a_gap_begin_anew() {
        check(&taken(&[0..2, 4..6]), 4..6);
        check(&taken(&[4..6, 2..3]), 2..3);
    }
}
