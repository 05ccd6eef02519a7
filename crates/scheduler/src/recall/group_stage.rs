//! The first stage of a search among many clusters: the query is compared with groups of them
//! ([`crate::index`]'s upper level), and the clusters of the best groups are listed. Only these are
//! then compared with it, so that a step's work hardly grows with the context.

use longview_core::{DType, HeadId};
use longview_ops::{
    Backend, CentroidScoresParams, ClusterRows, ClusterRowsParams, Listed, OpResult, ScoreSelect,
    ScoreSpan, SelectClustersParams, SelectSpan, View, ViewMut,
};

use super::search::Scratch;
use crate::index::{ClusterGroups, GROUP_CLUSTERS, LayerIndex};
use crate::layout::{KvShape, Query};
use crate::policy::Policy;
use crate::store::UploadCache;

/// Buffers of the choice of groups, and of the clusters in them.
pub(crate) struct GroupStage<B: Backend> {
    /// Most clusters of a head that are listed.
    scan: usize,
    /// U32 `[Hkv, max_groups]`.
    groups: B::Buffer,
    takes: B::Buffer,
    n_selected: B::Buffer,
    budgets: UploadCache<B>,
    /// U32 `[Hkv, scan]`: clusters of the chosen groups.
    clusters: B::Buffer,
    n_clusters: B::Buffer,
    max_groups: usize,
    host_groups: Vec<u32>,
    host_takes: Vec<u32>,
    host_n: Vec<u32>,
    /// Whether the last search went by groups.
    in_use: bool,
}

/// Most groups that a search opens.
fn max_groups(shape: &KvShape, policy: &Policy, scan: usize) -> usize {
    let groups = policy.index.map_or(0, |index| index.max_groups(shape.capacity, GROUP_CLUSTERS));
    groups.min(scan).max(1)
}

/// Most clusters that a search lists: no more than there may be.
fn most_listed(shape: &KvShape, policy: &Policy, scan: usize) -> usize {
    scan.min(policy.max_units(shape.capacity)).max(1)
}

/// Bytes that [`GroupStage`] takes on the device.
pub(crate) fn group_stage_bytes(shape: &KvShape, policy: &Policy, scan: usize) -> u64 {
    let lists = 2 * max_groups(shape, policy, scan) + most_listed(shape, policy, scan) + 3;
    (DType::U32.size() * shape.n_kv_heads * lists) as u64
}

impl<B: Backend> GroupStage<B> {
    /// For sequences of `shape` under `policy`, of which a step looks at `scan` clusters.
    pub fn new(backend: &B, shape: &KvShape, policy: &Policy, scan: usize) -> OpResult<Self> {
        let (h, max_groups) = (shape.n_kv_heads, max_groups(shape, policy, scan));
        let scan = most_listed(shape, policy, scan);
        let ints = |len: usize| backend.alloc(DType::U32, h * len, "opened groups");
        Ok(Self {
            scan,
            groups: ints(max_groups)?,
            takes: ints(max_groups)?,
            n_selected: ints(1)?,
            budgets: UploadCache::new(backend, 1, h, "budgets")?,
            clusters: ints(scan)?,
            n_clusters: ints(1)?,
            max_groups,
            host_groups: vec![0; h * max_groups],
            host_takes: vec![0; h * max_groups],
            host_n: vec![0; h],
            in_use: false,
        })
    }

    /// Lists the clusters of the groups that `query` is nearest to, where some head of `index` has
    /// more clusters than a step looks at.
    pub fn open(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        index: &LayerIndex<B>,
        query: &Query<'_, B>,
        scratch: &mut Scratch<'_, B>,
    ) -> OpResult<()> {
        let groups = index.groups();
        let exceeds = index.heads().iter().any(|head| head.sizes.len() > self.scan);
        self.in_use = exceeds && groups.is_some();
        let Some(groups) = groups.filter(|_| exceeds) else { return Ok(()) };
        self.budgets.put(backend, 0, &vec![self.scan as u32; shape.n_kv_heads])?;
        let h = shape.n_kv_heads as u32;
        backend.score_select(ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: query.n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: h,
                head_dim: index.width() as u32,
                score_stride: scratch.stride as u32,
                scale: shape.scale,
                pooling: policy.index.map_or(0, |index| index.pooling as u32),
            },
            select: SelectClustersParams {
                n_kv_heads: h,
                score_stride: scratch.stride as u32,
                max_selected: self.max_groups as u32,
                by_id: 0,
            },
            q: query.q,
            score_spans: &[ScoreSpan {
                q_index: query.index as u32,
                centroids: groups.centroids(),
                sizes: groups.sizes(),
                n_clusters: groups.n_groups(),
                cluster_stride: groups.capacity() as u32,
                listed: None,
            }],
            select_spans: &[SelectSpan {
                sizes: groups.sizes(),
                n_clusters: groups.n_groups(),
                budgets: self.budgets.all(),
                cluster_stride: groups.capacity() as u32,
                listed: None,
            }],
            scratch: ViewMut::all(scratch.scores),
            clusters: ViewMut::all(&mut self.groups),
            takes: ViewMut::all(&mut self.takes),
            n_selected: ViewMut::all(&mut self.n_selected),
        })?;
        self.list(backend, h, groups)
    }

    fn list(&mut self, backend: &B, h: u32, groups: &ClusterGroups<B>) -> OpResult<()> {
        backend.cluster_rows(ClusterRows {
            p: ClusterRowsParams {
                n_kv_heads: h,
                cluster_stride: groups.capacity() as u32,
                max_selected: self.max_groups as u32,
                list_stride: self.scan as u32,
                first_row: 0,
            },
            starts: groups.starts(),
            clusters: View::all(&self.groups),
            takes: View::all(&self.takes),
            n_selected: View::all(&self.n_selected),
            rows: ViewMut::all(&mut self.clusters),
            n_rows: ViewMut::all(&mut self.n_clusters),
        })
    }

    /// The clusters that the last search is among, and how many there are of each head; `None` for
    /// all of them.
    pub fn listed(&self) -> Option<(Listed<'_, B>, View<'_, B>)> {
        let ids = View::all(&self.clusters);
        let listed = Listed { ids, stride: self.scan as u32 };
        self.in_use.then(|| (listed, View::all(&self.n_clusters)))
    }

    /// What the last search opened, on the device, and where it goes on the host.
    pub fn read_parts(&mut self) -> Option<[(View<'_, B>, &mut [u8]); 3]> {
        let cast = bytemuck::cast_slice_mut::<u32, u8>;
        self.in_use.then(|| {
            [
                (View::all(&self.groups), cast(&mut self.host_groups)),
                (View::all(&self.takes), cast(&mut self.host_takes)),
                (View::all(&self.n_selected), cast(&mut self.host_n)),
            ]
        })
    }

    /// Groups of `head` that were opened, and how many of the clusters of each, from its first on;
    /// `None` where the search was among all clusters.
    pub fn opened(&self, head: HeadId) -> Option<impl Iterator<Item = (usize, usize)> + '_> {
        let first = head.index() * self.max_groups;
        let own = first..first + self.host_n[head.index()] as usize;
        let pairs = self.host_groups[own.clone()].iter().zip(&self.host_takes[own]);
        self.in_use.then(|| pairs.map(|(group, take)| (*group as usize, *take as usize)))
    }
}
