//! Two-stage selection: clusters are opened for more tokens than a step attends, and of the tokens
//! in them those are attended that score best one by one, in a space of few dimensions. Of many
//! clusters those are scored that are in the best parts of groups.
//!
//! The second stage is an index of tokens ([`crate::policy::TokenConfig`]) whose landmarks lie in
//! the order of the rows: those of an opened cluster are a run. They are scored where they lie, by
//! a list, and the best are chosen in the order of the list, without a sort. Where kernels read the
//! KV rows in place, the best by landmarks are scored again by their keys.

use longview_core::DType;
use longview_ops::{
    Backend, OpResult, Opened, Pooling, Rerank, SearchGroups, SearchLevel, SearchTokens,
    SearchTokensParams, View, ViewMut,
};

use super::search::Searched;
use crate::index::{ClusterParts, LayerIndex, PART_CLUSTERS};
use crate::layout::{KvShape, Query};
use crate::policy::{Policy, TwoStage};
use crate::store::UploadCache;

/// Buffers of the first stage's selection, and of the tokens that it leaves to the second.
pub(crate) struct TokenStage<B: Backend> {
    /// Tokens in opened clusters, as a multiple of those that are recalled.
    times: u32,
    clusters: B::Buffer,
    takes: B::Buffer,
    n_selected: B::Buffer,
    budgets: UploadCache<B>,
    /// U32 `[Hkv, candidates]`: numbers of the tokens in opened clusters.
    rows: B::Buffer,
    n_rows: B::Buffer,
    /// F32 `[Hq, width]`, and `[Hq, 2, width]`.
    query: B::Buffer,
    split_query: B::Buffer,
    host_budgets: Vec<u32>,
    max_selected: usize,
    candidates: usize,
    width: usize,
    reranked: Option<Reranked<B>>,
    parts: Option<PartStage<B>>,
}

/// Buffers of the parts of groups whose clusters alone are scored, and of these clusters.
struct PartStage<B: Backend> {
    /// U32 `[Hkv, most]`.
    parts: B::Buffer,
    takes: B::Buffer,
    n_parts: B::Buffer,
    /// How many clusters each head scores.
    budgets: UploadCache<B>,
    /// U32 `[Hkv, scored]`.
    clusters: B::Buffer,
    n_clusters: B::Buffer,
    most: usize,
    scored: usize,
}

/// Buffers of the tokens that are scored again by their keys.
struct Reranked<B: Backend> {
    /// Such tokens, as a multiple of those that are recalled.
    times: u32,
    /// U32 `[Hkv, most]`.
    tokens: B::Buffer,
    takes: B::Buffer,
    n_tokens: B::Buffer,
    budgets: UploadCache<B>,
    host_budgets: Vec<u32>,
    most: usize,
}

/// Bytes that [`TokenStage`] takes on the device.
pub(crate) fn token_stage_bytes(shape: &KvShape, policy: &Policy, two_stage: TwoStage) -> u64 {
    let sizes = Sizes::of(shape, policy, two_stage);
    let reranked = if sizes.reranked > 0 { 2 * sizes.reranked + 2 } else { 0 };
    let parts = sizes.parts.map_or(0, |[most, scored]| 2 * most + scored + 3);
    let lists = 2 * sizes.max_selected + sizes.candidates + 3 + reranked + parts;
    (4 * (shape.n_kv_heads * lists + shape.n_q_heads * 3 * sizes.width)) as u64
}

struct Sizes {
    max_selected: usize,
    candidates: usize,
    width: usize,
    /// Tokens that are scored again.
    reranked: usize,
    /// Most parts that are chosen, and the clusters that are scored then.
    parts: Option<[usize; 2]>,
}

impl Sizes {
    fn of(shape: &KvShape, policy: &Policy, two_stage: TwoStage) -> Self {
        let candidates = policy.candidates(shape.capacity).max(1);
        let width = two_stage.tokens.rank.most(shape.head_dim);
        let max_selected = candidates.min(policy.max_units(shape.capacity));
        let reranked = two_stage.rerank.saturating_mul(policy.most_attended()).min(candidates);
        let parts = match policy.most_parts(shape.capacity, PART_CLUSTERS) {
            0 => None,
            parts => Some([parts.min(two_stage.scored), two_stage.scored]),
        };
        Self { max_selected, candidates, width, reranked, parts }
    }
}

impl<B: Backend> Reranked<B> {
    /// Room for `most` tokens a head.
    fn new(backend: &B, n_kv_heads: usize, times: usize, most: usize) -> OpResult<Self> {
        let ints = |len: usize| backend.alloc(DType::U32, n_kv_heads * len, "tokens by keys");
        Ok(Self {
            times: times as u32,
            tokens: ints(most)?,
            takes: ints(most)?,
            n_tokens: ints(1)?,
            budgets: UploadCache::new(backend, 1, n_kv_heads, "budgets")?,
            host_budgets: vec![0; n_kv_heads],
            most,
        })
    }

    /// How many each head scores again, when it recalls `recalled` tokens.
    fn set_budgets(&mut self, backend: &B, recalled: &[u32]) -> OpResult<()> {
        for (to, budget) in self.host_budgets.iter_mut().zip(recalled) {
            *to = budget.saturating_mul(self.times).min(self.most as u32);
        }
        self.budgets.put(backend, 0, &self.host_budgets)
    }
}

impl<B: Backend> PartStage<B> {
    /// Room for `most` parts a head, and `scored` clusters.
    fn new(backend: &B, n_kv_heads: usize, [most, scored]: [usize; 2]) -> OpResult<Self> {
        let ints = |len: usize| backend.alloc(DType::U32, n_kv_heads * len, "parts of groups");
        let mut budgets = UploadCache::new(backend, 1, n_kv_heads, "budgets")?;
        budgets.put(backend, 0, &vec![scored as u32; n_kv_heads])?;
        Ok(Self {
            parts: ints(most)?,
            takes: ints(most)?,
            n_parts: ints(1)?,
            budgets,
            clusters: ints(scored)?,
            n_clusters: ints(1)?,
            most,
            scored,
        })
    }

    /// The parts by which clusters are chosen; `None` where that scores no less than all clusters.
    fn groups<'a>(
        &'a mut self,
        clusters: &LayerIndex<B>,
        parts: &'a ClusterParts<B>,
    ) -> Option<SearchGroups<'a, B>> {
        let n_heads = clusters.heads().len();
        let all: usize = (0..n_heads).map(|head| clusters.n_used(head)).sum();
        let fewer: usize = (0..n_heads).map(|head| parts.n_used(head) + self.scored).sum();
        if fewer >= all {
            return None;
        }
        Some(SearchGroups {
            level: SearchLevel {
                centroids: parts.bounds(),
                sizes: parts.sizes(),
                n: parts.n_parts(),
                budgets: self.budgets.all(),
                stride: parts.capacity() as u32,
                max_selected: self.most as u32,
                chosen: ViewMut::all(&mut self.parts),
                takes: ViewMut::all(&mut self.takes),
                n_chosen: ViewMut::all(&mut self.n_parts),
            },
            opened: Opened {
                starts: parts.starts(),
                first_row: 0,
                stride: self.scored as u32,
                rows: ViewMut::all(&mut self.clusters),
                n_rows: ViewMut::all(&mut self.n_clusters),
            },
        })
    }
}

impl<B: Backend> TokenStage<B> {
    /// For sequences of `shape` under `policy`.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        two_stage: TwoStage,
    ) -> OpResult<Self> {
        let Sizes { max_selected, candidates, width, reranked, parts } =
            Sizes::of(shape, policy, two_stage);
        let h = shape.n_kv_heads;
        let ints = |len: usize| backend.alloc(DType::U32, h * len, "opened clusters");
        Ok(Self {
            times: two_stage.times as u32,
            clusters: ints(max_selected)?,
            takes: ints(max_selected)?,
            n_selected: ints(1)?,
            budgets: UploadCache::new(backend, 1, h, "budgets")?,
            rows: ints(candidates)?,
            n_rows: ints(1)?,
            query: backend.alloc(DType::F32, shape.n_q_heads * width, "query features")?,
            split_query: backend.alloc(DType::F32, shape.n_q_heads * 2 * width, "split queries")?,
            host_budgets: vec![0; h],
            max_selected,
            candidates,
            width,
            reranked: match reranked {
                0 => None,
                most => Some(Reranked::new(backend, h, two_stage.rerank, most)?),
            },
            parts: parts.map(|parts| PartStage::new(backend, h, parts)).transpose()?,
        })
    }

    /// Chooses the best tokens of the best clusters, which are opened for `times` the budgets.
    /// `false` where no prompt was read: there is no space yet, nor tokens in it.
    pub fn search(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        searched: &Searched<'_, B>,
        query: &Query<'_, B>,
        to: Choice<'_, B>,
    ) -> OpResult<bool> {
        let index = searched.index;
        let Searched { tokens: Some(tokens), bounds: Some(bounds), .. } = *searched else {
            return Ok(false);
        };
        let Some(projection) = searched.projection else { return Ok(false) };
        for (to, budget) in self.host_budgets.iter_mut().zip(to.host_budgets) {
            *to = budget.saturating_mul(self.times).min(self.candidates as u32);
        }
        self.budgets.put(backend, 0, &self.host_budgets)?;
        let reranked = self.reranked.as_mut().zip(searched.rows);
        let rerank = match reranked {
            Some((reranked, kv)) => {
                reranked.set_budgets(backend, to.host_budgets)?;
                let Reranked { tokens, takes, n_tokens, budgets, most, .. } = reranked;
                Some(Rerank {
                    kv,
                    budgets: budgets.all(),
                    stride: *most as u32,
                    tokens: ViewMut::all(tokens),
                    takes: ViewMut::all(takes),
                    n_tokens: ViewMut::all(n_tokens),
                })
            }
            None => None,
        };
        let groups = match (&mut self.parts, bounds.parts()) {
            (Some(stage), Some(parts)) => stage.groups(index, parts),
            _ => None,
        };
        let pooling = policy.index.map_or(Pooling::SumSoftmax, |index| index.pooling);
        // All tokens weigh the same.
        let token_pooling = match pooling {
            Pooling::SizeWeighted => Pooling::SumSoftmax,
            pooling => pooling,
        };
        backend.search_tokens(SearchTokens {
            p: SearchTokensParams {
                n_tokens: query.n_tokens as u32,
                q_index: query.index as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: shape.n_kv_heads as u32,
                head_dim: shape.head_dim as u32,
                rank: self.width as u32,
                score_stride: to.score_stride as u32,
                scale: shape.scale,
                pooling: pooling as u32,
                token_pooling: token_pooling as u32,
            },
            q: query.q,
            groups,
            clusters: SearchLevel {
                centroids: bounds.all(),
                sizes: index.sizes(),
                n: index.n_clusters(),
                budgets: self.budgets.all(),
                stride: index.capacity() as u32,
                max_selected: self.max_selected as u32,
                chosen: ViewMut::all(&mut self.clusters),
                takes: ViewMut::all(&mut self.takes),
                n_chosen: ViewMut::all(&mut self.n_selected),
            },
            opened: Opened {
                starts: index.starts(),
                first_row: policy.sinks as u32,
                stride: self.candidates as u32,
                rows: ViewMut::all(&mut self.rows),
                n_rows: ViewMut::all(&mut self.n_rows),
            },
            w_q: View::all(&projection.w_q),
            query: ViewMut::all(&mut self.query),
            split_query: ViewMut::all(&mut self.split_query),
            tokens: SearchLevel {
                centroids: tokens.centroids(),
                sizes: tokens.sizes(),
                n: tokens.n_clusters(),
                budgets: to.budgets,
                stride: tokens.capacity() as u32,
                max_selected: to.max_selected as u32,
                chosen: to.tokens,
                takes: to.takes,
                n_chosen: to.n_tokens,
            },
            rerank,
            scratch: ViewMut::all(to.scores),
        })?;
        Ok(true)
    }
}

/// Where a search leaves the tokens that it chose, and its work memory.
pub(crate) struct Choice<'a, B: Backend> {
    /// Scores, and how many of them from one KV head to the next.
    pub scores: &'a mut B::Buffer,
    pub score_stride: usize,
    /// Tokens that each KV head may recall, on the device and on the host.
    pub budgets: View<'a, B>,
    pub host_budgets: &'a [u32],
    /// Entries from one head's choice to the next.
    pub max_selected: usize,
    /// As [`longview_ops::SelectClusters`] has them.
    pub tokens: ViewMut<'a, B>,
    pub takes: ViewMut<'a, B>,
    pub n_tokens: ViewMut<'a, B>,
}

#[cfg(test)]
mod part_tests;

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;
    use longview_ops::{DeviceBuffer, KvView};

    use super::*;
    use crate::index::projection::Projections;
    use crate::index::{ClusterBounds, HeadClusters, LayerIndex, LayerProjection};
    use crate::policy::{ClusterConfig, IndexKind, Projection, Rank, TokenConfig};
    use crate::recall::selector::Selector;
    use crate::recall::testing::*;

    pub(super) fn two_stage(times: usize) -> TwoStage {
        let tokens = TokenConfig {
            projection: Projection::PrincipalKeys,
            rank: Rank::Given(Some(2)),
            adapts: false,
        };
        TwoStage { times, tokens, rerank: 0, scored: usize::MAX }
    }

    /// Clusters in two stages, of which each head recalls up to `tokens`.
    fn two_stage_policy(times: usize, tokens: usize) -> Policy {
        reranking_policy(two_stage(times), tokens)
    }

    fn reranking_policy(two_stage: TwoStage, tokens: usize) -> Policy {
        let IndexKind::Clusters(clusters) = policy(tokens).index.unwrap().kind else {
            unreachable!("the tests' policy has clusters")
        };
        let kind = IndexKind::Clusters(ClusterConfig { two_stage: Some(two_stage), ..clusters });
        policy_of(kind, Pooling::SumSoftmax, tokens)
    }

    /// Rows of a head.
    const CAPACITY: usize = 20;

    struct Case {
        device: Device,
        rows: [HeadRows; 2],
        /// `[Dh, 2]` of each head, for queries.
        w: [Vec<f32>; 2],
        index: LayerIndex<Device>,
        tokens: LayerIndex<Device>,
        bounds: ClusterBounds<Device>,
        projection: LayerProjection<Device>,
        /// Codes of each head's tokens.
        codes: [Vec<[f32; 2]>; 2],
    }

    /// What 1 stands for in codes.
    pub(super) const UNIT: f32 = 0.1;

    /// A key or query in its head's space.
    pub(super) fn project(w: &[f32], x: &[f32]) -> [f32; 2] {
        [0, 1].map(|r| x.iter().enumerate().map(|(c, x)| x * w[c * 2 + r]).sum())
    }

    /// Codes of a head's tokens.
    pub(super) fn codes_of(rows: &HeadRows, w: &[f32]) -> Vec<[f32; 2]> {
        let code = |x: f32| (x / UNIT).round_ties_even().clamp(-127.0, 127.0);
        rows.keys.iter().map(|key| project(w, key).map(code)).collect()
    }

    /// Codes as an index of tokens takes them.
    pub(super) fn token_marks(codes: &[[f32; 2]]) -> HeadClusters {
        HeadClusters {
            sizes: vec![1; codes.len()],
            centroids: codes.concat(),
            ..HeadClusters::default()
        }
    }

    fn case(seed: u64) -> Case {
        let mut rng = SplitMix64::new(seed);
        let (device, shape) = (Device::new(), shape());
        let rows = [vec![3, 5, 2, 4], vec![4, 1, 6, 3]].map(|s| HeadRows::random(&mut rng, &s));
        let w = [0, 1].map(|_| normals(&mut rng, 2 * WIDTH));
        let codes = [0, 1].map(|head| codes_of(&rows[head], &w[head]));
        let marks = codes.each_ref().map(|codes| token_marks(codes));
        let mut tokens = LayerIndex::of_codes(&device, &shape, 2, 20, 1).unwrap();
        tokens.append(&device, SINKS, SINKS + 14, &marks).unwrap();
        let w = w.map(|w| w.iter().map(|x| x * UNIT).collect::<Vec<_>>());
        let made = Projections { rank: 2, w_q: w.concat(), w_k: w.concat() };
        let projection = LayerProjection::new(&device, made, None).unwrap();
        let index = index_of(&device, &shape, &rows);
        let mut bounds = ClusterBounds::new(&device, 2, index.capacity(), 2).unwrap();
        bounds.follow(&device, &index, &tokens, SINKS).unwrap();
        Case { device, rows, w, index, tokens, bounds, projection, codes }
    }

    impl Case {
        fn select(&self, policy: &Policy, q: &[f32], budgets: [u32; 2]) -> Selector<Device> {
            self.select_among(policy, q, budgets, None)
        }

        /// The same, where kernels may read `rows`.
        fn select_among(
            &self,
            policy: &Policy,
            q: &[f32],
            budgets: [u32; 2],
            rows: Option<KvView<'_, Device>>,
        ) -> Selector<Device> {
            let (device, shape) = (&self.device, shape());
            let mut selector = Selector::new(device, &shape, policy, 8, 3).unwrap();
            let q = two_tokens(device, q);
            let searched = Searched {
                index: &self.index,
                tokens: Some(&self.tokens),
                bounds: Some(&self.bounds),
                projection: Some(&self.projection),
                rows,
            };
            selector.select(device, &shape, policy, &searched, &query(&q), &budgets).unwrap();
            pollster::block_on(device.read_all(&mut selector.parts_of(SELECTION))).unwrap();
            selector
        }

        /// KV rows `[Hkv, capacity, 2, Dh]` behind the sinks, as numbers of 32 bits.
        fn kv(&self) -> Buffer {
            let mut numbers = vec![f32::NAN; 2 * CAPACITY * 2 * WIDTH];
            for (head, rows) in self.rows.iter().enumerate() {
                for (token, key) in rows.keys.iter().enumerate() {
                    let at = (head * CAPACITY + SINKS + token) * 2 * WIDTH;
                    numbers[at..][..WIDTH].copy_from_slice(key);
                }
            }
            upload(&self.device, &numbers)
        }

        /// The best `budget` tokens of a head among those of the best clusters, of which up to
        /// `candidates` tokens are opened.
        fn best(&self, head: usize, q: &[f32], budget: usize, candidates: usize) -> Vec<usize> {
            let opened = self.opened(head, q, candidates);
            let queries = self.projected(head, q);
            let marks: Vec<&[f32]> = opened.iter().map(|i| self.code(head, *i)).collect();
            let order = ranked(queries.iter().map(|q| &q[..]), &marks);
            first_of(order, budget, &opened)
        }

        /// The queries of a head in its space.
        fn projected(&self, head: usize, q: &[f32]) -> Vec<[f32; 2]> {
            let group = &q[head * 2 * WIDTH..][..2 * WIDTH];
            group.chunks(WIDTH).map(|q| project(&self.w[head], q)).collect()
        }

        fn code(&self, head: usize, token: usize) -> &[f32] {
            &self.codes[head][token]
        }

        /// The best `budget` of some tokens by their keys.
        fn best_by_keys(
            &self,
            head: usize,
            q: &[f32],
            budget: usize,
            among: &[usize],
        ) -> Vec<usize> {
            let group = &q[head * 2 * WIDTH..][..2 * WIDTH];
            let keys: Vec<&[f32]> =
                among.iter().map(|token| &self.rows[head].keys[*token][..]).collect();
            first_of(ranked(group.chunks(WIDTH), &keys), budget, among)
        }

        /// The tokens of the clusters that score best, up to `candidates`.
        fn opened(&self, head: usize, q: &[f32], candidates: usize) -> Vec<usize> {
            let rows = &self.rows[head];
            // From the mean halfway to an extreme.
            let halfway = |cluster: usize, factor: usize, pick: fn(f32, f32) -> f32| {
                let own = || rows.tokens(cluster).map(|token| self.code(head, token)[factor]);
                let mean = own().sum::<f32>() / own().count() as f32;
                (0.5 * (mean + own().reduce(pick).unwrap())).round_ties_even()
            };
            let bounds = |cluster: usize| -> Vec<f32> {
                let of = |pick| [0, 1].map(|factor| halfway(cluster, factor, pick));
                [of(f32::max), of(f32::min)].concat()
            };
            let bounds: Vec<_> = (0..rows.sizes.len()).map(bounds).collect();
            let bounds: Vec<&[f32]> = bounds.iter().map(|own| &own[..]).collect();
            let split = |q: &[f32; 2]| [q.map(|x| x.max(0.0)), q.map(|x| x.min(0.0))].concat();
            let queries: Vec<_> = self.projected(head, q).iter().map(split).collect();
            let mut opened: Vec<usize> = vec![];
            for cluster in ranked(queries.iter().map(|q| &q[..]), &bounds) {
                let room = candidates - opened.len();
                opened.extend(rows.tokens(cluster).take(room));
            }
            opened
        }
    }

    /// The first `budget` of an order, listed as they were opened.
    fn first_of(order: Vec<usize>, budget: usize, opened: &[usize]) -> Vec<usize> {
        let mut places: Vec<usize> = order.into_iter().take(budget).collect();
        places.sort_unstable();
        places.into_iter().map(|place| opened[place]).collect()
    }

    /// Keys by the sum of a group's softmaxes over them.
    pub(super) fn ranked<'a>(
        group: impl Iterator<Item = &'a [f32]>,
        keys: &[&[f32]],
    ) -> Vec<usize> {
        let mut sums = vec![0.0; keys.len()];
        for q in group {
            let terms: Vec<f64> = keys.iter().map(|k| (0.5 * dot(q, k)).exp()).collect();
            let all: f64 = terms.iter().sum();
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term / all);
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
        order
    }

    #[test]
    fn the_best_tokens_of_the_opened_clusters_are_chosen() {
        let mut rng = SplitMix64::new(40);
        for (round, [a, b]) in
            [[2, 3], [4, 1], [1, 4], [3, 3], [4, 4], [0, 2]].repeat(5).iter().enumerate()
        {
            let case = case(round as u64);
            let q = normals(&mut rng, 16);
            // With room for 30 tokens there are more places than clusters.
            for (times, room) in [(2, 4), (3, 4), (2, 30)] {
                let policy = two_stage_policy(times, room);
                let selector = case.select(&policy, &q, [*a, *b]);
                for (head, budget) in [*a as usize, *b as usize].into_iter().enumerate() {
                    let best = case.best(head, &q, budget, times * budget);
                    let best: Vec<_> = best.into_iter().map(|token| (token, 1)).collect();
                    assert_eq!(selector.choice(head), best, "{times} times {budget}");
                }
            }
        }
    }

    /// With all tokens opened and compared again, the choice is that of all keys: the oracle's.
    #[test]
    fn the_best_by_their_keys_are_chosen_where_kernels_read_them() {
        let mut rng = SplitMix64::new(41);
        for seed in 0..20 {
            let case = case(seed);
            let (q, kv) = (normals(&mut rng, 16), case.kv());
            let rows = Some(KvView::new(&kv, CAPACITY));
            let all: Vec<usize> = (0..14).collect();
            for (times, rerank, budgets) in [(8, 8, [3, 2]), (2, 1, [3, 4]), (3, 2, [2, 4])] {
                let policy = reranking_policy(TwoStage { rerank, ..two_stage(times) }, 30);
                let by_keys = case.select_among(&policy, &q, budgets, rows);
                let by_marks = case.select_among(&policy, &q, budgets, None);
                for (head, budget) in budgets.map(|budget| budget as usize).into_iter().enumerate()
                {
                    let again = case.best(head, &q, rerank * budget, times * budget);
                    let mut best = case.best_by_keys(head, &q, budget, &again);
                    assert_eq!(tokens(&by_keys, head), best, "{times} times {budget}");
                    let plain = case.best(head, &q, budget, times * budget);
                    assert_eq!(tokens(&by_marks, head), plain, "keys out of reach");
                    if times == 8 {
                        best.sort_unstable();
                        let mut oracle = case.best_by_keys(head, &q, budget, &all);
                        oracle.sort_unstable();
                        assert_eq!(best, oracle);
                    }
                }
            }
        }
    }

    /// The tokens that a head chose.
    fn tokens(selector: &Selector<Device>, head: usize) -> Vec<usize> {
        selector.choice(head).into_iter().map(|(token, _)| token).collect()
    }

    /// The first stage opens no more tokens than there are places, whatever the budget says.
    #[test]
    fn opened_tokens_end_at_the_places_that_there_are() {
        let (case, q) = (case(77), normals(&mut SplitMix64::new(1), 16));
        let policy = two_stage_policy(2, 2);
        // 2 tokens and 2 sinks, twice.
        assert_eq!(policy.candidates(64), 8);
        let selector = case.select(&policy, &q, [4, 4]);
        for head in 0..2 {
            let best: Vec<_> = case.best(head, &q, 4, 8).into_iter().map(|t| (t, 1)).collect();
            assert_eq!(selector.choice(head), best);
        }
        // 64 tokens of a sequence of 64, not 96.
        let (device, shape, policy) = (&case.device, shape(), two_stage_policy(3, 30));
        let mut stage = TokenStage::new(device, &shape, &policy, two_stage(3)).unwrap();
        assert_eq!((stage.candidates, stage.width), (64, 2));
        let mut scores = upload(device, &[0.0; 4 * 64]);
        let [mut tokens, mut takes] = [(); 2].map(|()| upload_words(device, &[0; 2 * 32]));
        let (mut n_tokens, budgets) =
            (upload_words(device, &[0; 2]), upload_words(device, &[32, 1]));
        let to = Choice {
            scores: &mut scores,
            score_stride: 64,
            budgets: View::all(&budgets),
            host_budgets: &[32, 1],
            max_selected: 32,
            tokens: ViewMut::all(&mut tokens),
            takes: ViewMut::all(&mut takes),
            n_tokens: ViewMut::all(&mut n_tokens),
        };
        let q = two_tokens(device, &q);
        let searched = Searched {
            index: &case.index,
            tokens: Some(&case.tokens),
            bounds: Some(&case.bounds),
            projection: Some(&case.projection),
            rows: None,
        };
        assert!(stage.search(device, &shape, &policy, &searched, &query(&q), to).unwrap());
        assert_eq!(words(device, View::all(&stage.n_rows)), [14, 3]);
        assert_eq!(words(device, View::all(&n_tokens)), [14, 1]);
        assert_eq!(stage.host_budgets, [64, 3]);
    }

    #[test]
    fn without_a_space_nothing_is_chosen() {
        let case = case(3);
        let (device, shape, policy) = (&case.device, shape(), two_stage_policy(2, 4));
        let mut selector = Selector::new(device, &shape, &policy, 8, 3).unwrap();
        let q = two_tokens(device, &[1.0; 16]);
        let searched = searched(&case.index);
        selector.select(device, &shape, &policy, &searched, &query(&q), &[4, 4]).unwrap();
        pollster::block_on(device.read_all(&mut selector.parts_of(SELECTION))).unwrap();
        assert_eq!((selector.choice(0), selector.choice(1)), (vec![], vec![]));
    }

    #[test]
    fn its_bytes_are_those_of_its_buffers() {
        for (times, tokens, rerank) in [(2, 4, 0), (3, 9, 0), (5, 30, 0), (4, 6, 2), (3, 9, 8)] {
            let two_stage = TwoStage { rerank, ..two_stage(times) };
            let (shape, policy) = (shape(), reranking_policy(two_stage, tokens));
            let stage = TokenStage::new(&Device::new(), &shape, &policy, two_stage).unwrap();
            let mut buffers = vec![
                &stage.clusters,
                &stage.takes,
                &stage.n_selected,
                stage.budgets.all().buffer,
                &stage.rows,
                &stage.n_rows,
                &stage.query,
                &stage.split_query,
            ];
            if let Some(Reranked { tokens, takes, n_tokens, budgets, .. }) = &stage.reranked {
                buffers.extend([tokens, takes, n_tokens, budgets.all().buffer]);
            }
            assert_eq!(stage.reranked.is_some(), rerank > 0);
            let bytes: u64 = buffers.iter().map(|buffer| buffer.size_bytes()).sum();
            assert_eq!(token_stage_bytes(&shape, &policy, two_stage), bytes);
        }
    }
}
