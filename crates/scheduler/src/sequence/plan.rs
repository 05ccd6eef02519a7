//! Bytes that a sequence will take, before anything is allocated.

use longview_core::{DType, LayerId};
use longview_ops::LookUpRowsParams;
use serde::Serialize;

use super::coded_slots::n_coded_slots;
use super::exact_rows::{exact_layout, has_device_rows};
use super::layer_state::keeps_prompt_keys;
use super::options::{Placement, SequenceOptions};
use super::resident_rows::{has_resident_rows, wants_resident_rows};
use super::sparse_means;
use crate::eviction::sink_rotation_bytes;
use crate::index::{
    PART_CLUSTERS, PromptKeys, group_bytes, group_clusters, owner_bytes, part_bytes,
};
use crate::layout::{HostRows, KvShape, LayerMode, Segments};
use crate::policy::{INDEX_SEGMENT, IndexKind, Policy, Residual};
use crate::recall::{
    RecallMode, resident_lists_bytes, residual_bytes, sampled_bytes, token_stage_bytes,
};

/// Bytes of one sequence under a policy at full context. The parts on the device add up to what
/// [`crate::Sequence::device_kv_bytes`] reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvPlan {
    /// All keys and values, in host memory.
    pub host_kv_bytes: u64,
    /// What the host has of the index beside kernels, of sums of queries, and the rows' positions.
    pub host_index_bytes: u64,
    /// Device: KV of layers that attend to everything.
    pub dense_bytes: u64,
    /// Device: sinks and recent window, and the windows of layers that have one.
    pub window_bytes: u64,
    /// Device: slots of recalled clusters, or all rows of layers that recall where they lie there.
    pub cache_bytes: u64,
    /// Device: centroids, sizes and counts of clusters.
    pub index_bytes: u64,
    /// Device: prefill tiles and chunk, and means of rows where prompts are read sparsely.
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
            host_kv_bytes: host_kv_bytes(shape, policy, options),
            host_index_bytes: (shape.n_layers * shape.n_kv_heads * shape.capacity * 4) as u64,
            ..Self::default()
        };
        // Where kernels cannot read the host store the device looks nothing up, and needs less.
        let resident = has_resident_rows(shape, policy, options);
        let on_device = (options.device_cache || resident)
            && options.placement == Placement::Device
            && options.recall == RecallMode::Exact
            && !policy.needs_host_choice();
        let mut has_coded = false;
        for layer in shape.layers() {
            let mode = policy.layer_mode(shape, layer);
            // Where attention reads the host store, host and kernels share what describes units.
            let has_copy = options.placement == Placement::Device;
            plan.add_index(shape, policy, (mode, has_copy));
            if on_device && mode == LayerMode::Recall {
                plan.add_owners(shape, policy);
            }
            plan.add_prompt_keys(shape, policy, (mode, options.chunk));
            let own_rows = shape.host_rows == HostRows::EightBits && has_device_rows(mode);
            if options.placement == Placement::Device || own_rows {
                let coded = n_coded_slots(shape, policy, options, layer);
                plan.add_rows(shape, policy, options, (layer, coded));
                has_coded |= coded > 0;
            }
        }
        if !options.prefill.is_exact() {
            plan.prefill_bytes += sparse_means::planned_bytes(shape, options.chunk);
        }
        if options.placement == Placement::Device {
            plan.prefill_bytes += (2 * options.tile + options.chunk) as u64 * heads * row;
            // A staged row with its two row numbers.
            let attended = policy.most_attended().min(shape.capacity);
            let staged = options.tile.max(options.chunk).max(attended);
            plan.work_bytes += staged as u64 * heads * (row + 8);
            if has_coded {
                plan.work_bytes += attended as u64 * heads * (shape.host_row_bytes() as u64 + 8);
            }
            if resident {
                let layers = n_recall(shape, policy) as usize;
                plan.work_bytes += resident_lists_bytes(shape, layers);
            } else if options.device_cache {
                plan.add_device_caches(shape, policy);
            }
        }
        plan.add_work(shape, policy, on_device);
        plan
    }

    /// The rows of a layer on the device; `coded` cache slots of each head have 8 bits.
    fn add_rows(
        &mut self,
        shape: &KvShape,
        policy: &Policy,
        options: &SequenceOptions,
        (layer, coded): (LayerId, usize),
    ) {
        let heads = shape.n_kv_heads as u64;
        let row = heads * shape.row_bytes() as u64;
        let layout = policy.layer_layout(shape, layer);
        match policy.layer_mode(shape, layer) {
            LayerMode::Dense => {
                let rows = policy.device_rows(shape, layer);
                let segments = Segments::new(row as usize, rows, options.max_buffer_bytes);
                self.dense_bytes += segments.total() as u64 * row;
            }
            LayerMode::Recall if has_resident_rows(shape, policy, options) => {
                self.cache_bytes += shape.capacity as u64 * row;
            }
            LayerMode::Window | LayerMode::Local | LayerMode::Recall => {
                self.window_bytes += (layout.sinks + layout.ring) as u64 * row;
                self.cache_bytes += (layout.slots - coded) as u64 * row;
                self.cache_bytes += coded as u64 * heads * shape.host_row_bytes() as u64;
            }
            LayerMode::Kept => {
                let kept = policy.kept(shape, layer).min(shape.capacity);
                self.window_bytes += (layout.ring + kept) as u64 * row;
            }
        }
    }

    /// What the device looks hits and misses up with.
    fn add_device_caches(&mut self, shape: &KvShape, policy: &Policy) {
        let slots = policy.device_layout(shape.capacity).slots;
        let words = (shape.n_kv_heads * LookUpRowsParams::state_len(slots)) as u64;
        self.work_bytes += 4 * n_recall(shape, policy) * words;
    }

    /// What the prompt and the windows of all layers are clustered in, and the sums of q qᵀ and
    /// k kᵀ.
    fn add_work(&mut self, shape: &KvShape, policy: &Policy, on_device: bool) {
        let (h, d) = (shape.n_kv_heads as u64, shape.head_dim as u64);
        self.work_bytes += 2 * 4 * shape.n_layers as u64 * h * d * d;
        if policy.residency.kept().is_some() {
            self.add_kept_mass(shape, policy);
        }
        if policy.rotates_sinks(shape) {
            self.work_bytes += sink_rotation_bytes(shape, policy);
        }
        let Some(index) = policy.index else { return };
        self.work_bytes += sampled_bytes(shape, policy);
        if policy.residual.has_means() {
            let clusters = index.max_units(shape.capacity);
            self.work_bytes += residual_bytes(shape, policy, (clusters, on_device));
        }
        if let Some(two_stage) = index.two_stage() {
            self.work_bytes += token_stage_bytes(shape, policy, two_stage);
        }
        if let Some(window) = policy.local_window() {
            let sums = h * window.blocks_of(shape.capacity) as u64 * d;
            let bytes = 4 * n_recall(shape, policy) * sums;
            self.work_bytes += bytes;
            self.host_index_bytes += bytes;
        }
        let width = index.landmark_width(shape.head_dim) as u64;
        // A key, its label and its score; a centroid, its count and its radius.
        let job = |points: usize, clusters: usize| {
            4 * h * (points as u64 * (d + 2) + clusters as u64 * (width + 2))
        };
        let rows = index.window.min(shape.capacity);
        let (window, prompt, unit) = match index.kind {
            IndexKind::Clusters(c) => {
                let prompt = match index.segment {
                    0 => shape.capacity,
                    segment => segment.min(shape.capacity),
                };
                (c.window_clusters.min(rows), prompt, c.cluster_tokens)
            }
            IndexKind::Blocks(blocks) => {
                let window = rows.div_ceil(blocks.block);
                (window, INDEX_SEGMENT.min(shape.capacity), blocks.block)
            }
            IndexKind::Tokens(_) => (rows, INDEX_SEGMENT.min(shape.capacity), 1),
        };
        self.work_bytes +=
            n_recall(shape, policy) * job(rows, window) + job(prompt, prompt.div_ceil(unit));
    }

    /// Sums of received attention: of what is kept, and once of a whole prompt.
    fn add_kept_mass(&mut self, shape: &KvShape, policy: &Policy) {
        let (hq, ring) = (shape.n_q_heads as u64, policy.device_layout(shape.capacity).ring + 1);
        let keeps = |layer: &LayerId| policy.layer_mode(shape, *layer) == LayerMode::Kept;
        for layer in shape.layers().filter(keeps) {
            let kept = policy.kept(shape, layer).min(shape.capacity);
            self.work_bytes += 4 * hq * (kept + ring) as u64;
        }
        self.work_bytes += 4 * (hq + 1) * shape.capacity as u64;
    }

    /// Keys of a prompt that wait for their segment as they were computed.
    fn add_prompt_keys(
        &mut self,
        shape: &KvShape,
        policy: &Policy,
        (mode, chunk): (LayerMode, usize),
    ) {
        let index = policy.index.filter(|_| mode == LayerMode::Recall);
        let Some(index) = index.filter(|index| keeps_prompt_keys(shape, index)) else { return };
        let rows = PromptKeys::most_rows(index.segment, policy.recent, chunk).min(shape.capacity);
        let key = shape.head_dim * shape.kv_dtype.size();
        self.host_index_bytes += (shape.n_kv_heads * rows * key) as u64;
    }

    fn add_index(&mut self, shape: &KvShape, policy: &Policy, (mode, has_copy): (LayerMode, bool)) {
        let copied = |bytes: usize| if has_copy { bytes } else { 0 };
        if mode != LayerMode::Recall {
            return;
        }
        let clusters = policy.max_units(shape.capacity);
        let width = policy.index.map_or(0, |index| index.landmark_width(shape.head_dim));
        // With its mean value a cluster is described by a KV row more.
        let pair = if policy.residual.has_means() { 2 * width } else { 0 };
        let centroid = (width + pair) * shape.kv_dtype.size();
        let word = DType::U32.size();
        let per_head = clusters * (centroid + 2 * word) + word;
        self.index_bytes += (shape.n_kv_heads * per_head) as u64;
        if let Some(index) = policy.index.filter(|_| policy.residual == Residual::Groups) {
            let kind = (shape.kv_dtype, width);
            let groups = index.max_groups(shape.capacity, group_clusters(shape.capacity));
            let bytes = group_bytes(shape.n_kv_heads, kind, groups);
            self.index_bytes += bytes as u64;
            self.host_index_bytes += bytes as u64;
        }
        if let Some(two_stage) = policy.index.and_then(|index| index.two_stage()) {
            let token = two_stage.tokens.rank.most(shape.head_dim) * DType::I8.size();
            let per_head = shape.capacity * (token + 2 * word) + word;
            // Two codes of each factor describe a cluster.
            let bounds = clusters * 2 * token;
            self.index_bytes += (shape.n_kv_heads * (per_head + bounds)) as u64;
            let parts = policy.most_parts(shape.capacity, PART_CLUSTERS);
            if parts > 0 {
                let rank = two_stage.tokens.rank.most(shape.head_dim);
                let bytes = part_bytes(shape.n_kv_heads, parts, rank) as u64;
                self.index_bytes += bytes;
                self.host_index_bytes += bytes;
            }
            // The cluster of each token, where means stand for the others.
            let owner = if policy.residual.has_means() { word } else { 0 };
            self.host_index_bytes +=
                (shape.n_kv_heads * shape.capacity * (copied(token) + 3 * word + owner)) as u64;
        }
        // Starts, sizes and radii beside the centroids.
        let cluster = copied(centroid) + 3 * word;
        self.host_index_bytes += (shape.n_kv_heads * clusters * cluster) as u64;
    }

    /// Who owns tokens and clusters, where the device lists what a choice of tokens left.
    fn add_owners(&mut self, shape: &KvShape, policy: &Policy) {
        let Some(index) = policy.index.filter(|index| index.two_stage().is_some()) else { return };
        if !policy.residual.has_means() {
            return;
        }
        let groups = (policy.residual == Residual::Groups).then(|| {
            let unit = group_clusters(shape.capacity);
            [index.max_units(shape.capacity), index.max_groups(shape.capacity, unit)]
        });
        self.index_bytes += owner_bytes(shape.n_kv_heads, shape.capacity, groups);
    }

    /// The largest single buffer that a sequence takes on the device, and what it holds. Rows of a
    /// layer that attends to everything are in as many buffers as the device asks for.
    pub fn largest_buffer(
        shape: &KvShape,
        policy: &Policy,
        options: &SequenceOptions,
    ) -> (&'static str, u64) {
        let (heads, row) = (shape.n_kv_heads as u64, shape.row_bytes() as u64);
        let own_rows = options.placement == Placement::Device;
        let mut all = vec![("no buffer", 0)];
        for layer in shape.layers() {
            let is_resident = wants_resident_rows(shape, policy, options)
                && policy.layer_mode(shape, layer) == LayerMode::Recall;
            let rows =
                if is_resident { shape.capacity } else { policy.device_rows(shape, layer) } as u64;
            let kept = match policy.layer_mode(shape, layer) {
                LayerMode::Dense => continue,
                LayerMode::Kept => policy.kept(shape, layer).min(shape.capacity) as u64,
                LayerMode::Window | LayerMode::Local | LayerMode::Recall => 0,
            };
            if own_rows {
                all.push(("the device rows of a layer", heads * (rows + kept) * row));
            }
        }
        if let Some(index) = policy.index.filter(|_| n_recall(shape, policy) > 0) {
            let width = index.landmark_width(shape.head_dim);
            let pairs = if policy.residual.has_means() { 2 } else { 1 };
            let unit = (pairs * width * shape.kv_dtype.size()) as u64;
            let units = policy.max_units(shape.capacity) as u64;
            all.push(("the index of a layer", heads * units * unit));
            if let Some(two_stage) = index.two_stage() {
                let code = (two_stage.tokens.rank.most(shape.head_dim) * DType::I8.size()) as u64;
                all.push(("the index of a layer's tokens", heads * shape.capacity as u64 * code));
            }
            let points = match (index.kind, index.segment) {
                (IndexKind::Clusters(_), 0) => shape.capacity,
                (IndexKind::Clusters(_), segment) => segment.min(shape.capacity),
                _ => INDEX_SEGMENT.min(shape.capacity),
            };
            let point = (shape.head_dim * DType::F32.size()) as u64;
            all.push(("the keys of a prompt that is indexed", heads * points as u64 * point));
        }
        if policy.residency.kept().is_some() {
            let sums = shape.n_q_heads as u64 * shape.capacity as u64 * DType::F32.size() as u64;
            all.push(("the attention that tokens received", sums));
        }
        all.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or_default()
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

/// The host store.
fn host_kv_bytes(shape: &KvShape, policy: &Policy, options: &SequenceOptions) -> u64 {
    let exact = match shape.host_rows {
        HostRows::Plain => 0,
        HostRows::EightBits => shape.exact_bytes(&exact_layout(shape, policy, options)),
    };
    shape.n_layers as u64 * (shape.layer_bytes() + exact) as u64
}

/// Layers that recall.
fn n_recall(shape: &KvShape, policy: &Policy) -> u64 {
    shape.layers().filter(|layer| policy.layer_mode(shape, *layer) == LayerMode::Recall).count()
        as u64
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{
        clusters, full, heavy_hitters, in_place, on_device, options, shape, streaming,
    };
    use super::super::options::HostStoreKind;
    use super::*;

    fn plan(policy: &Policy, placement: Placement) -> KvPlan {
        KvPlan::new(&shape(), policy, &options(placement, HostStoreKind::Auto))
    }

    /// Two layers of two heads of 24 rows of 32 bytes; chunks and tiles have four rows.
    #[test]
    fn first_and_last_tokens_take_their_rows_alone() {
        let want = KvPlan {
            host_kv_bytes: 2 * 2 * 24 * 32,
            // A position of four bytes for each row.
            host_index_bytes: 2 * 2 * 24 * 4,
            window_bytes: 2 * 2 * 5 * 32,
            // Two tiles and a chunk.
            prefill_bytes: 3 * 4 * 2 * 32,
            // Five staged rows a head with two numbers each, and two sums of 4 x 4 a head.
            work_bytes: 5 * 2 * (32 + 8) + 2 * 2 * 2 * 16 * 4,
            ..KvPlan::default()
        };
        let plan = plan(&streaming(), Placement::Device);
        assert_eq!(plan, want);
        assert_eq!(plan.device_kv_bytes(), 640);
        assert_eq!(plan.total_bytes(), 3072 + 384 + 640 + 768 + 400 + 512);
    }

    #[test]
    fn dense_layers_have_all_rows_on_the_device() {
        let plan = plan(&full(), Placement::Device);
        assert_eq!((plan.dense_bytes, plan.window_bytes, plan.cache_bytes), (3072, 0, 0));
        let one = Policy { dense_layers: 1, ..streaming() };
        let plan = self::plan(&one, Placement::Device);
        assert_eq!((plan.dense_bytes, plan.window_bytes), (1536, 320));
    }

    /// A sink, a ring of eight and 13 slots a head.
    #[test]
    fn recalled_rows_take_slots_beside_the_window() {
        let plan = plan(&clusters(), Placement::Device);
        assert_eq!((plan.window_bytes, plan.cache_bytes), (2 * 2 * 9 * 32, 2 * 2 * 13 * 32));
        assert!(plan.index_bytes > 0);
    }

    #[test]
    fn in_place_no_row_is_there_twice() {
        for policy in [full(), streaming(), heavy_hitters()] {
            let plan = plan(&policy, Placement::InPlace);
            assert_eq!((plan.device_kv_bytes(), plan.prefill_bytes), (0, 0));
        }
    }

    #[test]
    fn the_parts_on_the_device_are_those_that_a_sequence_takes() {
        for policy in [
            full(),
            streaming(),
            clusters(),
            heavy_hitters(),
            Policy { dense_layers: 1, ..clusters() },
            Policy { residual: Residual::Means, ..clusters() },
        ] {
            let preset = policy.preset;
            let device = plan(&policy, Placement::Device).device_kv_bytes();
            let sequence = on_device(policy.clone(), HostStoreKind::Auto);
            assert_eq!(device, sequence.device_kv_bytes(), "{preset}");
            let unified = plan(&policy, Placement::InPlace).device_kv_bytes();
            assert_eq!(unified, in_place(policy).device_kv_bytes(), "{preset}");
        }
    }
}
