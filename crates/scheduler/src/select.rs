//! One layer's recall in one decode step: score, choose, resolve hits and misses, list the rows to
//! attend.
//!
//! A selection lives in a slot, on the device and on the host. Exact recall uses one slot for all
//! layers, one after the other; speculative recall has one for each layer that recalls, because
//! they wait there for the next step.

use longview_core::{DType, Slot};
use longview_ops::{
    Backend, BlockSummary, CentroidScoresParams, KvView, ListSpan, OpResult, ProjectHeads,
    ProjectHeadsParams, ScoreSelect, ScoreSpan, SelectClustersParams, SelectSpan, SplitSigns,
    SplitSignsParams, View, ViewMut,
};

use smallvec::{SmallVec, smallvec};

use crate::cache::{ClusterCache, Miss, Want};
use crate::held::HeldLists;
use crate::index::{HeadIndex, LayerIndex};
use crate::layer::Layer;
use crate::policy::{IndexConfig, IndexKind, Policy};
use crate::refine::Refinement;
use crate::shape::KvShape;
use longview_core::ClusterId;

/// Buffers of selection and the list of rows to attend, made once per sequence.
pub(crate) struct Selector<B: Backend> {
    scores: B::Buffer,
    /// The query as the index compares it, where that is not as it is.
    features: Option<B::Buffer>,
    clusters: B::Buffer,
    takes: B::Buffer,
    n_selected: B::Buffer,
    budgets: HeldLists<B>,
    n_kv_heads: usize,
    max_selected: usize,
    score_stride: usize,
    host_clusters: Vec<u32>,
    host_takes: Vec<u32>,
    host_n: Vec<u32>,
    /// Scores of the last choice, where the host looks at them; else of no elements.
    host_scores: Vec<f32>,
    wants: Vec<Want>,
    slots: Vec<Slot>,
    pub misses: Vec<Miss>,
    /// Where tokens are chosen inside of clusters.
    refine: Option<Refinement<B>>,
}

/// What a query ranks: clusters, blocks or tokens.
pub(crate) struct Ranked<'a, B: Backend> {
    pub q: View<'a, B>,
    pub n_tokens: usize,
    pub q_index: usize,
    pub width: usize,
    pub centroids: View<'a, B>,
    pub sizes: View<'a, B>,
    pub n_clusters: View<'a, B>,
    /// Entries from one head to the next.
    pub stride: usize,
}

/// The rows that each KV head attends, on the host and on the device.
pub(crate) struct RowLists<B: Backend> {
    pub stride: usize,
    rows: Vec<u32>,
    n: Vec<u32>,
    /// Rows of each head that are attended first; all of them, unless the list was divided.
    n_first: Vec<u32>,
    n_rest: Vec<u32>,
    first: ListBuffers<B>,
    /// The others; only where lists are divided.
    rest: Option<ListBuffers<B>>,
}

/// One list of rows for each KV head on the device.
struct ListBuffers<B: Backend> {
    rows: HeldLists<B>,
    n: HeldLists<B>,
}

impl<B: Backend> ListBuffers<B> {
    fn new(backend: &B, n_kv_heads: usize, stride: usize) -> OpResult<Self> {
        Ok(Self {
            rows: HeldLists::new(backend, n_kv_heads, stride, "attended rows")?,
            n: HeldLists::new(backend, 1, n_kv_heads, "attended rows")?,
        })
    }

    fn span<'a>(&'a self, kv: KvView<'a, B>, q_index: usize, stride: usize) -> ListSpan<'a, B> {
        ListSpan {
            q_index: q_index as u32,
            kv,
            rows: self.rows.all(),
            n_rows: self.n.all(),
            weights: None,
            list_stride: stride as u32,
        }
    }
}

impl<B: Backend> RowLists<B> {
    /// Lists of up to `stride` rows a head; `divided` if some may have to be attended later.
    pub fn new(backend: &B, n_kv_heads: usize, stride: usize, divided: bool) -> OpResult<Self> {
        let stride = stride.max(1);
        let buffers = || ListBuffers::new(backend, n_kv_heads, stride);
        Ok(Self {
            stride,
            rows: vec![0; n_kv_heads * stride],
            n: vec![0; n_kv_heads],
            n_first: vec![0; n_kv_heads],
            n_rest: vec![0; n_kv_heads],
            first: buffers()?,
            rest: if divided { Some(buffers()?) } else { None },
        })
    }

    pub fn clear(&mut self) {
        self.n.fill(0);
        self.n_first.fill(u32::MAX);
    }

    /// What `head` has so far is attended first; what follows, later.
    pub fn divide(&mut self, head: usize) {
        self.n_first[head] = self.n[head];
    }

    pub fn push(&mut self, head: usize, row: usize) {
        let n = self.n[head] as usize;
        assert!(n < self.stride, "a head attends more than {} rows", self.stride);
        self.rows[head * self.stride + n] = row as u32;
        self.n[head] += 1;
    }

    pub fn head(&self, head: usize) -> &[u32] {
        &self.rows[head * self.stride..][..self.n[head] as usize]
    }

    pub fn counts(&self) -> &[u32] {
        &self.n
    }

    pub fn upload(&mut self, backend: &B) -> OpResult<()> {
        for (h, (n, first)) in self.n.iter().zip(&mut self.n_first).enumerate() {
            let at = h * self.stride;
            *first = (*first).min(*n);
            self.first.rows.put(backend, h, &self.rows[at..at + *first as usize])?;
        }
        self.first.n.put(backend, 0, &self.n_first)
    }

    /// Hands the second parts over.
    pub fn upload_rest(&mut self, backend: &B) -> OpResult<()> {
        let rest = self.rest.as_mut().expect("lists that are divided have a second part");
        for (h, (n, first)) in self.n.iter().zip(&self.n_first).enumerate() {
            let at = h * self.stride;
            rest.rows.put(backend, h, &self.rows[at + *first as usize..at + *n as usize])?;
            self.n_rest[h] = n - first;
        }
        rest.n.put(backend, 0, &self.n_rest)
    }

    /// The lists on the device, to be added to.
    pub fn rows_mut(&mut self) -> ViewMut<'_, B> {
        self.first.rows.all_mut()
    }

    /// What the query at `q_index` attends first.
    pub fn first<'a>(&'a self, kv: KvView<'a, B>, q_index: usize) -> ListSpan<'a, B> {
        self.first.span(kv, q_index, self.stride)
    }

    /// What it attends later.
    pub fn rest<'a>(&'a self, kv: KvView<'a, B>, q_index: usize) -> Option<ListSpan<'a, B>> {
        self.rest.as_ref().map(|rest| rest.span(kv, q_index, self.stride))
    }
}

/// The query that selects.
pub(crate) struct Query<'a, B: Backend> {
    pub q: View<'a, B>,
    pub n_tokens: usize,
    pub index: usize,
    /// Where the selection goes.
    pub slot: usize,
}

impl<B: Backend> Selector<B> {
    /// Room for `n_slots` selections among up to `capacity` clusters.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        capacity: usize,
        n_slots: usize,
    ) -> OpResult<Self> {
        let (h, heads) = (shape.n_kv_heads, n_slots * shape.n_kv_heads);
        let budget = policy.most_attended().min(shape.capacity);
        let refine = policy.refine.map(|_| Refinement::new(backend, shape, policy)).transpose()?;
        let capacity = capacity.max(policy.candidates(shape.capacity));
        let max_selected = budget.min(capacity).max(1);
        // What is cut by scores is cut on the host.
        let sees = policy.mass.is_some() || policy.alpha.is_some();
        Ok(Self {
            // A backend may keep the scores of every query head.
            scores: backend.alloc(
                DType::F32,
                shape.n_q_heads * capacity.max(1),
                "cluster scores",
            )?,
            features: match policy.index {
                Some(IndexConfig { kind: IndexKind::Clusters(_), .. }) | None => None,
                Some(index) => {
                    let width = index.landmark_width(shape.head_dim);
                    Some(backend.alloc(DType::F32, shape.n_q_heads * width, "query features")?)
                }
            },
            clusters: backend.alloc(DType::U32, heads * max_selected, "selection")?,
            takes: backend.alloc(DType::U32, heads * max_selected, "selection")?,
            n_selected: backend.alloc(DType::U32, heads, "selection")?,
            budgets: HeldLists::new(backend, 1, h, "budgets")?,
            n_kv_heads: h,
            max_selected,
            score_stride: capacity.max(1),
            host_clusters: vec![0; heads * max_selected],
            host_takes: vec![0; heads * max_selected],
            host_n: vec![0; heads],
            host_scores: vec![0.0; if sees { h * capacity.max(1) } else { 0 }],
            wants: Vec::with_capacity(max_selected),
            slots: Vec::with_capacity(budget),
            misses: Vec::with_capacity(budget),
            refine,
        })
    }

    /// Scores all clusters, ranks them and cuts at each head's budget of tokens. The result is on
    /// the device; [`Selector::read`] or [`Selector::read_parts`] bring it.
    pub fn select(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        layer: &Layer<B>,
        query: &Query<'_, B>,
        budgets: &[u32],
    ) -> OpResult<()> {
        let h = shape.n_kv_heads;
        let index = layer.index.as_ref().expect("recall layers have an index");
        let has_features = self.make_features(backend, shape, policy, layer, query)?;
        let (q, n_tokens, q_index) = match (&self.features, has_features) {
            (Some(features), true) => {
                (View::part(features, 0, shape.n_q_heads * index.width()), 1, 0)
            }
            _ => (query.q, query.n_tokens, query.index),
        };
        let all = Ranked {
            q,
            n_tokens,
            q_index,
            width: index.width(),
            centroids: index.centroids(),
            sizes: index.sizes(),
            n_clusters: index.n_clusters(),
            stride: index.capacity(),
        };
        let scratch = (&mut self.scores, self.score_stride);
        let ranked = match &mut self.refine {
            Some(refine) => {
                refine.open(backend, shape, policy, layer, (query, budgets), scratch)?
            }
            None => all,
        };
        let (first, len) = (query.slot * h, h * self.max_selected);
        let pooling = policy.index.map_or(0, |c| c.pooling as u32);
        self.budgets.put(backend, 0, budgets)?;
        backend.score_select(ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: ranked.n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: h as u32,
                head_dim: ranked.width as u32,
                score_stride: self.score_stride as u32,
                scale: shape.scale,
                pooling,
            },
            select: SelectClustersParams {
                n_kv_heads: h as u32,
                score_stride: self.score_stride as u32,
                max_selected: self.max_selected as u32,
            },
            q: ranked.q,
            score_spans: &[ScoreSpan {
                q_index: ranked.q_index as u32,
                centroids: ranked.centroids,
                sizes: ranked.sizes,
                n_clusters: ranked.n_clusters,
                cluster_stride: ranked.stride as u32,
            }],
            select_spans: &[SelectSpan {
                sizes: ranked.sizes,
                n_clusters: ranked.n_clusters,
                budgets: self.budgets.all(),
                cluster_stride: ranked.stride as u32,
            }],
            scratch: ViewMut::all(&mut self.scores),
            clusters: ViewMut::part(&mut self.clusters, first * self.max_selected, len),
            takes: ViewMut::part(&mut self.takes, first * self.max_selected, len),
            n_selected: ViewMut::part(&mut self.n_selected, first, h),
        })
    }

    /// Cuts the last choice after as many entries as have a score within `alpha` of the head's best
    /// (a mass above `e^-alpha` of the largest), on average over the heads.
    pub fn trim_to_best(&mut self, slot: usize, alpha: f32) {
        let near = |head: usize| {
            let scores = &self.host_scores[head * self.score_stride..];
            let chosen = &self.host_clusters[self.place(slot, head)];
            let score = |c: &u32| scores[*c as usize];
            let best = chosen.first().map_or(0.0, score);
            chosen.iter().filter(|c| score(c) > best * (-alpha).exp()).count()
        };
        let total: usize = (0..self.n_kv_heads).map(near).sum();
        let mean = total.div_ceil(self.n_kv_heads) as u32;
        for n in &mut self.host_n[slot * self.n_kv_heads..][..self.n_kv_heads] {
            *n = mean.min(*n);
        }
    }

    /// Takes the features of the step's query, `[Hq, width]`, in place of making them.
    pub fn set_features(&mut self, backend: &B, features: &[f32]) -> OpResult<()> {
        let buffer = self.features.as_mut().expect("indexes of tokens have features");
        backend.write(ViewMut::part(buffer, 0, features.len()), bytemuck::cast_slice(features))
    }

    /// Turns the query into what the layer's landmarks are compared with; `false` where that is
    /// the query itself.
    fn make_features(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        layer: &Layer<B>,
        query: &Query<'_, B>,
    ) -> OpResult<bool> {
        let (Some(index), Some(features)) = (policy.index, &mut self.features) else {
            return Ok(false);
        };
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        let token = hq * d;
        let x = View::part(query.q.buffer, query.q.offset + query.index * token, token);
        match index.kind {
            IndexKind::Blocks(blocks) if blocks.summary == BlockSummary::MinMax => {
                backend.split_signs(SplitSigns {
                    p: SplitSignsParams { n_vectors: hq as u32, width: d as u32 },
                    x,
                    out: ViewMut::part(features, 0, 2 * token),
                })?;
            }
            IndexKind::Clusters(_) | IndexKind::Blocks(_) => return Ok(false),
            IndexKind::Tokens(_) if layer.adaptive.is_some() => {}
            IndexKind::Tokens(_) => {
                // No space yet: nothing is indexed, and nothing will be chosen.
                let Some(projection) = &layer.projection else { return Ok(false) };
                let rank = layer.index.as_ref().map_or(0, LayerIndex::width);
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

    /// Clusters, takes and numbers of the selection of one slot, on the device.
    pub fn selection(&self, slot: usize) -> [View<'_, B>; 3] {
        let (first, h) = (slot * self.n_kv_heads, self.n_kv_heads);
        let (at, len) = (first * self.max_selected, h * self.max_selected);
        [
            View::part(&self.clusters, at, len),
            View::part(&self.takes, at, len),
            View::part(&self.n_selected, first, h),
        ]
    }

    /// Tells the device how many entries are left of a selection that the host has cut.
    pub fn put_back(&mut self, backend: &B, slot: usize) -> OpResult<()> {
        let heads = slot * self.n_kv_heads..(slot + 1) * self.n_kv_heads;
        let view = ViewMut::part(&mut self.n_selected, heads.start, heads.len());
        backend.write(view, bytemuck::cast_slice(&self.host_n[heads]))
    }

    /// Brings the selection of one slot to the host, and something else with the same wait.
    pub async fn read(
        &mut self,
        backend: &B,
        slot: usize,
        other: Option<(View<'_, B>, &mut [u8])>,
    ) -> OpResult<()> {
        let (first, h) = (slot * self.n_kv_heads, self.n_kv_heads);
        let (at, len) = (first * self.max_selected, h * self.max_selected);
        let cast = bytemuck::cast_slice_mut::<u32, u8>;
        let mut parts: SmallVec<[(View<'_, B>, &mut [u8]); 6]> = smallvec![
            (View::part(&self.clusters, at, len), cast(&mut self.host_clusters[at..at + len])),
            (View::part(&self.takes, at, len), cast(&mut self.host_takes[at..at + len])),
            (View::part(&self.n_selected, first, h), cast(&mut self.host_n[first..first + h])),
        ];
        if !self.host_scores.is_empty() {
            let scores = View::part(&self.scores, 0, self.host_scores.len());
            parts.push((scores, bytemuck::cast_slice_mut(&mut self.host_scores)));
        }
        parts.extend(other);
        parts.extend(self.refine.as_mut().map(Refinement::read_part));
        backend.read_all(&mut parts).await?;
        drop(parts);
        for head in 0..h {
            let place = self.place(slot, head);
            if let Some(refine) = &self.refine {
                self.host_clusters[place].iter_mut().for_each(|c| *c = refine.token(head, *c));
            }
        }
        Ok(())
    }

    /// Cuts the last choice where the clusters taken hold the share `mass` of the estimated
    /// attention, if that is before the budget's end. (Scores of clusters that there are not are
    /// never looked at.)
    pub fn trim_to_mass(&mut self, slot: usize, mass: f32, index: &[HeadIndex]) {
        for (head, clusters) in index.iter().enumerate() {
            let scores = &self.host_scores[head * self.score_stride..][..clusters.sizes.len()];
            let wanted = f64::from(mass) * scores.iter().map(|s| f64::from(*s)).sum::<f64>();
            let (mut held, at) = (0.0, self.place(slot, head));
            let chosen = self.host_clusters[at.clone()].iter().zip(&self.host_takes[at]);
            let enough = chosen.enumerate().find_map(|(i, (cluster, take))| {
                let size = clusters.sizes[*cluster as usize].max(1);
                let share = f64::from(*take) / f64::from(size);
                held += share * f64::from(scores[*cluster as usize]);
                (held >= wanted).then_some(i + 1)
            });
            if let Some(n) = enough {
                self.host_n[slot * self.n_kv_heads + head] = n as u32;
            }
        }
    }

    /// The selections of all slots and where they go.
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
    pub fn trim(&mut self, slot: usize, budgets: &[u32]) {
        for (head, budget) in (slot * self.n_kv_heads..).zip(budgets) {
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
    fn place(&self, slot: usize, head: usize) -> std::ops::Range<usize> {
        let head = slot * self.n_kv_heads + head;
        let at = head * self.max_selected;
        at..at + self.host_n[head] as usize
    }

    /// The clusters that `head` selected, best first, with the tokens taken of each.
    pub fn selected(&self, slot: usize, head: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let place = self.place(slot, head);
        let clusters = self.host_clusters[place.clone()].iter().map(|c| *c as usize);
        clusters.zip(self.host_takes[place].iter().map(|t| *t as usize))
    }

    /// Takes a choice that was saved, cluster and tokens of each head; `false` if it is too long.
    pub fn set_selected(&mut self, slot: usize, heads: &[Vec<[u32; 2]>]) -> bool {
        if heads.iter().any(|choice| choice.len() > self.max_selected) {
            return false;
        }
        for (head, choice) in (slot * self.n_kv_heads..).zip(heads) {
            self.host_n[head] = choice.len() as u32;
            for (at, [cluster, take]) in (head * self.max_selected..).zip(choice) {
                (self.host_clusters[at], self.host_takes[at]) = (*cluster, *take);
            }
        }
        true
    }

    /// Clusters selected over all heads.
    pub fn n_selected(&self, slot: usize) -> u64 {
        let heads = &self.host_n[slot * self.n_kv_heads..][..self.n_kv_heads];
        heads.iter().map(|n| u64::from(*n)).sum()
    }

    /// Resolves one head's selection in its cache: slots go to `lists` (shifted by
    /// `first_slot_row`), absent rows to `self.misses`. With `hits_first` the list is divided, and
    /// absent rows are in its second part. Returns the hits.
    pub fn resolve(
        &mut self,
        slot: usize,
        head: usize,
        cache: &mut ClusterCache,
        lists: &mut RowLists<B>,
        first_slot_row: usize,
        hits_first: bool,
    ) -> usize {
        self.wants.clear();
        for i in self.place(slot, head) {
            let cluster = ClusterId(self.host_clusters[i]);
            self.wants.push(Want { cluster, take: self.host_takes[i] });
        }
        self.slots.clear();
        self.misses.clear();
        let hits = cache.resolve(&self.wants, &mut self.slots, &mut self.misses);
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
