//! The index of one layer: centroids on the device, where each cluster's rows are, and how they
//! came to be.
//!
//! Clusters are appended in batches, one per clustered run of rows, and never merged; so a sequence
//! can be cut back by dropping batches. Centroids are kept on the host too, in the data type of the
//! device copy: a lost device is rebuilt from them, and they are what a saved session holds.

use std::ops::Range;
use std::sync::Arc;

use longview_core::{DType, encode_f32_into};
use longview_ops::{Backend, DeviceBuffer, ForkSpans, KvView, OpResult, View, ViewMut};
use smallvec::SmallVec;

use super::cluster_groups::ClusterGroups;
use super::device_owners::DeviceOwners;
use super::head_index::HeadIndex;
use super::kernel_memory::alloc;
use super::kmeans_job::HeadClusters;
use super::records::{ClustersRecord, IndexRecord};
use super::shared_bytes::SharedBytes;
use crate::layout::KvShape;
use crate::store::{together, touch, touch_room};

/// The index of one layer: clusters, blocks or tokens of each KV head.
pub struct LayerIndex<B: Backend> {
    /// On the host, of all heads. Forks share it until one of them changes it.
    heads: Arc<Vec<HeadIndex>>,
    /// (rows indexed, clusters of each head) after each batch.
    batches: Vec<(usize, Vec<u32>)>,
    spare_counts: Vec<Vec<u32>>,
    centroids: B::Buffer,
    sizes: B::Buffer,
    starts: B::Buffer,
    n_clusters: B::Buffer,
    /// The same KV rows on the device `[Hkv, capacity, 2, width]`.
    pairs: Option<B::Buffer>,
    /// Where a step looks at some of the clusters only.
    groups: Option<ClusterGroups<B>>,
    /// Where the device itself lists what a choice of tokens left.
    owners: Option<DeviceOwners<B>>,
    /// First units of each head that did not change since the index was forked.
    unchanged: Vec<usize>,
    capacity: usize,
    width: usize,
    keeps_owners: bool,
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
        Self::of_type(backend, (shape, shape.kv_dtype), width, capacity, max_batches)
    }

    /// The same of codes of 8 bits ([`DType::I8`]), whose units [`super::LayerProjection`] knows.
    pub(crate) fn of_codes(
        backend: &B,
        shape: &KvShape,
        width: usize,
        capacity: usize,
        max_batches: usize,
    ) -> OpResult<Self> {
        Self::of_type(backend, (shape, DType::I8), width, capacity, max_batches)
    }

    fn of_type(
        backend: &B,
        (shape, dtype): (&KvShape, DType),
        width: usize,
        capacity: usize,
        max_batches: usize,
    ) -> OpResult<Self> {
        let heads = (0..shape.n_kv_heads).map(|_| HeadIndex {
            open: Vec::new(),
            starts: Vec::with_capacity(capacity),
            sizes: Vec::with_capacity(capacity),
            radius: Vec::with_capacity(capacity),
            centroids: SharedBytes::with_capacity(capacity * width * dtype.size()),
            pairs: SharedBytes::default(),
            owners: Vec::new(),
        });
        let h = shape.n_kv_heads;
        Ok(Self {
            heads: Arc::new(heads.collect()),
            batches: Vec::with_capacity(max_batches),
            spare_counts: (0..max_batches).map(|_| Vec::with_capacity(h)).collect(),
            centroids: alloc(backend, dtype, h * capacity * width, "centroids")?,
            sizes: alloc(backend, DType::U32, h * capacity, "cluster sizes")?,
            starts: alloc(backend, DType::U32, h * capacity, "cluster starts")?,
            n_clusters: alloc(backend, DType::U32, h, "cluster counts")?,
            pairs: None,
            groups: None,
            owners: None,
            unchanged: vec![0; h],
            capacity,
            width,
            keeps_owners: false,
        })
    }

    /// The same index, empty, that knows the cluster of each of up to `rows` rows.
    pub fn with_owners(mut self, rows: usize) -> Self {
        self.keeps_owners = true;
        Arc::make_mut(&mut self.heads).iter_mut().for_each(|head| head.owners.reserve(rows));
        self
    }

    /// The same index, empty, that keeps each cluster's mean value too.
    pub fn with_pairs(mut self, backend: &B) -> OpResult<Self> {
        let len = 2 * self.centroids.len();
        self.pairs = Some(alloc(backend, self.centroids.dtype(), len, "cluster means")?);
        let bytes = self.capacity * 2 * self.row_bytes();
        Arc::make_mut(&mut self.heads).iter_mut().for_each(|head| head.pairs.reserve(bytes));
        Ok(self)
    }

    /// The same, empty, with up to `capacity` groups of `unit` clusters a head: of one with means.
    pub(crate) fn with_groups(
        mut self,
        backend: &B,
        capacity: usize,
        unit: usize,
    ) -> OpResult<Self> {
        let (h, kind) = (self.heads.len(), (self.centroids.dtype(), self.width));
        self.groups = Some(ClusterGroups::new(backend, h, kind, (capacity, unit))?);
        Ok(self)
    }

    /// The same index, empty, whose owners of up to `rows` rows, and of clusters where there are
    /// groups, the device knows too: of an index that has its groups.
    pub(crate) fn with_device_owners(mut self, backend: &B, rows: usize) -> OpResult<Self> {
        let groups = self.groups.as_ref().map(|groups| [self.capacity, groups.capacity()]);
        self.owners = Some(DeviceOwners::new(backend, self.heads.len(), rows, groups)?);
        Ok(self)
    }

    /// Whether units are codes.
    pub(crate) fn is_coded(&self) -> bool {
        self.centroids.dtype() == DType::I8
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
            let head = &mut Arc::make_mut(&mut self.heads)[h];
            let first = head.sizes.len();
            assert!(
                first + new.sizes.len() <= self.capacity,
                "more clusters than the policy's bound"
            );
            let mut row = row_start as u32;
            for size in &new.sizes {
                if self.keeps_owners {
                    let cluster = head.sizes.len() as u32;
                    head.owners.extend(std::iter::repeat_n(cluster, *size as usize));
                }
                head.starts.push(row);
                head.sizes.push(*size);
                row += size;
            }
            assert_eq!(row as usize, row_end, "clusters do not cover their rows");
            head.radius.extend_from_slice(&new.radius);
            encode_f32_into(self.centroids.dtype(), &new.centroids, head.centroids.own());
            if self.pairs.is_some() {
                let width = self.width.max(1);
                let means = new.centroids.chunks_exact(width).zip(new.values.chunks_exact(width));
                assert_eq!(new.values.len(), new.centroids.len(), "a mean value for each centroid");
                for mean in means.flat_map(|(centroid, value)| [centroid, value]) {
                    encode_f32_into(self.centroids.dtype(), mean, head.pairs.own());
                }
            }
            self.upload_head(backend, h, first)?;
            if let Some(groups) = &mut self.groups {
                let head = &self.heads[h];
                groups.append(backend, h, head.members(), (first, head.sizes.len()))?;
            }
            self.upload_owners(backend, h, first)?;
        }
        let mut counts = self.spare_counts.pop().unwrap_or_default();
        counts.clear();
        counts.extend(self.heads.iter().map(|head| head.sizes.len() as u32));
        backend.write(ViewMut::all(&mut self.n_clusters), bytemuck::cast_slice(&counts))?;
        self.batches.push((row_end, counts));
        Ok(())
    }

    /// Drops batches that reach beyond row `n_rows`; the rows still indexed (`first_row` if none).
    pub fn truncate(&mut self, backend: &B, n_rows: usize, first_row: usize) -> OpResult<usize> {
        while self.batches.last().is_some_and(|(end, _)| *end > n_rows) {
            self.spare_counts.extend(self.batches.pop().map(|(_, counts)| counts));
        }
        let last = self.batches.last();
        let n_left = |h: usize| last.map_or(0, |(_, counts)| counts[h] as usize);
        let end = last.map_or(first_row, |(end, _)| *end);
        // The host's copy of all heads first: a device that fails then leaves nothing half cut, and
        // the same call again finds nothing to do.
        let is_cut = self.heads.iter().enumerate().any(|(h, head)| head.sizes.len() > n_left(h));
        if is_cut {
            let row_bytes = self.width * self.centroids.dtype().size();
            for (h, head) in Arc::make_mut(&mut self.heads).iter_mut().enumerate() {
                let n = n_left(h);
                head.truncate(n, row_bytes);
                self.unchanged[h] = self.unchanged[h].min(n);
            }
        }
        if let Some(groups) = &mut self.groups {
            groups.truncate(self.heads.iter().map(|head| head.sizes.len()));
        }
        if is_cut {
            let counts: SmallVec<[u32; 16]> =
                self.heads.iter().map(|head| head.sizes.len() as u32).collect();
            backend.write(ViewMut::all(&mut self.n_clusters), bytemuck::cast_slice(&counts))?;
            for (h, n) in counts.into_iter().enumerate() {
                self.upload_owners(backend, h, n as usize)?;
            }
        }
        Ok(end)
    }

    /// The row behind each run of rows that was indexed together, in their order.
    pub(crate) fn run_ends(&self) -> impl Iterator<Item = usize> {
        self.batches.iter().map(|(end, _)| *end)
    }

    /// Lets steps choose only from the clusters `open` of head `h`, and from those made later.
    pub fn narrow(&mut self, backend: &B, h: usize, open: Vec<bool>) -> OpResult<()> {
        Arc::make_mut(&mut self.heads)[h].open = open;
        self.upload_head(backend, h, 0)
    }

    /// As a session file has it.
    pub(crate) fn record(&self) -> IndexRecord {
        let clusters = |head: &HeadIndex| ClustersRecord {
            sizes: head.sizes.clone(),
            radius: head.radius.clone(),
            centroids: head.centroids.all().into_owned(),
            pairs: head.pairs.all().into_owned(),
            open: head.open.clone(),
        };
        let heads = self.heads.iter().map(clusters).collect();
        let batches = self.batches.clone();
        IndexRecord { width: self.width, is_coded: self.is_coded(), batches, heads }
    }

    /// Takes in what a session file has of rows from `first_row` on; `false` if of another index.
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
        let is_alike = record.width == self.width && record.is_coded == self.is_coded();
        if !is_alike || !record.heads.iter().all(fits) {
            return Ok(false);
        }
        self.expect(backend, &record);
        for (h, new) in record.heads.iter().enumerate() {
            let head = &mut Arc::make_mut(&mut self.heads)[h];
            let mut row = first_row as u32;
            for (cluster, size) in new.sizes.iter().enumerate() {
                if self.keeps_owners {
                    head.owners.extend(std::iter::repeat_n(cluster as u32, *size as usize));
                }
                head.starts.push(row);
                row += size;
            }
            head.sizes.extend_from_slice(&new.sizes);
            head.radius.extend_from_slice(&new.radius);
            head.centroids.own().extend_from_slice(&new.centroids);
            head.pairs.own().extend_from_slice(&new.pairs);
            head.open.extend_from_slice(&new.open);
            self.upload_head(backend, h, 0)?;
            let count = new.sizes.len() as u32;
            backend.write(ViewMut::part(&mut self.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        self.batches.extend(record.batches);
        self.make_groups(backend)?;
        (0..self.heads.len()).try_for_each(|h| self.upload_owners(backend, h, 0))?;
        Ok(true)
    }

    /// Gets memory for what a record has, with all threads of the backend.
    fn expect(&mut self, backend: &B, record: &IndexRecord) {
        let (row_bytes, capacity) = (self.row_bytes(), self.capacity);
        let n_units: Vec<usize> = record.heads.iter().map(|head| head.sizes.len()).collect();
        let mut tasks = Vec::new();
        for (head, new) in Arc::make_mut(&mut self.heads).iter_mut().zip(&record.heads) {
            let n = new.sizes.len();
            touch_room(&mut head.starts, n, &mut tasks);
            touch_room(&mut head.sizes, n, &mut tasks);
            touch_room(&mut head.radius, new.radius.len(), &mut tasks);
            touch_room(head.centroids.own(), new.centroids.len(), &mut tasks);
            touch_room(head.pairs.own(), new.pairs.len(), &mut tasks);
        }
        let pairs = self.pairs.as_mut().map(|pairs| (pairs, 2 * row_bytes));
        let buffers =
            [(&mut self.centroids, row_bytes), (&mut self.sizes, 4), (&mut self.starts, 4)];
        for (buffer, unit_bytes) in buffers.into_iter().chain(pairs) {
            // Where kernels read memory of the host; that of a device is not written by threads.
            let Some(all) = backend.host_bytes_mut(buffer) else { continue };
            let heads = all.chunks_mut((capacity * unit_bytes).max(1)).zip(&n_units);
            heads.for_each(|(head, n)| touch(&mut head[..n * unit_bytes], &mut tasks));
        }
        together(backend, tasks);
    }

    /// Groups the clusters of all batches.
    fn make_groups(&mut self, backend: &B) -> OpResult<()> {
        let Some(groups) = &mut self.groups else { return Ok(()) };
        for (h, head) in self.heads.iter().enumerate() {
            let mut first = 0;
            for (_, counts) in &self.batches {
                let end = counts[h] as usize;
                groups.append(backend, h, head.members(), (first, end))?;
                first = end;
            }
        }
        Ok(())
    }

    /// Groups of clusters, where their means stand for clusters.
    pub(crate) fn groups(&self) -> Option<&ClusterGroups<B>> {
        self.groups.as_ref()
    }

    /// Numbers that describe a cluster.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes the host's copy into fresh device buffers, after the device was lost.
    pub fn restore(&mut self, backend: &B) -> OpResult<()> {
        self.centroids = alloc(backend, self.centroids.dtype(), self.centroids.len(), "centroids")?;
        self.sizes = alloc(backend, DType::U32, self.sizes.len(), "cluster sizes")?;
        self.starts = alloc(backend, DType::U32, self.starts.len(), "cluster starts")?;
        self.n_clusters = alloc(backend, DType::U32, self.heads.len(), "cluster counts")?;
        if let Some(pairs) = &mut self.pairs {
            *pairs = alloc(backend, pairs.dtype(), pairs.len(), "cluster means")?;
        }
        if let Some(groups) = &mut self.groups {
            groups.restore(backend)?;
        }
        if let Some(owners) = &mut self.owners {
            *owners = owners.anew(backend, self.heads.len())?;
        }
        (0..self.heads.len()).try_for_each(|h| self.upload_owners(backend, h, 0))?;
        self.unchanged.fill(0);
        self.upload(backend)
    }

    fn upload(&mut self, backend: &B) -> OpResult<()> {
        for h in 0..self.heads.len() {
            self.upload_head(backend, h, 0)?;
            let count = self.heads[h].sizes.len() as u32;
            backend.write(ViewMut::part(&mut self.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        Ok(())
    }

    /// A second index with the same units; each is changed without the other. They share the host's
    /// copy until one of them changes, and, where kernels read memory of the host, what those read
    /// as far as nobody changes it.
    pub(crate) fn fork(&mut self, backend: &B) -> OpResult<Self> {
        let (n_heads, capacity) = (self.heads.len(), self.capacity);
        let n_units: Vec<usize> = self.heads.iter().map(|head| head.sizes.len()).collect();
        // What others share is as it was when they began to.
        Arc::get_mut(&mut self.heads).into_iter().flatten().for_each(HeadIndex::share);
        let spans = |first: &[usize], width: usize| -> Vec<Range<usize>> {
            let heads = first.iter().zip(&n_units).enumerate();
            let at = |h: usize, unit: usize| (h * capacity + unit) * width;
            heads.map(|(h, (first, end))| at(h, *first.min(end))..at(h, *end)).collect()
        };
        let all = vec![0; n_heads];
        let mut is_shared = true;
        let mut fork = |buffer: &mut B::Buffer, width: usize, since: &[usize], label: &str| {
            let (used, written) = (spans(&all, width), spans(since, width));
            let spans = ForkSpans { used: &used, written: &written };
            match backend.fork_host(buffer, spans, label)? {
                Some(fork) => Ok(fork),
                None => {
                    is_shared = false;
                    backend.alloc(buffer.dtype(), buffer.len(), label)
                }
            }
        };
        let width = self.width;
        let centroids = fork(&mut self.centroids, width, &self.unchanged, "centroids")?;
        // Steps may be kept from units that were there before.
        let sizes = fork(&mut self.sizes, 1, &all, "cluster sizes")?;
        let starts = fork(&mut self.starts, 1, &self.unchanged, "cluster starts")?;
        let pairs = match &mut self.pairs {
            Some(pairs) => Some(fork(pairs, 2 * width, &self.unchanged, "cluster means")?),
            None => None,
        };
        // Groups are few: a fork has its own.
        let groups = self.groups.as_ref().map(|groups| groups.fork(backend)).transpose()?;
        let owners =
            self.owners.as_ref().map(|owners| owners.anew(backend, n_heads)).transpose()?;
        self.unchanged.clone_from(&n_units);
        let mut fork = Self {
            heads: Arc::clone(&self.heads),
            batches: self.batches.clone(),
            spare_counts: self.spare_counts.iter().map(|_| Vec::with_capacity(n_heads)).collect(),
            centroids,
            sizes,
            starts,
            n_clusters: alloc(backend, DType::U32, n_heads, "cluster counts")?,
            pairs,
            groups,
            owners,
            unchanged: n_units,
            capacity,
            width,
            keeps_owners: self.keeps_owners,
        };
        (0..n_heads).try_for_each(|h| fork.upload_owners(backend, h, 0))?;
        if !is_shared {
            fork.upload(backend)?;
            return Ok(fork);
        }
        for (h, n) in fork.unchanged.iter().enumerate() {
            let count = *n as u32;
            backend.write(ViewMut::part(&mut fork.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        Ok(fork)
    }

    fn upload_head(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let (d, head) = (self.width, &self.heads[h]);
        let (at, n) = (h * self.capacity + first, head.sizes.len() - first);
        let row_bytes = d * self.centroids.dtype().size();
        let bytes = head.centroids.get(first * row_bytes..head.centroids.len());
        backend.write(ViewMut::part(&mut self.centroids, at * d, n * d), &bytes)?;
        if let Some(pairs) = &mut self.pairs {
            let bytes = head.pairs.get(2 * first * row_bytes..head.pairs.len());
            backend.write(ViewMut::part(pairs, 2 * at * d, 2 * n * d), &bytes)?;
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

    /// Tells the device who owns the tokens and the clusters of head `h` from cluster `first` on,
    /// where it is to know.
    fn upload_owners(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let Some(owners) = &mut self.owners else { return Ok(()) };
        let groups = self.groups.as_ref().map(|groups| &groups.heads()[h]);
        owners.upload(backend, h, (&self.heads[h], groups), first)
    }

    /// Who owns tokens and clusters, where the device knows.
    pub(crate) fn device_owners(&self) -> Option<&DeviceOwners<B>> {
        self.owners.as_ref()
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

    /// Clusters of a head in use.
    pub fn n_used(&self, head: usize) -> usize {
        self.heads[head].sizes.len()
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let pairs = self.pairs.as_ref().map_or(0, DeviceBuffer::size_bytes);
        let words = [&self.sizes, &self.starts, &self.n_clusters];
        let words = words.map(DeviceBuffer::size_bytes).iter().sum::<u64>();
        let groups = self.groups.as_ref().map_or(0, ClusterGroups::device_bytes);
        let owners = self.owners.as_ref().map_or(0, DeviceOwners::device_bytes);
        self.centroids.size_bytes() + words + pairs + groups + owners
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{R, floats, shape, words};
    use super::*;
    use crate::store::fixture::separate_device;

    /// Clusters of these sizes whose centroids count up from `first` and whose values are the
    /// centroids' negatives.
    fn clusters(sizes: &[u32], first: f32) -> HeadClusters {
        let numbers = || (0..2 * sizes.len()).map(|i| first + i as f32);
        HeadClusters {
            order: Vec::new(),
            sizes: sizes.to_vec(),
            centroids: numbers().collect(),
            radius: sizes.iter().map(|size| *size as f32 / 2.0).collect(),
            values: numbers().map(|x| -x).collect(),
        }
    }

    fn empty(backend: &R) -> LayerIndex<R> {
        LayerIndex::new(backend, &shape(2, 2, 2), 2, 4, 3).unwrap()
    }

    /// Two batches: rows 2 to 7, then rows 7 to 9.
    fn filled(backend: &R, index: LayerIndex<R>) -> LayerIndex<R> {
        let mut index = index;
        index.append(backend, 2, 7, &[clusters(&[3, 2], 1.0), clusters(&[1, 4], 11.0)]).unwrap();
        index.append(backend, 7, 9, &[clusters(&[2], 5.0), clusters(&[1, 1], 15.0)]).unwrap();
        index
    }

    /// Starts, sizes, counts and centroids of both heads as the device has them.
    type OnDevice = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<f32>);

    fn on_device(backend: &R, index: &LayerIndex<R>) -> OnDevice {
        (
            words(backend, index.starts()),
            words(backend, index.sizes()),
            words(backend, index.n_clusters()),
            floats(backend, index.centroids()),
        )
    }

    fn all_of_both_batches() -> OnDevice {
        (
            vec![2, 5, 7, 0, 2, 3, 7, 8],
            vec![3, 2, 2, 0, 1, 4, 1, 1],
            vec![3, 4],
            vec![
                1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, // head 0, one place is free
                11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0,
            ],
        )
    }

    #[test]
    fn batches_follow_each_other_in_every_head() {
        let backend = R::new();
        let index = filled(&backend, empty(&backend));
        assert_eq!(on_device(&backend, &index), all_of_both_batches());
        assert_eq!([index.n_used(0), index.n_used(1)], [3, 4]);
        assert_eq!(index.heads()[1].starts, [2, 3, 7, 8]);
        assert_eq!(index.heads()[1].radius, [0.5, 2.0, 0.5, 0.5]);
        // Centroids of 16 numbers, sizes and starts of 8 each, and 2 counts, of 4 bytes.
        assert_eq!(index.device_bytes(), 4 * (16 + 8 + 8 + 2));
        assert!(index.pairs().is_none());
    }

    #[test]
    fn a_cut_drops_whole_batches_that_reach_beyond_it() {
        let backend = R::new();
        let cut = |n_rows| {
            let mut index = filled(&backend, empty(&backend));
            let left = index.truncate(&backend, n_rows, 2).unwrap();
            (left, words(&backend, index.n_clusters()), index)
        };
        let (left, counts, _) = cut(9);
        assert_eq!((left, counts), (9, vec![3, 4]), "the end of a batch is not beyond it");
        let (left, counts, index) = cut(8);
        assert_eq!((left, counts), (7, vec![2, 2]), "a batch is not cut in two");
        let head = &index.heads()[1];
        assert_eq!((head.starts.as_slice(), head.sizes.as_slice()), (&[2, 3][..], &[1, 4][..]));
        assert_eq!((head.radius.as_slice(), head.centroids.len()), (&[0.5, 2.0][..], 2 * 2 * 4));
        let (left, counts, _) = cut(6);
        assert_eq!((left, counts), (2, vec![0, 0]), "none is left: the first row");
        // What comes after a cut takes the places of what was dropped.
        let (_, _, mut index) = cut(8);
        index.append(&backend, 7, 9, &[clusters(&[2], 5.0), clusters(&[1, 1], 15.0)]).unwrap();
        assert_eq!(on_device(&backend, &index), all_of_both_batches());
    }

    /// Also on a device whose memory is not the host's, which gets a copy.
    #[test]
    fn a_fork_and_its_origin_are_changed_without_each_other() {
        for backend in [R::new(), separate_device()] {
            let index = empty(&backend).with_pairs(&backend).unwrap().with_owners(9);
            let mut index = filled(&backend, index);
            let before = index.record();
            let mut fork = index.fork(&backend).unwrap();
            assert!(Arc::ptr_eq(&index.heads, &fork.heads), "the host's copy is there once");
            fork.truncate(&backend, 9, 2).unwrap();
            assert!(Arc::ptr_eq(&index.heads, &fork.heads), "nothing was cut");
            assert_eq!(on_device(&backend, &fork), all_of_both_batches());
            fork.truncate(&backend, 8, 2).unwrap();
            fork.append(&backend, 7, 9, &[clusters(&[1, 1], 7.0), clusters(&[2], 0.5)]).unwrap();
            assert_eq!(on_device(&backend, &index), all_of_both_batches());
            assert_eq!((index.record(), fork.n_used(0)), (before, 4));
            let first_pair = |index: &LayerIndex<R>| index.heads[0].pairs.get(0..1).as_ptr();
            assert_eq!(first_pair(&fork), first_pair(&index), "what is not cut is there once");
            let second = fork.fork(&backend).unwrap();
            assert_eq!(second.record(), fork.record());
            assert_eq!(second.heads[0].owners, fork.heads[0].owners);
            let used = |index: &LayerIndex<R>| {
                let pairs = index.pairs().map(|pairs| floats(&backend, View::all(pairs.buffer)));
                let (starts, sizes, counts, centroids) = on_device(&backend, index);
                // Head 0 fills its places, head 1 leaves one free.
                (
                    starts[..7].to_vec(),
                    sizes[..7].to_vec(),
                    counts,
                    centroids[..14].to_vec(),
                    pairs.unwrap()[..28].to_vec(),
                )
            };
            assert_eq!(used(&second), used(&fork));
        }
    }

    #[test]
    fn a_cluster_with_its_mean_value_is_a_kv_row() {
        let backend = R::new();
        let index = empty(&backend).with_pairs(&backend).unwrap();
        let mut index = filled(&backend, index);
        let rows = [
            [1.0, 2.0, -1.0, -2.0],
            [3.0, 4.0, -3.0, -4.0],
            [5.0, 6.0, -5.0, -6.0],
            [0.0; 4],
            [11.0, 12.0, -11.0, -12.0],
            [13.0, 14.0, -13.0, -14.0],
            [15.0, 16.0, -15.0, -16.0],
            [17.0, 18.0, -17.0, -18.0],
        ];
        let pairs = index.pairs().unwrap();
        assert_eq!((pairs.head_stride, pairs.offset), (4, 0));
        assert_eq!(floats(&backend, View::all(pairs.buffer)), rows.concat());
        assert_eq!(index.device_bytes(), 4 * (16 + 8 + 8 + 2 + 32));
        index.truncate(&backend, 8, 2).unwrap();
        assert_eq!(index.heads()[0].pairs.len(), 2 * 4 * 4, "two rows of four numbers");
    }

    #[test]
    fn owners_say_which_cluster_a_row_is_in_also_after_a_cut_and_from_a_record() {
        let backend = R::new();
        let mut index = filled(&backend, empty(&backend).with_owners(7));
        let owners = |index: &LayerIndex<R>| [0, 1].map(|h| index.heads()[h].owners.clone());
        let all = [vec![0, 0, 0, 1, 1, 2, 2], vec![0, 1, 1, 1, 1, 2, 3]];
        assert_eq!(owners(&index), all);
        let mut loaded = empty(&backend).with_owners(7);
        assert!(loaded.load(&backend, 2, index.record()).unwrap());
        assert_eq!(owners(&loaded), all);
        index.truncate(&backend, 8, 2).unwrap();
        assert_eq!(owners(&index), all.map(|owners| owners[..5].to_vec()));
        assert_eq!(owners(&filled(&backend, empty(&backend))), [vec![], vec![]]);
    }

    #[test]
    fn closed_clusters_look_empty_to_the_device_alone() {
        let backend = R::new();
        let mut index = empty(&backend);
        index.append(&backend, 2, 7, &[clusters(&[3, 2], 1.0), clusters(&[1, 4], 11.0)]).unwrap();
        index.narrow(&backend, 1, vec![false, true]).unwrap();
        assert_eq!(words(&backend, index.sizes()), [3, 2, 0, 0, 0, 4, 0, 0]);
        assert_eq!(index.heads()[1].sizes, [1, 4], "the host keeps them");
        index.append(&backend, 7, 9, &[clusters(&[2], 5.0), clusters(&[1, 1], 15.0)]).unwrap();
        assert_eq!(words(&backend, index.sizes()), [3, 2, 2, 0, 0, 4, 1, 1], "later ones are open");
        index.restore(&backend).unwrap();
        assert_eq!(words(&backend, index.sizes()), [3, 2, 2, 0, 0, 4, 1, 1]);
        index.truncate(&backend, 8, 2).unwrap();
        assert_eq!(index.heads()[1].open, [false, true]);
    }

    #[test]
    fn a_lost_device_is_filled_from_the_host() {
        let backend = R::new();
        let index = empty(&backend).with_pairs(&backend).unwrap();
        let mut index = filled(&backend, index);
        let pairs = floats(&backend, View::all(index.pairs().unwrap().buffer));
        let fresh = R::new();
        index.restore(&fresh).unwrap();
        assert_eq!(fresh.allocations(), 5);
        assert_eq!(on_device(&fresh, &index), all_of_both_batches());
        assert_eq!(floats(&fresh, View::all(index.pairs().unwrap().buffer)), pairs);
    }

    #[test]
    fn a_record_makes_the_same_index() {
        let backend = R::new();
        let index = empty(&backend).with_pairs(&backend).unwrap();
        let mut index = filled(&backend, index);
        index.narrow(&backend, 0, vec![true, false, true]).unwrap();
        let record = index.record();
        assert_eq!(record.batches, [(7, vec![2, 2]), (9, vec![3, 4])]);
        assert!(record.covers(2, 9));
        let mut loaded = empty(&backend).with_pairs(&backend).unwrap();
        assert!(loaded.load(&backend, 2, record.clone()).unwrap());
        assert_eq!(on_device(&backend, &loaded), on_device(&backend, &index));
        assert_eq!(loaded.record(), record);
        assert_eq!(loaded.truncate(&backend, 8, 2).unwrap(), 7);
    }

    #[test]
    fn a_record_of_another_index_is_refused() {
        let backend = R::new();
        let record = filled(&backend, empty(&backend)).record();
        let load = |index: LayerIndex<R>, record: IndexRecord| {
            let mut index = index;
            let is_taken = index.load(&backend, 2, record).unwrap();
            assert_eq!(is_taken, index.n_used(0) > 0, "nothing of a refused record stays");
            is_taken
        };
        assert!(load(empty(&backend), record.clone()));
        assert!(!load(empty(&backend), IndexRecord { width: 3, ..record.clone() }));
        let small = LayerIndex::new(&backend, &shape(2, 2, 2), 2, 3, 3).unwrap();
        assert!(!load(small, record.clone()), "head 1 has four clusters");
        let paired = empty(&backend).with_pairs(&backend).unwrap();
        assert!(!load(paired, record.clone()), "mean values are missing");
        let mut short = record.clone();
        short.heads[1].centroids.pop();
        assert!(!load(empty(&backend), short));
        let mut short = record.clone();
        short.heads[1].radius.pop();
        assert!(!load(empty(&backend), short));
        let mut blocks = record;
        blocks.heads.iter_mut().for_each(|head| head.radius.clear());
        assert!(load(empty(&backend), blocks), "units other than clusters have no radius");
    }

    #[test]
    #[should_panic(expected = "more clusters than the policy's bound")]
    fn more_clusters_than_there_is_room_for_is_a_broken_bound() {
        let backend = R::new();
        let mut index = empty(&backend);
        let five = || clusters(&[1; 5], 0.0);
        let _ = index.append(&backend, 0, 5, &[five(), five()]);
    }

    #[test]
    #[should_panic(expected = "clusters do not cover their rows")]
    fn clusters_that_leave_a_row_out_are_a_broken_invariant() {
        let backend = R::new();
        let _ = empty(&backend).append(&backend, 0, 5, &[clusters(&[2, 2], 0.0)]);
    }
}
