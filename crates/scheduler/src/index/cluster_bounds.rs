//! Bounds of the clusters of an index whose tokens have codes of their own: by these a search finds
//! the clusters that it opens.
//!
//! A fact is one token of a cluster, and a mean of 16 says little of one of them. The largest and
//! the least code of each factor, as Quest (Tang et al., 2024) has them of the channels of pages,
//! bound what any token scores, but they say little of what all tokens of a cluster weigh together.
//! A cluster has what lies halfway from its mean to these: facts are found as by bounds, and the
//! output's error is that of means. Both follow from codes and clusters alone, so a session file
//! need not hold them.

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, ForkSpans, OpResult, View, ViewMut};

use super::cluster_parts::{ClusterParts, Coded};
use super::halfway::halfway_bounds;
use super::head_index::HeadIndex;
use super::kernel_memory::{alloc, unit_spans};
use super::layer_index::LayerIndex;

/// Clusters that a window of decoded tokens becomes, and more.
const STEP_CLUSTERS: usize = 64;

/// The bounds of one layer's clusters.
pub(crate) struct ClusterBounds<B: Backend> {
    /// I8 `[Hkv, capacity, 2, rank]`: from the mean halfway to the largest codes, then to the
    /// least.
    bounds: B::Buffer,
    /// Clusters of each head that have bounds.
    n_clusters: Vec<usize>,
    /// Those of them that did not change since the last fork.
    unchanged: Vec<usize>,
    capacity: usize,
    rank: usize,
    /// New bounds of a head on their way to the device.
    staging: Vec<i8>,
    /// Where long contexts are searched by parts of groups first.
    parts: Option<ClusterParts<B>>,
}

impl<B: Backend> ClusterBounds<B> {
    /// Room for `capacity` clusters of each of `n_kv_heads` heads, over codes of `rank` factors.
    pub fn new(backend: &B, n_kv_heads: usize, capacity: usize, rank: usize) -> OpResult<Self> {
        Ok(Self {
            bounds: alloc(backend, DType::I8, n_kv_heads * capacity * 2 * rank, LABEL)?,
            n_clusters: vec![0; n_kv_heads],
            unchanged: vec![0; n_kv_heads],
            capacity,
            rank,
            // Room for what a step adds, so that steps allocate nothing.
            staging: Vec::with_capacity(STEP_CLUSTERS.min(capacity) * 2 * rank),
            parts: None,
        })
    }

    /// The same bounds, empty, with up to `capacity` parts a head of the groups that clusters are
    /// in.
    pub fn with_parts(mut self, backend: &B, capacity: usize) -> OpResult<Self> {
        let (heads, rank) = (self.n_clusters.len(), self.rank);
        self.parts = Some(ClusterParts::new(backend, heads, capacity, rank)?);
        Ok(self)
    }

    /// Drops the bounds of clusters that are there no more or whose tokens have no codes, and makes
    /// those that lack. The tokens' codes begin at row `first_row`.
    pub fn follow(
        &mut self,
        backend: &B,
        clusters: &LayerIndex<B>,
        tokens: &LayerIndex<B>,
        first_row: usize,
    ) -> OpResult<()> {
        let heads = clusters.heads().iter().zip(tokens.heads());
        for (h, (own, head_tokens)) in heads.enumerate() {
            let n = n_coded(own, first_row + head_tokens.sizes.len());
            let before = self.n_clusters[h].min(n);
            self.unchanged[h] = self.unchanged[h].min(n);
            self.staging.clear();
            let all = tokens.landmarks(backend, h);
            for cluster in before..n {
                let first = own.starts[cluster] as usize - first_row;
                let codes = all.get(first..first + own.sizes[cluster] as usize);
                halfway_bounds(bytemuck::cast_slice(&codes), self.rank, &mut self.staging);
            }
            let (at, width) = (h * self.capacity + before, 2 * self.rank);
            let to = ViewMut::part(&mut self.bounds, at * width, (n - before) * width);
            backend.write(to, bytemuck::cast_slice(&self.staging))?;
            self.n_clusters[h] = n;
            if let Some(parts) = &mut self.parts {
                let coded = Coded { unchanged: before, n, first_row };
                parts.follow(backend, h, (clusters, tokens), coded)?;
            }
        }
        Ok(())
    }

    /// The same bounds, to be changed without these. Where kernels read no memory that both can
    /// have, the fork has none until it follows its indexes.
    pub fn fork(&mut self, backend: &B) -> OpResult<Self> {
        let all = vec![0; self.n_clusters.len()];
        let room = (self.capacity, 2 * self.rank);
        let spans = |first: &[usize]| unit_spans((first, &self.n_clusters), room);
        let (used, written) = (spans(&all), spans(&self.unchanged));
        let spans = ForkSpans { used: &used, written: &written };
        let forked = backend.fork_host(&mut self.bounds, spans, LABEL)?;
        self.unchanged.clone_from(&self.n_clusters);
        let (bounds, n_clusters) = match forked {
            Some(bounds) => (bounds, self.n_clusters.clone()),
            None => (backend.alloc(DType::I8, self.bounds.len(), LABEL)?, all),
        };
        let parts = self.parts.as_ref().map(|parts| parts.fork(backend)).transpose()?;
        let unchanged = n_clusters.clone();
        let (capacity, rank) = (self.capacity, self.rank);
        Ok(Self {
            bounds,
            n_clusters,
            unchanged,
            capacity,
            rank,
            staging: Vec::with_capacity(self.staging.capacity()),
            parts,
        })
    }

    /// Makes the device's buffer again on a fresh device. It is empty until it follows.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.bounds = alloc(backend, DType::I8, self.bounds.len(), LABEL)?;
        self.n_clusters.fill(0);
        self.unchanged.fill(0);
        if let Some(parts) = &mut self.parts {
            parts.restore(backend)?;
        }
        Ok(())
    }

    /// I8 `[Hkv, capacity, 2, rank]` on the device.
    pub fn all(&self) -> View<'_, B> {
        View::all(&self.bounds)
    }

    /// Parts of the groups that clusters are in.
    pub fn parts(&self) -> Option<&ClusterParts<B>> {
        self.parts.as_ref()
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let parts = self.parts.as_ref().map_or(0, ClusterParts::device_bytes);
        self.bounds.size_bytes() + parts
    }
}

const LABEL: &str = "bounds of clusters";

/// Clusters whose rows all lie before row `end`.
fn n_coded(clusters: &HeadIndex, end: usize) -> usize {
    // They follow each other row by row, so only the last that begins there may reach beyond.
    let n = clusters.starts.partition_point(|start| (*start as usize) < end);
    let last = n.checked_sub(1).map(|last| clusters.starts[last] + clusters.sizes[last]);
    if last.is_some_and(|last| last as usize > end) { n - 1 } else { n }
}

#[cfg(test)]
mod tests {
    use super::super::kmeans_job::HeadClusters;
    use super::super::testing::{R, shape};
    use super::*;
    use crate::store::fixture::separate_device;

    /// Rows before the first cluster.
    const FIRST: usize = 2;

    /// Clusters of these sizes in each of two heads, and room for ten.
    fn clusters(backend: &R) -> LayerIndex<R> {
        LayerIndex::new(backend, &shape(2, 2, 2), 2, 10, 4).unwrap()
    }

    fn append(backend: &R, index: &mut LayerIndex<R>, start: usize, sizes: [&[u32]; 2]) {
        let head = |sizes: &[u32]| HeadClusters {
            sizes: sizes.to_vec(),
            centroids: vec![0.0; 2 * sizes.len()],
            ..HeadClusters::default()
        };
        let end = start + sizes[0].iter().sum::<u32>() as usize;
        index.append(backend, start, end, &sizes.map(head)).unwrap();
    }

    /// Codes of tokens `start..end`: of token i the numbers i and -10 i in head 0, and in head 1
    /// their negatives.
    fn add_codes(backend: &R, tokens: &mut LayerIndex<R>, start: usize, end: usize) {
        let head = |sign: f32| HeadClusters {
            sizes: vec![1; end - start],
            centroids: (start..end)
                .flat_map(|i| [sign * i as f32, -10.0 * sign * i as f32])
                .collect(),
            ..HeadClusters::default()
        };
        tokens.append(backend, FIRST + start, FIRST + end, &[head(1.0), head(-1.0)]).unwrap();
    }

    fn tokens(backend: &R) -> LayerIndex<R> {
        LayerIndex::of_codes(backend, &shape(2, 2, 2), 2, 20, 8).unwrap()
    }

    /// The bounds of a head's first `n` clusters.
    fn of_head(backend: &R, bounds: &ClusterBounds<R>, head: usize, n: usize) -> Vec<[i8; 4]> {
        let mut read = vec![0i8; 4 * n];
        let view = View::part(&bounds.bounds, head * 10 * 4, 4 * n);
        pollster::block_on(backend.read(view, bytemuck::cast_slice_mut(&mut read))).unwrap();
        read.chunks_exact(4).map(|own| own.try_into().unwrap()).collect()
    }

    /// Both indexes with 7 tokens in 3 and 2 clusters, of which 5 have codes.
    fn some(backend: &R) -> (LayerIndex<R>, LayerIndex<R>, ClusterBounds<R>) {
        let (mut index, mut codes) = (clusters(backend), tokens(backend));
        append(backend, &mut index, FIRST, [&[1, 3, 3], &[5, 2]]);
        add_codes(backend, &mut codes, 0, 5);
        let mut bounds = ClusterBounds::new(backend, 2, 10, 2).unwrap();
        bounds.follow(backend, &index, &codes, FIRST).unwrap();
        (index, codes, bounds)
    }

    // Means 0, 2 and 5, and -10 times that; 2.5 is rounded to 2 and 5.5 to 6.
    const ALL: [[i8; 4]; 3] = [[0, 0, 0, 0], [2, -15, 2, -25], [6, -45, 4, -55]];
    const ALL_OF_HEAD_1: [[i8; 4]; 2] = [[-1, 30, -3, 10], [-5, 58, -6, 52]];

    #[test]
    fn clusters_have_what_lies_halfway_from_their_means_to_the_bounds() {
        let backend = R::new();
        let (index, mut codes, mut bounds) = some(&backend);
        assert_eq!(bounds.n_clusters, [2, 1], "the last clusters have tokens without codes");
        assert_eq!(of_head(&backend, &bounds, 0, 2), ALL[..2]);
        assert_eq!(of_head(&backend, &bounds, 1, 1), ALL_OF_HEAD_1[..1]);
        add_codes(&backend, &mut codes, 5, 7);
        bounds.follow(&backend, &index, &codes, FIRST).unwrap();
        assert_eq!(bounds.n_clusters, [3, 2]);
        assert_eq!(of_head(&backend, &bounds, 0, 3), ALL);
        assert_eq!(of_head(&backend, &bounds, 1, 2), ALL_OF_HEAD_1);
        assert_eq!(bounds.device_bytes(), 2 * 10 * 4);
    }

    #[test]
    fn what_comes_after_a_cut_has_bounds_of_its_own() {
        let backend = R::new();
        let (mut index, mut codes, mut bounds) = some(&backend);
        index.truncate(&backend, 4, FIRST).unwrap();
        codes.truncate(&backend, FIRST, FIRST).unwrap();
        bounds.follow(&backend, &index, &codes, FIRST).unwrap();
        assert_eq!(bounds.n_clusters, [0, 0]);
        append(&backend, &mut index, FIRST, [&[2, 2], &[1, 3]]);
        add_codes(&backend, &mut codes, 0, 4);
        bounds.follow(&backend, &index, &codes, FIRST).unwrap();
        assert_eq!(of_head(&backend, &bounds, 0, 2), [[1, -2, 0, -8], [3, -22, 2, -28]]);
        assert_eq!(of_head(&backend, &bounds, 1, 2), [[0; 4], [-2, 25, -2, 15]]);
    }

    #[test]
    fn a_fork_and_a_fresh_device_have_the_same_bounds() {
        let backend = R::new();
        let (index, codes, mut bounds) = some(&backend);
        let mut fork = bounds.fork(&backend).unwrap();
        // Nothing is made again where kernels read memory of the host.
        assert_eq!(fork.n_clusters, bounds.n_clusters);
        assert_eq!(of_head(&backend, &fork, 0, 2), ALL[..2]);
        fork.follow(&backend, &index, &codes, FIRST).unwrap();
        assert_eq!(of_head(&backend, &fork, 0, 2), ALL[..2]);
        let device = separate_device();
        let (index, codes, mut bounds) = some(&device);
        let mut fork = bounds.fork(&device).unwrap();
        assert_eq!(fork.n_clusters, [0, 0]);
        fork.follow(&device, &index, &codes, FIRST).unwrap();
        assert_eq!(fork.n_clusters, bounds.n_clusters);
        assert_eq!(of_head(&device, &fork, 0, 2), ALL[..2]);
        let (index, codes, mut bounds) = some(&backend);
        let fresh = R::new();
        bounds.restore(&fresh).unwrap();
        assert_eq!((bounds.n_clusters.clone(), fresh.allocations()), (vec![0, 0], 1));
        bounds.follow(&fresh, &index, &codes, FIRST).unwrap();
        assert_eq!(of_head(&fresh, &bounds, 1, 1), ALL_OF_HEAD_1[..1]);
    }
}
