//! The index of one layer: centroids on the device, where each cluster's rows are, and how they
//! came to be.
//!
//! Clusters are appended in batches, one per clustered run of rows, and never merged; so a sequence
//! can be cut back by dropping batches. Centroids are kept on the host too, in the data type of the
//! device copy: a lost device is rebuilt from them, and they are what a saved session will hold.

use longview_core::encode_f32_into;
use longview_ops::{Backend, DeviceBuffer, OpResult, View, ViewMut};

use crate::clusterer::HeadClusters;
use crate::shape::KvShape;
use longview_core::DType;

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
}

/// The index of one layer.
pub struct LayerIndex<B: Backend> {
    heads: Vec<HeadIndex>,
    /// (rows indexed, clusters of each head) after each batch.
    batches: Vec<(usize, Vec<u32>)>,
    spare_counts: Vec<Vec<u32>>,
    centroids: B::Buffer,
    sizes: B::Buffer,
    starts: B::Buffer,
    n_clusters: B::Buffer,
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
            capacity,
            width,
        })
    }

    /// Appends the clusters of rows `row_start..row_end`.
    ///
    /// # Panics
    /// If they exceed the capacity: [`crate::Policy::max_clusters`] bounds it.
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
        let row_bytes = self.width * self.centroids.dtype().size();
        for (h, head) in self.heads.iter_mut().enumerate() {
            let n = self.batches.last().map_or(0, |(_, counts)| counts[h] as usize);
            head.starts.truncate(n);
            head.sizes.truncate(n);
            head.radius.truncate(n);
            head.open.truncate(n);
            head.centroids.truncate(n * row_bytes);
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
        // A closed cluster looks empty to the device, which never takes those.
        let is_open = |c: usize| head.open.get(c).copied().unwrap_or(true);
        match head.open.is_empty() {
            true => {
                let sizes = bytemuck::cast_slice(&head.sizes[first..]);
                backend.write(ViewMut::part(&mut self.sizes, at, n), sizes)?;
            }
            false => {
                let sizes = head.sizes[first..].iter().zip(first..);
                let sizes: Vec<u32> = sizes.map(|(s, c)| if is_open(c) { *s } else { 0 }).collect();
                let bytes = bytemuck::cast_slice(&sizes);
                backend.write(ViewMut::part(&mut self.sizes, at, n), bytes)?;
            }
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

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let words = [&self.sizes, &self.starts, &self.n_clusters];
        self.centroids.size_bytes() + words.map(DeviceBuffer::size_bytes).iter().sum::<u64>()
    }
}
