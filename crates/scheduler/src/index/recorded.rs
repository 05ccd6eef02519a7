//! What prefill records of every layer for policies that come later: sums of q q^T and k k^T, the
//! last queries, and, only where a policy asked for them, sums of queries and the attention that
//! every row received.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, Gram, GramParams, OpResult, View, ViewMut};

use super::importance::{AddedQueries, RecordedQueries};
use crate::layout::{KvShape, LAST_QUERIES, LayerTensors, SUMMED_TOKENS};
use crate::policy::LocalWindow;

/// Tokens between two places to which the sums can be cut back.
const EARLIER_EVERY: usize = 2_048;

/// Tokens between two such places near the end, where most prompts about one document part: each
/// takes memory and, on a device, a wait.
const NEAR_EVERY: usize = 256;

/// The last tokens that are near the end.
const NEAR: usize = 1_024;

/// What later policies need from prefill, recorded for every layer.
pub struct Recorded<B: Backend> {
    /// `sum q q^T` over the first `SUMMED_TOKENS` tokens and the group's query heads, F32
    /// `[Hkv, Dh, Dh]`.
    pub gram_q: B::Buffer,
    /// `sum k k^T`, F32 `[Hkv, Dh, Dh]`.
    pub gram_k: B::Buffer,
    /// Tokens in these sums.
    pub(crate) n_summed: usize,
    /// Whether these are not the first ones alone, without a gap: a part of a prompt was cut off.
    has_gap: bool,
    /// The sums as they were earlier, so that a sequence can be cut back to there.
    earlier: Vec<EarlierSums>,
    /// Tokens behind which another prompt went on otherwise: the next one probably does as well.
    parts_at: usize,
    /// The last queries of the last prefill, oldest first, `[n, Hq, Dh]` with n at most
    /// [`crate::LAST_QUERIES`].
    pub last_queries: Vec<f32>,
    /// Tokens of the sequence behind the last of these.
    pub last_end: usize,
    /// What every row received from all queries of the prompt so far, F32 `[Hq, capacity]` and as
    /// many spare elements as one head has; only under policies that keep tokens by it.
    pub(crate) mass: Option<B::Buffer>,
    /// Rows that it covers.
    pub(crate) mass_rows: usize,
    /// Sums of queries; only once a policy asked for them.
    pub(crate) queries: Option<RecordedQueries<B>>,
    /// Those of queries, then those of keys, as they were last on the host; empty where there were
    /// none. Sequences that go on from one share them.
    saved: Arc<[f32]>,
    /// Whether these are the sums of now.
    is_saved: bool,
    /// Whether the device has the sums of now; else it gets them before it adds to them.
    is_on_device: bool,
}

/// Both sums over the first tokens.
#[derive(Clone, Debug)]
struct EarlierSums {
    n_tokens: usize,
    /// Those of queries, then those of keys.
    sums: Arc<[f32]>,
}

/// Places on the way through a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlierPlaces {
    None,
    /// Every [`EARLIER_EVERY`] tokens.
    Few,
    /// And every [`NEAR_EVERY`] of the last tokens.
    Near,
}

/// A chunk of a prompt among the tokens of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedChunk {
    /// Its first token among the step's.
    pub start: usize,
    /// Its tokens.
    pub len: usize,
    /// Tokens that the sequence had before.
    pub n_before: usize,
    /// Tokens of the same prompt that follow.
    pub remaining: usize,
    /// Where the sums are to be had as they were on the way.
    pub earlier: EarlierPlaces,
}

impl<B: Backend> Recorded<B> {
    pub(crate) fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        let len = shape.n_kv_heads * shape.head_dim * shape.head_dim;
        Ok(Self {
            gram_q: backend.alloc(DType::F32, len, "sum of q q^T")?,
            gram_k: backend.alloc(DType::F32, len, "sum of k k^T")?,
            n_summed: 0,
            has_gap: false,
            earlier: Vec::new(),
            parts_at: 0,
            last_queries: Vec::new(),
            last_end: 0,
            mass: None,
            mass_rows: 0,
            queries: None,
            saved: Arc::default(),
            is_saved: true,
            is_on_device: true,
        })
    }

    /// Both sums and where their host copies go; [`Recorded::was_read`] follows. `None` where the
    /// host has them.
    pub(crate) fn read_parts(&mut self) -> Option<[(View<'_, B>, &mut [u8]); 2]> {
        if self.is_saved {
            return None;
        }
        if self.saved.is_empty() {
            self.saved = vec![0.0; self.gram_q.len() + self.gram_k.len()].into();
        }
        let (q, k) = Arc::make_mut(&mut self.saved).split_at_mut(self.gram_q.len());
        Some([
            (View::all(&self.gram_q), bytemuck::cast_slice_mut(q)),
            (View::all(&self.gram_k), bytemuck::cast_slice_mut(k)),
        ])
    }

    /// What [`Recorded::read_parts`] names was read.
    pub(crate) fn was_read(&mut self) {
        self.is_saved = true;
    }

    /// Both sums.
    pub(crate) async fn sums(&self, backend: &B) -> OpResult<(Vec<f32>, Vec<f32>)> {
        if self.is_saved && !self.saved.is_empty() {
            let (q, k) = self.saved.split_at(self.gram_q.len());
            return Ok((q.to_vec(), k.to_vec()));
        }
        let (mut q, mut k) = (vec![0.0; self.gram_q.len()], vec![0.0; self.gram_k.len()]);
        if self.is_saved {
            return Ok((q, k));
        }
        let mut parts = [
            (View::all(&self.gram_q), bytemuck::cast_slice_mut(&mut q)),
            (View::all(&self.gram_k), bytemuck::cast_slice_mut(&mut k)),
        ];
        backend.read_all(&mut parts).await?;
        Ok((q, k))
    }

    /// Both sums, those of queries first, for others to share; empty where there are none.
    pub(crate) async fn shared_sums(&mut self, backend: &B) -> OpResult<Arc<[f32]>> {
        if !self.is_saved {
            let (q, k) = self.sums(backend).await?;
            self.saved = q.into_iter().chain(k).collect();
            self.is_saved = true;
        }
        Ok(Arc::clone(&self.saved))
    }

    /// Sums that were saved, as [`Recorded::shared_sums`] has them.
    pub(crate) fn load_sums(&mut self, sums: Arc<[f32]>) {
        (self.saved, self.is_saved, self.is_on_device) = (sums, true, false);
    }

    /// Writes sums that were loaded to the device.
    fn bring_sums(&mut self, backend: &B) -> OpResult<()> {
        if self.is_on_device {
            return Ok(());
        }
        let len = self.gram_q.len();
        let zeros = if self.saved.is_empty() { vec![0.0; 2 * len] } else { Vec::new() };
        let sums = if zeros.is_empty() { &self.saved[..] } else { &zeros };
        let (q, k) = sums.split_at(len);
        backend.write(ViewMut::all(&mut self.gram_q), bytemuck::cast_slice(q))?;
        backend.write(ViewMut::all(&mut self.gram_k), bytemuck::cast_slice(k))?;
        self.is_on_device = true;
        Ok(())
    }

    /// Makes the sums again on a fresh device.
    pub(crate) fn restore(&mut self, backend: &B, shape: &KvShape) -> OpResult<()> {
        let fresh = Self::new(backend, shape)?;
        (self.gram_q, self.gram_k) = (fresh.gram_q, fresh.gram_k);
        (self.mass, self.mass_rows) = (None, 0);
        if let Some(queries) = &mut self.queries {
            queries.restore(backend)?;
        }
        // Those of now are gone with the device.
        (self.is_saved, self.is_on_device) = (true, false);
        Ok(())
    }

    /// Adds a chunk of a prompt to the sums, and keeps its last queries.
    ///
    /// `n_before` tokens are in the sequence, `remaining` tokens of the prompt follow the chunk.
    pub(crate) async fn add_chunk(
        &mut self,
        backend: &B,
        shape: &KvShape,
        t: &LayerTensors<'_, B>,
        chunk: RecordedChunk,
    ) -> OpResult<()> {
        let RecordedChunk { start, len, n_before, remaining, earlier } = chunk;
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        let mut summed = 0;
        let most = SUMMED_TOKENS.saturating_sub(n_before).min(len);
        self.has_gap |= most > 0 && self.n_summed != n_before;
        // Who asks the same again goes on from the last token but one.
        let last = if remaining == 0 { most.saturating_sub(1) } else { 0 };
        let every = if earlier == EarlierPlaces::Near { NEAR_EVERY } else { EARLIER_EVERY };
        while summed < most {
            let at = n_before + summed;
            // Sums grow token by token, so where a call ends changes nothing.
            let to_place = every - at % every;
            let to_last = if summed < last { last - summed } else { most - summed };
            let to_part = self.parts_at.checked_sub(at).filter(|n| *n > 0);
            let n = to_place.min(to_last).min(to_part.unwrap_or(most));
            self.add_sums(backend, shape, t, (start + summed, n))?;
            summed += n;
            self.n_summed = at + n;
            let is_place = n == to_place || Some(n) == to_part || summed == last;
            let is_kept = earlier != EarlierPlaces::None && self.n_summed < SUMMED_TOKENS;
            if is_kept && is_place {
                self.keep_earlier(backend).await?;
            }
        }
        // Offset and length of the chunk's tokens from the `skip`-th on.
        let part = |view: &View<'_, B>, heads: usize, skip: usize| {
            let at = view.offset + (start + skip) * heads * d;
            (at, (len - skip) * heads * d)
        };
        if let Some(queries) = &mut self.queries {
            let added = AddedQueries { start, len, position: n_before };
            queries.add(backend, shape, t.q, added)?;
        }
        if remaining < LAST_QUERIES {
            let keep = (LAST_QUERIES - remaining).min(len);
            if self.last_end != n_before {
                // Tokens were decoded since: the queries would not follow each other.
                self.last_queries.clear();
            }
            let (at, n) = part(&t.q, hq, len - keep);
            let old = self.last_queries.len();
            self.last_queries.resize(old + n, 0.0);
            let out = bytemuck::cast_slice_mut(&mut self.last_queries[old..]);
            backend.read(View::part(t.q.buffer, at, n), out).await?;
            self.last_end = n_before + len;
            let excess = self.last_queries.len().saturating_sub(LAST_QUERIES * hq * d);
            self.last_queries.drain(..excess);
        }
        Ok(())
    }

    /// Adds `n` tokens of a step to the sums, from token `first` of the step on.
    fn add_sums(
        &mut self,
        backend: &B,
        shape: &KvShape,
        t: &LayerTensors<'_, B>,
        (first, n): (usize, usize),
    ) -> OpResult<()> {
        self.bring_sums(backend)?;
        self.is_saved = false;
        let (hq, hkv, d) = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim);
        let gram = |n_heads: usize, group: usize| GramParams {
            n_tokens: n as u32,
            n_heads: n_heads as u32,
            group: group as u32,
            head_dim: d as u32,
        };
        let width = hq * d;
        backend.gram(Gram {
            p: gram(hq, hq / hkv),
            x: View::part(t.q.buffer, t.q.offset + first * width, n * width),
            out: ViewMut::all(&mut self.gram_q),
        })?;
        let width = hkv * d;
        backend.gram(Gram {
            p: gram(hkv, 1),
            x: View::part(t.k.buffer, t.k.offset + first * width, n * width),
            out: ViewMut::all(&mut self.gram_k),
        })
    }

    /// Keeps the sums as they are, unless they are kept: a cut may come back to here.
    pub(crate) async fn keep_earlier(&mut self, backend: &B) -> OpResult<()> {
        if self.may_keep_earlier() {
            let sums = self.shared_sums(backend).await?;
            self.push_earlier(sums);
        }
        Ok(())
    }

    /// The same of sums that were loaded just now: their host copies are at hand.
    pub(crate) fn keep_loaded(&mut self) {
        if self.may_keep_earlier() {
            self.push_earlier(Arc::clone(&self.saved));
        }
    }

    fn may_keep_earlier(&self) -> bool {
        let n_tokens = self.n_summed;
        let is_kept = self.earlier.iter().any(|earlier| earlier.n_tokens == n_tokens);
        n_tokens > 0 && !self.has_gap && !is_kept
    }

    fn push_earlier(&mut self, sums: Arc<[f32]>) {
        let n_tokens = self.n_summed;
        // Of the ends of prompts, the last one counts.
        self.earlier.retain(|earlier| {
            let is_end = earlier.n_tokens + 1 == n_tokens;
            let is_near =
                earlier.n_tokens.is_multiple_of(NEAR_EVERY) && earlier.n_tokens + NEAR > n_tokens;
            let is_place = is_near || earlier.n_tokens.is_multiple_of(EARLIER_EVERY);
            is_end || is_place || earlier.n_tokens == self.parts_at
        });
        self.earlier.push(EarlierSums { n_tokens, sums });
    }

    /// Says that another prompt goes on otherwise behind `n` tokens: the sums are kept as they are
    /// there.
    pub(crate) fn part_at(&mut self, n: usize) {
        self.parts_at = n;
    }

    /// As many of the first `n` tokens as have sums that are known.
    pub(crate) fn sums_known(&self, n: usize) -> usize {
        if n >= self.n_summed && !self.has_gap {
            return n;
        }
        let earlier = self.earlier.iter().map(|earlier| earlier.n_tokens);
        earlier.filter(|earlier| *earlier <= n).max().unwrap_or(0)
    }

    /// Whether the last queries are those before token `n`.
    pub(crate) fn has_last_queries(&self, shape: &KvShape, n: usize) -> bool {
        let all = LAST_QUERIES.min(n) * shape.n_q_heads * shape.head_dim;
        self.last_end == n && self.last_queries.len() == all
    }

    /// The sequence is cut back to `n` tokens: so are the sums, where they are known. Otherwise
    /// they stay those of more tokens.
    pub(crate) fn cut_sums(&mut self, n: usize) {
        if n >= self.n_summed {
            return;
        }
        let known = self.sums_known(n);
        self.earlier.retain(|earlier| earlier.n_tokens <= n);
        let earlier = self.earlier.iter().find(|earlier| earlier.n_tokens == known);
        let none = (n == 0).then(Arc::default);
        let sums = earlier.map(|earlier| Arc::clone(&earlier.sums)).or(none);
        self.has_gap = sums.is_none();
        if let Some(sums) = sums {
            self.load_sums(sums);
            self.n_summed = known;
        } else {
            self.n_summed = n;
        }
    }

    /// The earlier sums of the layer that this one goes on from, which has the same ones now.
    pub(crate) fn share_sums(&mut self, other: &Self) {
        (self.n_summed, self.has_gap) = (other.n_summed, other.has_gap);
        self.parts_at = other.parts_at;
        self.earlier.clone_from(&other.earlier);
    }

    /// What every row received from all queries of the prompt, `[Hq, capacity]`; `None` where that
    /// was not recorded for all of the first `n_rows` rows.
    pub(crate) async fn read_mass(
        &self,
        backend: &B,
        shape: &KvShape,
        n_rows: usize,
    ) -> OpResult<Option<Vec<f32>>> {
        let Some(mass) = self.mass.as_ref().filter(|_| self.mass_rows >= n_rows) else {
            return Ok(None);
        };
        let mut host = vec![0.0; shape.n_q_heads * shape.capacity];
        let view = View::part(mass, 0, host.len());
        backend.read(view, bytemuck::cast_slice_mut(&mut host)).await?;
        Ok(Some(host))
    }

    /// Keeps sums of queries over a window from now on; those that were kept stay if they serve it.
    pub(crate) fn keep_queries(
        &mut self,
        backend: &B,
        shape: &KvShape,
        window: LocalWindow,
    ) -> OpResult<()> {
        if self.queries.as_ref().is_some_and(|queries| queries.serves(window)) {
            return Ok(());
        }
        self.queries = None;
        self.queries = Some(RecordedQueries::new(backend, shape, window)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use longview_ops::reference::RefBuffer;

    use super::super::testing::{R, floats, shape, upload};
    use super::*;

    /// The tokens of a step of two query heads of one KV head, of two channels.
    struct Tokens {
        q: RefBuffer,
        k: RefBuffer,
        out: RefBuffer,
    }

    impl Tokens {
        /// Token `t` has the queries `(t, 1)` and `(0, t)`, and the key `(t, 2)`.
        fn new(backend: &R, tokens: impl Iterator<Item = usize> + Clone) -> Self {
            let q = tokens.clone().flat_map(|t| [t as f32, 1.0, 0.0, t as f32]);
            let k = tokens.flat_map(|t| [t as f32, 2.0]);
            let q = upload(backend, &q.collect::<Vec<_>>());
            Self { out: q.clone(), q, k: upload(backend, &k.collect::<Vec<_>>()) }
        }

        fn add(&mut self, backend: &R, recorded: &mut Recorded<R>, chunk: RecordedChunk) {
            let tensors = LayerTensors {
                q: View::all(&self.q),
                k: View::all(&self.k),
                v: View::all(&self.k),
                out: ViewMut::all(&mut self.out),
            };
            let shape = one_head();
            let added = recorded.add_chunk(backend, &shape, &tensors, chunk);
            pollster::block_on(added).unwrap();
        }
    }

    fn one_head() -> KvShape {
        shape(2, 1, 2)
    }

    /// The tokens of a prompt, as a step of its own with one token of somebody else before them.
    fn prompt(backend: &R, recorded: &mut Recorded<R>, tokens: Range<usize>, remaining: usize) {
        let chunk = RecordedChunk {
            start: 1,
            len: tokens.len(),
            n_before: tokens.start,
            remaining,
            earlier: EarlierPlaces::Near,
        };
        Tokens::new(backend, std::iter::once(777).chain(tokens)).add(backend, recorded, chunk);
    }

    fn new(backend: &R) -> Recorded<R> {
        Recorded::new(backend, &one_head()).unwrap()
    }

    /// The tokens whose queries were kept.
    fn kept(recorded: &Recorded<R>) -> Vec<usize> {
        let tokens = recorded.last_queries.chunks_exact(4).map(|q| {
            assert_eq!((q[1], q[2], q[3]), (1.0, 0.0, q[0]));
            q[0] as usize
        });
        tokens.collect()
    }

    #[test]
    fn chunks_add_up_over_tokens_and_the_heads_of_a_group() {
        let backend = R::new();
        let mut recorded = new(&backend);
        prompt(&backend, &mut recorded, 1..3, 1);
        prompt(&backend, &mut recorded, 3..4, 0);
        // Queries (1,1) (2,1) (3,1) and (0,1) (0,2) (0,3): 14, 6, 6 and 3 + 14. Keys (1,2) (2,2)
        // (3,2).
        let (q, k) = pollster::block_on(recorded.sums(&backend)).unwrap();
        assert_eq!((q, k), (vec![14.0, 6.0, 6.0, 17.0], vec![14.0, 12.0, 12.0, 12.0]));
    }

    #[test]
    fn sums_survive_a_lost_device_as_they_were_read() {
        let backend = R::new();
        let mut recorded = new(&backend);
        prompt(&backend, &mut recorded, 1..3, 0);
        let mut parts = recorded.read_parts().expect("the host has none");
        pollster::block_on(backend.read_all(&mut parts)).unwrap();
        recorded.was_read();
        assert!(recorded.read_parts().is_none(), "it has them now");
        let want = pollster::block_on(recorded.sums(&backend)).unwrap();
        prompt(&backend, &mut recorded, 3..4, 0);
        recorded.mass_rows = 3;
        let fresh = R::new();
        recorded.restore(&fresh, &one_head()).unwrap();
        assert_eq!(pollster::block_on(recorded.sums(&fresh)).unwrap(), want);
        assert_eq!(recorded.mass_rows, 0, "received attention is gone with the device");
        // And as they were loaded.
        let mut loaded = new(&backend);
        loaded.load_sums([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].into());
        let want = (vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]);
        assert_eq!(pollster::block_on(loaded.sums(&backend)).unwrap(), want);
        loaded.restore(&fresh, &one_head()).unwrap();
        assert_eq!(pollster::block_on(loaded.sums(&fresh)).unwrap(), want);
    }

    #[test]
    fn sums_that_are_shared_are_in_memory_once_and_added_to_apart() {
        let backend = R::new();
        let sums = |recorded: &Recorded<R>| pollster::block_on(recorded.sums(&backend)).unwrap();
        let (mut origin, mut fork) = (new(&backend), new(&backend));
        prompt(&backend, &mut origin, 1..3, 0);
        fork.load_sums(pollster::block_on(origin.shared_sums(&backend)).unwrap());
        fork.share_sums(&origin);
        assert!(Arc::ptr_eq(&fork.saved, &origin.saved));
        let before = sums(&origin);
        assert_eq!(sums(&fork), before);
        prompt(&backend, &mut fork, 3..4, 0);
        assert_eq!(sums(&origin), before);
        prompt(&backend, &mut origin, 3..4, 0);
        assert_eq!(sums(&fork), sums(&origin));
        // Cut to nothing it begins anew.
        fork.cut_sums(0);
        assert_eq!(sums(&fork), (vec![0.0; 4], vec![0.0; 4]));
        let mut fresh = new(&backend);
        for recorded in [&mut fork, &mut fresh] {
            prompt(&backend, recorded, 0..2, 0);
        }
        assert_eq!(sums(&fork), sums(&fresh));
    }

    #[test]
    fn the_last_queries_of_a_prompt_are_kept_oldest_first() {
        let backend = R::new();
        let mut recorded = new(&backend);
        // 127 tokens follow, so only the last of these three is among the last 128.
        prompt(&backend, &mut recorded, 0..3, LAST_QUERIES - 1);
        assert_eq!((kept(&recorded), recorded.last_end), (vec![2], 3));
        prompt(&backend, &mut recorded, 3..80, 50);
        prompt(&backend, &mut recorded, 80..130, 0);
        assert_eq!((kept(&recorded), recorded.last_end), ((2..130).collect(), 130));
        // A prompt that goes on pushes the oldest out.
        prompt(&backend, &mut recorded, 130..132, 0);
        assert_eq!((kept(&recorded), recorded.last_end), ((4..132).collect(), 132));
        assert_eq!(recorded.last_queries.len(), LAST_QUERIES * 4);
    }

    #[test]
    fn queries_far_from_the_end_are_not_kept() {
        let backend = R::new();
        let mut recorded = new(&backend);
        prompt(&backend, &mut recorded, 0..3, LAST_QUERIES);
        assert_eq!((kept(&recorded), recorded.last_end), (vec![], 0));
    }

    #[test]
    fn queries_that_do_not_follow_each_other_are_not_mixed() {
        let backend = R::new();
        let mut recorded = new(&backend);
        prompt(&backend, &mut recorded, 0..3, 0);
        // Token 3 was decoded.
        prompt(&backend, &mut recorded, 4..6, 0);
        assert_eq!((kept(&recorded), recorded.last_end), (vec![4, 5], 6));
    }

    #[test]
    fn sums_of_queries_begin_when_a_policy_asks_for_them() {
        let backend = R::new();
        let mut recorded = new(&backend);
        prompt(&backend, &mut recorded, 0..1, 2);
        assert!(recorded.queries.is_none());
        let window = |tokens| LocalWindow { tokens };
        recorded.keep_queries(&backend, &one_head(), window(64)).unwrap();
        assert_eq!(recorded.queries.as_ref().unwrap().covered(), 0);
        let mut recorded = new(&backend);
        recorded.keep_queries(&backend, &one_head(), window(64)).unwrap();
        prompt(&backend, &mut recorded, 0..2, 0);
        recorded.keep_queries(&backend, &one_head(), window(65)).unwrap();
        assert_eq!(recorded.queries.as_ref().unwrap().covered(), 2, "blocks of 2 serve both");
        recorded.keep_queries(&backend, &one_head(), window(96)).unwrap();
        assert_eq!(recorded.queries.as_ref().unwrap().covered(), 0, "blocks of 3 begin anew");
    }

    #[test]
    fn received_attention_is_read_where_it_covers_all_rows() {
        let backend = R::new();
        let (mut recorded, shape) = (new(&backend), one_head());
        let read = |recorded: &Recorded<R>, n_rows| {
            pollster::block_on(recorded.read_mass(&backend, &shape, n_rows)).unwrap()
        };
        assert_eq!(read(&recorded, 0), None);
        let numbers: Vec<f32> = (0..3 * shape.capacity).map(|i| i as f32).collect();
        (recorded.mass, recorded.mass_rows) = (Some(upload(&backend, &numbers)), 5);
        assert_eq!(read(&recorded, 6), None);
        assert_eq!(read(&recorded, 5), Some(numbers[..2 * shape.capacity].to_vec()));
        assert_eq!(floats(&backend, View::all(&recorded.gram_q)), [0.0; 4]);
    }
}
