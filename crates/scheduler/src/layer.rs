//! The state of one layer of one sequence: which rows it has, which are indexed, which are on the
//! device.

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, OpResult, View, ViewMut};

use crate::cache::ClusterCache;
use crate::index::LayerIndex;
use crate::policy::{Policy, Residency};
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
    /// Device cache of each KV head; only where the host resolves hits and misses.
    pub caches: Vec<ClusterCache>,
    /// What later policies need.
    pub recorded: Recorded<B>,
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
        Residency::Recall { .. } => LayerMode::Recall,
        Residency::Resident | Residency::Evict => LayerMode::Window,
    }
}

/// Rows of a head on the device.
pub(crate) fn device_rows(policy: &Policy, shape: &KvShape, mode: LayerMode) -> usize {
    match mode {
        LayerMode::Dense => shape.capacity,
        LayerMode::Window | LayerMode::Recall => DeviceLayout::of(policy, shape.capacity).rows(),
    }
}

impl<B: Backend> Recorded<B> {
    fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        let len = shape.n_kv_heads * shape.head_dim * shape.head_dim;
        Ok(Self {
            gram_q: backend.alloc(DType::F32, len, "sum of q q^T")?,
            gram_k: backend.alloc(DType::F32, len, "sum of k k^T")?,
            last_queries: Vec::new(),
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

    /// Makes the sums again on a fresh device.
    pub(crate) fn restore(&mut self, backend: &B, shape: &KvShape) -> OpResult<()> {
        let fresh = Self::new(backend, shape)?;
        (self.gram_q, self.gram_k) = (fresh.gram_q, fresh.gram_k);
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
        mode: LayerMode,
        in_place: bool,
        host_resolves: bool,
    ) -> OpResult<()> {
        self.mode = mode;
        self.device = None;
        self.index = None;
        self.caches.clear();
        self.n_indexed = policy.sinks;
        self.n_submitted = policy.sinks;
        self.device_rows = device_rows(policy, shape, mode);
        if !in_place {
            self.device = Some(self.alloc_device(backend, shape)?);
        }
        if mode == LayerMode::Recall {
            let capacity = policy.max_clusters(shape.capacity);
            let window = policy.index.map_or(1, |c| c.window);
            let max_batches = shape.capacity / window + 2;
            self.index = Some(LayerIndex::new(backend, shape, capacity, max_batches)?);
            if let (true, Residency::Recall { cache_steps }) = (host_resolves, policy.residency) {
                let (slots, most) =
                    (policy.cache_slots(shape.capacity), capacity.min(policy.budget.unwrap_or(0)));
                self.caches = (0..shape.n_kv_heads)
                    .map(|_| ClusterCache::new(slots, cache_steps, capacity, most))
                    .collect();
            }
        }
        Ok(())
    }

    pub(crate) fn alloc_device(&self, backend: &B, shape: &KvShape) -> OpResult<B::Buffer> {
        let len = shape.n_kv_heads * self.device_rows * 2 * shape.head_dim;
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
    }
}
