//! One layer of a sequence: its rows, and what the way in which it attends needs.

use longview_core::LayerId;
use longview_ops::{Backend, DeviceBuffer, KvView, OpResult};

use super::coded_slots::Slots;
use super::stale_rows::Stale;
use crate::eviction::Kept;
use crate::index::{
    ClusterBounds, LayerIndex, LayerProjection, PART_CLUSTERS, PromptKeys, Recorded, group_clusters,
};
use crate::layout::{HostRows, KvShape, LayerMode, Segments, SelectionId};
use crate::policy::{INDEX_SEGMENT, Index, IndexKind, Policy, Residency, Residual};
use crate::recall::{ClusterCache, LayerPrefetch, Searched};
use crate::store::{DeviceRows, WritebackSource};

/// One layer of one sequence.
pub struct Layer<B: Backend> {
    /// Position of the token in each row, per KV head.
    pub positions: Vec<Vec<u32>>,
    /// Rows below this are sinks or belong to a cluster; the others are in token order.
    pub n_indexed: usize,
    /// Rows below this are indexed or being clustered.
    pub n_submitted: usize,
    /// Rows below this may be out of token order.
    pub permuted_to: usize,
    /// While rows have the order of a policy before: the KV head and the row of it with which they
    /// go on going back into token order.
    pub old_order: Option<(usize, usize)>,
    /// Rows on the device `[Hkv, device_rows, 2, Dh]`: all of them (dense), or sinks, ring and
    /// cache slots. `None` where attention reads the host store in place.
    pub device: Option<B::Buffer>,
    /// Further buffers like it with the rows behind, where all rows of a layer that attends to
    /// everything take more than one.
    pub device_rest: Vec<B::Buffer>,
    /// Rows of a head in `device`, and in each of `device_rest`.
    pub device_rows: usize,
    /// Where all rows of a layer that recalls lie on the device: those whose copies there are not
    /// what the host store has.
    pub(super) resident: Option<Stale>,
    /// Cache slots, where those have 8 bits and `device` has none.
    pub(super) slots: Option<Slots<B>>,
    /// How it attends.
    pub state: LayerState<B>,
    /// What later policies need.
    pub recorded: Recorded<B>,
}

/// How a layer attends in decode, with all that this needs.
pub enum LayerState<B: Backend> {
    /// To every row.
    Dense,
    /// To sinks and the most recent rows.
    Window,
    /// To the last rows alone, as the model was trained.
    Local,
    /// To sinks, recalled rows and rows that are not indexed yet.
    Recall(Box<Recall<B>>),
    /// To rows that are kept for the attention they received, and to those that came since.
    Kept(Box<KeptState<B>>),
}

/// What a layer keeps. (A type of its own because the mechanism's is not public.)
pub struct KeptState<B: Backend>(pub(super) Kept<B>);

/// The state of a layer that recalls.
pub struct Recall<B: Backend> {
    /// Clusters, blocks or tokens.
    pub index: LayerIndex<B>,
    /// Tokens inside of clusters; only where selection has two stages.
    pub(super) tokens: Option<LayerIndex<B>>,
    /// What clusters are chosen by then.
    pub(super) bounds: Option<ClusterBounds<B>>,
    /// The space in which tokens are compared with queries; only for indexes of tokens, once a
    /// prompt was read.
    pub(super) projection: Option<LayerProjection<B>>,
    /// Tokens in the sums that it was made of, and rows that its codes were fitted to, where it has
    /// codes.
    pub(super) projected: (usize, usize),
    /// B of each head, where they differ.
    pub(super) budgets: Option<Vec<usize>>,
    /// Device cache of each KV head; only where the host looks rows up.
    pub caches: Vec<ClusterCache>,
    /// Which of the sequence's selections is made for this layer.
    pub(super) selection: SelectionId,
    /// When the selection in force was made; only where selections hold for several steps.
    pub(super) selected_at: Option<SelectedAt>,
    /// Whether the selection was made by the layer before.
    pub(super) prefetch: LayerPrefetch,
    /// Keys of a prompt that are to be indexed as they were computed; only where the host store
    /// rounds rows and prompts are clustered in segments.
    pub(super) prompt_keys: Option<PromptKeys>,
}

/// The indexes of a layer that recalls.
pub(super) struct Indexes<B: Backend> {
    pub index: LayerIndex<B>,
    /// Tokens inside of clusters, and what those are chosen by.
    pub tokens: Option<LayerIndex<B>>,
    pub bounds: Option<ClusterBounds<B>>,
}

/// When a selection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SelectedAt {
    /// Tokens that the sequence had.
    pub n_tokens: usize,
    /// Rows that were indexed.
    pub n_indexed: usize,
}

/// How the rows of a layer are laid out under a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerSetup {
    pub layer: LayerId,
    /// Layers before this one that recall.
    pub selection: SelectionId,
    /// Whether attention reads the host store.
    pub in_place: bool,
    /// Whether the host looks hits and misses up.
    pub host_caches: bool,
    /// Whether the device does.
    pub on_device: bool,
    /// Whether all rows of layers that recall lie on the device.
    pub resident: bool,
    /// Cache slots of 8 bits of each head, beside the rows of the device.
    pub coded_slots: usize,
    /// Most bytes of one buffer on the device, if that is a limit.
    pub max_buffer_bytes: Option<u64>,
}

impl<B: Backend> LayerState<B> {
    /// How the layer attends.
    pub fn mode(&self) -> LayerMode {
        match self {
            Self::Dense => LayerMode::Dense,
            Self::Window => LayerMode::Window,
            Self::Local => LayerMode::Local,
            Self::Recall(_) => LayerMode::Recall,
            Self::Kept(_) => LayerMode::Kept,
        }
    }

    /// `forked`: the indexes that it goes on with, where it does not begin with empty ones.
    fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        setup: &LayerSetup,
        forked: Option<Indexes<B>>,
    ) -> OpResult<Self> {
        Ok(match (policy.layer_mode(shape, setup.layer), policy.index) {
            (LayerMode::Recall, Some(index)) => {
                let indexes = match forked {
                    Some(forked) => forked,
                    None => Indexes::new(backend, shape, policy, index, setup)?,
                };
                Self::Recall(Box::new(Recall::new(shape, policy, index, setup, indexes)))
            }
            // A policy that recalls has an index to recall by.
            (LayerMode::Recall, None) | (LayerMode::Dense, _) => Self::Dense,
            (LayerMode::Window, _) => Self::Window,
            (LayerMode::Local, _) => Self::Local,
            (LayerMode::Kept, _) => {
                let mean = policy.kept(shape, setup.layer).min(shape.capacity);
                let capacity = vec![mean; shape.n_kv_heads];
                let ring = policy.device_layout(shape.capacity).ring;
                let kept = Kept::new(backend, shape, capacity, ring)?;
                Self::Kept(Box::new(KeptState(kept)))
            }
        })
    }
}

impl<B: Backend> Indexes<B> {
    fn new(
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        index: Index,
        setup: &LayerSetup,
    ) -> OpResult<Self> {
        let units = new_index(backend, shape, &index, index.landmark_width(shape.head_dim))?;
        let units = match policy.residual {
            // What was chosen one by one is to be left out of its cluster's mean.
            Residual::Means | Residual::Groups if index.two_stage().is_some() => {
                units.with_pairs(backend)?.with_owners(shape.capacity)
            }
            Residual::Means | Residual::Groups => units.with_pairs(backend)?,
            Residual::Drop | Residual::Sample(_) | Residual::Verified { .. } => units,
        };
        let units = match policy.residual {
            Residual::Groups => {
                let unit = group_clusters(shape.capacity);
                units.with_groups(backend, index.max_groups(shape.capacity, unit), unit)?
            }
            _ => units,
        };
        let units = match index.two_stage() {
            Some(_) if setup.on_device && policy.residual.has_means() => {
                units.with_device_owners(backend, shape.capacity)?
            }
            _ => units,
        };
        let (tokens, bounds) = match index.two_stage() {
            Some(two_stage) => {
                let rank = two_stage.tokens.rank.most(shape.head_dim);
                let batches = index.max_batches(shape.capacity) + shape.capacity / INDEX_SEGMENT;
                let tokens = LayerIndex::of_codes(backend, shape, rank, shape.capacity, batches)?;
                let (heads, clusters) = (shape.n_kv_heads, units.capacity());
                let bounds = ClusterBounds::new(backend, heads, clusters, rank)?;
                let bounds = match policy.most_parts(shape.capacity, PART_CLUSTERS) {
                    0 => bounds,
                    parts => bounds.with_parts(backend, parts)?,
                };
                (Some(tokens), Some(bounds))
            }
            None => (None, None),
        };
        Ok(Self { index: units, tokens, bounds })
    }
}

impl<B: Backend> Recall<B> {
    fn new(
        shape: &KvShape,
        policy: &Policy,
        index: Index,
        setup: &LayerSetup,
        indexes: Indexes<B>,
    ) -> Self {
        let Indexes { index: units, tokens, bounds } = indexes;
        let caches = match policy.residency {
            Residency::Recall { cache_steps } if setup.host_caches => {
                let n_units = index.max_units(shape.capacity);
                let n_units = if tokens.is_some() { shape.capacity } else { n_units };
                let slots = policy.cache_slots(shape.capacity);
                let most = n_units.min(policy.most_attended());
                let cache = |_| ClusterCache::new(slots, cache_steps, n_units, most);
                (0..shape.n_kv_heads).map(cache).collect()
            }
            _ => Vec::new(),
        };
        Self {
            index: units,
            tokens,
            bounds,
            projection: None,
            projected: (0, 0),
            budgets: None,
            caches,
            selection: setup.selection,
            selected_at: None,
            prefetch: LayerPrefetch::default(),
            prompt_keys: keeps_prompt_keys(shape, &index).then(PromptKeys::default),
        }
    }

    /// Indexes that go on without these.
    pub(super) fn fork_indexes(&mut self, backend: &B) -> OpResult<Indexes<B>> {
        let tokens = self.tokens.as_mut().map(|tokens| tokens.fork(backend)).transpose()?;
        let bounds = self.bounds.as_mut().map(|bounds| bounds.fork(backend)).transpose()?;
        Ok(Indexes { index: self.index.fork(backend)?, tokens, bounds })
    }

    /// What a selection names: tokens where it has two stages, else the index's units.
    pub(super) fn selected_index(&self) -> &LayerIndex<B> {
        self.tokens.as_ref().unwrap_or(&self.index)
    }

    /// What a query searches; `rows` are the layer's, where kernels read them in place.
    pub(super) fn searched<'a>(&'a self, rows: Option<KvView<'a, B>>) -> Searched<'a, B> {
        Searched {
            index: &self.index,
            tokens: self.tokens.as_ref(),
            bounds: self.bounds.as_ref(),
            projection: self.projection.as_ref(),
            rows,
        }
    }

    /// Tells the caches how many units there are.
    pub(super) fn resize_caches(&mut self) {
        let index = self.tokens.as_ref().unwrap_or(&self.index);
        for (cache, head) in self.caches.iter_mut().zip(index.heads()) {
            cache.set_clusters(head.sizes.len());
        }
    }

    /// Brings the clusters' bounds up to the clusters whose tokens have codes; these begin behind
    /// `sinks` rows.
    pub(super) fn follow_tokens(&mut self, backend: &B, sinks: usize) -> OpResult<()> {
        let (Some(bounds), Some(tokens)) = (&mut self.bounds, &self.tokens) else { return Ok(()) };
        bounds.follow(backend, &self.index, tokens, sinks)
    }

    /// Forgets when selections were made: none of them serves a step any more.
    pub(super) fn forget_selection(&mut self) {
        self.selected_at = None;
        self.prefetch.forget();
    }

    /// Compares the layer's tokens in the space of `projection` from now on. The index is empty.
    pub(super) fn set_projection(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        rank: usize,
        projection: LayerProjection<B>,
    ) -> OpResult<()> {
        if let (None, Some(index)) = (&self.tokens, policy.index)
            && self.index.width() != rank
        {
            self.index = new_index(backend, shape, &index, rank)?;
        }
        self.projection = Some(projection);
        Ok(())
    }

    /// Makes the index and what belongs to it again on a fresh device, after `lost`.
    pub(super) fn restore(&mut self, lost: &B, backend: &B, sinks: usize) -> OpResult<()> {
        self.caches.iter_mut().for_each(ClusterCache::clear);
        self.index.restore(lost, backend)?;
        if let Some(tokens) = &mut self.tokens {
            tokens.restore(lost, backend)?;
        }
        if let Some(bounds) = &mut self.bounds {
            bounds.restore(backend)?;
        }
        self.follow_tokens(backend, sinks)?;
        if let Some(projection) = &mut self.projection {
            projection.restore(backend)?;
        }
        self.forget_selection();
        Ok(())
    }

    fn device_bytes(&self) -> u64 {
        let bounds = self.bounds.as_ref().map_or(0, ClusterBounds::device_bytes);
        let tokens = self.tokens.as_ref().map_or(0, LayerIndex::device_bytes);
        self.index.device_bytes() + tokens + bounds
    }
}

impl<B: Backend> Layer<B> {
    /// An empty layer; device rows and index come with the policy.
    pub fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        Ok(Self {
            positions: (0..shape.n_kv_heads).map(|_| Vec::with_capacity(shape.capacity)).collect(),
            n_indexed: 0,
            n_submitted: 0,
            permuted_to: 0,
            old_order: None,
            device: None,
            device_rest: Vec::new(),
            device_rows: 0,
            resident: None,
            slots: None,
            state: LayerState::Dense,
            recorded: Recorded::new(backend, shape)?,
        })
    }

    /// How it attends.
    pub fn mode(&self) -> LayerMode {
        self.state.mode()
    }

    /// The state of a layer that recalls.
    pub fn recall(&self) -> Option<&Recall<B>> {
        match &self.state {
            LayerState::Recall(recall) => Some(recall),
            _ => None,
        }
    }

    pub(super) fn recall_mut(&mut self) -> Option<&mut Recall<B>> {
        match &mut self.state {
            LayerState::Recall(recall) => Some(recall),
            _ => None,
        }
    }

    pub(super) fn kept(&self) -> Option<&Kept<B>> {
        match &self.state {
            LayerState::Kept(kept) => Some(&kept.0),
            _ => None,
        }
    }

    pub(super) fn kept_mut(&mut self) -> Option<&mut Kept<B>> {
        match &mut self.state {
            LayerState::Kept(kept) => Some(&mut kept.0),
            _ => None,
        }
    }

    /// Gives the layer what it keeps, and a device buffer with as many places.
    pub(super) fn set_kept(&mut self, backend: &B, shape: &KvShape, kept: Kept<B>) -> OpResult<()> {
        let resized = self.kept().is_none_or(|old| old.capacity != kept.capacity);
        self.state = LayerState::Kept(Box::new(KeptState(kept)));
        if self.device.is_some() && resized {
            // The old one is freed first.
            self.device = None;
            self.device = Some(self.alloc_device(backend, shape)?);
        }
        Ok(())
    }

    /// Gives the layer the device rows, the empty index and the empty caches that `policy` asks
    /// for. `forked`: the indexes that it goes on with, where it does not begin with empty ones.
    pub(super) fn adopt(
        &mut self,
        backend: &B,
        shape: &KvShape,
        policy: &Policy,
        setup: &LayerSetup,
        forked: Option<Indexes<B>>,
    ) -> OpResult<()> {
        // What the policy before had is freed first.
        self.state = LayerState::Dense;
        (self.device, self.slots, self.resident) = (None, None, None);
        self.device_rest.clear();
        self.n_indexed = policy.sinks;
        self.n_submitted = policy.sinks;
        self.state = LayerState::new(backend, shape, policy, setup, forked)?;
        let rows = match self.mode() {
            LayerMode::Recall if setup.resident => {
                self.resident = Some(Stale::ALL);
                shape.capacity
            }
            _ => policy.device_rows(shape, setup.layer) - setup.coded_slots,
        };
        let is_dense = self.mode() == LayerMode::Dense && !setup.in_place;
        let limit = setup.max_buffer_bytes.filter(|_| is_dense);
        let segments = Segments::new(shape.n_kv_heads * shape.row_bytes(), rows, limit);
        self.device_rows = segments.rows;
        if !setup.in_place {
            self.alloc_segments(backend, shape, segments.n)?;
        }
        if setup.coded_slots > 0 {
            self.slots = Some(Slots::new(backend, shape, setup.coded_slots)?);
        }
        if let (Some(window), LayerState::Recall(_)) = (policy.local_window(), &self.state) {
            self.recorded.keep_queries(backend, shape, window)?;
        }
        Ok(())
    }

    /// Fresh device rows in `n` buffers.
    pub(super) fn alloc_segments(
        &mut self,
        backend: &B,
        shape: &KvShape,
        n: usize,
    ) -> OpResult<()> {
        self.device = Some(self.alloc_device(backend, shape)?);
        self.device_rest.clear();
        if let Some(stale) = &mut self.resident {
            *stale = Stale::ALL;
        }
        for _ in 1..n {
            let buffer = self.alloc_device(backend, shape)?;
            self.device_rest.push(buffer);
        }
        Ok(())
    }

    /// The buffer of a device row, and the row there.
    pub(super) fn place_of(&self, row: usize) -> (usize, usize) {
        if self.device_rest.is_empty() {
            return (0, row);
        }
        (row / self.device_rows, row % self.device_rows)
    }

    /// All buffers of device rows, in order.
    pub(super) fn segments(&self) -> impl Iterator<Item = &B::Buffer> {
        self.device.iter().chain(&self.device_rest)
    }

    pub(super) fn alloc_device(&self, backend: &B, shape: &KvShape) -> OpResult<B::Buffer> {
        let pool = self.kept().map_or(0, Kept::n_pool_rows);
        let rows = shape.n_kv_heads * self.device_rows + pool;
        let len = rows * 2 * shape.head_dim;
        backend.alloc(shape.kv_dtype, len, "device KV")
    }

    /// The rows on the device, to be written; of a layer that has several buffers those in the
    /// first.
    pub(super) fn device_rows_mut(&mut self) -> Option<DeviceRows<'_, B>> {
        self.segment_mut(0)
    }

    /// The rows in one of the buffers, to be written.
    pub(super) fn segment_mut(&mut self, segment: usize) -> Option<DeviceRows<'_, B>> {
        let head_stride = self.device_rows;
        let mut buffers = self.device.iter_mut().chain(&mut self.device_rest);
        buffers.nth(segment).map(|buffer| DeviceRows { buffer, head_stride })
    }

    /// The rows on the device, from which new ones go to the host.
    pub(super) fn writeback_source(&self) -> Option<WritebackSource<'_, B>> {
        let head_stride = self.device_rows;
        let rest = self.device_rest.as_slice();
        self.device.as_ref().map(|buffer| WritebackSource { buffer, rest, head_stride })
    }

    /// Rows of the host store have changed or moved: copies on the device are to follow.
    pub(super) fn rows_changed(&mut self, rows: std::ops::Range<usize>) {
        if let Some(stale) = &mut self.resident {
            stale.add(rows);
        }
    }

    /// Adds the positions of `len` new rows, which are in token order.
    pub(super) fn push_positions(&mut self, first: usize, len: usize) {
        for head in &mut self.positions {
            head.extend(first as u32..(first + len) as u32);
        }
    }

    /// Bytes of KV rows and index on the device.
    pub fn device_bytes(&self) -> u64 {
        self.segments().map(DeviceBuffer::size_bytes).sum::<u64>()
            + self.slots.as_ref().map_or(0, |slots| slots.buffer.size_bytes())
            + self.recall().map_or(0, Recall::device_bytes)
    }
}

/// Whether an index is made of keys that the host store has rounded by then.
pub(super) fn keeps_prompt_keys(shape: &KvShape, index: &Index) -> bool {
    let are_clusters = matches!(index.kind, IndexKind::Clusters(_));
    shape.host_rows == HostRows::EightBits && are_clusters && index.segment > 0
}

/// An empty index whose units are described by `width` numbers.
fn new_index<B: Backend>(
    backend: &B,
    shape: &KvShape,
    index: &Index,
    width: usize,
) -> OpResult<LayerIndex<B>> {
    let capacity = index.max_units(shape.capacity);
    LayerIndex::new(backend, shape, width, capacity, index.max_batches(shape.capacity))
}

#[cfg(test)]
mod tests {
    use longview_core::{ClusterId, HeadId};
    use longview_ops::ReferenceBackend;

    use super::super::fixture::{clusters, full, heavy_hitters, policy, shape, streaming};
    use super::*;
    use crate::index::{HeadClusters, projection::Projections};
    use crate::policy::{Preset, Rank};

    type TestLayer = Layer<ReferenceBackend>;

    const SETUP: LayerSetup = LayerSetup {
        layer: LayerId(1),
        selection: SelectionId(3),
        in_place: false,
        host_caches: true,
        on_device: false,
        resident: false,
        coded_slots: 0,
        max_buffer_bytes: None,
    };

    fn adopted(policy: &Policy, setup: &LayerSetup) -> TestLayer {
        let backend = ReferenceBackend::new();
        let mut layer = Layer::new(&backend, &shape()).unwrap();
        layer.adopt(&backend, &shape(), policy, setup, None).unwrap();
        layer
    }

    fn device_rows(layer: &TestLayer) -> usize {
        layer.device.as_ref().map_or(0, |device| device.len() / 8)
    }

    #[test]
    fn a_layer_gets_the_rows_that_its_policy_asks_for() {
        // Mode, first row that may be indexed, rows of a head, and rows of the buffer of both.
        let facts = |policy: &Policy| {
            let layer = adopted(policy, &SETUP);
            assert_eq!(layer.n_indexed, layer.n_submitted);
            (layer.mode(), layer.n_indexed, layer.device_rows, device_rows(&layer))
        };
        assert_eq!(facts(&full()), (LayerMode::Dense, 0, 24, 48));
        assert_eq!(facts(&streaming()), (LayerMode::Window, 2, 5, 10));
        // A sink, a ring of eight, and slots for what one step recalls of 16: 13.
        assert_eq!(facts(&clusters()), (LayerMode::Recall, 1, 22, 44));
        // A ring of six a head, and a pool of four places a head behind both.
        assert_eq!(facts(&heavy_hitters()), (LayerMode::Kept, 0, 6, 12 + 8));
        let first_dense = Policy { dense_layers: 2, ..clusters() };
        assert_eq!(facts(&first_dense).0, LayerMode::Dense);
    }

    #[test]
    fn a_layer_in_place_has_no_rows_of_its_own() {
        let layer = adopted(&streaming(), &LayerSetup { in_place: true, ..SETUP });
        assert!(layer.device.is_none());
        assert_eq!((layer.device_bytes(), layer.device_rows), (0, 5));
    }

    #[test]
    fn a_policy_is_adopted_without_what_the_one_before_had() {
        let backend = ReferenceBackend::new();
        let mut layer = adopted(&clusters(), &SETUP);
        (layer.n_indexed, layer.n_submitted) = (9, 11);
        layer.adopt(&backend, &shape(), &streaming(), &SETUP, None).unwrap();
        assert_eq!((layer.n_indexed, layer.n_submitted), (2, 2));
        assert!(layer.recall().is_none() && layer.kept().is_none());
        layer.adopt(&backend, &shape(), &heavy_hitters(), &SETUP, None).unwrap();
        assert!(layer.kept().is_some() && layer.recall().is_none());
        assert_eq!((layer.n_indexed, device_rows(&layer)), (0, 20));
    }

    #[test]
    fn a_cache_for_each_head_where_the_host_looks_rows_up() {
        let caches = |host_caches: bool, policy: &Policy| {
            let layer = adopted(policy, &LayerSetup { host_caches, ..SETUP });
            layer.recall().unwrap().caches.len()
        };
        assert_eq!((caches(true, &clusters()), caches(false, &clusters())), (2, 0));
        let on_host = Policy { residency: Residency::AttendOnHost { threads: None }, ..clusters() };
        assert_eq!(caches(true, &on_host), 0, "nothing is fetched");
        assert_eq!(adopted(&clusters(), &SETUP).recall().unwrap().selection, SelectionId(3));
    }

    #[test]
    fn no_head_keeps_more_rows_than_there_can_be() {
        let policy = Policy { budget: crate::policy::Budget::of(100), ..heavy_hitters() };
        let layer = adopted(&policy, &SETUP);
        assert_eq!(layer.kept().unwrap().capacity, [24, 24]);
    }

    #[test]
    fn new_rows_are_the_next_tokens_of_every_head() {
        let mut layer = adopted(&streaming(), &SETUP);
        layer.push_positions(0, 2);
        layer.push_positions(2, 3);
        assert_eq!(layer.positions, [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]);
    }

    #[test]
    fn a_forgotten_selection_serves_no_step() {
        let mut layer = adopted(&clusters(), &SETUP);
        let recall = layer.recall_mut().unwrap();
        recall.selected_at = Some(SelectedAt { n_tokens: 5, n_indexed: 3 });
        recall.prefetch.note(5);
        recall.forget_selection();
        assert_eq!(recall.selected_at, None);
        assert!(!recall.prefetch.take(5));
    }

    /// Two clusters in head 0, one in head 1.
    fn index_some(backend: &ReferenceBackend, layer: &mut TestLayer) {
        let head = |sizes: &[u32]| HeadClusters {
            sizes: sizes.to_vec(),
            centroids: vec![1.0; 4 * sizes.len()],
            radius: vec![0.0; sizes.len()],
            ..HeadClusters::default()
        };
        let recall = layer.recall_mut().unwrap();
        recall.index.append(backend, 1, 5, &[head(&[3, 1]), head(&[4])]).unwrap();
        recall.resize_caches();
    }

    fn look_up(layer: &mut TestLayer, head: HeadId, cluster: ClusterId) -> usize {
        let want = crate::recall::Want { cluster, take: 1 };
        let cache = &mut layer.recall_mut().unwrap().caches[head];
        cache.look_up(&[want], &mut Vec::new(), &mut Vec::new())
    }

    #[test]
    fn each_heads_cache_has_room_for_its_own_clusters() {
        let backend = ReferenceBackend::new();
        let mut layer = adopted(&clusters(), &SETUP);
        index_some(&backend, &mut layer);
        assert_eq!(look_up(&mut layer, HeadId(0), ClusterId(1)), 0);
        assert_eq!(look_up(&mut layer, HeadId(0), ClusterId(1)), 1, "it is there now");
        let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            look_up(&mut layer, HeadId(1), ClusterId(1))
        }));
        assert!(beyond.is_err(), "head 1 has one cluster");
    }

    #[test]
    fn a_fresh_device_has_the_index_and_nothing_cached() {
        let backend = ReferenceBackend::new();
        let mut layer = adopted(&clusters(), &SETUP);
        index_some(&backend, &mut layer);
        look_up(&mut layer, HeadId(0), ClusterId(1));
        let recall = layer.recall_mut().unwrap();
        recall.selected_at = Some(SelectedAt { n_tokens: 5, n_indexed: 3 });
        recall.restore(&backend, &ReferenceBackend::new(), 1).unwrap();
        assert_eq!(recall.selected_at, None);
        assert_eq!(recall.index.n_used(0), 2);
        assert_eq!(look_up(&mut layer, HeadId(0), ClusterId(1)), 0);
    }

    #[test]
    fn an_index_of_tokens_takes_the_width_of_their_space() {
        let backend = ReferenceBackend::new();
        let loki = policy(Preset::Loki, 16, |o| {
            (o.sinks, o.recent, o.window, o.rank) = (Some(1), Some(2), Some(2), Some(4));
        });
        let mut layer = adopted(&loki, &SETUP);
        let recall = layer.recall_mut().unwrap();
        assert_eq!(recall.index.width(), Rank::Given(Some(4)).most(4));
        let made = Projections { rank: 2, w_q: vec![1.0; 16], w_k: vec![2.0; 16] };
        let projection = LayerProjection::new(&backend, made, None).unwrap();
        recall.set_projection(&backend, &shape(), &loki, 2, projection).unwrap();
        assert_eq!(recall.index.width(), 2);
        assert!(recall.projection.is_some() && recall.searched(None).projection.is_some());
    }
}
