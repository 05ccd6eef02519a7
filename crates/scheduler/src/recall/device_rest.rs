//! What a choice of single tokens left of their clusters, where the device itself lists it: no
//! layer waits for the host then.

use longview_core::DType;
use longview_ops::{
    Backend, ClusterRest, ClusterRestParams, KvView, ListSpan, OpResult, OwnerCounts,
    OwnerCountsParams, RestLists, RestListsParams, View, ViewMut,
};

use super::unread::Unread;
use crate::index::{DeviceGroups, LayerIndex};

/// Buffers that the layers of a sequence share.
pub(super) struct DeviceRest<B: Backend> {
    /// U32 `[Hkv, capacity]`: tokens that each cluster lost.
    lost: B::Buffer,
    n_heads: usize,
    /// Where groups stand for clusters.
    groups: Option<GroupRest<B>>,
}

/// Clusters that lost tokens, and the tokens of each group that are in none of these.
struct GroupRest<B: Backend> {
    /// U32 `[Hkv, stride]`.
    clusters: B::Buffer,
    left: B::Buffer,
    /// U32 `[Hkv]`.
    n_listed: B::Buffer,
    stride: usize,
    /// U32 `[Hkv, groups]`.
    rest: B::Buffer,
    /// U32 `[Hkv, groups]`: every group's number.
    numbers: B::Buffer,
}

impl<B: Backend> DeviceRest<B> {
    /// For indexes of up to `capacity` clusters a head; `lists` are the entries of a head's lists
    /// of clusters and of groups, where these stand for clusters.
    pub fn new(
        backend: &B,
        n_heads: usize,
        capacity: usize,
        lists: Option<[usize; 2]>,
    ) -> OpResult<Self> {
        let ints = |len: usize| backend.alloc(DType::U32, n_heads * len, "unread clusters");
        let groups = match lists {
            Some([stride, groups]) => {
                let mut numbers = ints(groups)?;
                let host: Vec<u32> = (0..n_heads).flat_map(|_| 0..groups as u32).collect();
                backend.write(ViewMut::all(&mut numbers), bytemuck::cast_slice(&host))?;
                let (clusters, left, n_listed) = (ints(stride)?, ints(stride)?, ints(1)?);
                let rest = ints(groups)?;
                Some(GroupRest { clusters, left, n_listed, stride, rest, numbers })
            }
            None => None,
        };
        Ok(Self { lost: ints(capacity)?, n_heads, groups })
    }

    /// Lists what is left of clusters and of groups; without groups writes what is left of every
    /// cluster to `rest`, U32 `[Hkv, capacity]`. `all` has every cluster's number.
    ///
    /// # Panics
    /// If the index does not tell the device who owns its tokens.
    pub fn list(
        &mut self,
        backend: &B,
        at: &Unread<'_, B>,
        all: &B::Buffer,
        rest: &mut B::Buffer,
    ) -> OpResult<()> {
        let index = at.clusters;
        let (h, capacity) = (self.n_heads as u32, index.capacity() as u32);
        let owners = index.device_owners().expect("the device knows owners where it looks rows up");
        let (of_tokens, owner_stride) = owners.clusters();
        let [chosen, _, n_selected] = at.selector.selection(at.selection);
        backend.owner_counts(OwnerCounts {
            p: OwnerCountsParams {
                n_kv_heads: h,
                owner_stride: owner_stride as u32,
                cluster_stride: capacity,
                max_selected: at.selector.max_selected() as u32,
            },
            owners: of_tokens,
            chosen,
            n_selected,
            n_clusters: index.n_clusters(),
            counts: ViewMut::all(&mut self.lost),
        })?;
        let lost = View::all(&self.lost);
        if let (Some(lists), Some(groups)) = (&mut self.groups, owners.groups()) {
            return backend.rest_lists(RestLists {
                p: RestListsParams {
                    n_kv_heads: h,
                    cluster_stride: capacity,
                    group_stride: groups.stride as u32,
                    list_stride: lists.stride as u32,
                },
                lost,
                sizes: index.sizes(),
                group_of: groups.of_clusters,
                n_clusters: index.n_clusters(),
                group_tokens: groups.tokens,
                n_groups: groups.in_use,
                listed: ViewMut::all(&mut lists.clusters),
                left: ViewMut::all(&mut lists.left),
                n_listed: ViewMut::all(&mut lists.n_listed),
                rest_of_groups: ViewMut::all(&mut lists.rest),
            });
        }
        // What every cluster lost is what was taken of it.
        backend.cluster_rest(ClusterRest {
            p: ClusterRestParams {
                n_kv_heads: h,
                cluster_stride: capacity,
                max_selected: capacity,
            },
            sizes: index.sizes(),
            n_clusters: index.n_clusters(),
            clusters: View::all(all),
            takes: lost,
            n_selected: index.n_clusters(),
            rest: ViewMut::all(rest),
        })
    }

    /// The lists of clusters and of groups that [`DeviceRest::list`] made, where there are groups.
    pub fn spans<'a>(
        &'a self,
        clusters: &'a LayerIndex<B>,
        pairs: KvView<'a, B>,
        index: usize,
    ) -> Option<[ListSpan<'a, B>; 2]> {
        let (lists, groups) = (self.groups.as_ref()?, clusters.groups()?);
        let DeviceGroups { in_use, stride, .. } = clusters.device_owners()?.groups()?;
        let q_index = index as u32;
        let of_clusters = ListSpan {
            q_index,
            kv: pairs,
            rows: View::all(&lists.clusters),
            n_rows: View::all(&lists.n_listed),
            weights: Some(View::all(&lists.left)),
            list_stride: lists.stride as u32,
        };
        let of_groups = ListSpan {
            q_index,
            kv: groups.pairs(),
            rows: View::all(&lists.numbers),
            n_rows: in_use,
            weights: Some(View::all(&lists.rest)),
            list_stride: stride as u32,
        };
        Some([of_clusters, of_groups])
    }

    #[cfg(test)]
    pub fn device_bytes(&self) -> u64 {
        let lists = self.groups.iter().flat_map(|groups| {
            let GroupRest { clusters, left, n_listed, rest, numbers, .. } = groups;
            [clusters, left, n_listed, rest, numbers]
        });
        let buffers = lists.chain([&self.lost]);
        buffers.map(longview_ops::DeviceBuffer::size_bytes).sum()
    }

    /// Whether groups stand for clusters.
    pub fn has_groups(&self) -> bool {
        self.groups.is_some()
    }
}

/// Bytes that [`DeviceRest`] takes on the device.
pub(super) fn device_rest_bytes(
    n_heads: usize,
    capacity: usize,
    lists: Option<[usize; 2]>,
) -> usize {
    let lists = lists.map_or(0, |[clusters, groups]| 2 * clusters + 1 + 2 * groups);
    n_heads * (capacity + lists) * DType::U32.size()
}
