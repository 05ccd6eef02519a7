//! The state of one layer of one sequence: which rows it has, which are indexed, which are on the
//! device.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, OpResult, View, ViewMut};

use crate::adaptive::Adaptive;
use crate::cache::ClusterCache;
use crate::importance::RecordedQueries;
use crate::index::LayerIndex;
use crate::keep::Kept;
use crate::policy::{INDEX_SEGMENT, Policy, Residency};
use crate::projection::Projections;
use crate::session_file::ProjectionRecord;
use crate::shape::KvShape;

/// How a layer attends in decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerMode {
    /// To every row.
    Dense,
    /// To sinks and the most recent rows.
    Window,
    /// To sinks, recalled clusters and rows that are not indexed yet.
    Recall,
    /// To rows that are kept for the attention they received, and to those that came since.
    Keep,
}

/// What later policies need from prefill, recorded for every layer.
pub struct Recorded<B: Backend> {
    /// `sum q q^T` over tokens and the group's query heads, F32 `[Hkv, Dh, Dh]`.
    pub gram_q: B::Buffer,
    /// `sum k k^T`, F32 `[Hkv, Dh, Dh]`.
    pub gram_k: B::Buffer,
    /// The last queries of the last prefill, oldest first, `[n, Hq, Dh]` with n at most
    /// [`LAST_QUERIES`].
    pub last_queries: Vec<f32>,
    /// Tokens of the sequence behind the last of these.
    pub last_end: usize,
    /// What every row received from all queries of the prompt so far, F32 `[Hq, capacity]` and as
    /// many spare elements as one head has; only under policies that keep tokens by it.
    pub(crate) mass: Option<B::Buffer>,
    /// Rows that it covers.
    pub(crate) mass_rows: usize,
    /// Sums of queries; only once a policy asked for them.
    pub(crate) queries: Option<RecordedQueries<B>>,
    /// Both sums as of the last finished prefill, on the host.
    saved: Vec<f32>,
}

/// Queries that [`Recorded::last_queries`] keeps.
pub const LAST_QUERIES: usize = 128;

/// One layer of one sequence.
pub struct Layer<B: Backend> {
    /// How it attends.
    pub mode: LayerMode,
    /// Position of the token in each row, per KV head.
    pub positions: Vec<Vec<u32>>,
    /// Rows below this are sinks or belong to a cluster; the others are in token order.
    pub n_indexed: usize,
    /// Rows below this are indexed or being clustered.
    pub n_submitted: usize,
    /// Rows below this may be out of token order.
    pub permuted_to: usize,
    /// Rows on the device `[Hkv, device_rows, 2, Dh]`: all of them (dense), or sinks, ring and
    /// cache slots. `None` where attention reads the host tier in place.
    pub device: Option<B::Buffer>,
    /// Rows of a head on the device.
    pub device_rows: usize,
    /// Clusters; recall only.
    pub index: Option<LayerIndex<B>>,
    /// Tokens inside of clusters; only where they are chosen one by one.
    pub(crate) fine: Option<LayerIndex<B>>,
    /// B of each head, where they differ.
    pub(crate) budgets: Option<Vec<usize>>,
    /// The space in which tokens are compared with queries; only for indexes of tokens.
    pub(crate) projection: Option<LayerProjection<B>>,
    /// Its bases, where every step fits them.
    pub(crate) adaptive: Option<Adaptive>,
    /// What an evicting policy keeps.
    pub(crate) kept: Option<Kept<B>>,
    /// When the choice in force was made; only where choices hold for several steps.
    pub(crate) chosen: Option<Chosen>,
    /// The tokens that the sequence had when the choice was made that waits for the layer; only
    /// where layers choose ahead.
    pub(crate) ahead: Option<usize>,
    /// Device cache of each KV head; only where the host resolves hits and misses.
    pub caches: Vec<ClusterCache>,
    /// What later policies need.
    pub recorded: Recorded<B>,
}

/// A layer's projections on the device, and their copy on the host.
pub(crate) struct LayerProjection<B: Backend> {
    /// F32 `[Hkv, Dh, r]`.
    pub w_q: B::Buffer,
    /// `[Hkv, Dh, r]`, on the host: whoever projects keys takes it up.
    pub w_k: Arc<Vec<f32>>,
    host_w_q: Vec<f32>,
}

impl<B: Backend> LayerProjection<B> {
    fn new(backend: &B, host_w_q: Vec<f32>, w_k: Arc<Vec<f32>>) -> OpResult<Self> {
        let mut w_q = backend.alloc(DType::F32, host_w_q.len(), "projection")?;
        backend.write(ViewMut::all(&mut w_q), bytemuck::cast_slice(&host_w_q))?;
        Ok(Self { w_q, w_k, host_w_q })
    }

    /// As a session file has it.
    pub fn record(&self, shape: &KvShape) -> ProjectionRecord {
        let rank = self.host_w_q.len() / (shape.n_kv_heads * shape.head_dim);
        ProjectionRecord { rank, w_q: self.host_w_q.clone(), w_k: self.w_k.to_vec() }
    }
}

/// When a choice was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Tokens that the sequence had.
    pub n_tokens: usize,
    /// Rows that were indexed.
    pub n_indexed: usize,
}

/// The rows of a device buffer under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLayout {
    pub sinks: usize,
    pub ring: usize,
    pub slots: usize,
}

impl DeviceLayout {
    pub fn of(policy: &Policy, capacity: usize) -> Self {
        let slots = policy.cache_slots(capacity);
        Self { sinks: policy.sinks, ring: policy.ring_rows(), slots }
    }

    pub fn rows(&self) -> usize {
        self.sinks + self.ring + self.slots
    }

    /// The device row of a row that is a sink or in the ring.
    pub fn row(&self, row: usize) -> usize {
        match row.checked_sub(self.sinks) {
            None => row,
            Some(after) => self.sinks + after % self.ring.max(1),
        }
    }

    pub fn first_slot_row(&self) -> usize {
        self.sinks + self.ring
    }
}

/// How `layer` attends under `policy`.
pub(crate) fn layer_mode(policy: &Policy, layer: usize) -> LayerMode {
    match policy.residency {
        _ if policy.is_dense(layer) => LayerMode::Dense,
        Residency::Recall { .. } | Residency::AttendOnHost => LayerMode::Recall,
        Residency::Evict if policy.keep.is_some() => LayerMode::Keep,
        Residency::Resident | Residency::Evict => LayerMode::Window,
    }
}

/// Rows of a head on the device.
pub(crate) fn device_rows(policy: &Policy, shape: &KvShape, mode: LayerMode) -> usize {
    match mode {
        LayerMode::Dense => shape.capacity,
        LayerMode::Window | LayerMode::Recall | LayerMode::Keep => {
            DeviceLayout::of(policy, shape.capacity).rows()
        }
    }
}

impl<B: Backend> Recorded<B> {
    fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        let len = shape.n_kv_heads * shape.head_dim * shape.head_dim;
        Ok(Self {
            gram_q: backend.alloc(DType::F32, len, "sum of q q^T")?,
            gram_k: backend.alloc(DType::F32, len, "sum of k k^T")?,
            last_queries: Vec::new(),
            last_end: 0,
            mass: None,
            mass_rows: 0,
            queries: None,
            saved: vec![0.0; 2 * len],
        })
    }

    /// Both sums and where their host copies go.
    pub(crate) fn read_parts(&mut self) -> [(View<'_, B>, &mut [u8]); 2] {
        let (q, k) = self.saved.split_at_mut(self.gram_q.len());
        [
            (View::all(&self.gram_q), bytemuck::cast_slice_mut(q)),
            (View::all(&self.gram_k), bytemuck::cast_slice_mut(k)),
        ]
    }

    /// Both sums, from the device.
    pub(crate) async fn sums(&self, backend: &B) -> OpResult<(Vec<f32>, Vec<f32>)> {
        let (mut q, mut k) = (vec![0.0; self.gram_q.len()], vec![0.0; self.gram_k.len()]);
        let mut parts = [
            (View::all(&self.gram_q), bytemuck::cast_slice_mut(&mut q)),
            (View::all(&self.gram_k), bytemuck::cast_slice_mut(&mut k)),
        ];
        backend.read_all(&mut parts).await?;
        Ok((q, k))
    }

    /// Sums that were saved.
    pub(crate) fn load_sums(&mut self, backend: &B, q: &[f32], k: &[f32]) -> OpResult<()> {
        let (saved_q, saved_k) = self.saved.split_at_mut(q.len());
        saved_q.copy_from_slice(q);
        saved_k.copy_from_slice(k);
        backend.write(ViewMut::all(&mut self.gram_q), bytemuck::cast_slice(q))?;
        backend.write(ViewMut::all(&mut self.gram_k), bytemuck::cast_slice(k))
    }

    /// Makes the sums again on a fresh device.
    pub(crate) fn restore(&mut self, backend: &B, shape: &KvShape) -> OpResult<()> {
        let fresh = Self::new(backend, shape)?;
        (self.gram_q, self.gram_k) = (fresh.gram_q, fresh.gram_k);
        (self.mass, self.mass_rows) = (None, 0);
        if let Some(queries) = &mut self.queries {
            queries.restore(backend)?;
        }
        let (q, k) = self.saved.split_at(self.gram_q.len());
        backend.write(ViewMut::all(&mut self.gram_q), bytemuck::cast_slice(q))?;
        backend.write(ViewMut::all(&mut self.gram_k), bytemuck::cast_slice(k))
    }
}

impl<B: Backend> Layer<B> {
    /// An empty layer; device rows and index come with the policy.
    pub fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        Ok(Self {
            mode: LayerMode::Dense,
            positions: (0..shape.n_kv_heads).map(|_| Vec::with_capacity(shape.capacity)).collect(),
            n_indexed: 0,
            n_submitted: 0,
            permuted_to: 0,
            device: None,
            device_rows: 0,
            index: None,
            fine: None,
            budgets: None,
            projection: None,
            adaptive: None,
            kept: None,
            chosen: None,
            ahead: None,
            caches: Vec::new(),
            recorded: Recorded::new(backend, shape)?,
        })
    }

    /// Gives the layer the device rows, the empty index and the empty caches that `policy` asks
    /// for.
    pub(crate) fn adopt(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        layer: usize,
        in_place: bool,
        host_resolves: bool,
    ) -> OpResult<()> {
        let mode = layer_mode(policy, layer);
        self.mode = mode;
        self.device = None;
        self.index = None;
        self.fine = None;
        self.budgets = None;
        self.projection = None;
        self.adaptive = None;
        self.kept = None;
        self.chosen = None;
        self.ahead = None;
        self.caches.clear();
        self.n_indexed = policy.sinks;
        self.n_submitted = policy.sinks;
        self.device_rows = device_rows(policy, shape, mode);
        if mode == LayerMode::Keep {
            let mean = policy.kept(layer, shape.n_layers).min(shape.capacity);
            let capacity = vec![mean; shape.n_kv_heads];
            self.kept = Some(Kept::new(backend, shape, capacity, policy.ring_rows())?);
        }
        if !in_place {
            self.device = Some(self.alloc_device(backend, shape)?);
        }
        if let (Some(window), LayerMode::Recall) = (policy.local_window(), mode) {
            let recorded = self.recorded.queries.take().filter(|queries| queries.serves(window));
            self.recorded.queries = Some(match recorded {
                Some(recorded) => recorded,
                None => RecordedQueries::new(backend, shape, window)?,
            });
        }
        if mode == LayerMode::Recall {
            let capacity = policy.max_clusters(shape.capacity);
            let width = policy.index.map_or(0, |index| index.landmark_width(shape.head_dim));
            let index = new_index(backend, shape, policy, width)?;
            self.index = Some(if policy.tail { index.with_pairs(backend)? } else { index });
            if let Some(refine) = policy.refine {
                let rank = refine.tokens.rank.most(shape.head_dim);
                let batches = max_batches(shape, policy) + shape.capacity / INDEX_SEGMENT;
                let tokens = LayerIndex::new(backend, shape, rank, shape.capacity, batches)?;
                self.fine = Some(tokens);
            }
            if let (true, Residency::Recall { cache_steps }) = (host_resolves, policy.residency) {
                let capacity = if policy.refine.is_some() { shape.capacity } else { capacity };
                let (slots, most) =
                    (policy.cache_slots(shape.capacity), capacity.min(policy.most_attended()));
                self.caches = (0..shape.n_kv_heads)
                    .map(|_| ClusterCache::new(slots, cache_steps, capacity, most))
                    .collect();
            }
        }
        Ok(())
    }

    /// Compares the layer's tokens in the space of `made` from now on. The index is empty.
    pub(crate) fn set_projection(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        made: Projections,
    ) -> OpResult<()> {
        let is_other = |index: &LayerIndex<B>| index.width() != made.rank;
        if self.fine.is_none() && self.index.as_ref().is_none_or(is_other) {
            self.index = Some(new_index(backend, shape, policy, made.rank)?);
        }
        self.projection = Some(LayerProjection::new(backend, made.w_q, Arc::new(made.w_k))?);
        Ok(())
    }

    /// Makes the index and what belongs to it again on a fresh device.
    pub(crate) fn restore_index(&mut self, backend: &B) -> OpResult<()> {
        if let Some(index) = &mut self.index {
            index.restore(backend)?;
        }
        if let Some(tokens) = &mut self.fine {
            tokens.restore(backend)?;
        }
        if let Some(old) = self.projection.take() {
            self.projection = Some(LayerProjection::new(backend, old.host_w_q, old.w_k)?);
        }
        (self.chosen, self.ahead) = (None, None);
        Ok(())
    }

    pub(crate) fn alloc_device(&self, backend: &B, shape: &KvShape) -> OpResult<B::Buffer> {
        let pool = self.kept.as_ref().map_or(0, Kept::n_pool_rows);
        let rows = shape.n_kv_heads * self.device_rows + pool;
        let len = rows * 2 * shape.head_dim;
        backend.alloc(shape.kv_dtype, len, "device KV")
    }

    /// Adds the positions of `len` new rows, which are in token order.
    pub(crate) fn push_positions(&mut self, first: usize, len: usize) {
        for head in &mut self.positions {
            head.extend(first as u32..(first + len) as u32);
        }
    }

    /// Bytes of KV rows and index on the device.
    pub fn device_bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, |b| b.size_bytes())
            + self.index.as_ref().map_or(0, LayerIndex::device_bytes)
            + self.fine.as_ref().map_or(0, LayerIndex::device_bytes)
    }
}

/// An empty index whose clusters are described by `width` numbers.
fn new_index<B: Backend>(
    backend: &B,
    shape: &KvShape,
    policy: &Policy,
    width: usize,
) -> OpResult<LayerIndex<B>> {
    let capacity = policy.max_clusters(shape.capacity);
    LayerIndex::new(backend, shape, width, capacity, max_batches(shape, policy))
}

/// Most runs of rows that are indexed one after the other.
fn max_batches(shape: &KvShape, policy: &Policy) -> usize {
    let window = policy.index.map_or(1, |index| index.window);
    shape.capacity / window + shape.capacity / INDEX_SEGMENT + 3
}
