//! Two-stage selection: clusters are opened for more tokens than a step attends, and of the tokens
//! in them those are attended that score best one by one, in a space of few dimensions.
//!
//! The second stage is an index of tokens ([`crate::policy::TokenConfig`]) whose landmarks lie in
//! the order of the rows: those of an opened cluster are gathered, scored and ranked on the device.

use longview_core::DType;
use longview_ops::{
    Backend, CentroidScoresParams, ClusterRows, ClusterRowsParams, KvGather, KvGatherParams,
    OpResult, ProjectHeads, ProjectHeadsParams, ScoreSelect, ScoreSpan, SelectClustersParams,
    SelectSpan, View, ViewMut,
};

use super::search::{Ranked, Searched};
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
    /// U32 `[Hkv, candidates]`: 0, 1, 2 ..
    places: B::Buffer,
    /// U32 `[Hkv, candidates]`: ones.
    sizes: B::Buffer,
    /// `[Hkv, candidates, width]`, in the KV type.
    keys: B::Buffer,
    /// F32 `[Hq, width]`.
    query: B::Buffer,
    host_budgets: Vec<u32>,
    host_rows: Vec<u32>,
    max_selected: usize,
    candidates: usize,
    width: usize,
}

/// Bytes that [`TokenStage`] takes on the device.
pub(crate) fn token_stage_bytes(shape: &KvShape, policy: &Policy, two_stage: TwoStage) -> u64 {
    let sizes = Sizes::of(shape, policy, two_stage);
    let lists = 2 * sizes.max_selected + 3 * sizes.candidates + 3;
    let keys = sizes.candidates * sizes.width * shape.kv_dtype.size();
    (shape.n_kv_heads * (4 * lists + keys) + 4 * shape.n_q_heads * sizes.width) as u64
}

struct Sizes {
    max_selected: usize,
    candidates: usize,
    width: usize,
}

impl Sizes {
    fn of(shape: &KvShape, policy: &Policy, two_stage: TwoStage) -> Self {
        let candidates = policy.candidates(shape.capacity).max(1);
        let width = two_stage.tokens.rank.most(shape.head_dim);
        let max_selected = candidates.min(policy.max_units(shape.capacity));
        Self { max_selected, candidates, width }
    }
}

/// What the first stage shares with the second.
pub(crate) struct StageScratch<'a, B: Backend> {
    pub scores: &'a mut B::Buffer,
    /// Scores from one KV head to the next.
    pub stride: usize,
    /// Tokens that each KV head may recall.
    pub budgets: &'a [u32],
}

impl<B: Backend> TokenStage<B> {
    /// For sequences of `shape` under `policy`.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        two_stage: TwoStage,
    ) -> OpResult<Self> {
        let Sizes { max_selected, candidates, width } = Sizes::of(shape, policy, two_stage);
        let h = shape.n_kv_heads;
        let ints = |len: usize| backend.alloc(DType::U32, h * len, "opened clusters");
        let (mut places, mut sizes) = (ints(candidates)?, ints(candidates)?);
        let numbers: Vec<u32> = (0..h * candidates).map(|i| (i % candidates) as u32).collect();
        backend.write(ViewMut::all(&mut places), bytemuck::cast_slice(&numbers))?;
        let ones = vec![1u32; h * candidates];
        backend.write(ViewMut::all(&mut sizes), bytemuck::cast_slice(&ones))?;
        Ok(Self {
            times: two_stage.times as u32,
            clusters: ints(max_selected)?,
            takes: ints(max_selected)?,
            n_selected: ints(1)?,
            budgets: UploadCache::new(backend, 1, h, "budgets")?,
            rows: ints(candidates)?,
            n_rows: ints(1)?,
            places,
            sizes,
            keys: backend.alloc(shape.kv_dtype, h * candidates * width, "opened tokens")?,
            query: backend.alloc(DType::F32, shape.n_q_heads * width, "query features")?,
            host_budgets: vec![0; h],
            host_rows: vec![0; h * candidates],
            max_selected,
            candidates,
            width,
        })
    }

    /// Opens the best clusters for `times` the budgets, and lays out their tokens to be ranked.
    pub fn open<'a>(
        &'a mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        searched: &Searched<'_, B>,
        query: &Query<'_, B>,
        scratch: StageScratch<'_, B>,
    ) -> OpResult<Ranked<'a, B>> {
        let StageScratch { scores, stride: score_stride, budgets } = scratch;
        let index = searched.index;
        let (Some(tokens), Some(projection)) = (searched.tokens, searched.projection) else {
            // No prompt was read: there is no space yet, and nothing was laid out.
            return Ok(self.ranked());
        };
        for (to, budget) in self.host_budgets.iter_mut().zip(budgets) {
            *to = budget.saturating_mul(self.times).min(self.candidates as u32);
        }
        self.budgets.put(backend, 0, &self.host_budgets)?;
        let h = shape.n_kv_heads as u32;
        backend.score_select(ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: query.n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: h,
                head_dim: index.width() as u32,
                score_stride: score_stride as u32,
                scale: shape.scale,
                pooling: policy.index.map_or(0, |c| c.pooling as u32),
            },
            select: SelectClustersParams {
                n_kv_heads: h,
                score_stride: score_stride as u32,
                max_selected: self.max_selected as u32,
            },
            q: query.q,
            score_spans: &[ScoreSpan {
                q_index: query.index as u32,
                centroids: index.centroids(),
                sizes: index.sizes(),
                n_clusters: index.n_clusters(),
                cluster_stride: index.capacity() as u32,
            }],
            select_spans: &[SelectSpan {
                sizes: index.sizes(),
                n_clusters: index.n_clusters(),
                budgets: self.budgets.all(),
                cluster_stride: index.capacity() as u32,
            }],
            scratch: ViewMut::all(scores),
            clusters: ViewMut::all(&mut self.clusters),
            takes: ViewMut::all(&mut self.takes),
            n_selected: ViewMut::all(&mut self.n_selected),
        })?;
        backend.cluster_rows(ClusterRows {
            p: ClusterRowsParams {
                n_kv_heads: h,
                cluster_stride: index.capacity() as u32,
                max_selected: self.max_selected as u32,
                list_stride: self.candidates as u32,
                first_row: policy.sinks as u32,
            },
            starts: index.starts(),
            clusters: View::all(&self.clusters),
            takes: View::all(&self.takes),
            n_selected: View::all(&self.n_selected),
            rows: ViewMut::all(&mut self.rows),
            n_rows: ViewMut::all(&mut self.n_rows),
        })?;
        // A landmark is moved as a KV row of half its width.
        backend.kv_gather(KvGather {
            p: KvGatherParams {
                n_kv_heads: h,
                head_dim: (self.width / 2) as u32,
                list_stride: self.candidates as u32,
                dst_head_stride: self.candidates as u32,
            },
            src: tokens.landmark_rows(),
            src_rows: View::all(&self.rows),
            dst_rows: View::all(&self.places),
            n_rows: View::all(&self.n_rows),
            dst: &mut self.keys,
        })?;
        backend.project_heads(ProjectHeads {
            p: ProjectHeadsParams {
                n_tokens: 1,
                n_heads: shape.n_q_heads as u32,
                group: shape.n_q_heads as u32 / h,
                head_dim: shape.head_dim as u32,
                rank: self.width as u32,
                head_major: 0,
            },
            x: query.own(shape),
            w: View::all(&projection.w_q),
            out: ViewMut::all(&mut self.query),
        })?;
        Ok(self.ranked())
    }

    /// The tokens that are laid out.
    fn ranked(&self) -> Ranked<'_, B> {
        Ranked {
            q: View::all(&self.query),
            n_tokens: 1,
            q_index: 0,
            width: self.width,
            centroids: View::all(&self.keys),
            sizes: View::all(&self.sizes),
            n_clusters: View::all(&self.n_rows),
            stride: self.candidates,
        }
    }

    /// The numbers of the tokens that were laid out, on the device, and where they go.
    pub fn read_part(&mut self) -> (View<'_, B>, &mut [u8]) {
        (View::all(&self.rows), bytemuck::cast_slice_mut(&mut self.host_rows))
    }

    /// The token that place `place` of a head's candidates has.
    pub fn token(&self, head: usize, place: u32) -> u32 {
        self.host_rows[head * self.candidates + place as usize]
    }
}
