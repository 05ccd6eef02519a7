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

use longview_core::{DType, decode_f32_into};
use longview_ops::{Backend, OpResult, QuerySums, QuerySumsParams, View, ViewMut};

use crate::error::SchedulerError;
use crate::keep::no_mass;
use crate::layer::{LayerMode, Recorded, layer_mode};
use crate::mirror::ReadParts;
use crate::policy::{KeepConfig, Policy, Statistic};
use crate::select::Query;
use crate::sequence::Sequence;
use crate::session_file::QueriesRecord;
use crate::shape::KvShape;

/// Blocks of a window of at least as many tokens.
const PARTS: usize = 32;

/// The tokens behind a key whose queries say how much it represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalWindow {
    /// l_L.
    pub tokens: usize,
}

impl LocalWindow {
    /// Tokens whose queries are summed together.
    pub fn block(self) -> usize {
        (self.tokens / PARTS).max(1)
    }

    /// Blocks of a window.
    fn n_blocks(self) -> usize {
        self.tokens / self.block()
    }

    /// Blocks of `tokens` tokens.
    pub fn blocks_of(self, tokens: usize) -> usize {
        tokens.div_ceil(self.block())
    }

    /// Blocks that say how much the keys at these positions represent.
    fn blocks_behind(self, positions: &Range<usize>) -> Range<usize> {
        let last = positions.end.saturating_sub(1) / self.block();
        positions.start / self.block() + 1..last + 1 + self.n_blocks()
    }

    /// Scores of keys `[n, Dh]` at `position` and behind. `sums` are those of one head, `[blocks,
    /// Dh]`, from block `first` on; what is not there counts as 0.
    fn score(self, keys: &[f32], position: usize, sums: &[f32], first: usize, scores: &mut [f32]) {
        let d = keys.len() / scores.len().max(1);
        let (mut own, mut window) = (usize::MAX, vec![0.0f64; d]);
        for (i, (key, score)) in keys.chunks_exact(d.max(1)).zip(scores).enumerate() {
            let block = (position + i) / self.block();
            if block != own {
                own = block;
                window.fill(0.0);
                let from = block + 1 - first;
                for sum in sums.chunks_exact(d).skip(from).take(self.n_blocks()) {
                    window.iter_mut().zip(sum).for_each(|(w, x)| *w += f64::from(*x));
                }
            }
            let dot: f64 = key.iter().zip(&window).map(|(k, w)| f64::from(*k) * w).sum();
            *score = (dot / self.tokens as f64) as f32;
        }
    }
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

    /// Whether the sums serve this window too.
    pub fn serves(&self, window: LocalWindow) -> bool {
        self.window.block() == window.block()
    }

    /// Adds the queries of the `len` tokens from `start` on of `q`, which are those at `position`
    /// of the sequence and behind. A step that is run again was added before; behind a gap nothing
    /// is added.
    pub fn record(
        &mut self,
        backend: &B,
        shape: &KvShape,
        q: View<'_, B>,
        (start, len): (usize, usize),
        position: usize,
    ) -> OpResult<()> {
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
    fn save(&mut self, n_tokens: usize) -> impl Iterator<Item = (View<'_, B>, &mut [u8])> {
        self.saved_tokens = n_tokens;
        let width = self.n_blocks * self.head_dim;
        let len = self.window.blocks_of(n_tokens) * self.head_dim;
        let sums = &self.sums;
        self.saved.chunks_exact_mut(width).enumerate().map(move |(h, head)| {
            (View::part(sums, h * width, len), bytemuck::cast_slice_mut(&mut head[..len]))
        })
    }

    /// The sums that the rows `rows` need, which are about to be indexed, and where they go.
    fn prepare(&mut self, rows: Range<usize>) -> ReadParts<'_, B> {
        let blocks = self.window.blocks_behind(&rows);
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
    pub async fn record_all(&self, backend: &B) -> OpResult<QueriesRecord> {
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
}

fn no_query_sums(policy: &Policy) -> SchedulerError {
    let what = "the sums of all queries (--importance last does without)";
    SchedulerError::NoStatistics { policy: policy.preset, what }
}

impl<B: Backend> Sequence<B> {
    /// Whether `policy` could have what it wants to know of all queries of the prompt: only a
    /// prefill under it records that.
    pub(crate) fn check_statistics(&self, policy: &Policy) -> Result<(), SchedulerError> {
        let n = self.n_tokens;
        if n == 0 {
            return Ok(());
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let mode = layer_mode(policy, i);
            if let (LayerMode::Recall, Some(window)) = (mode, policy.local_window()) {
                let known = layer.recorded.queries.as_ref();
                if known.is_none_or(|known| !known.serves(window) || known.covered != n) {
                    return Err(no_query_sums(policy));
                }
            }
            let by_all = |keep: KeepConfig| keep.statistic == Statistic::AllQueries;
            let needs_mass = mode == LayerMode::Keep && policy.keep.is_some_and(by_all);
            // A prompt of recent tokens alone is kept whole.
            let Recorded { mass, mass_rows, .. } = &layer.recorded;
            if needs_mass && n > policy.recent && (mass.is_none() || *mass_rows < n) {
                return Err(no_mass(policy));
            }
        }
        Ok(())
    }

    /// At the end of a prefill: brings the sums of queries to the host, where blocks are made of
    /// them and a lost device leaves them.
    pub(crate) async fn save_query_sums(&mut self) -> Result<(), SchedulerError> {
        if self.policy.local_window().is_none() {
            return Ok(());
        }
        let (n, missing) = (self.n_tokens, no_query_sums(&self.policy));
        let mut parts = ReadParts::<B>::new();
        for layer in self.layers.iter_mut().filter(|layer| layer.mode == LayerMode::Recall) {
            let recorded = layer.recorded.queries.as_mut().filter(|queries| queries.covered == n);
            match recorded {
                Some(recorded) => parts.extend(recorded.save(n)),
                None => return Err(missing),
            }
        }
        Ok(self.backend.read_all(&mut parts).await?)
    }

    /// In a decode step: adds the token's query, and reads what the window needs that this step
    /// fills.
    pub(crate) async fn follow_query(
        &mut self,
        layer: usize,
        query: &Query<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (Some(_), Some(index)) = (self.policy.local_window(), self.policy.index) else {
            return Ok(());
        };
        let (n, fills) = (self.n_tokens, self.fills_window(layer, self.n_tokens + 1));
        let (backend, shape, state) = (&*self.backend, &self.shape, &mut self.layers[layer]);
        let Some(recorded) = &mut state.recorded.queries else { return Ok(()) };
        recorded.record(backend, shape, query.q, (query.index, 1), n)?;
        if fills {
            let first = state.n_submitted;
            let mut parts = recorded.prepare(first..first + index.window);
            backend.read_all(&mut parts).await?;
        }
        Ok(())
    }

    /// Representative scores of the rows `rows` of a prompt, `[Hkv, rows]`. Rows are in token
    /// order.
    pub(crate) fn prompt_scores(&mut self, layer: usize, rows: Range<usize>) -> Vec<f32> {
        let Some(recorded) = self.layers[layer].recorded.queries.take() else { return Vec::new() };
        let width = recorded.n_blocks * recorded.head_dim;
        let sums = |head: usize| &recorded.saved[head * width..(head + 1) * width];
        let scores = self.local_scores(layer, rows, &sums, 0);
        self.layers[layer].recorded.queries = Some(recorded);
        scores
    }

    /// Representative scores of the `n` rows of a window of generated tokens, `[Hkv, n]`; `None`
    /// where nobody has read what they need.
    pub(crate) fn window_scores(&mut self, layer: usize, n: usize) -> Option<Vec<f32>> {
        let start = self.layers[layer].n_submitted;
        let recorded = self.layers[layer].recorded.queries.take()?;
        let is_there = recorded.pending_row == Some(start);
        let scores = is_there.then(|| {
            let len = recorded.pending.len() / recorded.sums_heads();
            let sums = |head: usize| &recorded.pending[head * len..(head + 1) * len];
            let first = recorded.window.blocks_behind(&(start..start + n)).start;
            self.local_scores(layer, start..start + n, &sums, first)
        });
        self.layers[layer].recorded.queries = Some(recorded);
        scores
    }

    /// Scores of rows by `sums` of each head, which begin with block `first`.
    fn local_scores<'a>(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        sums: &dyn Fn(usize) -> &'a [f32],
        first: usize,
    ) -> Vec<f32> {
        /// Rows at a time.
        const PIECE: usize = 4_096;
        let Some(window) = self.policy.local_window() else { return Vec::new() };
        let (d, row_bytes) = (self.shape.head_dim, self.shape.row_bytes());
        let mut scores = vec![0.0; self.shape.n_kv_heads * rows.len()];
        let mut keys = vec![0.0; PIECE.min(rows.len()) * d];
        for (head, scores) in scores.chunks_exact_mut(rows.len().max(1)).enumerate() {
            for (start, scores) in rows.clone().step_by(PIECE).zip(scores.chunks_mut(PIECE)) {
                let n = scores.len();
                self.bytes.resize(n * row_bytes, 0);
                self.tier.read_rows(layer, head, start..start + n, &mut self.bytes);
                let keys = &mut keys[..n * d];
                for (row, key) in self.bytes.chunks_exact(row_bytes).zip(keys.chunks_exact_mut(d)) {
                    decode_f32_into(self.shape.kv_dtype, &row[..row_bytes / 2], key);
                }
                window.score(keys, start, sums(head), first, scores);
            }
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cut_into_32_blocks_or_single_tokens() {
        for (tokens, block, n_blocks) in
            [(1, 1, 1), (8, 1, 8), (63, 1, 63), (64, 2, 32), (100, 3, 33), (4096, 128, 32)]
        {
            let window = LocalWindow { tokens };
            assert_eq!((window.block(), window.n_blocks()), (block, n_blocks), "{tokens}");
        }
        let window = LocalWindow { tokens: 64 };
        assert_eq!(window.blocks_behind(&(10..12)), 6..38);
        assert_eq!(window.blocks_behind(&(10..13)), 6..39);
    }

    #[test]
    fn a_key_is_compared_with_the_blocks_behind_its_own() {
        // Blocks of 2 of a window of 64; queries of one channel, block b sums to b.
        let window = LocalWindow { tokens: 64 };
        let sums: Vec<f32> = (5..50).map(|b| b as f32).collect();
        let mut scores = [0.0; 3];
        window.score(&[1.0, 2.0, 1.0], 10, &sums, 5, &mut scores);
        let behind = |block: usize| (block + 1..block + 33).sum::<usize>() as f32 / 64.0;
        assert_eq!(scores, [behind(5), 2.0 * behind(5), behind(6)]);
        // What is not there counts as 0.
        window.score(&[1.0, 1.0, 1.0], 94, &sums, 5, &mut scores);
        assert_eq!(scores, [(48.0 + 49.0) / 64.0, (48.0 + 49.0) / 64.0, 49.0 / 64.0]);
    }
}
