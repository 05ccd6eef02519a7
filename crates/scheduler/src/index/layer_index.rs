//! The index of one layer: centroids on the device, where each cluster's rows are, and how they
//! came to be.
//!
//! Clusters are appended in batches, one per clustered run of rows, and never merged; so a sequence
//! can be cut back by dropping batches. Centroids are kept on the host too, in the data type of the
//! device copy: a lost device is rebuilt from them, and they are what a saved session holds.

use longview_core::{DType, encode_f32_into};
use longview_ops::{Backend, DeviceBuffer, KvView, OpResult, View, ViewMut};

use super::kmeans_job::HeadClusters;
use super::records::{ClustersRecord, IndexRecord};
use crate::layout::KvShape;

/// The clusters of one KV head, in the order of their rows in the host store.
#[derive(Clone, Debug, Default)]
pub struct HeadIndex {
    /// First row of each cluster.
    pub starts: Vec<u32>,
    /// Rows of each cluster.
    pub sizes: Vec<u32>,
    /// Largest distance of a member's key from the centroid.
    pub radius: Vec<f32>,
    /// `[clusters, width]` in the KV data type.
    pub centroids: Vec<u8>,
    /// Clusters that a step may choose from; empty for all.
    pub open: Vec<bool>,
    /// `[clusters, 2, width]` in the KV data type: centroid and mean value, a KV row that stands
    /// for the cluster; empty unless the index is to keep them.
    pub pairs: Vec<u8>,
}

/// The index of one layer: clusters, blocks or tokens of each KV head.
pub struct LayerIndex<B: Backend> {
    heads: Vec<HeadIndex>,
    /// (rows indexed, clusters of each head) after each batch.
    batches: Vec<(usize, Vec<u32>)>,
    spare_counts: Vec<Vec<u32>>,
    centroids: B::Buffer,
    sizes: B::Buffer,
    starts: B::Buffer,
    n_clusters: B::Buffer,
    /// The same KV rows on the device `[Hkv, capacity, 2, width]`.
    pairs: Option<B::Buffer>,
    capacity: usize,
    width: usize,
}

impl<B: Backend> LayerIndex<B> {
    /// An empty index with room for `capacity` clusters a head, described by `width` numbers each,
    /// made in `max_batches` batches.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        width: usize,
        capacity: usize,
        max_batches: usize,
    ) -> OpResult<Self> {
        let heads = (0..shape.n_kv_heads).map(|_| HeadIndex {
            open: Vec::new(),
            starts: Vec::with_capacity(capacity),
            sizes: Vec::with_capacity(capacity),
            radius: Vec::with_capacity(capacity),
            centroids: Vec::with_capacity(capacity * width * shape.kv_dtype.size()),
            pairs: Vec::new(),
        });
        let h = shape.n_kv_heads;
        Ok(Self {
            heads: heads.collect(),
            batches: Vec::with_capacity(max_batches),
            spare_counts: (0..max_batches).map(|_| Vec::with_capacity(h)).collect(),
            centroids: backend.alloc(shape.kv_dtype, h * capacity * width, "centroids")?,
            sizes: backend.alloc(DType::U32, h * capacity, "cluster sizes")?,
            starts: backend.alloc(DType::U32, h * capacity, "cluster starts")?,
            n_clusters: backend.alloc(DType::U32, h, "cluster counts")?,
            pairs: None,
            capacity,
            width,
        })
    }

    /// The same index, empty, that keeps each cluster's mean value too.
    pub fn with_pairs(mut self, backend: &B) -> OpResult<Self> {
        let len = 2 * self.centroids.len();
        self.pairs = Some(backend.alloc(self.centroids.dtype(), len, "cluster means")?);
        let bytes = self.capacity * 2 * self.row_bytes();
        self.heads.iter_mut().for_each(|head| head.pairs.reserve(bytes));
        Ok(self)
    }

    /// Bytes of a centroid.
    fn row_bytes(&self) -> usize {
        self.width * self.centroids.dtype().size()
    }

    /// Appends the clusters of rows `row_start..row_end`.
    ///
    /// # Panics
    /// If they exceed the capacity: [`crate::Policy::max_units`] bounds it.
    pub fn append(
        &mut self,
        backend: &B,
        row_start: usize,
        row_end: usize,
        clusters: &[HeadClusters],
    ) -> OpResult<()> {
        for (h, new) in clusters.iter().enumerate() {
            let head = &mut self.heads[h];
            let first = head.sizes.len();
            assert!(
                first + new.sizes.len() <= self.capacity,
                "more clusters than the policy's bound"
            );
            let mut row = row_start as u32;
            for size in &new.sizes {
                head.starts.push(row);
                head.sizes.push(*size);
                row += size;
            }
            assert_eq!(row as usize, row_end, "clusters do not cover their rows");
            head.radius.extend_from_slice(&new.radius);
            encode_f32_into(self.centroids.dtype(), &new.centroids, &mut head.centroids);
            if self.pairs.is_some() {
                let width = self.width.max(1);
                let means = new.centroids.chunks_exact(width).zip(new.values.chunks_exact(width));
                assert_eq!(new.values.len(), new.centroids.len(), "a mean value for each centroid");
                for mean in means.flat_map(|(centroid, value)| [centroid, value]) {
                    encode_f32_into(self.centroids.dtype(), mean, &mut head.pairs);
                }
            }
            self.upload_head(backend, h, first)?;
        }
        let mut counts = self.spare_counts.pop().unwrap_or_default();
        counts.clear();
        counts.extend(self.heads.iter().map(|head| head.sizes.len() as u32));
        backend.write(ViewMut::all(&mut self.n_clusters), bytemuck::cast_slice(&counts))?;
        self.batches.push((row_end, counts));
        Ok(())
    }

    /// Drops the batches that reach beyond row `n_rows` and returns the number of rows still
    /// indexed (`first_row` if none).
    pub fn truncate(&mut self, backend: &B, n_rows: usize, first_row: usize) -> OpResult<usize> {
        while self.batches.last().is_some_and(|(end, _)| *end > n_rows) {
            self.spare_counts.extend(self.batches.pop().map(|(_, counts)| counts));
        }
        let row_bytes = self.row_bytes();
        for (h, head) in self.heads.iter_mut().enumerate() {
            let n = self.batches.last().map_or(0, |(_, counts)| counts[h] as usize);
            head.starts.truncate(n);
            head.sizes.truncate(n);
            head.radius.truncate(n);
            head.open.truncate(n);
            head.centroids.truncate(n * row_bytes);
            head.pairs.truncate(2 * n * row_bytes);
            let count = n as u32;
            backend.write(ViewMut::part(&mut self.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        Ok(self.batches.last().map_or(first_row, |(end, _)| *end))
    }

    /// Lets steps choose only from the clusters `open` of head `h`, and from those made later.
    pub fn narrow(&mut self, backend: &B, h: usize, open: Vec<bool>) -> OpResult<()> {
        self.heads[h].open = open;
        self.upload_head(backend, h, 0)
    }

    /// As a session file has it.
    pub(crate) fn record(&self) -> IndexRecord {
        let clusters = |head: &HeadIndex| ClustersRecord {
            sizes: head.sizes.clone(),
            radius: head.radius.clone(),
            centroids: head.centroids.clone(),
            pairs: head.pairs.clone(),
            open: head.open.clone(),
        };
        let heads = self.heads.iter().map(clusters).collect();
        IndexRecord { width: self.width, batches: self.batches.clone(), heads }
    }

    /// Takes in what a session file has, whose units cover the rows from `first_row` on; `false` if
    /// it is not of this index.
    pub(crate) fn load(
        &mut self,
        backend: &B,
        first_row: usize,
        record: IndexRecord,
    ) -> OpResult<bool> {
        let row_bytes = self.row_bytes();
        let pair_bytes = if self.pairs.is_some() { 2 * row_bytes } else { 0 };
        let fits = |head: &ClustersRecord| {
            let n = head.sizes.len();
            n <= self.capacity
                && (head.radius.is_empty() || head.radius.len() == n)
                && head.centroids.len() == n * row_bytes
                && head.pairs.len() == n * pair_bytes
        };
        if record.width != self.width || !record.heads.iter().all(fits) {
            return Ok(false);
        }
        for (h, new) in record.heads.iter().enumerate() {
            let head = &mut self.heads[h];
            let mut row = first_row as u32;
            for size in &new.sizes {
                head.starts.push(row);
                row += size;
            }
            head.sizes.extend_from_slice(&new.sizes);
            head.radius.extend_from_slice(&new.radius);
            head.centroids.extend_from_slice(&new.centroids);
            head.pairs.extend_from_slice(&new.pairs);
            head.open.extend_from_slice(&new.open);
            self.upload_head(backend, h, 0)?;
            let count = new.sizes.len() as u32;
            backend.write(ViewMut::part(&mut self.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        self.batches.extend(record.batches);
        Ok(true)
    }

    /// Numbers that describe a cluster.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes the host's copy into fresh device buffers, after the device was lost.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.centroids =
            backend.alloc(self.centroids.dtype(), self.centroids.len(), "centroids")?;
        self.sizes = backend.alloc(DType::U32, self.sizes.len(), "cluster sizes")?;
        self.starts = backend.alloc(DType::U32, self.starts.len(), "cluster starts")?;
        self.n_clusters = backend.alloc(DType::U32, self.heads.len(), "cluster counts")?;
        if let Some(pairs) = &mut self.pairs {
            *pairs = backend.alloc(pairs.dtype(), pairs.len(), "cluster means")?;
        }
        for h in 0..self.heads.len() {
            self.upload_head(backend, h, 0)?;
            let count = self.heads[h].sizes.len() as u32;
            backend.write(ViewMut::part(&mut self.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        Ok(())
    }

    fn upload_head(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let (d, head) = (self.width, &self.heads[h]);
        let (at, n) = (h * self.capacity + first, head.sizes.len() - first);
        let bytes = &head.centroids[first * d * self.centroids.dtype().size()..];
        backend.write(ViewMut::part(&mut self.centroids, at * d, n * d), bytes)?;
        if let Some(pairs) = &mut self.pairs {
            let bytes = &head.pairs[2 * first * d * self.centroids.dtype().size()..];
            backend.write(ViewMut::part(pairs, 2 * at * d, 2 * n * d), bytes)?;
        }
        // A closed cluster looks empty to the device, which never takes those.
        let is_open = |c: usize| head.open.get(c).copied().unwrap_or(true);
        if head.open.is_empty() {
            let sizes = bytemuck::cast_slice(&head.sizes[first..]);
            backend.write(ViewMut::part(&mut self.sizes, at, n), sizes)?;
        } else {
            let sizes = head.sizes[first..].iter().zip(first..);
            let sizes: Vec<u32> = sizes.map(|(s, c)| if is_open(c) { *s } else { 0 }).collect();
            let bytes = bytemuck::cast_slice(&sizes);
            backend.write(ViewMut::part(&mut self.sizes, at, n), bytes)?;
        }
        let starts = bytemuck::cast_slice(&head.starts[first..]);
        backend.write(ViewMut::part(&mut self.starts, at, n), starts)
    }

    /// The clusters of each head.
    pub fn heads(&self) -> &[HeadIndex] {
        &self.heads
    }

    /// Room for clusters of one head.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Centroids `[Hkv, capacity, Dh]` on the device.
    pub fn centroids(&self) -> View<'_, B> {
        View::all(&self.centroids)
    }

    /// Cluster sizes `[Hkv, capacity]` on the device.
    pub fn sizes(&self) -> View<'_, B> {
        View::all(&self.sizes)
    }

    /// Host row of each cluster's first token `[Hkv, capacity]`, on the device.
    pub fn starts(&self) -> View<'_, B> {
        View::all(&self.starts)
    }

    /// Clusters in use `[Hkv]` on the device.
    pub fn n_clusters(&self) -> View<'_, B> {
        View::all(&self.n_clusters)
    }

    /// Each cluster as a KV row on the device, where the index keeps them.
    pub fn pairs(&self) -> Option<KvView<'_, B>> {
        self.pairs.as_ref().map(|pairs| KvView::new(pairs, self.capacity))
    }

    /// Landmarks as rows to be moved: of half their width, a key and a value each.
    pub fn landmark_rows(&self) -> KvView<'_, B> {
        KvView::new(&self.centroids, self.capacity)
    }

    /// Clusters of a head in use.
    pub fn n_used(&self, head: usize) -> usize {
        self.heads[head].sizes.len()
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let pairs = self.pairs.as_ref().map_or(0, DeviceBuffer::size_bytes);
        let words = [&self.sizes, &self.starts, &self.n_clusters];
        let words = words.map(DeviceBuffer::size_bytes).iter().sum::<u64>();
        self.centroids.size_bytes() + words + pairs
    }
}
