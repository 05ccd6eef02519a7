//! The search for tokens inside of clusters: a fused call of two levels, of one above where groups
//! of clusters have landmarks, and of one below where the keys themselves are in reach.

use longview_core::DType;

use super::checks::{ensure, grouped, of_float, of_landmarks, reads, writes};
use super::cluster::{Placed, Pooling};
use crate::buffer::{DeviceBuffer, KvView, Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Sizes of a [`SearchTokens`].
#[derive(Clone, Copy, Debug)]
pub struct SearchTokensParams {
    /// Query tokens of all sequences together.
    pub n_tokens: u32,
    /// The sequence's query token among them.
    pub q_index: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of tokens' landmarks, r; those of clusters have 2 r numbers.
    pub rank: u32,
    /// Scores of a head that the scratch has room for.
    pub score_stride: u32,
    /// Multiplies q . landmark on every level.
    pub scale: f32,
    /// [`Pooling`] of clusters.
    pub pooling: u32,
    /// [`Pooling`] of tokens.
    pub token_pooling: u32,
}

/// One level: its landmarks, how much of them each head may take, and the choice.
pub struct SearchLevel<'a, B: Storage> {
    /// F32, F16, BF16 or I8 `[Hkv, stride, width]`.
    pub centroids: View<'a, B>,
    /// U32 `[Hkv, stride]`: tokens that each stands for.
    pub sizes: View<'a, B>,
    /// U32 `[Hkv]`: landmarks in use.
    pub n: View<'a, B>,
    /// U32 `[Hkv]`: most that a head takes, counted as `sizes` are.
    pub budgets: View<'a, B>,
    /// Landmarks from one head to the next.
    pub stride: u32,
    /// Entries from one head's choice to the next, as
    /// [`crate::SelectClustersParams::max_selected`].
    pub max_selected: u32,
    /// U32 `[Hkv, max_selected]`: landmarks chosen; best first, tokens in the order of their list.
    pub chosen: ViewMut<'a, B>,
    /// U32 `[Hkv, max_selected]`: what is taken of each.
    pub takes: ViewMut<'a, B>,
    /// U32 `[Hkv]`: entries chosen.
    pub n_chosen: ViewMut<'a, B>,
}

/// Tokens that a choice of clusters opens, as [`crate::ClusterRows`] lists them.
pub struct Opened<'a, B: Storage> {
    /// U32 `[Hkv, stride of the level]`: the first token of each cluster.
    pub starts: View<'a, B>,
    /// Subtracted from every start.
    pub first_row: u32,
    /// Entries from one head's list to the next.
    pub stride: u32,
    /// U32 `[Hkv, stride]`.
    pub rows: ViewMut<'a, B>,
    /// U32 `[Hkv]`.
    pub n_rows: ViewMut<'a, B>,
}

/// A first look at groups of clusters: clusters of the best groups alone are scored.
pub struct SearchGroups<'a, B: Storage> {
    /// Groups, whose landmarks are as those of clusters. Sizes and budgets count clusters.
    pub level: SearchLevel<'a, B>,
    /// The clusters that a choice of groups opens.
    pub opened: Opened<'a, B>,
}

/// A second look at the tokens that score best in the space of few dimensions: they are scored
/// again by their keys, and the best of them are chosen.
pub struct Rerank<'a, B: Storage> {
    /// KV rows of 16 or 32 bits: token i of a head has row `first_row + i`, with the first row of
    /// [`Opened`].
    pub kv: KvView<'a, B>,
    /// U32 `[Hkv]`: most tokens that a head scores again.
    pub budgets: View<'a, B>,
    /// Entries from one head's list to the next.
    pub stride: u32,
    /// U32 `[Hkv, stride]`, scratch: the tokens that are scored again.
    pub tokens: ViewMut<'a, B>,
    /// U32 `[Hkv, stride]`, scratch.
    pub takes: ViewMut<'a, B>,
    /// U32 `[Hkv]`, scratch.
    pub n_tokens: ViewMut<'a, B>,
}

/// The tokens of one sequence that score best among those of the clusters that score best.
///
/// Queries get to the space of tokens by [`crate::ProjectHeads`]. A cluster's landmark has two
/// numbers of each dimension there, `[high; low]`, which meet queries that [`crate::SplitSigns`]
/// has split. With the largest and the least number of any token, its score would bound those of
/// its tokens, as Quest's does (Tang et al., 2024). So it is with groups of clusters, where there
/// are some. Each level is a [`crate::ScoreSelect`], and groups and clusters are opened by
/// [`crate::ClusterRows`].
pub struct SearchTokens<'a, B: Storage> {
    /// Sizes.
    pub p: SearchTokensParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// Where all clusters of a sequence would be too many to score.
    pub groups: Option<SearchGroups<'a, B>>,
    /// Clusters.
    pub clusters: SearchLevel<'a, B>,
    /// Tokens in the chosen clusters.
    pub opened: Opened<'a, B>,
    /// F32 `[Hkv, Dh, r]`.
    pub w_q: View<'a, B>,
    /// F32 `[Hq, r]`, scratch: the queries in the space of tokens.
    pub query: ViewMut<'a, B>,
    /// F32 `[Hq, 2 r]`, scratch: the same, split by signs.
    pub split_query: ViewMut<'a, B>,
    /// Tokens.
    pub tokens: SearchLevel<'a, B>,
    /// Whether the choice is made by keys, among the best by landmarks.
    pub rerank: Option<Rerank<'a, B>>,
    /// F32 `[Hq, score_stride]`, scratch.
    pub scratch: ViewMut<'a, B>,
}

impl<B: Storage> SearchLevel<'_, B> {
    fn check(&self, heads: usize, width: usize) -> OpResult<()> {
        let (op, landmarks) = (Op::CentroidScores, heads * self.stride as usize);
        let dtype = self.centroids.buffer.dtype();
        of_landmarks(op, "centroids", dtype)?;
        reads(op, "centroids", &self.centroids, dtype, landmarks * width)?;
        reads(op, "sizes", &self.sizes, DType::U32, landmarks)?;
        reads(op, "n", &self.n, DType::U32, heads)?;
        let (op, entries) = (Op::SelectClusters, heads * self.max_selected as usize);
        reads(op, "budgets", &self.budgets, DType::U32, heads)?;
        writes(op, "chosen", &self.chosen, DType::U32, entries)?;
        writes(op, "takes", &self.takes, DType::U32, entries)?;
        writes(op, "n_chosen", &self.n_chosen, DType::U32, heads)
    }
}

impl<B: Storage> Opened<'_, B> {
    fn check(&self, heads: usize, level: &SearchLevel<'_, B>) -> OpResult<()> {
        let op = Op::ClusterRows;
        reads(op, "starts", &self.starts, DType::U32, heads * level.stride as usize)?;
        writes(op, "rows", &self.rows, DType::U32, heads * self.stride as usize)?;
        writes(op, "n_rows", &self.n_rows, DType::U32, heads)
    }
}

impl<'a, B: Storage> Rerank<'a, B> {
    /// Keys as landmarks: a row is a key and a value.
    pub fn keys(&self, n_kv_heads: u32, head_dim: u32) -> View<'a, B> {
        let KvView { buffer, offset, head_stride } = self.kv;
        let len = n_kv_heads as usize * head_stride * 2 * head_dim as usize;
        View { buffer, offset, len }
    }

    /// Landmarks of a head.
    pub fn key_stride(&self) -> u32 {
        2 * self.kv.head_stride as u32
    }

    /// Where the keys of tokens lie, of which the first has row `first_row`.
    pub fn placed(first_row: u32) -> Placed {
        Placed { first: 2 * first_row, step: 2 }
    }

    fn check(&self, p: &SearchTokensParams) -> OpResult<()> {
        let (op, h) = (Op::CentroidScores, p.n_kv_heads as usize);
        of_float(op, "kv", self.kv.buffer.dtype())?;
        let holds = self.kv.holds(h, p.head_dim as usize, self.kv.head_stride);
        ensure(op, holds, || format!("kv: {} rows a head", self.kv.head_stride))?;
        reads(op, "budgets", &self.budgets, DType::U32, h)?;
        let entries = h * self.stride as usize;
        writes(op, "tokens", &self.tokens, DType::U32, entries)?;
        writes(op, "takes", &self.takes, DType::U32, entries)?;
        writes(op, "n_tokens", &self.n_tokens, DType::U32, h)
    }
}

impl<B: Storage> SearchTokens<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::CentroidScores, &self.p);
        grouped(op, p.n_q_heads, p.n_kv_heads, p.head_dim)?;
        ensure(op, p.q_index < p.n_tokens, || format!("token {} of {}", p.q_index, p.n_tokens))?;
        ensure(op, p.token_pooling <= Pooling::MaxSoftmax as u32, || {
            format!("tokens of a list with pooling {}", p.token_pooling)
        })?;
        let (hq, h) = (p.n_q_heads as usize, p.n_kv_heads as usize);
        let (d, r) = (p.head_dim as usize, p.rank as usize);
        reads(op, "q", &self.q, DType::F32, p.n_tokens as usize * hq * d)?;
        if let Some(groups) = &self.groups {
            // Clusters of a list have no weights.
            ensure(op, p.pooling <= Pooling::MaxSoftmax as u32, || {
                format!("clusters of a list with pooling {}", p.pooling)
            })?;
            groups.level.check(h, 2 * r)?;
            groups.opened.check(h, &groups.level)?;
        }
        self.clusters.check(h, 2 * r)?;
        self.opened.check(h, &self.clusters)?;
        reads(Op::ProjectHeads, "w_q", &self.w_q, DType::F32, h * d * r)?;
        writes(Op::ProjectHeads, "query", &self.query, DType::F32, hq * r)?;
        writes(Op::SplitSigns, "split query", &self.split_query, DType::F32, hq * 2 * r)?;
        self.tokens.check(h, r)?;
        if let Some(rerank) = &self.rerank {
            rerank.check(p)?;
        }
        writes(op, "scratch", &self.scratch, DType::F32, hq * p.score_stride as usize)
    }
}
