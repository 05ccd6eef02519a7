//! The search for tokens inside of clusters, all levels of a head by one thread.
//!
//! As single calls, a search makes threads meet a dozen times for work of some 10 microseconds
//! each. Here they meet once: a head's levels follow each other on one core, and what one leaves to
//! the next stays in its cache. Results are those of the single calls, bit for bit.

use longview_ops::{
    DeviceBuffer, Op, OpError, OpResult, Opened, Placed, Pooling, Rerank, SearchLevel,
    SearchTokens, SearchTokensParams, View, ViewMut,
};

use crate::backend::CpuBackend;
use crate::indices::ensure_at_most;
use crate::kernels::mass::Projection;
use crate::kernels::rank::Gather;
use crate::ops::centroid_scores::{
    BLOCK, HeadQuery, Landmark, Landmarks, Terms, pool, scale_queries, to_factors, with_landmarks,
};
use crate::ops::select_clusters::{Choice, Work, scratch_lens};
use crate::ops::split_signs;
use crate::queue::Queue;
use crate::scratch::Scratch;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Pieces};
use crate::views::slice;

/// Whether a search is done here: scores without a softmax may be shared by all heads.
pub(crate) fn can_run(d: &SearchTokens<'_, CpuBackend>) -> bool {
    d.p.pooling <= Pooling::SizeWeighted as u32
}

/// Every KV head is one item.
pub(crate) fn run(queue: &mut Queue, mut d: SearchTokens<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let search = Search::of(queue.team.isa(), &d)?;
    let h = d.p.n_kv_heads as usize;
    let terms = h * search.sizes.candidates * search.sizes.group;
    let cost = Cost::bytes(terms * d.p.rank as usize);
    let tokens = &mut d.tokens;
    let [chosen, takes] = [&mut tokens.chosen, &mut tokens.takes].map(whole);
    let max = tokens.max_selected as usize;
    let [records] = queue.shared.floats([h * Record::LEN]);
    let records: &mut [u32] = bytemuck::cast_slice_mut(records);
    queue.team.for_chunks3(
        Pieces::of(&mut *records, Record::LEN),
        Pieces::of(chosen, max),
        Pieces::of(takes, max),
        cost,
        |scratch, head, record, chosen, takes| {
            let mut memory = Memory::of(scratch, search.sizes);
            Record::of(record).put(search.levels(head, &mut memory, [chosen, takes]));
        },
    );
    publish(&mut d, records)
}

/// A view to be written, whole.
fn whole<'a>(view: &'a mut ViewMut<'_, CpuBackend>) -> &'a mut [u32] {
    let (offset, len) = (view.offset, view.len);
    &mut view.buffer.elements_mut()[offset..offset + len]
}

/// Copies what heads recorded to the buffer that has it.
fn publish(d: &mut SearchTokens<'_, CpuBackend>, records: &mut [u32]) -> OpResult<()> {
    let limit = d.tokens.stride as usize;
    for (head, record) in records.chunks_exact_mut(Record::LEN).enumerate() {
        let n = Record::of(record).get().map_err(|row| {
            let index = row as usize;
            OpError::Index { op: Op::ClusterRows, what: "row", index, limit }
        })?;
        whole(&mut d.tokens.n_chosen)[head] = n;
    }
    Ok(())
}

/// How many tokens a head chose, or a row that a cluster named and there is not.
struct Record<'a> {
    is_error: &'a mut u32,
    number: &'a mut u32,
}

impl<'a> Record<'a> {
    /// Words of a record.
    const LEN: usize = 2;

    /// # Panics
    /// If these are not [`Self::LEN`] words.
    fn of(words: &'a mut [u32]) -> Self {
        let [is_error, number] = words else { unreachable!("a record of two words") };
        Self { is_error, number }
    }

    fn put(self, found: Result<u32, u32>) {
        (*self.is_error, *self.number) = match found {
            Ok(n) => (0, n),
            Err(row) => (1, row),
        };
    }

    fn get(self) -> Result<u32, u32> {
        if *self.is_error == 0 { Ok(*self.number) } else { Err(*self.number) }
    }
}

/// Elements of a head's work memory.
#[derive(Clone, Copy)]
struct Sizes {
    /// Queries, scaled, in rows; then projected, and projected in rows; then split by signs, and
    /// split in rows.
    query: usize,
    projected: usize,
    split: usize,
    group: usize,
    /// Most landmarks that a level scores.
    most: usize,
    /// Most groups of clusters that are chosen, and most clusters of those.
    groups: usize,
    members: usize,
    /// Most clusters that are chosen.
    clusters: usize,
    /// Most tokens of a list.
    candidates: usize,
    /// Most tokens that are scored again by their keys.
    reranked: usize,
}

/// A head's work memory.
struct Memory<'s> {
    query: &'s mut [f32],
    projected: &'s mut [f32],
    split: &'s mut [f32],
    terms: &'s mut [f32],
    parts: &'s mut [f32],
    scores: &'s mut [f32],
    sizes: &'s mut [u32],
    work: Work<'s>,
    groups: [&'s mut [u32]; 2],
    /// Clusters of chosen groups.
    members: &'s mut [u32],
    clusters: [&'s mut [u32]; 2],
    /// Tokens of chosen clusters.
    candidates: &'s mut [u32],
    /// Tokens that are scored again, and what is taken of them.
    reranked: [&'s mut [u32]; 2],
}

impl<'s> Memory<'s> {
    fn of(scratch: &'s mut Scratch, sizes: Sizes) -> Self {
        let Sizes { query, projected, split, group, most, groups, members, .. } = sizes;
        let Sizes { clusters, candidates, reranked, .. } = sizes;
        let blocks = most.div_ceil(BLOCK);
        let [own, ranks, places, keys] = scratch_lens(most);
        let (terms, parts) = (blocks * group * BLOCK, blocks * group * 2);
        let lens = [
            query, projected, split, terms, parts, most, own, ranks, places, keys, groups, groups,
            members, clusters, clusters, candidates, reranked, reranked,
        ];
        let [
            query,
            projected,
            split,
            terms,
            parts,
            scores,
            sizes,
            ranks,
            places,
            keys,
            groups,
            group_takes,
            members,
            chosen,
            takes,
            candidates,
            reranked,
            reranked_takes,
        ] = scratch.floats(lens);
        let work = Work {
            ranks: bytemuck::cast_slice_mut(ranks),
            places: bytemuck::cast_slice_mut(places),
            keys: bytemuck::cast_slice_mut(keys),
        };
        let ints = |words| bytemuck::cast_slice_mut::<f32, u32>(words);
        Self {
            query,
            projected,
            split,
            terms,
            parts,
            scores,
            sizes: ints(sizes),
            work,
            groups: [ints(groups), ints(group_takes)],
            members: ints(members),
            clusters: [ints(chosen), ints(takes)],
            candidates: ints(candidates),
            reranked: [ints(reranked), ints(reranked_takes)],
        }
    }
}

/// What a level has for all heads.
#[derive(Clone, Copy)]
struct Level<'a> {
    centroids: View<'a, CpuBackend>,
    sizes: &'a [u32],
    n: &'a [u32],
    budgets: &'a [u32],
    stride: usize,
    max: usize,
    placed: Placed,
}

impl<'a> Level<'a> {
    /// Fails where counts or budgets are beyond the room; `listed` is the room of the list that is
    /// scored, if it is one.
    fn of(level: &SearchLevel<'a, CpuBackend>, listed: Option<u32>, room: u32) -> OpResult<Self> {
        let (n, budgets) = (slice::<u32>(&level.n), slice::<u32>(&level.budgets));
        let most = level.stride.min(listed.unwrap_or(room));
        ensure_at_most(Op::CentroidScores, "number of clusters", n, level.stride as usize)?;
        ensure_at_most(Op::CentroidScores, "number of scores", &[most], room as usize)?;
        let max = level.max_selected;
        for (n, budget) in n.iter().zip(budgets) {
            let scored = (*n).min(most);
            if scored.min(*budget) > max {
                let what = format!("{scored} clusters and a budget of {budget}, room for {max}");
                return Err(OpError::shape(Op::SelectClusters, what));
            }
        }
        Ok(Self {
            centroids: level.centroids,
            sizes: slice(&level.sizes),
            n,
            budgets,
            stride: level.stride as usize,
            max: max as usize,
            placed: Placed::DENSE,
        })
    }

    /// Keys as the landmarks of `tokens`, where these are chosen by them.
    ///
    /// # Errors
    /// Where there are more tokens than rows, or a head chooses more than there is room for.
    fn of_keys(
        d: &SearchTokens<'a, CpuBackend>,
        rerank: &Rerank<'a, CpuBackend>,
        tokens: &Self,
    ) -> OpResult<Self> {
        let placed = Rerank::<CpuBackend>::placed(d.opened.first_row);
        let limit = placed.limit(rerank.key_stride());
        ensure_at_most(Op::CentroidScores, "number of tokens", tokens.n, limit as usize)?;
        let again = slice::<u32>(&rerank.budgets);
        ensure_at_most(Op::CentroidScores, "tokens scored again", again, rerank.stride as usize)?;
        let centroids = rerank.keys(d.p.n_kv_heads, d.p.head_dim);
        Ok(Self { centroids, stride: rerank.key_stride() as usize, placed, ..*tokens })
    }
}

/// Where what a level opens begins, for all heads.
#[derive(Clone, Copy)]
struct Starts<'a> {
    /// `[Hkv, stride of the level]`.
    starts: &'a [u32],
    first_row: u32,
    /// Room of the list.
    room: usize,
}

impl<'a> Starts<'a> {
    fn of(opened: &Opened<'a, CpuBackend>) -> Self {
        let (starts, room) = (slice(&opened.starts), opened.stride as usize);
        Self { starts, first_row: opened.first_row, room }
    }

    /// Lists what a choice of `level` opens; returns how much. A row that is not below `limit` is
    /// an error.
    fn list(
        &self,
        level: &Level<'_>,
        head: usize,
        choice: [&[u32]; 2],
        limit: usize,
        rows: &mut [u32],
    ) -> Result<usize, u32> {
        let mut n = 0;
        for (cluster, take) in choice[0].iter().zip(choice[1]) {
            let start = self.starts[head * level.stride + *cluster as usize];
            let first = start.saturating_sub(self.first_row);
            let own = &mut rows[n..self.room.min(n + *take as usize)];
            if first as usize + own.len() > limit {
                return Err(first.max(limit as u32));
            }
            let len = own.len();
            // Most runs are short: whole vectors are written, and what is too much again.
            if let Some(whole) = rows.get_mut(n..n + RUN)
                && len <= RUN
            {
                whole.iter_mut().zip(first..).for_each(|(to, row)| *to = row);
            } else {
                rows[n..n + len].iter_mut().zip(first..).for_each(|(to, row)| *to = row);
            }
            n += len;
        }
        Ok(n)
    }
}

/// What heads search.
struct Search<'a> {
    p: SearchTokensParams,
    isa: SupportedIsa,
    /// The sequence's queries, `[Hq, Dh]`.
    q: &'a [f32],
    /// Groups of clusters, and where these begin.
    groups: Option<(Level<'a>, Starts<'a>)>,
    clusters: Level<'a>,
    opened: Starts<'a>,
    w_q: &'a [f32],
    tokens: Level<'a>,
    /// Tokens by their keys, and how many of each head are scored again.
    keys: Option<(Level<'a>, &'a [u32])>,
    sizes: Sizes,
}

/// Which entries of a level a head scores.
#[derive(Clone, Copy)]
enum Entries<'a> {
    /// As many, from the first on.
    First(usize),
    /// Clusters of a list.
    Clusters(&'a [u32]),
    /// Tokens of a list.
    Tokens(&'a [u32]),
}

impl<'a> Entries<'a> {
    fn len(self) -> usize {
        match self {
            Self::First(n) => n,
            Self::Clusters(ids) | Self::Tokens(ids) => ids.len(),
        }
    }

    fn ids(self) -> Option<&'a [u32]> {
        match self {
            Self::First(_) => None,
            Self::Clusters(ids) | Self::Tokens(ids) => Some(ids),
        }
    }
}

impl<'a> Search<'a> {
    fn of(isa: SupportedIsa, d: &SearchTokens<'a, CpuBackend>) -> OpResult<Self> {
        let (p, room) = (d.p, d.p.score_stride);
        let groups = match &d.groups {
            Some(groups) => {
                Some((Level::of(&groups.level, None, room)?, Starts::of(&groups.opened)))
            }
            None => None,
        };
        let members = groups.as_ref().map(|(_, starts)| starts.room);
        let clusters = Level::of(&d.clusters, members.map(|room| room as u32), room)?;
        let tokens = Level::of(&d.tokens, Some(d.opened.stride), room)?;
        let (group, row) = ((p.n_q_heads / p.n_kv_heads) as usize, row(p.head_dim as usize));
        let (candidates, rank) = (d.opened.stride as usize, p.rank as usize);
        let keys = match &d.rerank {
            Some(rerank) => Some((Level::of_keys(d, rerank, &tokens)?, slice(&rerank.budgets))),
            None => None,
        };
        let first = groups.as_ref().map_or(&clusters, |(groups, _)| groups);
        let all = first.n.iter().copied().max().unwrap_or(0) as usize;
        let members = members.unwrap_or(0);
        let sizes = Sizes {
            query: group * row,
            projected: group * (rank + self::row(rank)),
            split: group * (2 * rank + self::row(2 * rank)),
            group,
            most: candidates.max(all).max(members),
            groups: groups.as_ref().map_or(0, |(groups, _)| groups.max),
            members,
            clusters: clusters.max,
            candidates,
            reranked: d.rerank.as_ref().map_or(0, |rerank| rerank.stride as usize),
        };
        let (q, own) = (slice::<f32>(&d.q), (p.n_q_heads * p.head_dim) as usize);
        Ok(Self {
            p,
            isa,
            q: &q[p.q_index as usize * own..][..own],
            groups,
            clusters,
            opened: Starts::of(&d.opened),
            w_q: slice(&d.w_q),
            tokens,
            keys,
            sizes,
        })
    }

    /// All levels of a head: how many tokens it chose, or a row that a cluster named and there is
    /// not.
    fn levels(
        &self,
        head: usize,
        m: &mut Memory<'_>,
        [chosen, takes]: [&mut [u32]; 2],
    ) -> Result<u32, u32> {
        let (group, dh) = (self.sizes.group, self.p.head_dim as usize);
        let q = &self.q[head * group * dh..][..group * dh];
        let (rank, scale) = (self.p.rank as usize, self.p.scale);
        let (projected, scaled) = m.projected.split_at_mut(group * rank);
        self.project(head, q, projected);
        let split = split_query(projected, rank, scale, m.split);
        let Memory { terms, parts, scores, sizes, work, .. } = m;
        let mut level_memory = LevelMemory { terms, parts, scores, sizes, work };
        let mut scored = Entries::First(self.clusters.n[head] as usize);
        if let Some((groups, starts)) = &self.groups {
            let all = Entries::First(groups.n[head] as usize);
            let [own, own_takes] = &mut m.groups;
            let out = [&mut **own, &mut **own_takes];
            let taken = self.choose(groups, head, split, all, &mut level_memory, out);
            let choice = [&own[..taken], &own_takes[..taken]];
            let limit = self.clusters.n[head] as usize;
            let n = starts.list(groups, head, choice, limit, m.members)?;
            scored = Entries::Clusters(&m.members[..n]);
        }
        let [own, own_takes] = &mut m.clusters;
        let out = [&mut **own, &mut **own_takes];
        let taken = self.choose(&self.clusters, head, split, scored, &mut level_memory, out);
        let (choice, limit) = ([&own[..taken], &own_takes[..taken]], self.tokens.n[head] as usize);
        let n = self.opened.list(&self.clusters, head, choice, limit, m.candidates)?;
        scale_queries(projected, rank, scale, scaled, row(rank));
        let projected = HeadQuery { q: scaled, row: row(rank), dh: rank };
        let mut ids = &m.candidates[..n];
        let Some((keys, again)) = &self.keys else {
            let (tokens, out) = (&self.tokens, [chosen, takes]);
            let listed = Entries::Tokens(ids);
            return Ok(self.choose(tokens, head, projected, listed, &mut level_memory, out) as u32);
        };
        // Where all are scored again, their landmarks decide nothing.
        if again[head] < n as u32 {
            let by_landmarks = Level { budgets: again, ..self.tokens };
            let [best, best_takes] = &mut m.reranked;
            let out = [&mut **best, &mut **best_takes];
            let listed = Entries::Tokens(ids);
            let taken = self.choose(&by_landmarks, head, projected, listed, &mut level_memory, out);
            ids = &best[..taken];
        }
        scale_queries(q, dh, scale, m.query, row(dh));
        let query = HeadQuery { q: m.query, row: row(dh), dh };
        let (listed, out) = (Entries::Tokens(ids), [chosen, takes]);
        Ok(self.choose(keys, head, query, listed, &mut level_memory, out) as u32)
    }

    /// A head's queries in the space of tokens' landmarks.
    fn project(&self, head: usize, q: &[f32], projected: &mut [f32]) {
        let (dh, rank) = (self.p.head_dim as usize, self.p.rank as usize);
        for (x, out) in q.chunks_exact(dh).zip(projected.chunks_exact_mut(rank)) {
            let w = &self.w_q[head * dh * rank..][..dh * rank];
            self.isa.run(Projection { x, w, out });
        }
    }

    /// Scores entries of a level and chooses; returns how many.
    fn choose(
        &self,
        level: &Level<'_>,
        head: usize,
        query: HeadQuery<'_>,
        scored: Entries<'_>,
        m: &mut LevelMemory<'_, '_>,
        out: [&mut [u32]; 2],
    ) -> usize {
        let (n, ids) = (scored.len(), scored.ids());
        if n == 0 {
            return 0;
        }
        let pooling = match scored {
            Entries::Tokens(_) => self.p.token_pooling,
            Entries::First(_) | Entries::Clusters(_) => self.p.pooling,
        };
        let own_sizes = || &level.sizes[head * level.stride..][..level.stride];
        with_landmarks!(level.centroids.buffer.dtype(), E => {
            let all = slice::<E>(&level.centroids);
            let (width, Placed { first, step }) = (query.dh, level.placed);
            let own = (head * level.stride + first as usize) * width;
            let landmarks = Landmarks {
                all: &all[own..(head + 1) * level.stride * width],
                n,
                ids,
                row: step as usize * width,
                weights: (pooling == Pooling::SizeWeighted as u32).then(own_sizes),
            };
            self.score(&landmarks, query, pooling, m);
        });
        let sizes = match scored {
            Entries::First(_) => &own_sizes()[..n],
            Entries::Clusters(ids) => {
                let (from, to) = (own_sizes(), &mut m.sizes[..n]);
                self.isa.run(Gather { from, ids, to });
                &m.sizes[..n]
            }
            // Each is one.
            Entries::Tokens(_) => {
                m.sizes[..n].fill(1);
                &m.sizes[..n]
            }
        };
        let (scores, budget) = (&m.scores[..n], level.budgets[head]);
        let choice = Choice { scores, sizes, budget, isa: self.isa };
        let mut work = m.work.first(n);
        let [chosen, takes] = out;
        let taken = match scored {
            Entries::First(_) | Entries::Clusters(_) => choice.best_first(&mut work, chosen, takes),
            Entries::Tokens(_) => choice.in_order(&mut work, chosen, takes),
        };
        if let Some(ids) = ids {
            chosen[..taken].iter_mut().for_each(|id| *id = ids[*id as usize]);
        }
        taken
    }

    /// Pooled scores of a head's landmarks.
    fn score<E: Landmark>(
        &self,
        landmarks: &Landmarks<'_, E>,
        query: HeadQuery<'_>,
        pooling: u32,
        m: &mut LevelMemory<'_, '_>,
    ) {
        let (group, blocks) = (self.sizes.group, landmarks.n.div_ceil(BLOCK));
        let terms = &mut m.terms[..blocks * group * BLOCK];
        let parts = &mut m.parts[..blocks * group * 2];
        let pairs = terms.chunks_exact_mut(group * BLOCK).zip(parts.chunks_exact_mut(group * 2));
        let mut prepared = E::UNPREPARED;
        E::prepare(self.isa, query, &mut prepared);
        for (block, (terms, parts)) in pairs.enumerate() {
            let to = Terms { terms, parts };
            landmarks.block_terms(self.isa, (query, &prepared), block, to);
        }
        to_factors(parts, group);
        let take_max = pooling == Pooling::MaxSoftmax as u32;
        pool(self.isa, group, take_max, (terms, parts), &mut m.scores[..landmarks.n]);
    }
}

/// Projected queries as bounds of clusters meet them: `[max(q, 0); min(q, 0)]`.
fn split_query<'m>(
    projected: &[f32],
    rank: usize,
    scale: f32,
    memory: &'m mut [f32],
) -> HeadQuery<'m> {
    let (split, scaled) = memory.split_at_mut(2 * projected.len());
    for (x, out) in projected.chunks_exact(rank).zip(split.chunks_exact_mut(2 * rank)) {
        split_signs::split(x, out);
    }
    let row = row(2 * rank);
    scale_queries(split, 2 * rank, scale, scaled, row);
    HeadQuery { q: scaled, row, dh: 2 * rank }
}

/// What every level uses anew.
struct LevelMemory<'m, 's> {
    terms: &'m mut [f32],
    parts: &'m mut [f32],
    scores: &'m mut [f32],
    sizes: &'m mut [u32],
    work: &'m mut Work<'s>,
}

/// Rows that are listed together.
const RUN: usize = 32;

/// Elements of a vector of `width`, with the zeros after it that kernels read.
fn row(width: usize) -> usize {
    width.next_multiple_of(16)
}
