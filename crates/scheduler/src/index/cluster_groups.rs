//! The upper level of an index of clusters: runs of clusters that lie side by side, each with the
//! mean of its tokens, which stands for the clusters of which a step chooses nothing.
//!
//! A batch of clusters is put into an order in which neighbours are alike ([`in_groups`]), and
//! every 32 of them, in short contexts fewer and in long ones more ([`group_clusters`]), are a
//! group. So groups follow from the clusters, their batches and the room for the context: cutting
//! clusters cuts groups, and a session file need not hold them.

use longview_core::{DType, decode_f32_into, encode_f32_into};
use longview_ops::{Backend, DeviceBuffer, KvView, OpResult, ViewMut};

/// Clusters of a group, in short and in long contexts fewer or more ([`group_clusters`]).
pub(crate) const GROUP_CLUSTERS: usize = 32;

/// Tokens up to which a group is one part: a head has 128 groups of clusters of 16 tokens there, an
/// eighth of a budget of 1,024. Smaller groups err less.
const PART_GROUPS: usize = 1 << 14;

/// Tokens up to which a group has no more than [`GROUP_CLUSTERS`]: a head has 512 groups there.
const SMALL_GROUPS: usize = 1 << 18;

/// Clusters of a group in contexts of up to `capacity` tokens. A step attends the means of all
/// groups, so in longer contexts they are larger rather than more.
pub(crate) fn group_clusters(capacity: usize) -> usize {
    let short = PART_CLUSTERS.saturating_mul(capacity.div_ceil(PART_GROUPS).next_power_of_two());
    if short < GROUP_CLUSTERS {
        return short;
    }
    GROUP_CLUSTERS.saturating_mul((capacity / SMALL_GROUPS).next_power_of_two())
}

/// Clusters of a part of a group. The embedded model at 32K (24 facts, B = 256) needs a quarter of
/// all clusters scored with parts of 4 or 8, and more with 16 or 32; these read the fewest bytes.
pub(crate) const PART_CLUSTERS: usize = 8;

/// Steps of the power iteration that looks for the direction to split along: it need not converge.
const POWER_STEPS: usize = 4;

/// Clusters of one KV head that were made together.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    /// Clusters of the head before them.
    pub first: usize,
    /// Tokens of each.
    pub sizes: &'a [u32],
    /// `[clusters, 2, width]` in the data type of the index: centroid and mean value.
    pub pairs: &'a [u8],
}

/// The groups of one KV head, in the order of their clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadGroups {
    /// First cluster of each group.
    pub starts: Vec<u32>,
    /// Tokens of each group.
    pub tokens: Vec<u32>,
    /// The group of each cluster.
    pub owners: Vec<u32>,
    /// `[groups, 2, width]` in the data type of the index: mean key and mean value.
    pairs: Vec<u8>,
}

/// The groups of one layer's clusters.
pub(crate) struct ClusterGroups<B: Backend> {
    heads: Vec<HeadGroups>,
    /// KV rows on the device `[Hkv, capacity, 2, width]`.
    pairs: B::Buffer,
    capacity: usize,
    /// Clusters of a group.
    unit: usize,
    width: usize,
    /// Sums of a group's keys and values, and one pair of rows.
    sums: Vec<f32>,
}

impl<B: Backend> ClusterGroups<B> {
    /// Room for `capacity` groups of `unit` clusters a head of `n_kv_heads` heads, whose mean keys
    /// and values have `width` numbers of `dtype`.
    pub fn new(
        backend: &B,
        n_kv_heads: usize,
        (dtype, width): (DType, usize),
        (capacity, unit): (usize, usize),
    ) -> OpResult<Self> {
        let len = n_kv_heads * capacity;
        let head = || HeadGroups {
            starts: Vec::with_capacity(capacity),
            tokens: Vec::with_capacity(capacity),
            owners: Vec::with_capacity(capacity * unit),
            pairs: Vec::with_capacity(2 * capacity * width * dtype.size()),
        };
        Ok(Self {
            heads: (0..n_kv_heads).map(|_| head()).collect(),
            pairs: backend.alloc(dtype, 2 * len * width, "means of groups")?,
            capacity,
            unit,
            width,
            sums: vec![0.0; 4 * width],
        })
    }

    /// Groups the clusters of a batch of head `h`.
    ///
    /// # Panics
    /// If there is no room: [`crate::policy::Index::max_groups`] bounds the groups.
    pub fn append(&mut self, backend: &B, h: usize, batch: Batch<'_>) -> OpResult<()> {
        let before = self.heads[h].starts.len();
        let pair = 2 * self.width * self.pairs.dtype().size();
        let (unit, mut first) = (self.unit, batch.first);
        for (sizes, pairs) in batch.sizes.chunks(unit).zip(batch.pairs.chunks(unit * pair)) {
            self.push(h, Batch { first, sizes, pairs });
            first += sizes.len();
        }
        assert!(self.heads[h].starts.len() <= self.capacity, "more groups than there is room for");
        self.upload(backend, h, before)
    }

    /// A group: its means are those of its tokens.
    fn push(&mut self, h: usize, clusters: Batch<'_>) {
        let (dtype, width, group) = (self.pairs.dtype(), self.width, &mut self.heads[h]);
        let (means, own) = self.sums.split_at_mut(2 * width);
        means.fill(0.0);
        let tokens: u32 = clusters.sizes.iter().sum();
        let pairs = clusters.pairs.chunks_exact(2 * width * dtype.size());
        for (size, pair) in clusters.sizes.iter().zip(pairs) {
            let share = *size as f32 / tokens as f32;
            decode_f32_into(dtype, pair, own);
            means.iter_mut().zip(&*own).for_each(|(mean, x)| *mean += share * x);
        }
        let group_id = group.starts.len() as u32;
        group.owners.extend(std::iter::repeat_n(group_id, clusters.sizes.len()));
        group.starts.push(clusters.first as u32);
        group.tokens.push(tokens);
        encode_f32_into(dtype, means, &mut group.pairs);
    }

    /// The same groups, to be changed without these.
    pub fn fork(&self, backend: &B) -> OpResult<Self> {
        let (kind, n_heads) = ((self.pairs.dtype(), self.width), self.heads.len());
        let mut fork = Self::new(backend, n_heads, kind, (self.capacity, self.unit))?;
        // Into the room that it has, so that steps allocate nothing.
        for (to, from) in fork.heads.iter_mut().zip(&self.heads) {
            to.starts.extend_from_slice(&from.starts);
            to.tokens.extend_from_slice(&from.tokens);
            to.owners.extend_from_slice(&from.owners);
            to.pairs.extend_from_slice(&from.pairs);
        }
        (0..n_heads).try_for_each(|h| fork.upload(backend, h, 0))?;
        Ok(fork)
    }

    /// Drops the groups behind the first clusters of each head, as many as `n_clusters` says.
    pub fn truncate(&mut self, n_clusters: impl Iterator<Item = usize>) {
        let pair = 2 * self.width * self.pairs.dtype().size();
        for (group, n_clusters) in self.heads.iter_mut().zip(n_clusters) {
            let n = group.starts.partition_point(|start| (*start as usize) < n_clusters);
            group.starts.truncate(n);
            group.tokens.truncate(n);
            let clusters = group.owners.partition_point(|owner| (*owner as usize) < n);
            group.owners.truncate(clusters);
            group.pairs.truncate(n * pair);
        }
    }

    /// Writes the host's copy into fresh device buffers, after the device was lost.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.pairs = backend.alloc(self.pairs.dtype(), self.pairs.len(), "means of groups")?;
        (0..self.heads.len()).try_for_each(|h| self.upload(backend, h, 0))
    }

    fn upload(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let (head, pair) = (&self.heads[h], 2 * self.width);
        let (at, n) = (h * self.capacity + first, head.starts.len() - first);
        let bytes = &head.pairs[first * pair * self.pairs.dtype().size()..];
        backend.write(ViewMut::part(&mut self.pairs, at * pair, n * pair), bytes)
    }

    /// The groups of each head.
    pub fn heads(&self) -> &[HeadGroups] {
        &self.heads
    }

    /// Each group as a KV row on the device.
    pub fn pairs(&self) -> KvView<'_, B> {
        KvView::new(&self.pairs, self.capacity)
    }

    /// Groups of a head, at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        self.pairs.size_bytes()
    }
}

/// Bytes on the device of room for `capacity` groups a head.
pub(crate) fn group_bytes(
    n_kv_heads: usize,
    (dtype, width): (DType, usize),
    capacity: usize,
) -> usize {
    n_kv_heads * capacity * 2 * width * dtype.size()
}

/// Puts `ids`, rows of `centroids` of `width` numbers each, into an order in which every
/// [`GROUP_CLUSTERS`] neighbours are alike: halves along the direction in which they differ most,
/// halves of these, and so on. Every group but the last is full, and so are its parts.
pub(crate) fn in_groups(ids: &mut [u32], centroids: &[f32], width: usize) {
    halve(ids, centroids, width, GROUP_CLUSTERS);
}

/// Puts `ids` into an order in which every `unit` neighbours are alike, and the parts of these.
fn halve(ids: &mut [u32], centroids: &[f32], width: usize, unit: usize) {
    let n_groups = ids.len().div_ceil(unit);
    if n_groups < 2 {
        if unit > PART_CLUSTERS {
            halve(ids, centroids, width, PART_CLUSTERS);
        }
        return;
    }
    let row = |id: u32| &centroids[id as usize * width..][..width];
    let axis = main_axis(ids, row, width);
    let mut keyed: Vec<(f32, u32)> = ids.iter().map(|id| (dot(row(*id), &axis), *id)).collect();
    keyed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ids.iter_mut().zip(keyed).for_each(|(id, (_, sorted))| *id = sorted);
    let (low, high) = ids.split_at_mut(n_groups / 2 * unit);
    halve(low, centroids, width, unit);
    halve(high, centroids, width, unit);
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
    use std::ops::Range;

    use longview_core::{SplitMix64, encode_f32};
    use longview_ops::View;

    use super::super::testing::{R, floats};
    use super::*;

    /// Clusters of one number: these sizes, and keys and values that count up and down.
    struct Clusters {
        sizes: Vec<u32>,
        pairs: Vec<u8>,
    }

    impl Clusters {
        fn of(sizes: &[u32]) -> Self {
            let numbers = (0..sizes.len()).map(|i| i as f32);
            let pairs: Vec<f32> = numbers.flat_map(|x| [x, -x]).collect();
            Self { sizes: sizes.to_vec(), pairs: encode_f32(DType::F32, &pairs) }
        }

        fn batch(&self, clusters: Range<usize>) -> Batch<'_> {
            let pairs = &self.pairs[8 * clusters.start..8 * clusters.end];
            Batch { first: clusters.start, sizes: &self.sizes[clusters], pairs }
        }
    }

    fn groups(backend: &R, capacity: usize) -> ClusterGroups<R> {
        ClusterGroups::new(backend, 1, (DType::F32, 1), (capacity, GROUP_CLUSTERS)).unwrap()
    }

    #[test]
    fn longer_contexts_have_larger_groups_not_more() {
        let lengths = [0, 1 << 14, (1 << 14) + 1, 1 << 15, (1 << 15) + 1, 1 << 16, 1 << 17];
        assert_eq!(lengths.map(group_clusters), [8, 8, 16, 16, 32, 32, 32]);
        let long = [1 << 18, 1 << 19, 1 << 20, 1 << 22];
        assert_eq!(long.map(group_clusters), [32, 64, 128, 512]);
    }

    #[test]
    fn groups_have_the_means_of_their_tokens() {
        let (backend, mut sizes) = (R::new(), vec![1; 40]);
        sizes[33] = 3;
        let clusters = Clusters::of(&sizes);
        let mut groups = groups(&backend, 4);
        groups.append(&backend, 0, clusters.batch(0..35)).unwrap();
        groups.append(&backend, 0, clusters.batch(35..40)).unwrap();
        let head = &groups.heads()[0];
        assert_eq!(head.starts, [0, 32, 35], "a batch begins a group");
        assert_eq!(head.tokens, [32, 5, 5]);
        assert_eq!([0, 31, 32, 34, 35, 39].map(|cluster| head.owners[cluster]), [0, 0, 1, 1, 2, 2]);
        assert_eq!(head.owners.len(), 40);
        // 0 to 31; 32, three times 33, 34; 35 to 39.
        let means = [15.5, -15.5, 33.0, -33.0, 37.0, -37.0];
        let found = floats(&backend, View::all(&groups.pairs));
        assert!(found.iter().zip(means).all(|(g, w)| (g - w).abs() < 1e-4), "{found:?}");
    }

    #[test]
    fn groups_go_with_their_clusters_and_come_back_on_a_new_device() {
        let (backend, clusters) = (R::new(), Clusters::of(&[1; 40]));
        let mut groups = groups(&backend, 4);
        groups.append(&backend, 0, clusters.batch(0..35)).unwrap();
        groups.append(&backend, 0, clusters.batch(35..40)).unwrap();
        groups.truncate(std::iter::once(35));
        assert_eq!(groups.heads()[0].starts, [0, 32]);
        let fork = groups.fork(&backend).unwrap();
        let other = R::new();
        groups.restore(&other).unwrap();
        let means = [15.5, -15.5, 33.0, -33.0];
        assert_eq!(floats(&other, View::all(&groups.pairs))[..4], means);
        groups.truncate(std::iter::once(0));
        assert!(groups.heads()[0].starts.is_empty());
        assert_eq!(fork.heads()[0].starts, [0, 32], "a fork has its own");
        assert_eq!(floats(&backend, View::all(&fork.pairs))[..4], means);
    }

    #[test]
    fn bytes_are_those_of_the_buffers() {
        for (width, capacity) in [(4, 7), (64, 1)] {
            let kind = (DType::F16, width);
            let groups =
                ClusterGroups::<R>::new(&R::new(), 3, kind, (capacity, GROUP_CLUSTERS)).unwrap();
            assert_eq!(groups.device_bytes(), group_bytes(3, kind, capacity) as u64);
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
