//! Descriptors of what a choice of single tokens left of their clusters.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{reads, writes};
use crate::buffer::{Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`OwnerCounts`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct OwnerCountsParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Tokens from one head to the next.
    pub owner_stride: u32,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// Entries from one head's choice to the next.
    pub max_selected: u32,
}

/// How many of the chosen tokens each cluster owns: a histogram.
pub struct OwnerCounts<'a, B: Storage> {
    /// Sizes.
    pub p: OwnerCountsParams,
    /// U32 `[Hkv, owner_stride]`: the cluster of each token.
    pub owners: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: tokens; as [`crate::SelectClusters::clusters`], where units are
    /// tokens.
    pub chosen: View<'a, B>,
    /// U32 `[Hkv]`: tokens chosen.
    pub n_selected: View<'a, B>,
    /// U32 `[Hkv]`: clusters in use.
    pub n_clusters: View<'a, B>,
    /// U32 `[Hkv, cluster_stride]`; all clusters in use are written, and only these.
    pub counts: ViewMut<'a, B>,
}

impl<B: Storage> OwnerCounts<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p, h) = (Op::OwnerCounts, &self.p, self.p.n_kv_heads as usize);
        reads(op, "owners", &self.owners, DType::U32, h * p.owner_stride as usize)?;
        reads(op, "chosen", &self.chosen, DType::U32, h * p.max_selected as usize)?;
        reads(op, "n_selected", &self.n_selected, DType::U32, h)?;
        reads(op, "n_clusters", &self.n_clusters, DType::U32, h)?;
        writes(op, "counts", &self.counts, DType::U32, h * p.cluster_stride as usize)
    }
}

/// Parameters of [`RestLists`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RestListsParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// Groups of clusters from one head to the next.
    pub group_stride: u32,
    /// Entries from one head's list to the next.
    pub list_stride: u32,
}

/// The clusters that lost tokens, in ascending order, and what is left of each; and what groups of
/// clusters have in those that are not listed. A list that is full takes no more.
pub struct RestLists<'a, B: Storage> {
    /// Sizes.
    pub p: RestListsParams,
    /// U32 `[Hkv, cluster_stride]`: tokens that each cluster lost, at most its size; as
    /// [`OwnerCounts::counts`].
    pub lost: View<'a, B>,
    /// U32 `[Hkv, cluster_stride]`: tokens of each cluster.
    pub sizes: View<'a, B>,
    /// U32 `[Hkv, cluster_stride]`: the group of each cluster.
    pub group_of: View<'a, B>,
    /// U32 `[Hkv]`: clusters in use.
    pub n_clusters: View<'a, B>,
    /// U32 `[Hkv, group_stride]`: tokens of each group, at least as many as its clusters have.
    pub group_tokens: View<'a, B>,
    /// U32 `[Hkv]`: groups in use.
    pub n_groups: View<'a, B>,
    /// U32 `[Hkv, list_stride]`: clusters; only entries in use are written.
    pub listed: ViewMut<'a, B>,
    /// U32 `[Hkv, list_stride]`: tokens left of each listed cluster.
    pub left: ViewMut<'a, B>,
    /// U32 `[Hkv]`: entries in use.
    pub n_listed: ViewMut<'a, B>,
    /// U32 `[Hkv, group_stride]`: tokens of each group less the sizes of its listed clusters; only
    /// groups in use are written.
    pub rest_of_groups: ViewMut<'a, B>,
}

impl<B: Storage> RestLists<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p, h) = (Op::RestLists, &self.p, self.p.n_kv_heads as usize);
        let (clusters, groups) = (h * p.cluster_stride as usize, h * p.group_stride as usize);
        let entries = h * p.list_stride as usize;
        reads(op, "lost", &self.lost, DType::U32, clusters)?;
        reads(op, "sizes", &self.sizes, DType::U32, clusters)?;
        reads(op, "group_of", &self.group_of, DType::U32, clusters)?;
        reads(op, "n_clusters", &self.n_clusters, DType::U32, h)?;
        reads(op, "group_tokens", &self.group_tokens, DType::U32, groups)?;
        reads(op, "n_groups", &self.n_groups, DType::U32, h)?;
        writes(op, "listed", &self.listed, DType::U32, entries)?;
        writes(op, "left", &self.left, DType::U32, entries)?;
        writes(op, "n_listed", &self.n_listed, DType::U32, h)?;
        writes(op, "rest_of_groups", &self.rest_of_groups, DType::U32, groups)
    }
}
