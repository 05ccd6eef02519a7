//! Descriptors of what a step does with clusters beyond attending their rows: what it left unread
//! of them, and which rows lie in those that it opened.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{reads, writes};
use crate::buffer::{Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`ClusterRest`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ClusterRestParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// Entries from one head's selection to the next.
    pub max_selected: u32,
}

/// Tokens of each cluster that a selection did not take: the cluster's size, less what was taken.
pub struct ClusterRest<'a, B: Storage> {
    /// Sizes.
    pub p: ClusterRestParams,
    /// U32 `[Hkv, cluster_stride]`: tokens of each cluster.
    pub sizes: View<'a, B>,
    /// U32 `[Hkv]`: clusters in use.
    pub n_clusters: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: clusters, none twice; as [`crate::SelectClusters::clusters`].
    pub clusters: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: tokens taken of each, at most its size.
    pub takes: View<'a, B>,
    /// U32 `[Hkv]`: clusters selected.
    pub n_selected: View<'a, B>,
    /// U32 `[Hkv, cluster_stride]`; only clusters in use are written.
    pub rest: ViewMut<'a, B>,
}

impl<B: Storage> ClusterRest<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p, h) = (Op::ClusterRest, &self.p, self.p.n_kv_heads as usize);
        let (clusters, entries) = (h * p.cluster_stride as usize, h * p.max_selected as usize);
        reads(op, "sizes", &self.sizes, DType::U32, clusters)?;
        reads(op, "n_clusters", &self.n_clusters, DType::U32, h)?;
        reads(op, "clusters", &self.clusters, DType::U32, entries)?;
        reads(op, "takes", &self.takes, DType::U32, entries)?;
        reads(op, "n_selected", &self.n_selected, DType::U32, h)?;
        writes(op, "rest", &self.rest, DType::U32, clusters)
    }
}

/// Parameters of [`ClusterRows`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ClusterRowsParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Clusters from one head to the next.
    pub cluster_stride: u32,
    /// Entries from one head's selection to the next.
    pub max_selected: u32,
    /// Entries from one head's list of rows to the next.
    pub list_stride: u32,
    /// Subtracted from every row; at most the first row of any selected cluster.
    pub first_row: u32,
}

/// The rows of a selection, cluster after cluster in its order, each from its first row on, behind
/// what a list has. A full list takes no more.
pub struct ClusterRows<'a, B: Storage> {
    /// Sizes.
    pub p: ClusterRowsParams,
    /// U32 `[Hkv, cluster_stride]`: row of each cluster's first token.
    pub starts: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: clusters; as [`crate::SelectClusters::clusters`].
    pub clusters: View<'a, B>,
    /// U32 `[Hkv, max_selected]`: tokens taken of each.
    pub takes: View<'a, B>,
    /// U32 `[Hkv]`: clusters selected.
    pub n_selected: View<'a, B>,
    /// U32 `[Hkv]`: entries that each list has and keeps, at most `list_stride`. `None`: lists
    /// begin with the selection.
    pub behind: Option<View<'a, B>>,
    /// U32 `[Hkv, list_stride]`; only entries of the selection are written.
    pub rows: ViewMut<'a, B>,
    /// U32 `[Hkv]`: entries in use, with those before.
    pub n_rows: ViewMut<'a, B>,
}

impl<B: Storage> ClusterRows<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p, h) = (Op::ClusterRows, &self.p, self.p.n_kv_heads as usize);
        let entries = h * p.max_selected as usize;
        reads(op, "starts", &self.starts, DType::U32, h * p.cluster_stride as usize)?;
        reads(op, "clusters", &self.clusters, DType::U32, entries)?;
        reads(op, "takes", &self.takes, DType::U32, entries)?;
        reads(op, "n_selected", &self.n_selected, DType::U32, h)?;
        self.behind.iter().try_for_each(|behind| reads(op, "behind", behind, DType::U32, h))?;
        writes(op, "rows", &self.rows, DType::U32, h * p.list_stride as usize)?;
        writes(op, "n_rows", &self.n_rows, DType::U32, h)
    }
}
