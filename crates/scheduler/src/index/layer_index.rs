//! The index of one layer: centroids on the device, where each cluster's rows are, and how they
//! came to be.
//!
//! Clusters are appended in batches, one per clustered run of rows, and never merged; so a sequence
//! can be cut back by dropping batches. The host reads centroids too ([`UnitVectors`]): a lost
//! device is rebuilt from them, and they are what a saved session holds.

use std::sync::Arc;

use longview_core::{DType, encode_f32_into};
use longview_ops::{Backend, DeviceBuffer, ForkSpans, KvView, OpResult, View, ViewMut};
use smallvec::SmallVec;

use super::cluster_groups::{Batch, ClusterGroups};
use super::device_owners::DeviceOwners;
use super::head_index::HeadIndex;
use super::kernel_memory::{alloc, unit_spans};
use super::kmeans_job::HeadClusters;
use super::records::{ClustersRecord, IndexRecord};
use super::unit_vectors::{HeadVectors, Room, UnitVectors};
use crate::layout::KvShape;

/// The index of one layer: clusters, blocks or tokens of each KV head.
pub struct LayerIndex<B: Backend> {
    /// On the host, of all heads. Forks share it until one of them changes it.
    heads: Arc<Vec<HeadIndex>>,
    /// (rows indexed, clusters of each head) after each batch.
    batches: Vec<(usize, Vec<u32>)>,
    spare_counts: Vec<Vec<u32>>,
    /// Of the KV data type, or codes.
    centroids: UnitVectors<B>,
    sizes: B::Buffer,
    starts: B::Buffer,
    n_clusters: B::Buffer,
    /// `[2, width]` of each: centroid and mean value, a KV row that stands for the cluster.
    pairs: Option<UnitVectors<B>>,
    /// New vectors on their way.
    staging: Vec<u8>,
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
            owners: Vec::new(),
        });
        let h = shape.n_kv_heads;
        let room = Room { n_heads: h, capacity, width, dtype, label: "centroids" };
        Ok(Self {
            heads: Arc::new(heads.collect()),
            batches: Vec::with_capacity(max_batches),
            spare_counts: (0..max_batches).map(|_| Vec::with_capacity(h)).collect(),
            centroids: UnitVectors::new(backend, room)?,
            sizes: alloc(backend, DType::U32, h * capacity, "cluster sizes")?,
            starts: alloc(backend, DType::U32, h * capacity, "cluster starts")?,
            n_clusters: alloc(backend, DType::U32, h, "cluster counts")?,
            pairs: None,
            staging: Vec::new(),
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
        let (n_heads, capacity, width) = (self.heads.len(), self.capacity, 2 * self.width);
        let dtype = self.centroids.dtype();
        let room = Room { n_heads, capacity, width, dtype, label: "cluster means" };
        self.pairs = Some(UnitVectors::new(backend, room)?);
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
            self.append_vectors(backend, (h, first), new)?;
            self.upload_head(backend, h, first)?;
            self.upload_owners(backend, h, first)?;
        }
        let mut counts = self.spare_counts.pop().unwrap_or_default();
        counts.clear();
        counts.extend(self.heads.iter().map(|head| head.sizes.len() as u32));
        backend.write(ViewMut::all(&mut self.n_clusters), bytemuck::cast_slice(&counts))?;
        self.batches.push((row_end, counts));
        Ok(())
    }

    /// Appends what describes new clusters behind the first ones of a head, which has their sizes.
    fn append_vectors(
        &mut self,
        backend: &B,
        (h, first): (usize, usize),
        new: &HeadClusters,
    ) -> OpResult<()> {
        let (dtype, staging) = (self.centroids.dtype(), &mut self.staging);
        staging.clear();
        encode_f32_into(dtype, &new.centroids, staging);
        self.centroids.append(backend, (h, first), staging)?;
        let Some(pairs) = &mut self.pairs else { return Ok(()) };
        assert_eq!(new.values.len(), new.centroids.len(), "a mean value for each centroid");
        staging.clear();
        let width = self.width.max(1);
        let means = new.centroids.chunks_exact(width).zip(new.values.chunks_exact(width));
        for mean in means.flat_map(|(centroid, value)| [centroid, value]) {
            encode_f32_into(dtype, mean, staging);
        }
        pairs.append(backend, (h, first), staging)?;
        match &mut self.groups {
            Some(groups) => {
                groups.append(backend, h, Batch { first, sizes: &new.sizes, pairs: staging })
            }
            None => Ok(()),
        }
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
            for (h, head) in Arc::make_mut(&mut self.heads).iter_mut().enumerate() {
                let n = n_left(h);
                head.truncate(n);
                let pairs = self.pairs.iter_mut();
                pairs.chain([&mut self.centroids]).for_each(|vectors| vectors.truncate(h, n));
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
    pub(crate) fn record<'a>(&'a self, backend: &'a B) -> IndexRecord<'a> {
        let clusters = |(h, head): (usize, &'a HeadIndex)| {
            let of = |vectors: &'a UnitVectors<B>| vectors.get(backend, h, 0..head.sizes.len());
            ClustersRecord {
                sizes: head.sizes.clone(),
                radius: head.radius.clone(),
                centroids: of(&self.centroids),
                pairs: self.pairs.as_ref().map(of).unwrap_or_default(),
                open: head.open.clone(),
            }
        };
        let heads = self.heads.iter().enumerate().map(clusters).collect();
        let batches = self.batches.clone();
        IndexRecord { width: self.width, is_coded: self.is_coded(), batches, heads }
    }

    /// Takes in what a session file has of rows from `first_row` on; `false` if of another index.
    pub(crate) fn load(
        &mut self,
        backend: &B,
        first_row: usize,
        record: IndexRecord<'_>,
    ) -> OpResult<bool> {
        let row_bytes = self.centroids.unit_bytes();
        let pair_bytes = self.pairs.as_ref().map_or(0, UnitVectors::unit_bytes);
        let fits = |head: &ClustersRecord<'_>| {
            let n = head.sizes.len();
            n <= self.capacity
                && (head.radius.is_empty() || head.radius.len() == n)
                && head.centroids.len() == n * row_bytes
                && head.pairs.len() == n * pair_bytes
        };
        let is_alike = record.width == self.width && record.is_coded == self.is_coded();
        // Each batch begins a group of its own, for which there is as much room.
        let has_room = self.groups.is_none() || record.batches.len() <= self.spare_counts.len();
        if !is_alike || !has_room || !record.heads.iter().all(fits) {
            return Ok(false);
        }
        for (h, new) in record.heads.into_iter().enumerate() {
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
            head.open.extend_from_slice(&new.open);
            self.centroids.adopt(backend, (h, 0), new.centroids)?;
            if let Some(pairs) = &mut self.pairs {
                pairs.adopt(backend, (h, 0), new.pairs)?;
            }
            self.upload_head(backend, h, 0)?;
            let count = new.sizes.len() as u32;
            backend.write(ViewMut::part(&mut self.n_clusters, h, 1), bytemuck::bytes_of(&count))?;
        }
        self.batches.extend(record.batches);
        self.make_groups(backend)?;
        (0..self.heads.len()).try_for_each(|h| self.upload_owners(backend, h, 0))?;
        Ok(true)
    }

    /// Groups the clusters of all batches.
    fn make_groups(&mut self, backend: &B) -> OpResult<()> {
        let (Some(groups), Some(pairs)) = (&mut self.groups, &self.pairs) else { return Ok(()) };
        for (h, head) in self.heads.iter().enumerate() {
            let (mut first, pairs) = (0, pairs.of_head(backend, h));
            for (_, counts) in &self.batches {
                let units = first..counts[h] as usize;
                let pairs = pairs.get(units.clone());
                let sizes = &head.sizes[units.clone()];
                groups.append(backend, h, Batch { first, sizes, pairs: &pairs })?;
                first = units.end;
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

    /// Moves to a fresh device after `lost`.
    pub fn restore(&mut self, lost: &B, backend: &B) -> OpResult<()> {
        let n_units: Vec<usize> = self.heads.iter().map(|head| head.sizes.len()).collect();
        for vectors in self.pairs.iter_mut().chain([&mut self.centroids]) {
            vectors.move_to((lost, backend), &n_units)?;
        }
        self.sizes = alloc(backend, DType::U32, self.sizes.len(), "cluster sizes")?;
        self.starts = alloc(backend, DType::U32, self.starts.len(), "cluster starts")?;
        self.n_clusters = alloc(backend, DType::U32, self.heads.len(), "cluster counts")?;
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
        let spans = |first: &[usize]| unit_spans((first, &n_units), (capacity, 1));
        let all = vec![0; n_heads];
        let mut is_shared = true;
        let mut fork = |buffer: &mut B::Buffer, since: &[usize], label: &str| {
            let (used, written) = (spans(&all), spans(since));
            let spans = ForkSpans { used: &used, written: &written };
            match backend.fork_host(buffer, spans, label)? {
                Some(fork) => Ok(fork),
                None => {
                    is_shared = false;
                    backend.alloc(buffer.dtype(), buffer.len(), label)
                }
            }
        };
        // Steps may be kept from units that were there before.
        let sizes = fork(&mut self.sizes, &all, "cluster sizes")?;
        let starts = fork(&mut self.starts, &self.unchanged, "cluster starts")?;
        let fork = |vectors: &mut UnitVectors<B>| vectors.fork(backend, &n_units, &self.unchanged);
        let centroids = fork(&mut self.centroids)?;
        let pairs = self.pairs.as_mut().map(fork).transpose()?;
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
            width: self.width,
            keeps_owners: self.keeps_owners,
            staging: Vec::with_capacity(self.staging.capacity()),
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

    /// Writes where the clusters of head `h` are, from `first` on.
    fn upload_head(&mut self, backend: &B, h: usize, first: usize) -> OpResult<()> {
        let head = &self.heads[h];
        let (at, n) = (h * self.capacity + first, head.sizes.len() - first);
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
        self.centroids.all()
    }

    /// The centroids of head `h` for the host, `[n, Dh]` in their data type.
    pub fn landmarks(&self, backend: &B, h: usize) -> HeadVectors<'_> {
        self.centroids.of_head(backend, h)
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
        self.pairs.as_ref().map(|pairs| KvView::new(pairs.buffer(), self.capacity))
    }

    /// Clusters of a head in use.
    pub fn n_used(&self, head: usize) -> usize {
        self.heads[head].sizes.len()
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        let bytes = |vectors: &UnitVectors<B>| vectors.buffer().size_bytes();
        let pairs = self.pairs.as_ref().map_or(0, bytes);
        let words = [&self.sizes, &self.starts, &self.n_clusters];
        let words = words.map(DeviceBuffer::size_bytes).iter().sum::<u64>();
        let groups = self.groups.as_ref().map_or(0, ClusterGroups::device_bytes);
        let owners = self.owners.as_ref().map_or(0, DeviceOwners::device_bytes);
        bytes(&self.centroids) + words + pairs + groups + owners
    }
}

#[cfg(test)]
mod tests;
