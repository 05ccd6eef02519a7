//! The level above the clusters that a search opens: runs of a few clusters that lie side by side,
//! parts of a group each, with what lies halfway from the mean of their tokens' codes to bounds.
//!
//! In a long context a step scores these first, and the clusters of the best parts alone. A part is
//! small because a fact is one token of it: of a whole group, halfway says too little. Parts follow
//! from codes, clusters and groups, so a session file need not hold them.

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, OpResult, View, ViewMut};

use super::cluster_groups::PART_CLUSTERS;
use super::halfway::halfway_bounds;
use super::layer_index::LayerIndex;

/// The parts of one layer's clusters.
pub(crate) struct ClusterParts<B: Backend> {
    heads: Vec<HeadParts>,
    /// I8 `[Hkv, capacity, 2, rank]`, as clusters have them.
    bounds: B::Buffer,
    /// U32 `[Hkv, capacity]`: clusters of each part, and the first of them.
    sizes: B::Buffer,
    starts: B::Buffer,
    /// U32 `[Hkv]`.
    n_parts: B::Buffer,
    capacity: usize,
    rank: usize,
}

/// The parts of one KV head, in the order of their clusters.
struct HeadParts {
    starts: Vec<u32>,
    sizes: Vec<u32>,
    /// `[parts, 2, rank]`.
    bounds: Vec<i8>,
}

/// Clusters of a head of which the parts are to be made.
#[derive(Clone, Copy)]
pub(crate) struct Coded {
    /// First clusters whose tokens and their codes are as they were.
    pub unchanged: usize,
    /// Clusters whose tokens all have codes.
    pub n: usize,
    /// The row of the first token.
    pub first_row: usize,
}

impl<B: Backend> ClusterParts<B> {
    /// Room for `capacity` parts of each of `n_kv_heads` heads, over codes of `rank` factors.
    pub fn new(backend: &B, n_kv_heads: usize, capacity: usize, rank: usize) -> OpResult<Self> {
        let len = n_kv_heads * capacity;
        // Room for all, so that steps allocate nothing.
        let head = || HeadParts {
            starts: Vec::with_capacity(capacity),
            sizes: Vec::with_capacity(capacity),
            bounds: Vec::with_capacity(capacity * 2 * rank),
        };
        Ok(Self {
            heads: (0..n_kv_heads).map(|_| head()).collect(),
            bounds: backend.alloc(DType::I8, len * 2 * rank, LABEL)?,
            sizes: backend.alloc(DType::U32, len, LABEL)?,
            starts: backend.alloc(DType::U32, len, LABEL)?,
            n_parts: backend.alloc(DType::U32, n_kv_heads, LABEL)?,
            capacity,
            rank,
        })
    }

    /// Brings the parts of head `h` up to its clusters. A part never reaches beyond its group.
    ///
    /// # Panics
    /// If there is no room: [`crate::policy::Index::max_groups`] bounds the parts.
    pub fn follow(
        &mut self,
        backend: &B,
        h: usize,
        (clusters, tokens): (&LayerIndex<B>, &LayerIndex<B>),
        coded: Coded,
    ) -> OpResult<()> {
        let Some(groups) = clusters.groups() else { return Ok(()) };
        let (groups, own) = (&groups.heads()[h].starts, &clusters.heads()[h]);
        let parts = &mut self.heads[h];
        let before = parts.keep(coded.unchanged);
        let mut first = parts.end();
        while first < coded.n {
            let next = groups.partition_point(|start| *start as usize <= first);
            let limit = groups.get(next).map_or(coded.n, |start| coded.n.min(*start as usize));
            let end = limit.min(first + PART_CLUSTERS);
            parts.starts.push(first as u32);
            parts.sizes.push((end - first) as u32);
            first = end;
        }
        let new = parts.starts[before..].iter().zip(&parts.sizes[before..]);
        let all = tokens.landmarks(backend, h);
        for (start, size) in new {
            let (first, last) = (*start as usize, (start + size) as usize - 1);
            let rows = own.starts[first] as usize - coded.first_row
                ..(own.starts[last] + own.sizes[last]) as usize - coded.first_row;
            let codes = all.get(rows);
            halfway_bounds(bytemuck::cast_slice(&codes), self.rank, &mut parts.bounds);
        }
        assert!(parts.starts.len() <= self.capacity, "more parts than there is room for");
        self.upload(backend, h, before)
    }

    fn upload(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let (parts, width) = (&self.heads[h], 2 * self.rank);
        let (at, n) = (h * self.capacity + first, parts.starts.len() - first);
        let bounds = ViewMut::part(&mut self.bounds, at * width, n * width);
        backend.write(bounds, bytemuck::cast_slice(&parts.bounds[first * width..]))?;
        for (buffer, words) in [(&mut self.sizes, &parts.sizes), (&mut self.starts, &parts.starts)]
        {
            let words = bytemuck::cast_slice(&words[first..]);
            backend.write(ViewMut::part(buffer, at, n), words)?;
        }
        let count = parts.starts.len() as u32;
        backend.write(ViewMut::part(&mut self.n_parts, h, 1), bytemuck::bytes_of(&count))
    }

    /// The same parts, to be changed without these.
    pub fn fork(&self, backend: &B) -> OpResult<Self> {
        let mut fork = Self::new(backend, self.heads.len(), self.capacity, self.rank)?;
        for (to, from) in fork.heads.iter_mut().zip(&self.heads) {
            to.starts.extend_from_slice(&from.starts);
            to.sizes.extend_from_slice(&from.sizes);
            to.bounds.extend_from_slice(&from.bounds);
        }
        (0..self.heads.len()).try_for_each(|h| fork.upload(backend, h, 0))?;
        Ok(fork)
    }

    /// Makes the buffers again on a fresh device. They are empty until they follow.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        let [bounds, sizes, starts, n_parts] =
            [&self.bounds, &self.sizes, &self.starts, &self.n_parts]
                .map(|buffer| backend.alloc(buffer.dtype(), buffer.len(), LABEL));
        (self.bounds, self.sizes, self.starts, self.n_parts) = (bounds?, sizes?, starts?, n_parts?);
        self.heads.iter_mut().for_each(|parts| _ = parts.keep(0));
        Ok(())
    }

    /// I8 `[Hkv, capacity, 2, rank]` on the device.
    pub fn bounds(&self) -> View<'_, B> {
        View::all(&self.bounds)
    }

    /// Clusters of each part `[Hkv, capacity]` on the device.
    pub fn sizes(&self) -> View<'_, B> {
        View::all(&self.sizes)
    }

    /// The first cluster of each part `[Hkv, capacity]` on the device.
    pub fn starts(&self) -> View<'_, B> {
        View::all(&self.starts)
    }

    /// Parts in use `[Hkv]` on the device.
    pub fn n_parts(&self) -> View<'_, B> {
        View::all(&self.n_parts)
    }

    /// Parts of a head in use.
    pub fn n_used(&self, head: usize) -> usize {
        self.heads[head].starts.len()
    }

    /// Room for parts of a head.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let buffers = [&self.bounds, &self.sizes, &self.starts, &self.n_parts];
        buffers.map(DeviceBuffer::size_bytes).iter().sum()
    }
}

const LABEL: &str = "parts of groups";

impl HeadParts {
    /// Keeps the parts of the first `n_clusters` clusters that no later cluster joins; returns how
    /// many.
    fn keep(&mut self, n_clusters: usize) -> usize {
        let ends = self.starts.iter().zip(&self.sizes).map(|(start, size)| start + size);
        let mut n = ends.take_while(|end| *end as usize <= n_clusters).count();
        // The last one may have waited for clusters of its group.
        n -= usize::from(n > 0 && (self.sizes[n - 1] as usize) < PART_CLUSTERS);
        let width = self.bounds.len() / self.starts.len().max(1);
        self.starts.truncate(n);
        self.sizes.truncate(n);
        self.bounds.truncate(n * width);
        n
    }

    /// Clusters in parts.
    fn end(&self) -> usize {
        self.starts.last().zip(self.sizes.last()).map_or(0, |(start, size)| (start + size) as usize)
    }
}

/// Bytes of room for `capacity` parts a head, on the device, and about as many on the host.
pub(crate) fn part_bytes(n_kv_heads: usize, capacity: usize, rank: usize) -> usize {
    let word = DType::U32.size();
    n_kv_heads * (capacity * (2 * rank * DType::I8.size() + 2 * word) + word)
}

#[cfg(test)]
mod tests {
    use super::super::cluster_bounds::ClusterBounds;
    use super::super::cluster_groups::GROUP_CLUSTERS;
    use super::super::kmeans_job::HeadClusters;
    use super::super::testing::{R, shape, words};
    use super::*;

    /// Rows before the first cluster.
    const FIRST: usize = 2;

    struct Made {
        index: LayerIndex<R>,
        tokens: LayerIndex<R>,
        bounds: ClusterBounds<R>,
    }

    /// Room for 60 clusters of one head.
    fn made(backend: &R) -> Made {
        let shape = shape(2, 1, 2);
        let index = LayerIndex::new(backend, &shape, 2, 60, 4).unwrap();
        let index =
            index.with_pairs(backend).unwrap().with_groups(backend, 6, GROUP_CLUSTERS).unwrap();
        let bounds = ClusterBounds::new(backend, 1, 60, 2).unwrap();
        Made {
            index,
            tokens: LayerIndex::of_codes(backend, &shape, 2, 120, 8).unwrap(),
            bounds: bounds.with_parts(backend, 12).unwrap(),
        }
    }

    impl Made {
        /// A batch of clusters of two tokens each.
        fn append(&mut self, backend: &R, start: usize, n: usize) {
            let clusters = HeadClusters {
                sizes: vec![2; n],
                centroids: vec![0.0; 2 * n],
                values: vec![0.0; 2 * n],
                ..HeadClusters::default()
            };
            let rows = FIRST + 2 * start..FIRST + 2 * (start + n);
            self.index.append(backend, rows.start, rows.end, &[clusters]).unwrap();
        }

        /// Codes of the tokens of clusters `start..end`: i and -i of token i.
        fn add_codes(&mut self, backend: &R, start: usize, end: usize) {
            let tokens = 2 * start..2 * end;
            let codes = HeadClusters {
                sizes: vec![1; tokens.len()],
                centroids: tokens.clone().flat_map(|i| [i as f32, -(i as f32)]).collect(),
                ..HeadClusters::default()
            };
            let rows = FIRST + tokens.start..FIRST + tokens.end;
            self.tokens.append(backend, rows.start, rows.end, &[codes]).unwrap();
        }

        /// Parts by their first cluster, how many they have, and their bounds.
        fn parts(&mut self, backend: &R) -> Vec<(u32, u32, [i8; 4])> {
            self.bounds.follow(backend, &self.index, &self.tokens, FIRST).unwrap();
            of(backend, &self.bounds)
        }
    }

    fn of(backend: &R, bounds: &ClusterBounds<R>) -> Vec<(u32, u32, [i8; 4])> {
        let parts = bounds.parts().unwrap();
        let n = words(backend, parts.n_parts())[0] as usize;
        let mut codes = vec![0i8; 4 * n];
        let view = View::part(&parts.bounds, 0, 4 * n);
        pollster::block_on(backend.read(view, bytemuck::cast_slice_mut(&mut codes))).unwrap();
        let lists = [parts.starts(), parts.sizes()].map(|view| words(backend, view));
        let own = |i: usize| (lists[0][i], lists[1][i], codes[4 * i..][..4].try_into().unwrap());
        (0..n).map(own).collect()
    }

    /// Starts and sizes.
    fn runs(parts: &[(u32, u32, [i8; 4])]) -> Vec<[u32; 2]> {
        parts.iter().map(|(start, size, _)| [*start, *size]).collect()
    }

    #[test]
    fn parts_end_with_their_group_and_wait_for_codes() {
        let (backend, whole) = (R::new(), [[0, 8], [8, 8], [16, 8], [24, 8]]);
        let mut made = made(&backend);
        made.append(&backend, 0, 35);
        made.add_codes(&backend, 0, 20);
        assert_eq!(runs(&made.parts(&backend)), [[0, 8], [8, 8], [16, 4]]);
        made.add_codes(&backend, 20, 35);
        let parts = made.parts(&backend);
        assert_eq!(runs(&parts), [&whole[..], &[[32, 3]]].concat());
        // Tokens 0 to 15, whose mean is 7.5; 11.25 and 3.75 are rounded.
        assert_eq!(parts[0].2, [11, -4, 4, -11]);
        // 64 to 69 with 66.5: 67.75 and 65.25.
        assert_eq!(parts[4].2, [68, -65, 65, -68]);
        made.append(&backend, 35, 10);
        made.add_codes(&backend, 35, 45);
        let parts = made.parts(&backend);
        assert_eq!(runs(&parts), [&whole[..], &[[32, 3], [35, 8], [43, 2]]].concat());
        assert_eq!(parts[5].2, [81, -74, 74, -81], "70 to 85 with 77.5");
    }

    #[test]
    fn parts_go_with_their_clusters_and_come_back_on_a_fresh_device() {
        let backend = R::new();
        let mut made = made(&backend);
        made.append(&backend, 0, 35);
        made.append(&backend, 35, 10);
        made.add_codes(&backend, 0, 35);
        made.add_codes(&backend, 35, 45);
        let all = made.parts(&backend);
        let fork = made.bounds.fork(&backend).unwrap();
        made.index.truncate(&backend, FIRST + 70, FIRST).unwrap();
        made.tokens.truncate(&backend, FIRST + 70, FIRST).unwrap();
        assert_eq!(made.parts(&backend), all[..5]);
        assert_eq!(of(&backend, &fork), all, "a fork has its own");
        made.append(&backend, 35, 4);
        made.add_codes(&backend, 35, 39);
        let parts = made.parts(&backend);
        assert_eq!((&parts[..5], parts[5].0, parts[5].1), (&all[..5], 35, 4));
        let fresh = R::new();
        made.index.restore(&backend, &fresh).unwrap();
        made.tokens.restore(&backend, &fresh).unwrap();
        made.bounds.restore(&fresh).unwrap();
        assert!(of(&fresh, &made.bounds).is_empty());
        assert_eq!(made.parts(&fresh), parts);
    }
}
