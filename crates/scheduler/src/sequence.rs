//! One sequence: its rows in the host tier, its layers, and how it grows, shrinks and changes
//! policy.
//!
//! The rows and their positions are the truth; index, device rows and caches are derived from them
//! and can be made again. That is what lets one prefill serve several policies, lets a question be
//! taken back, and lets a lost device be replaced.

use std::sync::Arc;

use longview_core::{SplitMix64, decode_f32_into, encode_f32};
use longview_ops::{Backend, KvView, OpError};

use crate::clusterer::{ClusterJob, ClusterTask, ClusterWorker};
use crate::error::SchedulerError;
use crate::layer::{DeviceLayout, Layer, LayerMode, layer_mode};
use crate::mirror::Mirror;
use crate::policy::{FLUSH_STEPS, Policy};
use crate::resolver::Resolver;
use crate::rows::{DeviceRows, RowMover};
use crate::select::{RowLists, Selector};
use crate::shape::KvShape;
use crate::speculate::{RecallMode, Speculation};
use crate::stats::Stats;
use crate::tier::{HostTier, MappedTier, PlainTier, RowRange};

/// Where attention reads KV rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In the host tier itself: zero-copy recall, for devices that share memory with the host.
    #[default]
    InPlace,
    /// In separate device buffers of fixed size, filled through the hit/miss cache.
    Device,
}

/// Which host tier a sequence uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TierKind {
    /// [`MappedTier`] where the device reads host memory, else [`PlainTier`].
    #[default]
    Auto,
    /// [`PlainTier`] always: what a WGSL device has.
    Plain,
}

/// How a sequence is laid out, apart from its policy.
#[derive(Clone, Copy, Debug)]
pub struct SequenceOptions {
    /// Where attention reads.
    pub placement: Placement,
    /// Host tier.
    pub tier: TierKind,
    /// Most tokens of a prefill chunk.
    pub chunk: usize,
    /// Rows of a tile of the past, streamed to the device in prefill.
    pub tile: usize,
    /// Cluster on a thread beside other work.
    pub overlap: bool,
    /// Which query chooses what is recalled.
    pub recall: RecallMode,
    /// Let the device resolve hits and misses itself: with rows in separate buffers, a mapped host
    /// tier and exact recall. Otherwise it says nothing.
    pub device_cache: bool,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self {
            placement: Placement::InPlace,
            tier: TierKind::Auto,
            chunk: 512,
            tile: 2048,
            overlap: true,
            recall: RecallMode::Exact,
            device_cache: false,
        }
    }
}

/// Fills rows `[rows, 2, Dh]` of a layer and a KV head, from a first row on: arguments in that
/// order.
pub type FillRows<'a> = dyn FnMut(usize, usize, usize, &mut [f32]) + 'a;

/// The KV of one sequence under a policy.
pub struct Sequence<B: Backend> {
    pub(crate) backend: Arc<B>,
    pub(crate) shape: KvShape,
    pub(crate) policy: Policy,
    pub(crate) options: SequenceOptions,
    pub(crate) tier: Box<dyn HostTier<B>>,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) layout: DeviceLayout,
    pub(crate) n_tokens: usize,
    pub(crate) mover: RowMover<B>,
    /// Moves rows of a prompt between host and device while kernels run, where the device can.
    pub(crate) side: Option<Arc<B>>,
    /// Whether it may still move some.
    pub(crate) side_is_busy: bool,
    pub(crate) lists: RowLists<B>,
    /// Rows of the layer in progress are yet to be fetched and attended: those on the device go
    /// first.
    pub(crate) misses_wait: bool,
    pub(crate) selector: Option<Selector<B>>,
    /// With [`RecallMode::Speculative`], where the policy recalls at all.
    pub(crate) speculation: Option<Speculation<B>>,
    /// Where the device resolves hits and misses.
    pub(crate) resolver: Option<Resolver<B>>,
    pub(crate) stats: Stats,
    pub(crate) mirror: Mirror,
    worker: ClusterWorker<B>,
    spare_jobs: Vec<Box<ClusterJob<B>>>,
    bytes: Vec<u8>,
    order: Vec<u32>,
}

/// A queue for the moves of a prompt, where that lets them overlap with kernels.
fn side_queue<B: Backend>(backend: &Arc<B>, options: &SequenceOptions) -> Option<Arc<B>> {
    let has_one = options.overlap
        && options.placement == Placement::Device
        && backend.capabilities().overlaps;
    has_one.then(|| Arc::new(backend.background()))
}

impl<B: Backend> Sequence<B> {
    /// An empty sequence. All memory that its steps need is allocated here.
    pub fn new(
        backend: &Arc<B>,
        shape: KvShape,
        policy: Policy,
        options: SequenceOptions,
    ) -> Result<Self, SchedulerError> {
        options.check()?;
        if options.placement == Placement::InPlace && !backend.capabilities().unified_memory {
            return Err(SchedulerError::NotUnified { backend: backend.name() });
        }
        let tier: Box<dyn HostTier<B>> = match options.tier {
            TierKind::Plain => Box::new(PlainTier::new(&shape)?),
            TierKind::Auto => match MappedTier::new(backend, &shape)? {
                Some(tier) => Box::new(tier),
                None => Box::new(PlainTier::new(&shape)?),
            },
        };
        if options.placement == Placement::InPlace && tier.buffer(0).is_none() {
            return Err(SchedulerError::NotUnified { backend: backend.name() });
        }
        let layers = (0..shape.n_layers)
            .map(|_| Layer::new(&**backend, &shape))
            .collect::<Result<Vec<_>, _>>()?;
        let worker = ClusterWorker::new(backend, options.overlap, 2 * shape.n_layers);
        let mut sequence = Self {
            mover: RowMover::new(&**backend, &shape, 1, true)?,
            side: side_queue(backend, &options),
            side_is_busy: false,
            lists: RowLists::new(&**backend, shape.n_kv_heads, 1, false)?,
            misses_wait: false,
            selector: None,
            speculation: None,
            resolver: None,
            mirror: Mirror::with_layers(shape.n_layers),
            stats: Stats::new(shape.n_layers, shape.n_kv_heads),
            layout: DeviceLayout::of(&policy, shape.capacity),
            backend: Arc::clone(backend),
            shape,
            policy,
            options,
            tier,
            layers,
            n_tokens: 0,
            worker,
            spare_jobs: Vec::new(),
            bytes: Vec::new(),
            order: Vec::new(),
        };
        sequence.adopt_policy()?;
        Ok(sequence)
    }

    /// Tokens in the sequence.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The dimensions.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Which query chooses what steps recall.
    pub fn recall_mode(&self) -> RecallMode {
        self.options.recall
    }

    /// The layers' state, for probes and tests.
    pub fn layers(&self) -> &[Layer<B>] {
        &self.layers
    }

    /// The host tier, for probes and tests.
    pub fn tier(&self) -> &dyn HostTier<B> {
        &*self.tier
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sets the counters to zero.
    pub fn reset_stats(&mut self) {
        self.stats.reset();
    }

    /// Bytes of KV rows and index on the device: with [`Placement::InPlace`] the index alone,
    /// because the rows are read where they are.
    pub fn device_kv_bytes(&self) -> u64 {
        self.layers.iter().map(Layer::device_bytes).sum()
    }

    /// Bytes of the rows that are in use in host memory.
    pub fn host_kv_bytes(&self) -> u64 {
        (self.n_tokens * self.shape.token_bytes()) as u64
    }

    /// The rows that each KV head attended in the last decoded layer, in the numbering of the place
    /// that was read.
    pub fn last_attended(&self, head: usize) -> &[u32] {
        self.lists.head(head)
    }

    /// Which of the selector's selections is that of `layer`.
    pub(crate) fn selection_slot(&self, layer: usize) -> usize {
        self.layers[..layer].iter().filter(|l| l.mode == LayerMode::Recall).count()
    }

    /// The tokens that a KV head recalled in the last decode step, cluster by cluster, best first:
    /// beside these it attended sinks and recent tokens. Nothing in a layer that does not recall,
    /// and nothing where the device resolves: its choice stays there.
    pub fn last_recalled(&self, layer: usize, head: usize) -> impl Iterator<Item = u32> + '_ {
        let state = &self.layers[layer];
        let slot = self.selection_slot(layer);
        let chosen = state.index.as_ref().zip(self.selector.as_ref());
        chosen.into_iter().flat_map(move |(index, selector)| {
            let starts = &index.heads()[head].starts;
            selector.selected(slot, head).flat_map(move |(cluster, take)| {
                let first = starts[cluster] as usize;
                state.positions[head][first..first + take].iter().copied()
            })
        })
    }

    /// Changes the policy. Rows are put back into token order where the new one needs that, and are
    /// indexed anew.
    pub async fn set_policy(&mut self, policy: Policy) -> Result<(), SchedulerError> {
        self.bring_rows().await?;
        self.drop_jobs().await?;
        self.policy = policy;
        self.layout = DeviceLayout::of(&self.policy, self.shape.capacity);
        for layer in 0..self.layers.len() {
            if layer_mode(&self.policy, layer) != LayerMode::Dense {
                self.restore_token_order(layer, 0);
            }
        }
        self.adopt_policy()?;
        self.finish_prefill().await
    }

    /// Buffers, index and caches for the policy; rows and positions stay.
    fn adopt_policy(&mut self) -> Result<(), SchedulerError> {
        let in_place = self.options.placement == Placement::InPlace;
        let host_resolves = !in_place && !self.device_resolves();
        let (backend, shape, policy) = (&*self.backend, &self.shape, &self.policy);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let mode = layer_mode(policy, i);
            layer.adopt(backend, shape, policy, mode, in_place, host_resolves)?;
        }
        self.alloc_lists()
    }

    /// Whether the device finds hits and misses itself, and the host knows no choice.
    pub fn device_resolves(&self) -> bool {
        self.options.device_cache
            && self.options.placement == Placement::Device
            && self.options.recall == RecallMode::Exact
            && self.tier.buffer(0).is_some()
    }

    /// Lists, staging and jobs for the policy.
    fn alloc_lists(&mut self) -> Result<(), SchedulerError> {
        let in_place = self.options.placement == Placement::InPlace;
        let window = self.layout.sinks + self.layout.ring;
        let attended = self.policy.budget.map_or(0, |b| b.min(self.shape.capacity)).max(window);
        let divided = self.options.recall != RecallMode::Exact;
        self.lists = RowLists::new(&*self.backend, self.shape.n_kv_heads, attended, divided)?;
        let moved = match in_place {
            true => 1,
            false => self.options.tile.max(self.options.chunk).max(attended),
        };
        let mapped = self.tier.buffer(0).is_some();
        self.mover = RowMover::new(&*self.backend, &self.shape, moved, mapped)?;
        self.alloc_selector()?;
        self.reserve_jobs()
    }

    /// What layers that recall choose with; nothing where none does.
    fn alloc_selector(&mut self) -> Result<(), SchedulerError> {
        (self.selector, self.speculation, self.resolver) = (None, None, None);
        let (backend, shape) = (&*self.backend, &self.shape);
        let mut indexes = self.layers.iter().filter_map(|layer| layer.index.as_ref());
        let Some(index) = indexes.next() else { return Ok(()) };
        let (capacity, n_layers) = (index.capacity(), 1 + indexes.count());
        if let RecallMode::Speculative { gate } = self.options.recall {
            self.speculation = Some(Speculation::new(backend, shape, n_layers, gate)?);
        }
        if self.device_resolves() {
            self.resolver = Some(Resolver::new(backend, shape, &self.policy, n_layers)?);
        }
        let selector = Selector::new(backend, shape, &self.policy, capacity, n_layers)?;
        self.selector = Some(selector);
        Ok(())
    }

    /// One job per recall layer, so that clustering a decode window allocates nothing.
    fn reserve_jobs(&mut self) -> Result<(), SchedulerError> {
        self.spare_jobs.clear();
        let Some(cluster) = self.policy.index else { return Ok(()) };
        let n_recall = self.layers.iter().filter(|l| l.mode == LayerMode::Recall).count();
        for layer in 0..n_recall {
            let mut job = Box::new(ClusterJob::new(self.task(layer, 0, cluster.window)));
            job.reserve(&*self.backend)?;
            self.spare_jobs.push(job);
        }
        self.bytes.reserve(2 * cluster.window * self.shape.row_bytes());
        self.order.reserve(cluster.window);
        Ok(())
    }

    fn task(&self, layer: usize, row_start: usize, n_points: usize) -> ClusterTask {
        let cluster = self.policy.index.expect("only recall layers are clustered");
        let n_clusters = match n_points == cluster.window {
            true => cluster.window_clusters,
            false => n_points.div_ceil(cluster.cluster_tokens),
        };
        ClusterTask {
            layer,
            row_start,
            n_kv_heads: self.shape.n_kv_heads,
            n_points,
            n_clusters,
            head_dim: self.shape.head_dim,
            distance: cluster.distance,
            iterations: cluster.iterations,
            max_cluster: cluster.max_cluster,
            seed: job_seed(cluster.seed, layer, row_start),
        }
    }

    /// Hands rows `row_start..row_start + n` of `layer` to the worker.
    fn submit(&mut self, layer: usize, n: usize) {
        let row_start = self.layers[layer].n_submitted;
        let task = self.task(layer, row_start, n);
        // Spare jobs are for decode windows; the larger ones of prefill come and go.
        let spare = self.spare_jobs.pop_if(|spare| spare.capacity() >= n);
        let mut job = match spare {
            Some(mut job) => {
                job.reset(task);
                job
            }
            None => Box::new(ClusterJob::new(task)),
        };
        match self.tier.buffer(layer) {
            Some(rows) => {
                let rows = KvView::new(rows, self.shape.capacity);
                job.take_keys(&self.backend, rows, self.side.clone());
            }
            None => self.read_keys(&mut job),
        }
        self.layers[layer].n_submitted = row_start + n;
        self.worker.submit(job);
    }

    /// Fills in a job's keys from the host.
    fn read_keys(&mut self, job: &mut ClusterJob<B>) {
        let ClusterTask { layer, row_start, n_points: n, head_dim: d, .. } = job.task;
        let row_bytes = self.shape.row_bytes();
        self.bytes.clear();
        self.bytes.resize(n * row_bytes, 0);
        for (head, keys) in job.host_keys().chunks_exact_mut(n * d).enumerate() {
            self.tier.read_rows(layer, head, row_start..row_start + n, &mut self.bytes);
            for (row, key) in self.bytes.chunks_exact(row_bytes).zip(keys.chunks_exact_mut(d)) {
                decode_f32_into(self.shape.kv_dtype, &row[..row_bytes / 2], key);
            }
        }
    }

    /// Waits for the clustering of `layer` that was submitted, and applies it.
    async fn apply_job(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let start = self.backend.now();
        let taken = self.worker.take(&*self.backend, layer).await;
        self.stats.cluster_wait += self.backend.now().saturating_sub(start);
        let state = &mut self.layers[layer];
        // A job that failed is forgotten: its rows stay unclustered and are submitted again.
        state.n_submitted = state.n_indexed;
        let Some(job) = taken? else { return Ok(()) };
        let ClusterTask { row_start, n_points, .. } = job.task;
        let row_bytes = self.shape.row_bytes();
        for (head, clusters) in job.heads.iter().enumerate() {
            let place = RowRange { layer, head, start: row_start };
            self.tier.permute_rows(place, &clusters.order, row_bytes, &mut self.bytes);
            let positions = &mut state.positions[head][row_start..row_start + n_points];
            self.order.clear();
            self.order.extend_from_slice(positions);
            for (position, from) in positions.iter_mut().zip(&clusters.order) {
                *position = self.order[*from as usize];
            }
        }
        let index = state.index.as_mut().expect("only recall layers are clustered");
        index.append(&*self.backend, row_start, row_start + n_points, &job.heads)?;
        for (cache, head) in state.caches.iter_mut().zip(index.heads()) {
            cache.set_clusters(head.sizes.len());
        }
        state.n_indexed = row_start + n_points;
        state.n_submitted = state.n_indexed;
        state.permuted_to = state.permuted_to.max(state.n_indexed);
        self.stats.clusterings += 1;
        self.keep_job(job);
        Ok(())
    }

    /// In prefill: hands every finished segment of `layer` to the worker. The one before is applied
    /// first, so that a segment has the time of a whole segment to be clustered and the order of
    /// rows is a function of the input.
    pub(crate) async fn submit_segments(
        &mut self,
        layer: usize,
        n_rows: usize,
    ) -> Result<(), SchedulerError> {
        let Some(cluster) = self.policy.index else { return Ok(()) };
        if cluster.segment == 0 || self.layers[layer].mode != LayerMode::Recall {
            return Ok(());
        }
        while n_rows >= self.layers[layer].n_submitted + cluster.segment + self.policy.recent {
            self.apply_outstanding(layer).await?;
            self.submit(layer, cluster.segment);
        }
        Ok(())
    }

    async fn apply_outstanding(&mut self, layer: usize) -> Result<(), SchedulerError> {
        while self.layers[layer].n_submitted > self.layers[layer].n_indexed {
            self.apply_job(layer).await?;
        }
        Ok(())
    }

    /// Adds `n` tokens whose keys and values come from elsewhere (a saved sequence, a bench), as a
    /// prefill would: `fill` is asked for runs of rows `[rows, 2, Dh]` of one layer and KV head,
    /// given the first row. Finished segments are clustered on the way; call
    /// [`Sequence::finish_prefill`] at the end.
    pub async fn inject(
        &mut self,
        n: usize,
        fill: &mut FillRows<'_>,
    ) -> Result<(), SchedulerError> {
        self.check_room(n)?;
        self.bring_rows().await?;
        let width = 2 * self.shape.head_dim;
        let end = self.n_tokens + n;
        while self.n_tokens < end {
            let (first, len) = (self.n_tokens, self.options.chunk.min(end - self.n_tokens));
            let mut rows = vec![0.0; len * width];
            for layer in 0..self.layers.len() {
                for head in 0..self.shape.n_kv_heads {
                    fill(layer, head, first, &mut rows);
                    let bytes = encode_f32(self.shape.kv_dtype, &rows);
                    self.tier.write_rows(layer, head, first, &bytes);
                }
                self.layers[layer].push_positions(first, len);
                self.submit_segments(layer, first + len).await?;
            }
            self.n_tokens += len;
        }
        Ok(())
    }

    /// Ends a prefill: everything but the recent window is indexed if it is at least a window long,
    /// and the device holds what decode needs. Must be called before the first decode step.
    pub async fn finish_prefill(&mut self) -> Result<(), SchedulerError> {
        for layer in 0..self.layers.len() {
            if self.layers[layer].mode == LayerMode::Recall {
                self.index_prompt(layer).await?;
            }
        }
        self.save_recorded().await?;
        self.load_device()
    }

    /// Copies what prefill recorded on the device to the host, where a lost device leaves it.
    async fn save_recorded(&mut self) -> Result<(), SchedulerError> {
        if self.options.placement == Placement::InPlace {
            return Ok(());
        }
        let mut parts = crate::mirror::ReadParts::<B>::new();
        for layer in &mut self.layers {
            parts.extend(layer.recorded.read_parts());
        }
        Ok(self.backend.read_all(&mut parts).await?)
    }

    async fn index_prompt(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let cluster = self.policy.index.expect("recall layers have an index");
        self.apply_outstanding(layer).await?;
        let end = self.n_tokens.saturating_sub(self.policy.recent);
        if cluster.segment > 0 {
            self.submit_segments(layer, self.n_tokens).await?;
            self.apply_outstanding(layer).await?;
        }
        let left = end.saturating_sub(self.layers[layer].n_indexed);
        if left >= cluster.window {
            self.submit(layer, left);
            self.apply_outstanding(layer).await?;
        }
        Ok(())
    }

    /// Ends a decode step: full windows go to the worker.
    pub(crate) fn submit_windows(&mut self) {
        let Some(cluster) = self.policy.index else { return };
        for layer in 0..self.layers.len() {
            let state = &self.layers[layer];
            if state.mode == LayerMode::Recall
                && state.n_submitted == state.n_indexed
                && self.n_tokens - state.n_indexed.min(self.n_tokens)
                    >= self.policy.recent + cluster.window
            {
                self.submit(layer, cluster.window);
            }
        }
    }

    /// Whether the decode step that begins finds a window of `layer` that was submitted
    /// [`FLUSH_STEPS`] steps ago.
    pub(crate) fn window_is_due(&self, layer: usize) -> bool {
        let state = &self.layers[layer];
        if state.n_submitted <= state.n_indexed {
            return false;
        }
        let pending = self.n_tokens - state.n_indexed;
        let cluster = self.policy.index.expect("only recall layers submit");
        pending + 1 >= self.policy.recent + cluster.window + FLUSH_STEPS
    }

    /// In a decode step: a window that is due becomes clusters.
    pub(crate) async fn apply_window(&mut self, layer: usize) -> Result<(), SchedulerError> {
        match self.window_is_due(layer) {
            true => self.apply_job(layer).await,
            false => Ok(()),
        }
    }

    /// Waits for outstanding clusterings and forgets them.
    async fn drop_jobs(&mut self) -> Result<(), SchedulerError> {
        for layer in 0..self.layers.len() {
            while self.layers[layer].n_submitted > self.layers[layer].n_indexed {
                let job = self.worker.take(&*self.backend, layer).await?;
                let state = &mut self.layers[layer];
                state.n_submitted = state.n_indexed;
                if let Some(job) = job {
                    self.keep_job(job);
                }
            }
        }
        Ok(())
    }

    /// Keeps jobs of the size of a decode window for the next window.
    fn keep_job(&mut self, job: Box<ClusterJob<B>>) {
        if self.policy.index.is_some_and(|cluster| job.capacity() <= cluster.window) {
            self.spare_jobs.push(job);
        }
    }

    /// Cuts the sequence back to its first `n_tokens` tokens: a question is taken back, a cancelled
    /// step is undone. Clusters that hold later tokens are dissolved.
    pub async fn truncate(&mut self, n_tokens: usize) -> Result<(), SchedulerError> {
        let n = n_tokens.min(self.n_tokens);
        match n < self.n_tokens {
            true => self.mirror.clear(),
            false => self.bring_rows().await?,
        }
        self.forget_choice();
        self.drop_jobs().await?;
        let mut rebuild = false;
        for layer in 0..self.layers.len() {
            let (first_row, recent) = (self.policy.sinks, self.policy.recent);
            let state = &mut self.layers[layer];
            let indexed_before = state.n_indexed;
            if let Some(index) = &mut state.index {
                // The new last tokens are the recent window: no cluster may hold them.
                let kept = n.saturating_sub(recent);
                state.n_indexed = index.truncate(&*self.backend, kept, first_row)?;
                state.n_submitted = state.n_indexed;
                for (cache, head) in state.caches.iter_mut().zip(index.heads()) {
                    cache.set_clusters(head.sizes.len());
                }
                let indexed = state.n_indexed;
                rebuild |= n.saturating_sub(indexed) > self.policy.ring_rows();
                self.restore_token_order(layer, indexed);
                let slot = self.selection_slot(layer);
                if let (true, Some(resolver)) = (indexed < indexed_before, &mut self.resolver) {
                    resolver.forget(&*self.backend, slot)?;
                }
            } else if state.permuted_to > n {
                self.restore_token_order(layer, 0);
            }
            for positions in &mut self.layers[layer].positions {
                positions.truncate(n);
            }
        }
        self.n_tokens = n;
        match rebuild {
            true => self.finish_prefill().await,
            false => self.load_device(),
        }
    }

    /// Puts rows from `from` on back into token order.
    fn restore_token_order(&mut self, layer: usize, from: usize) {
        let row_bytes = self.shape.row_bytes();
        if self.layers[layer].permuted_to <= from {
            return;
        }
        for head in 0..self.shape.n_kv_heads {
            let end = self.layers[layer].permuted_to;
            let positions = &mut self.layers[layer].positions[head][from..end];
            self.order.clear();
            self.order.extend(0..positions.len() as u32);
            self.order.sort_unstable_by_key(|i| positions[*i as usize]);
            positions.sort_unstable();
            let place = RowRange { layer, head, start: from };
            self.tier.permute_rows(place, &self.order, row_bytes, &mut self.bytes);
        }
        self.layers[layer].permuted_to = from;
    }

    /// Fills device rows from the host tier: all rows of dense layers, sinks and ring of the
    /// others. Cached clusters stay where they are.
    fn load_device(&mut self) -> Result<(), SchedulerError> {
        self.forget_choice();
        for layer in 0..self.layers.len() {
            if self.layers[layer].device.is_none() {
                continue;
            }
            let n = self.n_tokens;
            match self.layers[layer].mode {
                LayerMode::Dense => self.load_rows(layer, 0..n)?,
                LayerMode::Window | LayerMode::Recall => {
                    let sinks = self.layout.sinks.min(n);
                    self.load_rows(layer, 0..sinks)?;
                    self.load_rows(layer, self.window_start(layer, n)..n)?;
                }
            }
        }
        Ok(())
    }

    /// The first row behind the sinks that is always attended when the sequence has `n_rows` rows.
    pub(crate) fn window_start(&self, layer: usize, n_rows: usize) -> usize {
        let sinks = self.layout.sinks.min(n_rows);
        match self.layers[layer].mode {
            LayerMode::Dense => 0,
            LayerMode::Window => n_rows.saturating_sub(self.policy.recent).max(sinks),
            LayerMode::Recall => self.layers[layer].n_indexed.min(n_rows).max(sinks),
        }
    }

    /// The device row of a row that is always attended.
    pub(crate) fn device_row(&self, layer: usize, row: usize) -> usize {
        match self.layers[layer].mode {
            LayerMode::Dense => row,
            LayerMode::Window | LayerMode::Recall => self.layout.row(row),
        }
    }

    /// Work from now on sees the rows that the side queue was told to move.
    pub(crate) fn join_side(&mut self) -> Result<(), OpError> {
        match &self.side {
            Some(side) if std::mem::take(&mut self.side_is_busy) => self.backend.after(side),
            _ => Ok(()),
        }
    }

    fn load_rows(
        &mut self,
        layer: usize,
        rows: std::ops::Range<usize>,
    ) -> Result<(), SchedulerError> {
        self.join_side()?;
        let mut row = rows.start;
        while row < rows.end {
            let end = rows.end.min(row + self.mover.stride());
            self.mover.clear();
            for head in 0..self.shape.n_kv_heads {
                for r in row..end {
                    self.mover.push(head, r, self.device_row(layer, r));
                }
            }
            let state = &mut self.layers[layer];
            let buffer = state.device.as_mut().expect("checked by the caller");
            let rows = DeviceRows { buffer, head_stride: state.device_rows };
            self.mover.load(&*self.backend, &self.shape, &*self.tier, layer, rows)?;
            row = end;
        }
        Ok(())
    }

    /// Goes on with `backend` after the device was lost: everything that was on the old one is made
    /// again from the host. Jobs of the clustering worker are forgotten and submitted again; rows
    /// of a token that had not reached the host are gone, so cut the sequence back by it first or
    /// compute it again.
    pub fn recover(&mut self, backend: &Arc<B>) -> Result<(), SchedulerError> {
        self.backend = Arc::clone(backend);
        self.side = side_queue(backend, &self.options);
        self.side_is_busy = false;
        self.tier.move_to(backend)?;
        self.mirror.clear();
        self.worker = ClusterWorker::new(backend, self.options.overlap, 2 * self.shape.n_layers);
        for layer in &mut self.layers {
            if layer.device.is_some() {
                layer.device = Some(layer.alloc_device(&**backend, &self.shape)?);
            }
            layer.caches.iter_mut().for_each(crate::cache::ClusterCache::clear);
            if let Some(index) = &mut layer.index {
                index.restore(&**backend)?;
            }
            layer.n_submitted = layer.n_indexed;
            layer.recorded.restore(&**backend, &self.shape)?;
        }
        self.alloc_lists()?;
        self.load_device()
    }

    /// Whether kernels carry new rows to the host, at a time of their own: they are there once
    /// something was read from the device.
    pub fn rows_come_later(&self) -> bool {
        self.options.placement == Placement::Device && self.tier.buffer(0).is_some()
    }

    /// Whether the device is gone that the sequence lives on.
    pub fn is_lost(&self) -> bool {
        self.backend.is_lost()
    }

    /// Whether the sequence lives on this backend.
    pub fn is_on(&self, backend: &Arc<B>) -> bool {
        Arc::ptr_eq(&self.backend, backend)
    }

    pub(crate) fn check_room(&self, more: usize) -> Result<(), SchedulerError> {
        let needed = self.n_tokens + more;
        match needed <= self.shape.capacity {
            true => Ok(()),
            false => Err(SchedulerError::ContextFull { needed, capacity: self.shape.capacity }),
        }
    }
}

/// Seeds differ between layers and runs of rows, and depend on nothing else.
fn job_seed(seed: u64, layer: usize, row_start: usize) -> u64 {
    SplitMix64::new(seed ^ ((layer as u64) << 40) ^ row_start as u64).next_u64()
}
