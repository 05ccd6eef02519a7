//! InfLLM's representative scores: how well the queries of the local window behind a key agree with
//! it.
//!
//! The key at position m has `r_m = 1 / l_L sum_{j = 1..l_L} q_{m+j} . k_m`: inner products as they
//! are, without a softmax, summed over a group's query heads. That is `k_m . sum q`, so sums of
//! queries are enough, and no pass over the keys is needed while queries are at hand. They are kept
//! over blocks of a 32nd of the window; the window of a key is the blocks behind its own, which
//! moves it by less than that. Queries of generated tokens are added as they come, so blocks made
//! of generated tokens are scored alike.

use std::ops::Range;

use longview_core::{DType, HeadId};
use longview_ops::{Backend, OpResult, QuerySums, QuerySumsParams, View, ViewMut};

use super::records::QueriesRecord;
use crate::layout::KvShape;
use crate::policy::LocalWindow;
use crate::store::{LayerRows, ReadParts};

/// Rows whose keys are scored at a time.
const PIECE: usize = 4_096;

/// Blocks that say how much the keys at these positions represent.
fn blocks_behind(window: LocalWindow, positions: &Range<usize>) -> Range<usize> {
    let last = positions.end.saturating_sub(1) / window.block();
    positions.start / window.block() + 1..last + 1 + window.n_blocks()
}

/// Sums of the queries of one head, `[blocks, Dh]`, from block `first` on; what is not there counts
/// as 0.
#[derive(Clone, Copy)]
struct HeadSums<'a> {
    sums: &'a [f32],
    first: usize,
}

/// Scores of keys `[n, Dh]` at `position` and behind.
fn score(
    window: LocalWindow,
    keys: &[f32],
    position: usize,
    head: HeadSums<'_>,
    scores: &mut [f32],
) {
    let d = keys.len() / scores.len().max(1);
    let (mut own, mut sum_behind) = (usize::MAX, vec![0.0f64; d]);
    for (i, (key, score)) in keys.chunks_exact(d.max(1)).zip(scores).enumerate() {
        let block = (position + i) / window.block();
        // Neighbours share their window, so it is summed once a block.
        if block != own {
            own = block;
            sum_behind.fill(0.0);
            let from = block + 1 - head.first;
            for sum in head.sums.chunks_exact(d).skip(from).take(window.n_blocks()) {
                sum_behind.iter_mut().zip(sum).for_each(|(w, x)| *w += f64::from(*x));
            }
        }
        let dot: f64 = key.iter().zip(&sum_behind).map(|(k, w)| f64::from(*k) * w).sum();
        *score = (dot / window.tokens as f64) as f32;
    }
}

/// Queries of a step that are added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddedQueries {
    /// The first token among the step's.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// The position of the first in the sequence.
    pub position: usize,
}

/// Sums of a layer's queries over blocks of positions.
pub(crate) struct RecordedQueries<B: Backend> {
    /// F32 `[Hkv, blocks, Dh]`.
    sums: B::Buffer,
    window: LocalWindow,
    n_blocks: usize,
    head_dim: usize,
    /// Queries before this position are in the sums, or were lost with a device.
    covered: usize,
    /// As the sums, as of the last finished prefill.
    saved: Vec<f32>,
    /// Positions that these cover.
    saved_tokens: usize,
    /// What the window that is about to be indexed needs, `[Hkv, blocks, Dh]`.
    pending: Vec<f32>,
    /// The row with which that window begins.
    pending_row: Option<usize>,
}

impl<B: Backend> RecordedQueries<B> {
    /// No queries yet, of a sequence that may have `shape.capacity`.
    pub fn new(backend: &B, shape: &KvShape, window: LocalWindow) -> OpResult<Self> {
        let n_blocks = window.blocks_of(shape.capacity);
        let len = shape.n_kv_heads * n_blocks * shape.head_dim;
        Ok(Self {
            sums: backend.alloc(DType::F32, len, "sums of queries")?,
            window,
            n_blocks,
            head_dim: shape.head_dim,
            covered: 0,
            saved: vec![0.0; len],
            saved_tokens: 0,
            pending: Vec::new(),
            pending_row: None,
        })
    }

    /// Queries before this position are in the sums, or were lost with a device.
    pub fn covered(&self) -> usize {
        self.covered
    }

    /// Whether the sums serve this window too.
    pub fn serves(&self, window: LocalWindow) -> bool {
        self.window.block() == window.block()
    }

    /// As many of the first `n` tokens as a prompt may go on from: what is cut off leaves whole
    /// blocks, or all that a finished prefill had.
    pub fn known(&self, n: usize) -> usize {
        let n = n.min(self.covered);
        let is_whole = n == self.covered || n == self.saved_tokens;
        if is_whole { n } else { n / self.window.block() * self.window.block() }
    }

    /// Adds queries of `q`, F32 `[T, Hq, Dh]`. A step that is run again was added before; behind a
    /// gap nothing is added.
    pub fn add(
        &mut self,
        backend: &B,
        shape: &KvShape,
        q: View<'_, B>,
        added: AddedQueries,
    ) -> OpResult<()> {
        let AddedQueries { start, len, position } = added;
        if position != self.covered {
            return Ok(());
        }
        let token = shape.n_q_heads * shape.head_dim;
        backend.query_sums(QuerySums {
            p: QuerySumsParams {
                n_tokens: (q.len / token) as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                q_start: start as u32,
                q_len: len as u32,
                position: position as u32,
                block: self.window.block() as u32,
                n_blocks: self.n_blocks as u32,
            },
            q,
            out: ViewMut::all(&mut self.sums),
        })?;
        self.covered = position + len;
        Ok(())
    }

    /// Forgets queries at `n_tokens` and behind. With them go those before in the same block, but
    /// for what the last finished prefill had.
    pub fn truncate(&mut self, backend: &B, n_tokens: usize) -> OpResult<()> {
        self.pending_row = None;
        if n_tokens >= self.covered {
            return Ok(());
        }
        let blocks = n_tokens / self.window.block()..self.window.blocks_of(self.covered);
        let width = self.n_blocks * self.head_dim;
        let lost = blocks.start * self.head_dim..blocks.end * self.head_dim;
        if n_tokens < self.saved_tokens {
            self.saved_tokens = n_tokens;
            self.saved.chunks_exact_mut(width).for_each(|head| head[lost.clone()].fill(0.0));
        }
        self.covered = n_tokens;
        for (h, head) in self.saved.chunks_exact(width).enumerate() {
            let place = ViewMut::part(&mut self.sums, h * width + lost.start, lost.len());
            backend.write(place, bytemuck::cast_slice(&head[lost.clone()]))?;
        }
        Ok(())
    }

    /// Makes the sums again on a fresh device, as far as they were saved.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.sums = backend.alloc(DType::F32, self.saved.len(), "sums of queries")?;
        backend.write(ViewMut::all(&mut self.sums), bytemuck::cast_slice(&self.saved))
    }

    /// The sums of `n_tokens` tokens, and where their host copies go.
    pub fn save(&mut self, n_tokens: usize) -> impl Iterator<Item = (View<'_, B>, &mut [u8])> {
        self.saved_tokens = n_tokens;
        let width = self.n_blocks * self.head_dim;
        let len = self.window.blocks_of(n_tokens) * self.head_dim;
        let sums = &self.sums;
        self.saved.chunks_exact_mut(width).enumerate().map(move |(h, head)| {
            (View::part(sums, h * width, len), bytemuck::cast_slice_mut(&mut head[..len]))
        })
    }

    /// The sums that the rows `rows` need, which are about to be indexed, and where they go.
    pub fn prepare(&mut self, rows: Range<usize>) -> ReadParts<'_, B> {
        let blocks = blocks_behind(self.window, &rows);
        let blocks = blocks.start.min(self.n_blocks)..blocks.end.min(self.n_blocks);
        let (d, width) = (self.head_dim, self.n_blocks * self.head_dim);
        let len = blocks.len() * d;
        self.pending.resize(self.sums_heads() * len, 0.0);
        self.pending_row = Some(rows.start);
        let sums = &self.sums;
        let heads = self.pending.chunks_exact_mut(len.max(1)).enumerate();
        let part = |h: usize| View::part(sums, h * width + blocks.start * d, len);
        heads.map(|(h, head)| (part(h), bytemuck::cast_slice_mut(head))).collect()
    }

    /// As a session file has it.
    pub async fn record(&self, backend: &B) -> OpResult<QueriesRecord> {
        let (width, d) = (self.n_blocks * self.head_dim, self.head_dim);
        let len = self.window.blocks_of(self.covered) * d;
        let mut sums = vec![0.0f32; self.sums_heads() * len];
        let heads = sums.chunks_exact_mut(len.max(1)).enumerate();
        let part = |(h, out)| {
            (View::part(&self.sums, h * width, len), bytemuck::cast_slice_mut::<f32, u8>(out))
        };
        let mut parts: Vec<_> = heads.map(part).collect();
        backend.read_all(&mut parts).await?;
        drop(parts);
        let saved = self.window.blocks_of(self.saved_tokens) * d;
        let saved = self.saved.chunks_exact(width).flat_map(|head| &head[..saved]);
        Ok(QueriesRecord {
            window: self.window.tokens,
            covered: self.covered,
            sums,
            saved_tokens: self.saved_tokens,
            saved: saved.copied().collect(),
            pending_row: self.pending_row,
            pending: self.pending_row.map_or_else(Vec::new, |_| self.pending.clone()),
        })
    }

    /// What a session file has; `None` if it does not hold together.
    pub fn from_record(
        backend: &B,
        shape: &KvShape,
        record: QueriesRecord,
    ) -> OpResult<Option<Self>> {
        let window = LocalWindow { tokens: record.window };
        let (h, d) = (shape.n_kv_heads, shape.head_dim);
        let blocks = [record.covered, record.saved_tokens].map(|n| window.blocks_of(n) * d);
        let [covered, saved] = blocks;
        if [record.sums.len(), record.saved.len()] != blocks.map(|len| h * len) {
            return Ok(None);
        }
        let mut queries = Self::new(backend, shape, window)?;
        let width = queries.n_blocks * d;
        for (head, sums) in record.sums.chunks_exact(covered.max(1)).enumerate() {
            let place = ViewMut::part(&mut queries.sums, head * width, covered);
            backend.write(place, bytemuck::cast_slice(sums))?;
        }
        let heads = queries.saved.chunks_exact_mut(width);
        for (to, from) in heads.zip(record.saved.chunks_exact(saved.max(1))) {
            to[..saved].copy_from_slice(from);
        }
        (queries.covered, queries.saved_tokens) = (record.covered, record.saved_tokens);
        (queries.pending_row, queries.pending) = (record.pending_row, record.pending);
        Ok(Some(queries))
    }

    fn sums_heads(&self) -> usize {
        self.saved.len() / (self.n_blocks * self.head_dim)
    }

    /// Representative scores of rows of a prompt, `[Hkv, rows]`, by the sums of the last finished
    /// prefill. Rows are in token order.
    pub fn prompt_scores(
        &self,
        window: LocalWindow,
        rows: LayerRows<'_, B>,
        range: Range<usize>,
    ) -> Vec<f32> {
        let width = self.n_blocks * self.head_dim;
        let sums = |head: HeadId| &self.saved[head.index() * width..][..width];
        scores(window, rows, range, |head| HeadSums { sums: sums(head), first: 0 })
    }

    /// Representative scores of the rows of a window of generated tokens, `[Hkv, rows]`; `None`
    /// where nobody has read what they need.
    pub fn window_scores(
        &self,
        window: LocalWindow,
        rows: LayerRows<'_, B>,
        range: Range<usize>,
    ) -> Option<Vec<f32>> {
        if self.pending_row != Some(range.start) {
            return None;
        }
        let len = self.pending.len() / self.sums_heads();
        let first = blocks_behind(self.window, &range).start;
        let sums = |head: HeadId| &self.pending[head.index() * len..][..len];
        Some(scores(window, rows, range, |head| HeadSums { sums: sums(head), first }))
    }
}

/// Scores of rows by the sums of each head, `[Hkv, rows]`.
fn scores<'a, B: Backend>(
    window: LocalWindow,
    rows: LayerRows<'_, B>,
    range: Range<usize>,
    sums: impl Fn(HeadId) -> HeadSums<'a>,
) -> Vec<f32> {
    let (d, n) = (rows.shape.head_dim, range.len());
    let mut scores = vec![0.0; rows.shape.n_kv_heads * n];
    let (mut bytes, mut keys) = (Vec::new(), vec![0.0; PIECE.min(n) * d]);
    for (head, scores) in rows.shape.heads().zip(scores.chunks_exact_mut(n.max(1))) {
        for (start, scores) in range.clone().step_by(PIECE).zip(scores.chunks_mut(PIECE)) {
            let keys = &mut keys[..scores.len() * d];
            rows.keys(head, start..start + scores.len(), &mut bytes, keys);
            score(window, keys, start, sums(head), scores);
        }
    }
    scores
}

#[cfg(test)]
mod tests {
    use longview_core::LayerId;

    use super::super::testing::{R, fill, floats, shape, store_of, upload};
    use super::*;
    use crate::store::PlainStore;

    /// Positions in blocks of 2, 32 of them in a window; a sequence of 8 positions has 4.
    const WINDOW: LocalWindow = LocalWindow { tokens: 64 };

    /// The query of head `head` at position `t` is `((t + 1) * (head + 1), 1)`: the pair of heads
    /// of KV head 0 sums to `(3 (t + 1), 2)`, that of KV head 1 to `(7 (t + 1), 2)`.
    fn add(queries: &mut RecordedQueries<R>, backend: &R, position: usize, len: usize) {
        let number = |t: usize, head: usize| [((t + 1) * (head + 1)) as f32, 1.0];
        // One token of the step belongs to somebody else.
        let tokens = std::iter::once(90).chain(position..position + len);
        let q: Vec<f32> =
            tokens.flat_map(|t| (0..4).flat_map(move |head| number(t, head))).collect();
        let q = upload(backend, &q);
        let added = AddedQueries { start: 1, len, position };
        queries.add(backend, &shape(4, 2, 2), View::all(&q), added).unwrap();
    }

    /// Queries of the first five positions.
    fn five(backend: &R) -> RecordedQueries<R> {
        let mut queries = RecordedQueries::new(backend, &shape(4, 2, 2), WINDOW).unwrap();
        add(&mut queries, backend, 0, 3);
        add(&mut queries, backend, 3, 2);
        queries
    }

    /// The sums of both heads on the device: of positions 0 and 1, 2 and 3, 4, none.
    const FIVE: [f32; 16] = [9., 4., 21., 4., 15., 2., 0., 0., 21., 4., 49., 4., 35., 2., 0., 0.];

    fn sums(backend: &R, queries: &RecordedQueries<R>) -> Vec<f32> {
        floats(backend, View::all(&queries.sums))
    }

    fn save(backend: &R, queries: &mut RecordedQueries<R>, n_tokens: usize) {
        let mut parts: Vec<_> = queries.save(n_tokens).collect();
        pollster::block_on(backend.read_all(&mut parts)).unwrap();
    }

    fn prepare(backend: &R, queries: &mut RecordedQueries<R>, rows: Range<usize>) {
        let mut parts = queries.prepare(rows);
        pollster::block_on(backend.read_all(&mut parts)).unwrap();
    }

    /// Keys of channel `head` alone, `row + 1` long.
    fn keys(shape: &KvShape) -> PlainStore {
        store_of(shape, |head, row| {
            let mut key = vec![0.0; 2];
            key[head] = (row + 1) as f32;
            key
        })
    }

    #[test]
    fn queries_are_summed_by_block_and_kv_head() {
        let backend = R::new();
        let mut queries = five(&backend);
        assert_eq!((queries.covered(), sums(&backend, &queries)), (5, FIVE.to_vec()));
        // A step that is run again was added before, and nothing follows a gap.
        add(&mut queries, &backend, 3, 2);
        add(&mut queries, &backend, 6, 1);
        assert_eq!((queries.covered(), sums(&backend, &queries)), (5, FIVE.to_vec()));
        add(&mut queries, &backend, 5, 1);
        let all = sums(&backend, &queries);
        assert_eq!(
            (queries.covered(), &all[4..6], &all[12..14]),
            (6, &[15.0 + 18.0, 4.0][..], &[35.0 + 42.0, 4.0][..])
        );
        assert!(queries.serves(LocalWindow { tokens: 95 }), "blocks of 2 too");
        assert!(!queries.serves(LocalWindow { tokens: 96 }), "blocks of 3");
    }

    #[test]
    fn a_cut_goes_back_to_what_the_last_prefill_saved() {
        let backend = R::new();
        let mut queries = five(&backend);
        save(&backend, &mut queries, 5);
        add(&mut queries, &backend, 5, 2);
        prepare(&backend, &mut queries, 2..4);
        queries.truncate(&backend, 7).unwrap();
        assert_eq!((queries.covered(), queries.pending_row), (7, None));
        queries.truncate(&backend, 5).unwrap();
        assert_eq!((queries.covered(), sums(&backend, &queries)), (5, FIVE.to_vec()));
        // Positions 3 and 4 go, and with them position 2 of the same block.
        queries.truncate(&backend, 3).unwrap();
        let mut left = [0.0; 16];
        left[..2].copy_from_slice(&FIVE[..2]);
        left[8..10].copy_from_slice(&FIVE[8..10]);
        assert_eq!((queries.covered(), sums(&backend, &queries)), (3, left.to_vec()));
        assert_eq!((queries.saved_tokens, queries.saved.clone()), (3, left.to_vec()));
        // The first query after the cut counts as any other.
        add(&mut queries, &backend, 3, 1);
        assert_eq!(sums(&backend, &queries)[2..4], [12.0, 2.0]);
    }

    #[test]
    fn a_fresh_device_has_what_was_saved() {
        let backend = R::new();
        let mut queries = five(&backend);
        save(&backend, &mut queries, 5);
        add(&mut queries, &backend, 5, 2);
        let fresh = R::new();
        queries.restore(&fresh).unwrap();
        assert_eq!((queries.covered(), sums(&fresh, &queries)), (7, FIVE.to_vec()));
    }

    #[test]
    fn rows_of_a_prompt_are_scored_by_what_was_saved() {
        let backend = R::new();
        let (shape, mut queries) = (shape(4, 2, 2), five(&backend));
        let store = keys(&shape);
        let rows = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
        assert_eq!(queries.prompt_scores(WINDOW, rows, 1..4), [0.0; 6], "nothing was saved");
        save(&backend, &mut queries, 5);
        // Behind row 1: blocks 1 to 3, (36, 6) or (84, 6). Behind rows 2 and 3: block 2, (15, 2) or
        // (35, 2). Head 0 looks at the first number, head 1 at the second.
        let scores = queries.prompt_scores(WINDOW, rows, 1..4);
        let want = [2.0 * 36.0, 3.0 * 15.0, 4.0 * 15.0, 2.0 * 6.0, 3.0 * 2.0, 4.0 * 2.0];
        assert_eq!(scores, want.map(|x: f32| x / 64.0));
    }

    #[test]
    fn a_window_is_scored_by_the_sums_that_were_read_for_it() {
        let backend = R::new();
        let (shape, mut queries) = (shape(4, 2, 2), five(&backend));
        let store = keys(&shape);
        let rows = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
        assert_eq!(queries.window_scores(WINDOW, rows, 1..4), None);
        prepare(&backend, &mut queries, 1..4);
        // What comes later does not change them.
        add(&mut queries, &backend, 5, 1);
        let want = [2.0 * 36.0, 3.0 * 15.0, 4.0 * 15.0, 2.0 * 6.0, 3.0 * 2.0, 4.0 * 2.0];
        let want = want.map(|x: f32| x / 64.0).to_vec();
        assert_eq!(queries.window_scores(WINDOW, rows, 1..4), Some(want));
        assert_eq!(queries.window_scores(WINDOW, rows, 2..4), None, "another window");
    }

    #[test]
    fn a_record_makes_the_same_sums() {
        let backend = R::new();
        let (shape, mut queries) = (shape(4, 2, 2), five(&backend));
        save(&backend, &mut queries, 3);
        prepare(&backend, &mut queries, 1..4);
        let record = pollster::block_on(queries.record(&backend)).unwrap();
        // Three blocks of either head, and two that were saved.
        assert_eq!(record.sums, [&FIVE[..6], &FIVE[8..14]].concat());
        assert_eq!(record.saved, [&FIVE[..4], &FIVE[8..12]].concat());
        assert_eq!((record.window, record.covered, record.saved_tokens), (64, 5, 3));
        assert_eq!((record.pending_row, record.pending.len()), (Some(1), 2 * 3 * 2));
        let load = |record| RecordedQueries::from_record(&backend, &shape, record).unwrap();
        let again = load(record.clone()).unwrap();
        assert_eq!(sums(&backend, &again), FIVE);
        assert_eq!(pollster::block_on(again.record(&backend)).unwrap(), record);
        let mut short = record.clone();
        short.sums.pop();
        assert!(load(short).is_none());
        assert!(load(QueriesRecord { saved_tokens: 5, ..record }).is_none(), "saved is too short");
    }

    #[test]
    fn long_runs_of_rows_are_scored_in_pieces() {
        let shape = KvShape { capacity: PIECE + 10, ..shape(1, 1, 1) };
        let mut store = PlainStore::new(&shape).unwrap();
        fill(&mut store, &shape, |_, row| vec![if row > PIECE { 2.0 } else { 1.0 }]);
        let rows = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
        let sums = vec![1.0; WINDOW.blocks_of(shape.capacity)];
        let got = scores(WINDOW, rows, 1..PIECE + 10, |_| HeadSums { sums: &sums, first: 0 });
        // Of 2,053 blocks, row 4,095 has 5 behind its own, row 4,097 has 4 and counts twice.
        assert_eq!((got.len(), got[0]), (PIECE + 9, 0.5));
        assert_eq!(got[PIECE - 2..PIECE + 1], [5.0 / 64.0, 4.0 / 64.0, 8.0 / 64.0]);
    }

    #[test]
    fn a_window_is_cut_into_32_blocks_or_single_tokens() {
        for (tokens, block, n_blocks) in
            [(1, 1, 1), (8, 1, 8), (63, 1, 63), (64, 2, 32), (100, 3, 33), (4096, 128, 32)]
        {
            let window = LocalWindow { tokens };
            assert_eq!((window.block(), window.n_blocks()), (block, n_blocks), "{tokens}");
        }
        let window = LocalWindow { tokens: 64 };
        assert_eq!(blocks_behind(window, &(10..12)), 6..38);
        assert_eq!(blocks_behind(window, &(10..13)), 6..39);
    }

    #[test]
    fn a_key_is_compared_with_the_blocks_behind_its_own() {
        // Blocks of 2 of a window of 64; queries of one channel, block b sums to b.
        let window = LocalWindow { tokens: 64 };
        let sums: Vec<f32> = (5..50).map(|b| b as f32).collect();
        let head = HeadSums { sums: &sums, first: 5 };
        let mut scores = [0.0; 3];
        score(window, &[1.0, 2.0, 1.0], 10, head, &mut scores);
        let behind = |block: usize| (block + 1..block + 33).sum::<usize>() as f32 / 64.0;
        assert_eq!(scores, [behind(5), 2.0 * behind(5), behind(6)]);
        // What is not there counts as 0.
        score(window, &[1.0, 1.0, 1.0], 94, head, &mut scores);
        assert_eq!(scores, [(48.0 + 49.0) / 64.0, (48.0 + 49.0) / 64.0, 49.0 / 64.0]);
    }
}
