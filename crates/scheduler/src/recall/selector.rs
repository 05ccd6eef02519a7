//! One layer's selection in one decode step: score landmarks, rank them, cut at the budget, and
//! look up which of the selected rows are on the device.
//!
//! Every layer that recalls has a selection of its own, on the device and on the host
//! ([`SelectionId`]): under speculative recall it waits there for the next step.

use longview_core::{ClusterId, DType, HeadId, Slot};
use longview_ops::{
    Backend, BlockSummary, CentroidScoresParams, OpResult, Placed, Pooling, ProjectHeads,
    ProjectHeadsParams, ScoreSelect, ScoreSpan, SelectClustersParams, SelectSpan, SplitSigns,
    SplitSignsParams, View, ViewMut,
};
use smallvec::{SmallVec, smallvec};

use super::cache::{ClusterCache, Miss, Want};
use super::search::Searched;
use super::two_stage::{Choice, TokenStage};
use crate::index::HeadIndex;
use crate::layout::{KvShape, Query, SelectionId};
use crate::policy::{Budget, IndexKind, Policy};
use crate::store::{ReadParts, RowLists, UploadCache};

/// Buffers of selections, made once per sequence.
pub(crate) struct Selector<B: Backend> {
    scores: B::Buffer,
    /// The query as the index compares it, where that is not as it is.
    features: Option<B::Buffer>,
    clusters: B::Buffer,
    takes: B::Buffer,
    n_selected: B::Buffer,
    budgets: UploadCache<B>,
    n_kv_heads: usize,
    max_selected: usize,
    score_stride: usize,
    host_clusters: Vec<u32>,
    host_takes: Vec<u32>,
    host_n: Vec<u32>,
    /// Scores of the last selection, where the host looks at them; else of no elements.
    host_scores: Vec<f32>,
    wants: Vec<Want>,
    slots: Vec<Slot>,
    pub misses: Vec<Miss>,
    /// Where tokens are selected inside of clusters.
    token_stage: Option<TokenStage<B>>,
}

/// One head's selection, to be looked up in its cache.
pub(crate) struct Lookup {
    pub selection: SelectionId,
    pub head: HeadId,
    /// The device row of slot 0.
    pub first_slot_row: usize,
    /// Whether rows that are on the device come first in the list, and absent ones in its second
    /// part.
    pub hits_first: bool,
}

impl<B: Backend> Selector<B> {
    /// Room for `n_selections` selections among up to `capacity` clusters.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        capacity: usize,
        n_selections: usize,
    ) -> OpResult<Self> {
        let (h, heads) = (shape.n_kv_heads, n_selections * shape.n_kv_heads);
        let budget = policy.most_attended().min(shape.capacity);
        let two_stage = policy.index.and_then(|index| index.two_stage());
        let token_stage = match two_stage {
            Some(two_stage) => Some(TokenStage::new(backend, shape, policy, two_stage)?),
            None => None,
        };
        let capacity = capacity.max(policy.candidates(shape.capacity));
        let max_selected = budget.min(capacity).max(1);
        // What is cut by scores is cut on the host.
        let host_scores = if policy.budget.needs_host_choice() { h * capacity.max(1) } else { 0 };
        Ok(Self {
            // A backend may keep the scores of every query head.
            scores: backend.alloc(
                DType::F32,
                shape.n_q_heads * capacity.max(1),
                "cluster scores",
            )?,
            features: match policy.index {
                Some(index) if !matches!(index.kind, IndexKind::Clusters(_)) => {
                    let width = index.landmark_width(shape.head_dim);
                    Some(backend.alloc(DType::F32, shape.n_q_heads * width, "query features")?)
                }
                _ => None,
            },
            clusters: backend.alloc(DType::U32, heads * max_selected, "selection")?,
            takes: backend.alloc(DType::U32, heads * max_selected, "selection")?,
            n_selected: backend.alloc(DType::U32, heads, "selection")?,
            budgets: UploadCache::new(backend, 1, h, "budgets")?,
            n_kv_heads: h,
            max_selected,
            score_stride: capacity.max(1),
            host_clusters: vec![0; heads * max_selected],
            host_takes: vec![0; heads * max_selected],
            host_n: vec![0; heads],
            host_scores: vec![0.0; host_scores],
            wants: Vec::with_capacity(max_selected),
            slots: Vec::with_capacity(budget),
            misses: Vec::with_capacity(budget),
            token_stage,
        })
    }

    /// Scores all clusters, ranks them and cuts at each head's budget of tokens. The result is on
    /// the device; [`Selector::parts_of`] or [`Selector::read_parts`] say what to read.
    pub fn select(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        searched: &Searched<'_, B>,
        query: &Query<'_, B>,
        budgets: &[u32],
    ) -> OpResult<()> {
        let (h, index) = (shape.n_kv_heads, searched.index);
        let has_features = self.make_features(backend, shape, policy, searched, query)?;
        let (q, n_tokens, q_index) = match (&self.features, has_features) {
            (Some(features), true) => {
                (View::part(features, 0, shape.n_q_heads * index.width()), 1, 0)
            }
            _ => (query.q, query.n_tokens, query.index),
        };
        let (first, len) = (query.selection.0 * h, h * self.max_selected);
        self.budgets.put(backend, 0, budgets)?;
        let clusters = ViewMut::part(&mut self.clusters, first * self.max_selected, len);
        let takes = ViewMut::part(&mut self.takes, first * self.max_selected, len);
        let n_selected = ViewMut::part(&mut self.n_selected, first, h);
        if let Some(stage) = &mut self.token_stage {
            let to = Choice {
                scores: &mut self.scores,
                score_stride: self.score_stride,
                budgets: self.budgets.all(),
                host_budgets: budgets,
                max_selected: self.max_selected,
                tokens: clusters,
                takes,
                n_tokens: n_selected,
            };
            if !stage.search(backend, shape, policy, searched, query, to)? {
                let none: SmallVec<[u32; 16]> = smallvec![0; h];
                let counts = ViewMut::part(&mut self.n_selected, first, h);
                backend.write(counts, bytemuck::cast_slice(&none))?;
            }
            return Ok(());
        }
        let pooling = policy.index.map_or(Pooling::SumSoftmax, |index| index.pooling);
        backend.score_select(ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: h as u32,
                head_dim: index.width() as u32,
                score_stride: self.score_stride as u32,
                scale: shape.scale,
                pooling: pooling as u32,
            },
            select: SelectClustersParams {
                n_kv_heads: h as u32,
                score_stride: self.score_stride as u32,
                max_selected: self.max_selected as u32,
                by_id: 0,
            },
            q,
            score_spans: &[ScoreSpan {
                q_index: q_index as u32,
                centroids: index.centroids(),
                sizes: index.sizes(),
                n_clusters: index.n_clusters(),
                cluster_stride: index.capacity() as u32,
                listed: None,
                placed: Placed::DENSE,
            }],
            select_spans: &[SelectSpan {
                sizes: index.sizes(),
                n_clusters: index.n_clusters(),
                budgets: self.budgets.all(),
                cluster_stride: index.capacity() as u32,
                listed: None,
            }],
            scratch: ViewMut::all(&mut self.scores),
            clusters,
            takes,
            n_selected,
        })
    }

    /// Cuts a selection that was read where its scores say that it is enough.
    pub fn trim_by_scores(&mut self, selection: SelectionId, budget: &Budget, index: &[HeadIndex]) {
        if let Some(mass) = budget.mass {
            self.trim_to_mass(selection, mass, index);
        }
        if let Some(alpha) = budget.alpha {
            self.trim_to_best(selection, alpha);
        }
    }

    /// Cuts the last choice after as many entries as have a score within `alpha` of the head's best
    /// (a mass above `e^-alpha` of the largest), on average over the heads.
    fn trim_to_best(&mut self, selection: SelectionId, alpha: f32) {
        let near = |head: HeadId| {
            let scores = &self.host_scores[head.index() * self.score_stride..];
            let chosen = &self.host_clusters[self.place(selection, head)];
            let score = |c: &u32| scores[*c as usize];
            let best = chosen.first().map_or(0.0, score);
            chosen.iter().filter(|c| score(c) > best * (-alpha).exp()).count()
        };
        let total: usize = (0..self.n_kv_heads).map(HeadId::new).map(near).sum();
        let mean = total.div_ceil(self.n_kv_heads) as u32;
        for n in &mut self.host_n[selection.0 * self.n_kv_heads..][..self.n_kv_heads] {
            *n = mean.min(*n);
        }
    }

    /// Takes the features of the step's query, `[Hq, width]`, in place of making them.
    pub fn set_features(&mut self, backend: &B, features: &[f32]) -> OpResult<()> {
        let Some(buffer) = &mut self.features else { return Ok(()) };
        backend.write(ViewMut::part(buffer, 0, features.len()), bytemuck::cast_slice(features))
    }

    /// Turns the query into what the layer's landmarks are compared with; `false` where that is
    /// the query itself.
    fn make_features(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        searched: &Searched<'_, B>,
        query: &Query<'_, B>,
    ) -> OpResult<bool> {
        let (Some(index), Some(features)) = (policy.index, &mut self.features) else {
            return Ok(false);
        };
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        let x = query.own(shape);
        match index.kind {
            IndexKind::Blocks(blocks) if blocks.summary == BlockSummary::MinMax => {
                backend.split_signs(SplitSigns {
                    p: SplitSignsParams { n_vectors: hq as u32, width: d as u32 },
                    x,
                    out: ViewMut::part(features, 0, 2 * hq * d),
                })?;
            }
            IndexKind::Clusters(_) | IndexKind::Blocks(_) => return Ok(false),
            IndexKind::Tokens(_) => {
                // No space yet: nothing is indexed, and nothing will be selected.
                let Some(projection) = searched.projection else { return Ok(false) };
                if projection.low_rank.is_some() {
                    // The host has fitted them: `set_features`.
                    return Ok(true);
                }
                let rank = searched.index.width();
                backend.project_heads(ProjectHeads {
                    p: ProjectHeadsParams {
                        n_tokens: 1,
                        n_heads: hq as u32,
                        group: (hq / shape.n_kv_heads) as u32,
                        head_dim: d as u32,
                        rank: rank as u32,
                        head_major: 0,
                    },
                    x,
                    w: View::all(&projection.w_q),
                    out: ViewMut::part(features, 0, hq * rank),
                })?;
            }
        }
        Ok(true)
    }

    /// Entries from one head's selection to the next.
    pub fn max_selected(&self) -> usize {
        self.max_selected
    }

    /// Clusters, takes and numbers of the selection of one layer, on the device.
    pub fn selection(&self, selection: SelectionId) -> [View<'_, B>; 3] {
        let (first, h) = (selection.0 * self.n_kv_heads, self.n_kv_heads);
        let (at, len) = (first * self.max_selected, h * self.max_selected);
        [
            View::part(&self.clusters, at, len),
            View::part(&self.takes, at, len),
            View::part(&self.n_selected, first, h),
        ]
    }

    /// Tells the device how many entries are left of a selection that the host has cut.
    pub fn upload_cut(&mut self, backend: &B, selection: SelectionId) -> OpResult<()> {
        let heads = selection.0 * self.n_kv_heads..(selection.0 + 1) * self.n_kv_heads;
        let view = ViewMut::part(&mut self.n_selected, heads.start, heads.len());
        backend.write(view, bytemuck::cast_slice(&self.host_n[heads]))
    }

    /// The selection of one layer and where it goes.
    pub fn parts_of(&mut self, selection: SelectionId) -> ReadParts<'_, B> {
        let (first, h) = (selection.0 * self.n_kv_heads, self.n_kv_heads);
        let (at, len) = (first * self.max_selected, h * self.max_selected);
        let cast = bytemuck::cast_slice_mut::<u32, u8>;
        let mut parts: ReadParts<'_, B> = smallvec![
            (View::part(&self.clusters, at, len), cast(&mut self.host_clusters[at..at + len])),
            (View::part(&self.takes, at, len), cast(&mut self.host_takes[at..at + len])),
            (View::part(&self.n_selected, first, h), cast(&mut self.host_n[first..first + h])),
        ];
        if !self.host_scores.is_empty() {
            let scores = View::part(&self.scores, 0, self.host_scores.len());
            parts.push((scores, bytemuck::cast_slice_mut(&mut self.host_scores)));
        }
        parts
    }

    /// Cuts the last choice where the clusters taken hold the share `mass` of the estimated
    /// attention, if that is before the budget's end. (Scores of clusters that there are not are
    /// never looked at.)
    fn trim_to_mass(&mut self, selection: SelectionId, mass: f32, index: &[HeadIndex]) {
        for (head, clusters) in index.iter().enumerate() {
            let scores = &self.host_scores[head * self.score_stride..][..clusters.sizes.len()];
            let wanted = f64::from(mass) * scores.iter().map(|s| f64::from(*s)).sum::<f64>();
            let (mut held, at) = (0.0, self.place(selection, HeadId::new(head)));
            let chosen = self.host_clusters[at.clone()].iter().zip(&self.host_takes[at]);
            let enough = chosen.enumerate().find_map(|(i, (cluster, take))| {
                let size = clusters.sizes[*cluster as usize].max(1);
                let share = f64::from(*take) / f64::from(size);
                held += share * f64::from(scores[*cluster as usize]);
                (held >= wanted).then_some(i + 1)
            });
            if let Some(n) = enough {
                self.host_n[selection.0 * self.n_kv_heads + head] = n as u32;
            }
        }
    }

    /// The selections of all layers and where they go.
    pub fn read_parts(&mut self) -> [(View<'_, B>, &mut [u8]); 3] {
        let cast = bytemuck::cast_slice_mut::<u32, u8>;
        [
            (View::all(&self.clusters), cast(&mut self.host_clusters)),
            (View::all(&self.takes), cast(&mut self.host_takes)),
            (View::all(&self.n_selected), cast(&mut self.host_n)),
        ]
    }

    /// Cuts a selection at each head's budget: what it would be had it been made with that one,
    /// because clusters are taken in the order of their scores.
    pub fn trim(&mut self, selection: SelectionId, budgets: &[u32]) {
        for (head, budget) in (selection.0 * self.n_kv_heads..).zip(budgets) {
            let at = head * self.max_selected;
            let (mut left, mut n) = (*budget, 0);
            for take in &mut self.host_takes[at..at + self.host_n[head] as usize] {
                *take = left.min(*take);
                left -= *take;
                n += u32::from(*take > 0);
            }
            self.host_n[head] = n;
        }
    }

    /// The place of a head's selection in the host's lists.
    fn place(&self, selection: SelectionId, head: HeadId) -> std::ops::Range<usize> {
        let head = selection.0 * self.n_kv_heads + head.index();
        let at = head * self.max_selected;
        at..at + self.host_n[head] as usize
    }

    /// The clusters that `head` selected, best first, with the tokens taken of each.
    pub fn selected(
        &self,
        selection: SelectionId,
        head: HeadId,
    ) -> impl ExactSizeIterator<Item = (usize, usize)> + '_ {
        let place = self.place(selection, head);
        let clusters = self.host_clusters[place.clone()].iter().map(|c| *c as usize);
        clusters.zip(self.host_takes[place].iter().map(|t| *t as usize))
    }

    /// Takes a choice that was saved, cluster and tokens of each head; `false` if it is too long.
    pub fn set_selected(&mut self, selection: SelectionId, heads: &[Vec<[u32; 2]>]) -> bool {
        if heads.iter().any(|choice| choice.len() > self.max_selected) {
            return false;
        }
        for (head, choice) in (selection.0 * self.n_kv_heads..).zip(heads) {
            self.host_n[head] = choice.len() as u32;
            for (at, [cluster, take]) in (head * self.max_selected..).zip(choice) {
                (self.host_clusters[at], self.host_takes[at]) = (*cluster, *take);
            }
        }
        true
    }

    /// Clusters selected over all heads.
    pub fn n_selected(&self, selection: SelectionId) -> u64 {
        let heads = &self.host_n[selection.0 * self.n_kv_heads..][..self.n_kv_heads];
        heads.iter().map(|n| u64::from(*n)).sum()
    }

    /// Looks one head's selection up in its cache: slots go to `lists`, absent rows to
    /// `self.misses`. Returns the hits.
    pub fn look_up(
        &mut self,
        lookup: &Lookup,
        cache: &mut ClusterCache,
        lists: &mut RowLists<B>,
    ) -> usize {
        let Lookup { selection, head, first_slot_row, hits_first } = *lookup;
        self.wants.clear();
        for i in self.place(selection, head) {
            let cluster = ClusterId(self.host_clusters[i]);
            self.wants.push(Want { cluster, take: self.host_takes[i] });
        }
        self.slots.clear();
        self.misses.clear();
        let hits = cache.look_up(&self.wants, &mut self.slots, &mut self.misses);
        if !hits_first {
            self.slots.iter().for_each(|slot| lists.push(head, first_slot_row + slot.index()));
            return hits;
        }
        // Slots of misses are among the others, in the same order.
        let mut misses = self.misses.iter().peekable();
        for slot in &self.slots {
            if misses.next_if(|miss| miss.slot == *slot).is_none() {
                lists.push(head, first_slot_row + slot.index());
            }
        }
        lists.divide(head);
        for miss in &self.misses {
            lists.push(head, first_slot_row + miss.slot.index());
        }
        hits
    }
}

#[cfg(test)]
mod tests;
