//! Bytes that a sequence will take, before anything is allocated.

use longview_core::DType;
use longview_ops::ResolveRowsParams;
use serde::Serialize;

use crate::layer::{DeviceLayout, LayerMode, device_rows, layer_mode};
use crate::policy::Policy;
use crate::sequence::{Placement, SequenceOptions};
use crate::shape::KvShape;

/// Bytes of one sequence under a policy at full context. The parts on the device add up to what
/// [`crate::Sequence::device_kv_bytes`] reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvPlan {
    /// All keys and values, in host memory.
    pub host_kv_bytes: u64,
    /// The host's copy of the index and the rows' positions.
    pub host_index_bytes: u64,
    /// Device: KV of layers that attend to everything.
    pub dense_bytes: u64,
    /// Device: sinks and recent window.
    pub window_bytes: u64,
    /// Device: slots of recalled clusters.
    pub cache_bytes: u64,
    /// Device: centroids, sizes and counts of clusters.
    pub index_bytes: u64,
    /// Device: prefill tiles and chunk.
    pub prefill_bytes: u64,
    /// Device: clustering, staging, row lists, and what prefill records for later policies.
    pub work_bytes: u64,
}

impl KvPlan {
    /// The plan for `shape` under `policy`.
    pub fn new(shape: &KvShape, policy: &Policy, options: &SequenceOptions) -> Self {
        let row = shape.row_bytes() as u64;
        let heads = shape.n_kv_heads as u64;
        let mut plan = Self {
            host_kv_bytes: (shape.n_layers * shape.layer_bytes()) as u64,
            host_index_bytes: (shape.n_layers * shape.n_kv_heads * shape.capacity * 4) as u64,
            ..Self::default()
        };
        for layer in 0..shape.n_layers {
            let mode = layer_mode(policy, layer);
            plan.add_index(shape, policy, mode);
            if options.placement == Placement::Device {
                plan.add_rows(shape, policy, mode, heads * row);
            }
        }
        if options.placement == Placement::Device {
            plan.prefill_bytes = (2 * options.tile + options.chunk) as u64 * heads * row;
            // A staged row with its two row numbers.
            let staged = options.tile.max(options.chunk).max(policy.budget.unwrap_or(0));
            plan.work_bytes += staged as u64 * heads * (row + 8);
            if options.device_cache {
                plan.add_device_caches(shape, policy);
            }
        }
        plan.add_work(shape, policy);
        plan
    }

    fn add_rows(&mut self, shape: &KvShape, policy: &Policy, mode: LayerMode, row: u64) {
        let layout = DeviceLayout::of(policy, shape.capacity);
        match mode {
            LayerMode::Dense => self.dense_bytes += device_rows(policy, shape, mode) as u64 * row,
            LayerMode::Window | LayerMode::Recall => {
                self.window_bytes += (layout.sinks + layout.ring) as u64 * row;
                self.cache_bytes += layout.slots as u64 * row;
            }
        }
    }

    /// What the device resolves hits and misses with.
    fn add_device_caches(&mut self, shape: &KvShape, policy: &Policy) {
        let slots = DeviceLayout::of(policy, shape.capacity).slots;
        let words = (shape.n_kv_heads * ResolveRowsParams::state_len(slots)) as u64;
        self.work_bytes += 4 * n_recall(shape, policy) * words;
    }

    /// What the prompt and the windows of all layers are clustered in, and the sums of q qᵀ and
    /// k kᵀ.
    fn add_work(&mut self, shape: &KvShape, policy: &Policy) {
        let (h, d) = (shape.n_kv_heads as u64, shape.head_dim as u64);
        self.work_bytes += 2 * 4 * shape.n_layers as u64 * h * d * d;
        let Some(cluster) = policy.index else { return };
        // A key, its label and its score; a centroid, its count and its radius.
        let job = |points: usize, clusters: usize| {
            4 * h * (points as u64 * (d + 2) + clusters as u64 * (d + 2))
        };
        let prompt = match cluster.segment {
            0 => shape.capacity,
            segment => segment.min(shape.capacity),
        };
        self.work_bytes += n_recall(shape, policy) * job(cluster.window, cluster.window_clusters)
            + job(prompt, prompt.div_ceil(cluster.cluster_tokens));
    }

    fn add_index(&mut self, shape: &KvShape, policy: &Policy, mode: LayerMode) {
        if mode != LayerMode::Recall {
            return;
        }
        let clusters = policy.max_clusters(shape.capacity);
        let centroid = shape.head_dim * shape.kv_dtype.size();
        let word = DType::U32.size();
        let per_head = clusters * (centroid + 2 * word) + word;
        self.index_bytes += (shape.n_kv_heads * per_head) as u64;
        // Starts, sizes and radii beside the centroids.
        self.host_index_bytes += (shape.n_kv_heads * clusters * (centroid + 3 * word)) as u64;
    }

    /// Everything on the device but the prefill buffers.
    pub fn device_kv_bytes(&self) -> u64 {
        self.dense_bytes + self.window_bytes + self.cache_bytes + self.index_bytes
    }

    /// Everything.
    pub fn total_bytes(&self) -> u64 {
        self.host_kv_bytes
            + self.host_index_bytes
            + self.device_kv_bytes()
            + self.prefill_bytes
            + self.work_bytes
    }
}

/// Layers that recall.
fn n_recall(shape: &KvShape, policy: &Policy) -> u64 {
    let layers = 0..shape.n_layers;
    layers.filter(|layer| layer_mode(policy, *layer) == LayerMode::Recall).count() as u64
}
