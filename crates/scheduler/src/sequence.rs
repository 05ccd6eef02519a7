//! One sequence: its rows in the host tier, its layers, and how it grows, shrinks and changes
//! policy.
//!
//! The rows and their positions are the truth; index, device rows and caches are derived from them
//! and can be made again. That is what lets one prefill serve several policies, lets a question be
//! taken back, and lets a lost device be replaced.

use std::sync::Arc;

use longview_core::encode_f32;
use longview_ops::{Backend, OpError};

use crate::clusterer::{ClusterJob, ClusterWorker};
use crate::error::SchedulerError;
use crate::host_attention::HostAttention;
use crate::layer::{DeviceLayout, Layer, LayerMode, layer_mode};
use crate::mirror::Mirror;
use crate::policy::{Policy, Residency};
use crate::resolver::Resolver;
use crate::rows::{DeviceRows, RowMover};
use crate::select::{RowLists, Selector};
use crate::shape::KvShape;
use crate::sight::Sight;
use crate::speculate::{RecallMode, Speculation};
use crate::stats::Stats;
use crate::tail::Tail;
use crate::tier::{HostTier, MappedTier, OpenBytes, PlainTier, RowRange};
use crate::turn::{Turned, turns};
use crate::watch::Watched;

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
#[derive(Clone, Copy, Debug, Default)]
pub enum TierKind {
    /// [`MappedTier`] where the device reads host memory, else [`PlainTier`].
    #[default]
    Auto,
    /// [`PlainTier`] always: what a WGSL device has.
    Plain,
    /// [`PlainTier`] in bytes that this opens: those of a browser lie outside of the program's
    /// memory.
    Elsewhere(OpenBytes),
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

/// How far what is derived from rows and positions has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// All that the policy asks for is there.
    Whole,
    /// The end of a prefill failed: rows are missing in the index.
    Unfinished,
    /// A change of the policy failed: buffers, index and caches are those of no policy.
    Unmade,
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
    pub(crate) standing: Standing,
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
    /// Where the host attends to what was chosen.
    pub(crate) host_attention: Option<HostAttention<B>>,
    /// Where clusters that are not opened are attended as their means.
    pub(crate) tail: Option<Tail<B>>,
    /// Where first tokens are attended at other positions than those of the text.
    pub(crate) turned: Option<Turned<B>>,
    /// What decode steps computed, for who looks on.
    pub(crate) watched: Vec<Watched>,
    /// The KV head whose recall somebody looks at.
    pub(crate) sight: Option<Sight>,
    pub(crate) stats: Stats,
    pub(crate) mirror: Mirror,
    pub(crate) worker: ClusterWorker<B>,
    pub(crate) spare_jobs: Vec<Box<ClusterJob<B>>>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) order: Vec<u32>,
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
            TierKind::Elsewhere(open) => Box::new(PlainTier::opened_by(&shape, open)?),
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
            host_attention: None,
            tail: None,
            turned: None,
            watched: Vec::new(),
            sight: None,
            mirror: Mirror::with_layers(shape.n_layers),
            stats: Stats::new(shape.n_layers, shape.n_kv_heads),
            layout: DeviceLayout::of(&policy, shape.capacity),
            backend: Arc::clone(backend),
            shape,
            policy,
            options,
            tier,
            layers,
            standing: Standing::Whole,
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
        self.n_tokens as u64 * self.shape.token_bytes() as u64
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
        let own = self.selection_slot(layer);
        let slot = own - own % self.policy.layer_step;
        let chosen = state.chosen_index().zip(self.selector.as_ref());
        chosen.into_iter().flat_map(move |(index, selector)| {
            let starts = &index.heads()[head].starts;
            selector.selected(slot, head).flat_map(move |(cluster, take)| {
                let first = starts[cluster] as usize;
                state.positions[head][first..first + take].iter().copied()
            })
        })
    }

    /// The rows behind [`Sequence::last_recalled`], in the same order.
    pub(crate) fn push_recalled_rows(&self, layer: usize, head: usize, rows: &mut Vec<u32>) {
        let own = self.selection_slot(layer);
        let slot = own - own % self.policy.layer_step;
        let Some(index) = self.layers[layer].chosen_index() else { return };
        let Some(selector) = &self.selector else { return };
        let starts = &index.heads()[head].starts;
        for (cluster, take) in selector.selected(slot, head) {
            rows.extend(starts[cluster]..starts[cluster] + take as u32);
        }
    }

    /// The tokens that a KV head attended in the last decode step, in no order; where the device
    /// resolves, without what it recalled.
    pub fn attended_tokens(&self, layer: usize, head: usize) -> Vec<u32> {
        let (state, n) = (&self.layers[layer], self.n_tokens);
        let start = self.window_start(layer, n);
        let positions = &state.positions[head];
        let sinks = self.layout.sinks.min(n).min(start);
        let mut tokens = positions[..sinks].to_vec();
        tokens.extend(&positions[start..n]);
        tokens.extend(self.last_recalled(layer, head));
        if let Some(kept) = &state.kept {
            let room = (kept.capacity[head] + self.policy.recent).saturating_sub(n - start);
            tokens.extend(kept.rows[head].iter().take(room).map(|kept| kept.row));
        }
        tokens
    }

    /// Changes the policy. Rows are put back into token order where the new one needs that, and are
    /// indexed anew.
    ///
    /// # Errors
    /// What the new policy needs and cannot have: statistics, exact recall, memory, a device. The
    /// one before stays in force then.
    pub async fn set_policy(&mut self, policy: Policy) -> Result<(), SchedulerError> {
        self.check_recall(&policy)?;
        self.check_statistics(&policy)?;
        self.bring_rows().await?;
        let before = std::mem::replace(&mut self.policy, policy);
        let result = self.make().await;
        if result.is_err() {
            self.policy = before;
            // If the device is lost this fails too, and is done when there is another.
            self.make().await.ok();
        }
        result
    }

    /// Makes again what a failed change of the policy, or a failed end of a prefill, left undone.
    /// Nothing happens if nothing failed.
    ///
    /// # Errors
    /// As [`Sequence::set_policy`]: steps would fail likewise.
    pub async fn settle(&mut self) -> Result<(), SchedulerError> {
        match self.standing {
            Standing::Whole => Ok(()),
            Standing::Unfinished => self.finish_prefill().await,
            Standing::Unmade => self.make().await,
        }
    }

    /// Whether buffers and index are those of no policy, so that not even a prefill can go on.
    pub fn is_unmade(&self) -> bool {
        self.standing == Standing::Unmade
    }

    /// Makes all that the policy asks for from rows and positions.
    async fn make(&mut self) -> Result<(), SchedulerError> {
        self.drop_jobs().await?;
        self.standing = Standing::Unmade;
        self.layout = DeviceLayout::of(&self.policy, self.shape.capacity);
        self.sort_rows();
        self.adopt_policy()?;
        self.standing = Standing::Unfinished;
        self.finish_prefill().await
    }

    /// Puts rows back into token order where the policy needs that.
    pub(crate) fn sort_rows(&mut self) {
        for layer in 0..self.layers.len() {
            if layer_mode(&self.policy, layer) != LayerMode::Dense {
                self.restore_token_order(layer, 0);
            }
        }
    }

    /// Whether choices under `policy` may be made the way that the sequence was asked to.
    fn check_recall(&self, policy: &Policy) -> Result<(), SchedulerError> {
        let is_plain = policy.residency != Residency::AttendOnHost
            && (policy.token_step, policy.layer_step) == (1, 1)
            && policy.mass.is_none()
            && policy.alpha.is_none()
            && !policy.ahead
            && !policy.index.is_some_and(|index| index.adapts())
            && !policy.certify
            && !policy.tail
            && policy.refine.is_none();
        if self.options.recall != RecallMode::Exact && !is_plain {
            return Err(SchedulerError::CannotSpeculate { policy: policy.preset });
        }
        Ok(())
    }

    /// Buffers, index and caches for the policy; rows and positions stay.
    fn adopt_policy(&mut self) -> Result<(), SchedulerError> {
        self.forget_sight();
        self.check_recall(&self.policy)?;
        let in_place = self.options.placement == Placement::InPlace;
        let host_resolves = !in_place && !self.device_resolves();
        let (backend, shape, policy) = (&*self.backend, &self.shape, &self.policy);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.adopt(backend, shape, policy, i, in_place, host_resolves)?;
        }
        self.alloc_lists()
    }

    /// Whether the device finds hits and misses itself, and the host knows no choice.
    pub fn device_resolves(&self) -> bool {
        self.options.device_cache
            && self.options.placement == Placement::Device
            && self.options.recall == RecallMode::Exact
            && self.tier.buffer(0).is_some()
            // What the host must see of a choice, it resolves.
            && self.policy.residency != Residency::AttendOnHost
            && self.policy.mass.is_none()
            && self.policy.alpha.is_none()
            && !self.policy.certify
            && self.policy.refine.is_none()
            && !self.policy.index.is_some_and(|index| index.adapts())
    }

    /// Lists, staging and jobs for the policy.
    pub(crate) fn alloc_lists(&mut self) -> Result<(), SchedulerError> {
        let in_place = self.options.placement == Placement::InPlace;
        let window = self.layout.sinks + self.layout.ring;
        let kept = self.layers.iter().filter_map(|layer| layer.kept.as_ref());
        let kept = kept.flat_map(|kept| &kept.capacity).max().map_or(0, |k| k + self.policy.recent);
        let budget = self.policy.most_attended().min(self.shape.capacity);
        let attended = budget.max(window).max(kept);
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
        (self.host_attention, self.tail) = (None, None);
        let (backend, shape) = (&*self.backend, &self.shape);
        self.turned = match turns(shape, &self.policy) {
            true => Some(Turned::new(backend, shape, &self.policy)?),
            false => None,
        };
        let mut indexes = self.layers.iter().filter_map(|layer| layer.index.as_ref());
        let Some(index) = indexes.next() else { return Ok(()) };
        let (capacity, n_layers) = (index.capacity(), 1 + indexes.count());
        if let RecallMode::Speculative { gate } = self.options.recall {
            self.speculation = Some(Speculation::new(backend, shape, n_layers, gate)?);
        }
        if self.device_resolves() {
            self.resolver = Some(Resolver::new(backend, shape, &self.policy, n_layers)?);
        }
        let in_place = self.options.placement == Placement::InPlace;
        if self.policy.residency == Residency::AttendOnHost && !in_place {
            self.host_attention =
                Some(HostAttention::new(backend, shape, self.policy.host_threads)?);
        }
        if self.policy.tail {
            self.tail = Some(Tail::new(backend, shape, capacity)?);
        }
        let selector = Selector::new(backend, shape, &self.policy, capacity, n_layers)?;
        self.selector = Some(selector);
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

    /// Cuts the sequence back to its first `n_tokens` tokens: a question is taken back, a cancelled
    /// step is undone. Clusters that hold later tokens are dissolved.
    pub async fn truncate(&mut self, n_tokens: usize) -> Result<(), SchedulerError> {
        let n = n_tokens.min(self.n_tokens);
        match n < self.n_tokens {
            true => self.mirror.clear(),
            false => self.bring_rows().await?,
        }
        if self.is_unmade() {
            return self.truncate_rows(n).await;
        }
        self.forget_choice();
        self.forget_sight();
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
                if state.fine.is_none() {
                    for (cache, head) in state.caches.iter_mut().zip(index.heads()) {
                        cache.set_clusters(head.sizes.len());
                    }
                }
                let indexed = state.n_indexed;
                rebuild |= n.saturating_sub(indexed) > self.policy.ring_rows();
                self.restore_token_order(layer, indexed);
                self.cut_tokens(layer).await?;
                let slot = self.selection_slot(layer);
                if let (true, Some(resolver)) = (indexed < indexed_before, &mut self.resolver) {
                    resolver.forget(&*self.backend, slot)?;
                }
            } else if state.permuted_to > n {
                self.restore_token_order(layer, 0);
            }
            let state = &mut self.layers[layer];
            (state.chosen, state.ahead) = (None, None);
            if let Some(queries) = &mut state.recorded.queries {
                queries.truncate(&*self.backend, n)?;
            }
            if let Some(kept) = &mut state.kept {
                state.n_indexed = state.n_indexed.min(n);
                state.n_submitted = state.n_indexed;
                kept.truncate(&*self.backend, n, n - state.n_indexed)?;
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

    /// Cuts rows and positions, and makes the rest anew.
    async fn truncate_rows(&mut self, n: usize) -> Result<(), SchedulerError> {
        for layer in 0..self.layers.len() {
            self.restore_token_order(layer, 0);
            let state = &mut self.layers[layer];
            if let Some(queries) = &mut state.recorded.queries {
                queries.truncate(&*self.backend, n)?;
            }
            state.positions.iter_mut().for_each(|positions| positions.truncate(n));
        }
        self.n_tokens = n;
        self.make().await
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
    pub(crate) fn load_device(&mut self) -> Result<(), SchedulerError> {
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
                LayerMode::Keep => {
                    self.load_rows(layer, self.window_start(layer, n)..n)?;
                    self.load_kept(layer)?;
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
            LayerMode::Recall | LayerMode::Keep => {
                self.layers[layer].n_indexed.min(n_rows).max(sinks)
            }
        }
    }

    /// The device row of a row that is always attended.
    pub(crate) fn device_row(&self, layer: usize, row: usize) -> usize {
        match self.layers[layer].mode {
            LayerMode::Dense => row,
            LayerMode::Window | LayerMode::Recall | LayerMode::Keep => self.layout.row(row),
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
            layer.recorded.restore(&**backend, &self.shape)?;
            if self.standing == Standing::Unmade {
                layer.n_submitted = layer.n_indexed;
                continue;
            }
            if let Some(kept) = &mut layer.kept {
                kept.restore(&**backend, &self.shape, self.layout.ring)?;
            }
            if layer.device.is_some() {
                layer.device = Some(layer.alloc_device(&**backend, &self.shape)?);
            }
            layer.caches.iter_mut().for_each(crate::cache::ClusterCache::clear);
            layer.restore_index(&**backend)?;
            layer.n_submitted = layer.n_indexed;
        }
        if self.standing == Standing::Unmade {
            return Ok(());
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
