//! The upper level of an index of clusters: runs of clusters that lie side by side, each with the
//! mean of its tokens. A step compares its query with the groups, and only with the clusters of the
//! best of them.
//!
//! A batch of clusters is put into an order in which neighbours are alike ([`in_groups`]), and
//! every [`GROUP_CLUSTERS`] of them are a group. So groups follow from the clusters and their
//! batches alone: cutting clusters cuts groups, and a session file need not hold them.

use longview_core::{DType, decode_f32_into, encode_f32_into};
use longview_ops::{Backend, DeviceBuffer, KvView, OpResult, View, ViewMut};
use smallvec::SmallVec;

/// Clusters of a group. At a million tokens in clusters of 16, a head has 2,048 groups: as many
/// landmarks as a step looks at below them.
pub(crate) const GROUP_CLUSTERS: usize = 32;

/// Steps of the power iteration that looks for the direction to split along: it need not converge.
const POWER_STEPS: usize = 4;

/// The clusters of one KV head, as an index has them.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    /// Tokens of each cluster.
    pub sizes: &'a [u32],
    /// `[clusters, width]` in the data type of the index.
    pub centroids: &'a [u8],
    /// `[clusters, 2, width]`: centroid and mean value; empty where nobody asks for them.
    pub pairs: &'a [u8],
}

/// The groups of one KV head, in the order of their clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadGroups {
    /// First cluster of each group.
    pub starts: Vec<u32>,
    /// Clusters of each group.
    pub sizes: Vec<u32>,
    /// Tokens of each group.
    pub tokens: Vec<u32>,
    /// `[groups, width]` in the data type of the index.
    centroids: Vec<u8>,
    /// `[groups, 2, width]`: mean key and mean value; empty unless the clusters have them.
    pairs: Vec<u8>,
}

/// The groups of one layer's clusters.
pub(crate) struct ClusterGroups<B: Backend> {
    heads: Vec<HeadGroups>,
    centroids: B::Buffer,
    sizes: B::Buffer,
    starts: B::Buffer,
    n_groups: B::Buffer,
    /// KV rows on the device `[Hkv, capacity, 2, width]`.
    pairs: Option<B::Buffer>,
    capacity: usize,
    width: usize,
    /// Sums of a group's keys and values, and one number row.
    sums: Vec<f32>,
}

impl<B: Backend> ClusterGroups<B> {
    /// Room for `capacity` groups a head of clusters of `n_kv_heads` heads, described by `width`
    /// numbers of `dtype`, and by a mean value too if `has_pairs`.
    pub fn new(
        backend: &B,
        n_kv_heads: usize,
        (dtype, width): (DType, usize),
        capacity: usize,
        has_pairs: bool,
    ) -> OpResult<Self> {
        let len = n_kv_heads * capacity;
        let row = width * dtype.size();
        let head = HeadGroups {
            starts: Vec::with_capacity(capacity),
            sizes: Vec::with_capacity(capacity),
            tokens: Vec::with_capacity(capacity),
            centroids: Vec::with_capacity(capacity * row),
            pairs: Vec::with_capacity(if has_pairs { 2 * capacity * row } else { 0 }),
        };
        let pairs = if has_pairs {
            Some(backend.alloc(dtype, 2 * len * width, "means of groups")?)
        } else {
            None
        };
        Ok(Self {
            heads: (0..n_kv_heads).map(|_| head.clone()).collect(),
            centroids: backend.alloc(dtype, len * width, "centroids of groups")?,
            sizes: backend.alloc(DType::U32, len, "sizes of groups")?,
            starts: backend.alloc(DType::U32, len, "starts of groups")?,
            n_groups: backend.alloc(DType::U32, n_kv_heads, "counts of groups")?,
            pairs,
            capacity,
            width,
            sums: vec![0.0; 3 * width],
        })
    }

    /// Groups clusters `first..end` of head `h`, which are one batch.
    ///
    /// # Panics
    /// If there is no room: [`crate::policy::Index::max_groups`] bounds the groups.
    pub fn append(
        &mut self,
        backend: &B,
        h: usize,
        clusters: Members<'_>,
        (first, end): (usize, usize),
    ) -> OpResult<()> {
        let before = self.heads[h].starts.len();
        for start in (first..end).step_by(GROUP_CLUSTERS) {
            self.push(h, clusters, start, end.min(start + GROUP_CLUSTERS));
        }
        assert!(self.heads[h].starts.len() <= self.capacity, "more groups than there is room for");
        self.upload(backend, h, before)
    }

    /// A group of clusters `first..end`: its means are those of its tokens.
    fn push(&mut self, h: usize, clusters: Members<'_>, first: usize, end: usize) {
        let (dtype, width, group) = (self.centroids.dtype(), self.width, &mut self.heads[h]);
        let row = width * dtype.size();
        let (means, number) = self.sums.split_at_mut(2 * width);
        means.fill(0.0);
        let tokens: u32 = clusters.sizes[first..end].iter().sum();
        for cluster in first..end {
            let share = clusters.sizes[cluster] as f32 / tokens as f32;
            let mut add = |bytes: &[u8], mean: &mut [f32]| {
                decode_f32_into(dtype, bytes, number);
                mean.iter_mut().zip(&*number).for_each(|(mean, x)| *mean += share * x);
            };
            let (key, value) = means.split_at_mut(width);
            add(&clusters.centroids[cluster * row..][..row], key);
            if self.pairs.is_some() {
                add(&clusters.pairs[(2 * cluster + 1) * row..][..row], value);
            }
        }
        group.starts.push(first as u32);
        group.sizes.push((end - first) as u32);
        group.tokens.push(tokens);
        encode_f32_into(dtype, &means[..width], &mut group.centroids);
        if self.pairs.is_some() {
            encode_f32_into(dtype, means, &mut group.pairs);
        }
    }

    /// The same groups, to be changed without these.
    pub fn fork(&self, backend: &B) -> OpResult<Self> {
        let kind = (self.centroids.dtype(), self.width);
        let (n_heads, has_pairs) = (self.heads.len(), self.pairs.is_some());
        let mut fork = Self::new(backend, n_heads, kind, self.capacity, has_pairs)?;
        // Into the room that it has, so that steps allocate nothing.
        for (to, from) in fork.heads.iter_mut().zip(&self.heads) {
            to.starts.extend_from_slice(&from.starts);
            to.sizes.extend_from_slice(&from.sizes);
            to.tokens.extend_from_slice(&from.tokens);
            to.centroids.extend_from_slice(&from.centroids);
            to.pairs.extend_from_slice(&from.pairs);
        }
        (0..n_heads).try_for_each(|h| fork.upload(backend, h, 0))?;
        Ok(fork)
    }

    /// Drops the groups behind the first clusters of each head, as many as `n_clusters` says.
    pub fn truncate(
        &mut self,
        backend: &B,
        n_clusters: impl Iterator<Item = usize>,
    ) -> OpResult<()> {
        let row = self.width * self.centroids.dtype().size();
        let mut is_cut = false;
        // The host's copy of all heads first, as in the index.
        for (group, n_clusters) in self.heads.iter_mut().zip(n_clusters) {
            let n = group.starts.partition_point(|start| (*start as usize) < n_clusters);
            is_cut |= n < group.starts.len();
            group.starts.truncate(n);
            group.sizes.truncate(n);
            group.tokens.truncate(n);
            group.centroids.truncate(n * row);
            group.pairs.truncate(2 * n * row);
        }
        if is_cut {
            let counts: SmallVec<[u32; 16]> =
                self.heads.iter().map(|head| head.starts.len() as u32).collect();
            backend.write(ViewMut::all(&mut self.n_groups), bytemuck::cast_slice(&counts))?;
        }
        Ok(())
    }

    /// Writes the host's copy into fresh device buffers, after the device was lost.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.centroids =
            backend.alloc(self.centroids.dtype(), self.centroids.len(), "centroids of groups")?;
        self.sizes = backend.alloc(DType::U32, self.sizes.len(), "sizes of groups")?;
        self.starts = backend.alloc(DType::U32, self.starts.len(), "starts of groups")?;
        self.n_groups = backend.alloc(DType::U32, self.heads.len(), "counts of groups")?;
        if let Some(pairs) = &mut self.pairs {
            *pairs = backend.alloc(pairs.dtype(), pairs.len(), "means of groups")?;
        }
        (0..self.heads.len()).try_for_each(|h| self.upload(backend, h, 0))
    }

    fn upload(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let (d, head) = (self.width, &self.heads[h]);
        let (at, n) = (h * self.capacity + first, head.starts.len() - first);
        let row = d * self.centroids.dtype().size();
        let centroids = ViewMut::part(&mut self.centroids, at * d, n * d);
        backend.write(centroids, &head.centroids[first * row..])?;
        if let Some(pairs) = &mut self.pairs {
            let to = ViewMut::part(pairs, 2 * at * d, 2 * n * d);
            backend.write(to, &head.pairs[2 * first * row..])?;
        }
        for (buffer, host) in
            [(&mut self.starts, &head.starts[first..]), (&mut self.sizes, &head.sizes[first..])]
        {
            backend.write(ViewMut::part(buffer, at, n), bytemuck::cast_slice(host))?;
        }
        let count = head.starts.len() as u32;
        backend.write(ViewMut::part(&mut self.n_groups, h, 1), bytemuck::bytes_of(&count))
    }

    /// The groups of each head.
    pub fn heads(&self) -> &[HeadGroups] {
        &self.heads
    }

    /// Room for groups of one head.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Mean keys `[Hkv, capacity, width]` on the device.
    pub fn centroids(&self) -> View<'_, B> {
        View::all(&self.centroids)
    }

    /// Clusters of each group `[Hkv, capacity]`, on the device.
    pub fn sizes(&self) -> View<'_, B> {
        View::all(&self.sizes)
    }

    /// First cluster of each group `[Hkv, capacity]`, on the device.
    pub fn starts(&self) -> View<'_, B> {
        View::all(&self.starts)
    }

    /// Groups in use `[Hkv]`, on the device.
    pub fn n_groups(&self) -> View<'_, B> {
        View::all(&self.n_groups)
    }

    /// Each group as a KV row on the device, where the clusters are kept as such.
    pub fn pairs(&self) -> Option<KvView<'_, B>> {
        self.pairs.as_ref().map(|pairs| KvView::new(pairs, self.capacity))
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let words = [&self.sizes, &self.starts, &self.n_groups];
        let words = words.map(DeviceBuffer::size_bytes).iter().sum::<u64>();
        let pairs = self.pairs.as_ref().map_or(0, DeviceBuffer::size_bytes);
        self.centroids.size_bytes() + words + pairs
    }
}

/// Bytes on the device of room for `capacity` groups a head.
pub(crate) fn group_bytes(
    n_kv_heads: usize,
    (dtype, width): (DType, usize),
    capacity: usize,
    has_pairs: bool,
) -> usize {
    let numbers = width * if has_pairs { 3 } else { 1 } * dtype.size();
    n_kv_heads * (capacity * (numbers + 2 * DType::U32.size()) + DType::U32.size())
}

/// Puts `ids`, rows of `centroids` of `width` numbers each, into an order in which every
/// [`GROUP_CLUSTERS`] neighbours are alike: halves along the direction in which they differ most,
/// halves of these, and so on. Every group but the last is full.
pub(crate) fn in_groups(ids: &mut [u32], centroids: &[f32], width: usize) {
    let n_groups = ids.len().div_ceil(GROUP_CLUSTERS);
    if n_groups < 2 {
        return;
    }
    let row = |id: u32| &centroids[id as usize * width..][..width];
    let axis = main_axis(ids, row, width);
    let mut keyed: Vec<(f32, u32)> = ids.iter().map(|id| (dot(row(*id), &axis), *id)).collect();
    keyed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ids.iter_mut().zip(keyed).for_each(|(id, (_, sorted))| *id = sorted);
    let (low, high) = ids.split_at_mut(n_groups / 2 * GROUP_CLUSTERS);
    in_groups(low, centroids, width);
    in_groups(high, centroids, width);
}

/// About the first principal component of rows, by power iteration; zeros where all are alike.
fn main_axis<'a>(ids: &[u32], row: impl Fn(u32) -> &'a [f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0f32; width];
    for id in ids {
        mean.iter_mut().zip(row(*id)).for_each(|(m, x)| *m += x / ids.len() as f32);
    }
    let difference = |id: &u32| row(*id).iter().zip(&mean).map(|(x, m)| x - m).collect();
    let differences: Vec<Vec<f32>> = ids.iter().map(difference).collect();
    let length = |x: &&Vec<f32>| dot(x, x);
    // From the row that is farthest from the mean, which the axis is hardly ever orthogonal to.
    let farthest = differences.iter().max_by(|a, b| length(a).total_cmp(&length(b)));
    let mut axis = farthest.cloned().unwrap_or_default();
    for _ in 0..POWER_STEPS {
        let norm = dot(&axis, &axis).sqrt();
        if norm == 0.0 {
            break;
        }
        axis.iter_mut().for_each(|x| *x /= norm);
        let mut next = vec![0.0f32; width];
        for x in &differences {
            let along = dot(x, &axis);
            next.iter_mut().zip(x).for_each(|(next, x)| *next += along * x);
        }
        axis = next;
    }
    axis
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use longview_core::{SplitMix64, encode_f32};

    use super::super::testing::{R, floats, words};
    use super::*;

    /// Clusters of one number: these sizes, and centroids and values that count up and down.
    struct Clusters {
        sizes: Vec<u32>,
        centroids: Vec<u8>,
        pairs: Vec<u8>,
    }

    impl Clusters {
        fn of(sizes: &[u32]) -> Self {
            let numbers: Vec<f32> = (0..sizes.len()).map(|i| i as f32).collect();
            let pairs: Vec<f32> = numbers.iter().flat_map(|x| [*x, -x]).collect();
            let bytes = |numbers: &[f32]| encode_f32(DType::F32, numbers);
            Self { sizes: sizes.to_vec(), centroids: bytes(&numbers), pairs: bytes(&pairs) }
        }

        fn members(&self) -> Members<'_> {
            Members { sizes: &self.sizes, centroids: &self.centroids, pairs: &self.pairs }
        }
    }

    fn groups(backend: &R, capacity: usize) -> ClusterGroups<R> {
        ClusterGroups::new(backend, 1, (DType::F32, 1), capacity, true).unwrap()
    }

    #[test]
    fn groups_have_the_means_of_their_tokens() {
        let (backend, mut sizes) = (R::new(), vec![1; 40]);
        sizes[33] = 3;
        let clusters = Clusters::of(&sizes);
        let mut groups = groups(&backend, 4);
        groups.append(&backend, 0, clusters.members(), (0, 35)).unwrap();
        groups.append(&backend, 0, clusters.members(), (35, 40)).unwrap();
        let head = &groups.heads()[0];
        assert_eq!(head.starts, [0, 32, 35], "a batch begins a group");
        assert_eq!((&head.sizes[..], &head.tokens[..]), (&[32, 3, 5][..], &[32, 5, 5][..]));
        // 0 to 31; 32, three times 33, 34; 35 to 39.
        let means = [15.5, 33.0, 37.0];
        let near =
            |got: &[f32], want: &[f32]| got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-4);
        assert!(near(&floats(&backend, groups.centroids()), &means));
        let pairs = floats(&backend, View::all(groups.pairs.as_ref().unwrap()));
        assert!(near(&pairs, &[15.5, -15.5, 33.0, -33.0, 37.0, -37.0]));
        assert_eq!(words(&backend, groups.starts()), [0, 32, 35, 0]);
        assert_eq!(words(&backend, groups.sizes()), [32, 3, 5, 0]);
        assert_eq!(words(&backend, groups.n_groups()), [3]);
    }

    #[test]
    fn groups_go_with_their_clusters_and_come_back_on_a_new_device() {
        let (backend, clusters) = (R::new(), Clusters::of(&[1; 40]));
        let mut groups = groups(&backend, 4);
        groups.append(&backend, 0, clusters.members(), (0, 35)).unwrap();
        groups.append(&backend, 0, clusters.members(), (35, 40)).unwrap();
        groups.truncate(&backend, std::iter::once(35)).unwrap();
        assert_eq!(groups.heads()[0].starts, [0, 32]);
        let fork = groups.fork(&backend).unwrap();
        let other = R::new();
        groups.restore(&other).unwrap();
        assert_eq!(words(&other, groups.n_groups()), [2]);
        assert_eq!(floats(&other, groups.centroids())[..2], [15.5, 33.0]);
        groups.truncate(&other, std::iter::once(0)).unwrap();
        assert_eq!(words(&other, groups.n_groups()), [0]);
        assert_eq!(words(&backend, fork.n_groups()), [2], "a fork has its own");
        assert_eq!(floats(&backend, fork.centroids())[..2], [15.5, 33.0]);
    }

    #[test]
    fn bytes_are_those_of_the_buffers() {
        for (width, capacity, has_pairs) in [(4, 7, true), (4, 7, false), (64, 1, true)] {
            let kind = (DType::F16, width);
            let groups = ClusterGroups::<R>::new(&R::new(), 3, kind, capacity, has_pairs).unwrap();
            assert_eq!(groups.device_bytes(), group_bytes(3, kind, capacity, has_pairs) as u64);
        }
    }

    /// Clusters about a few far points: a group has those of one point, where they fill it.
    #[test]
    fn neighbours_in_a_group_are_alike() {
        let (mut rng, width) = (SplitMix64::new(3), 8);
        let points: Vec<Vec<f32>> =
            (0..4).map(|_| (0..width).map(|_| 10.0 * rng.next_normal()).collect()).collect();
        let n = 4 * GROUP_CLUSTERS;
        let centroids: Vec<f32> = (0..n)
            .flat_map(|i| points[i % 4].iter().map(|x| x + rng.next_normal()).collect::<Vec<_>>())
            .collect();
        let mut ids: Vec<u32> = (0..n as u32).collect();
        in_groups(&mut ids, &centroids, width);
        for group in ids.chunks(GROUP_CLUSTERS) {
            assert!(group.iter().all(|id| id % 4 == group[0] % 4), "{group:?}");
        }
        ids.sort_unstable();
        assert!(ids.iter().enumerate().all(|(i, id)| i == *id as usize), "each once");
    }

    #[test]
    fn equal_clusters_and_few_of_them_keep_their_order() {
        for n in [0, 1, 31, 32, 33, 70] {
            let mut ids: Vec<u32> = (0..n).collect();
            in_groups(&mut ids, &vec![1.0; 2 * n as usize], 2);
            assert_eq!(ids, (0..n).collect::<Vec<_>>());
        }
    }
}
