//! Who owns what on the device, where it lists itself what a choice of tokens left: the cluster of
//! each token, and the group of each cluster.

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, OpResult, View, ViewMut};

use super::cluster_groups::HeadGroups;
use super::head_index::HeadIndex;

/// Owners of all KV heads.
pub(crate) struct DeviceOwners<B: Backend> {
    /// U32 `[Hkv, n_rows]`: the cluster of each token.
    clusters: B::Buffer,
    n_rows: usize,
    /// Where groups stand for clusters.
    groups: Option<GroupOwners<B>>,
}

/// Groups of clusters.
struct GroupOwners<B: Backend> {
    /// U32 `[Hkv, n_clusters]`: the group of each cluster.
    of_clusters: B::Buffer,
    n_clusters: usize,
    /// U32 `[Hkv, n_groups]`: tokens of each group.
    tokens: B::Buffer,
    n_groups: usize,
    /// U32 `[Hkv]`: groups in use.
    in_use: B::Buffer,
}

/// Groups of clusters on the device, and how many there may be of a head.
pub(crate) struct DeviceGroups<'a, B: Backend> {
    /// U32 `[Hkv, clusters]`: the group of each cluster.
    pub of_clusters: View<'a, B>,
    /// U32 `[Hkv, stride]`: tokens of each group.
    pub tokens: View<'a, B>,
    pub stride: usize,
    /// U32 `[Hkv]`: groups in use.
    pub in_use: View<'a, B>,
}

impl<B: Backend> DeviceOwners<B> {
    /// Room for `n_rows` tokens a head and, where there are groups, for so many clusters and
    /// groups.
    pub fn new(
        backend: &B,
        n_heads: usize,
        n_rows: usize,
        groups: Option<[usize; 2]>,
    ) -> OpResult<Self> {
        let ints = |len: usize| backend.alloc(DType::U32, n_heads * len, "owners");
        let groups = match groups {
            Some([n_clusters, n_groups]) => Some(GroupOwners {
                of_clusters: ints(n_clusters)?,
                n_clusters,
                tokens: ints(n_groups)?,
                n_groups,
                in_use: ints(1)?,
            }),
            None => None,
        };
        Ok(Self { clusters: ints(n_rows)?, n_rows, groups })
    }

    /// The same room, for another index or a fresh device.
    pub fn anew(&self, backend: &B, n_heads: usize) -> OpResult<Self> {
        let groups = self.groups.as_ref().map(|groups| [groups.n_clusters, groups.n_groups]);
        Self::new(backend, n_heads, self.n_rows, groups)
    }

    /// Writes what head `h` has from cluster `first` on, which begins a group.
    pub fn upload(
        &mut self,
        backend: &B,
        h: usize,
        (head, groups): (&HeadIndex, Option<&HeadGroups>),
        first: usize,
    ) -> OpResult<()> {
        let row = head.owners.partition_point(|owner| (*owner as usize) < first);
        put(backend, &mut self.clusters, h * self.n_rows + row, &head.owners[row..])?;
        let (Some(to), Some(groups)) = (&mut self.groups, groups) else { return Ok(()) };
        let group = groups.starts.partition_point(|start| (*start as usize) < first);
        let cluster = first.min(groups.owners.len());
        let at = h * to.n_clusters + cluster;
        put(backend, &mut to.of_clusters, at, &groups.owners[cluster..])?;
        put(backend, &mut to.tokens, h * to.n_groups + group, &groups.tokens[group..])?;
        put(backend, &mut to.in_use, h, &[groups.starts.len() as u32])
    }

    /// U32 `[Hkv, stride]`: the cluster of each token, and the stride.
    pub fn clusters(&self) -> (View<'_, B>, usize) {
        (View::all(&self.clusters), self.n_rows)
    }

    pub fn groups(&self) -> Option<DeviceGroups<'_, B>> {
        self.groups.as_ref().map(|groups| DeviceGroups {
            of_clusters: View::all(&groups.of_clusters),
            tokens: View::all(&groups.tokens),
            stride: groups.n_groups,
            in_use: View::all(&groups.in_use),
        })
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let groups = self.groups.iter();
        let groups =
            groups.flat_map(|groups| [&groups.of_clusters, &groups.tokens, &groups.in_use]);
        self.clusters.size_bytes() + groups.map(DeviceBuffer::size_bytes).sum::<u64>()
    }
}

/// Bytes on the device of room for `n_rows` tokens a head and, where there are groups, for so many
/// clusters and groups.
pub(crate) fn owner_bytes(n_heads: usize, n_rows: usize, groups: Option<[usize; 2]>) -> u64 {
    let of_groups = groups.map_or(0, |[n_clusters, n_groups]| n_clusters + n_groups + 1);
    (n_heads * (n_rows + of_groups) * DType::U32.size()) as u64
}

fn put<B: Backend>(backend: &B, buffer: &mut B::Buffer, at: usize, values: &[u32]) -> OpResult<()> {
    if values.is_empty() {
        return Ok(());
    }
    backend.write(ViewMut::part(buffer, at, values.len()), bytemuck::cast_slice(values))
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;
    use longview_ops::ReferenceBackend as R;

    use super::super::testing::shape;
    use super::*;
    use crate::index::{GROUP_CLUSTERS, HeadClusters, LayerIndex};
    use crate::layout::KvShape;

    const ROWS: usize = 600;

    /// What the device has of an index is what the host has.
    fn check(backend: &R, index: &LayerIndex<R>) {
        let words = |view: View<'_, R>| {
            let mut out = vec![0u32; view.len];
            pollster::block_on(backend.read(view, bytemuck::cast_slice_mut(&mut out))).unwrap();
            out
        };
        let owners = index.device_owners().unwrap();
        let (of_tokens, stride) = owners.clusters();
        let (of_tokens, groups) = (words(of_tokens), owners.groups().unwrap());
        let (of_clusters, tokens) = (words(groups.of_clusters), words(groups.tokens));
        let in_use = words(groups.in_use);
        let on_host = index.groups().unwrap().heads();
        for (h, (head, grouped)) in index.heads().iter().zip(on_host).enumerate() {
            assert!(of_tokens[h * stride..].starts_with(&head.owners));
            assert!(of_clusters[h * index.capacity()..].starts_with(&grouped.owners));
            assert!(tokens[h * groups.stride..].starts_with(&grouped.tokens));
            assert_eq!(in_use[h] as usize, grouped.tokens.len());
        }
        assert_eq!(
            owners.device_bytes(),
            owner_bytes(2, ROWS, Some([index.capacity(), groups.stride]))
        );
    }

    fn batch(rng: &mut SplitMix64, n_rows: usize) -> Vec<HeadClusters> {
        let head = |_| {
            let mut sizes = Vec::new();
            while sizes.iter().sum::<u32>() < n_rows as u32 {
                let left = n_rows as u32 - sizes.iter().sum::<u32>();
                sizes.push(left.min(1 + rng.below(4) as u32));
            }
            let means = vec![0.5; 4 * sizes.len()];
            HeadClusters { sizes, centroids: means.clone(), values: means, ..Default::default() }
        };
        (0..2).map(head).collect()
    }

    #[test]
    fn the_device_knows_the_owners_that_the_host_has() {
        let backend = R::new();
        let mut rng = SplitMix64::new(4);
        let shape = KvShape { capacity: ROWS, ..shape(4, 2, 4) };
        let index = LayerIndex::new(&backend, &shape, 4, ROWS, 4).unwrap();
        let index = index.with_pairs(&backend).unwrap().with_owners(ROWS);
        let index = index.with_groups(&backend, 40, GROUP_CLUSTERS).unwrap();
        let mut index = index.with_device_owners(&backend, ROWS).unwrap();
        check(&backend, &index);
        for (first, n) in [(0, 150), (150, 70), (220, 200)] {
            index.append(&backend, first, first + n, &batch(&mut rng, n)).unwrap();
            check(&backend, &index);
        }
        let mut fork = index.fork(&backend).unwrap();
        assert_eq!(index.truncate(&backend, 300, 0).unwrap(), 220);
        index.append(&backend, 220, 300, &batch(&mut rng, 80)).unwrap();
        check(&backend, &index);
        index.restore(&backend, &backend).unwrap();
        check(&backend, &index);
        check(&backend, &fork);
        fork.truncate(&backend, 0, 0).unwrap();
        check(&backend, &fork);
        let record = index.record(&backend);
        assert!(fork.load(&backend, 0, record).unwrap());
        check(&backend, &fork);
    }
}
