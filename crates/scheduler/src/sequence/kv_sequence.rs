//! One sequence: its rows in the host store, its layers, and what they share.
//!
//! The rows and their positions are the truth; index, device rows and caches are derived from them
//! and can be made again. That is what lets one prefill serve several policies, lets a question be
//! taken back, and lets a lost device be replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longview_core::{HeadId, LayerId, encode_f32};
use longview_ops::{Backend, KvView, OpError};

use super::coded_slots::CodedSlots;
use super::exact_rows::{ExactRows, exact_layout};
use super::known_tokens::KnownTokens;
use super::layer_state::{Layer, LayerState};
use super::options::{HostStoreKind, Placement, SequenceOptions};
use super::sparse_means::{self, BlockCounts, SparsePrefill};
use crate::error::SchedulerError;
use crate::eviction::{KeptPlaces, SinkRotation};
use crate::index::{ClusterJob, ClusterWorker};
use crate::inspect::{Trace, TrackedHead};
use crate::layout::{DeviceLayout, HostRows, KvShape, LayerMode, PrefillMode};
use crate::policy::Policy;
use crate::recall::{RecallMode, RecallPath, StepVerdict};
use crate::stats::Stats;
use crate::store::{
    EightBitStore, HostStore, LayerRows, MappedStore, PlainStore, ReadParts, RowLists, RowMover,
    Writeback,
};

/// How far what is derived from rows and positions has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// All that the policy asks for is there.
    Ready,
    /// Rows are missing in the index: a prompt is being read, or its end failed.
    PrefillUnfinished,
    /// The same, and the index of what is there comes before more of the prompt.
    Behind,
    /// A change of the policy failed: buffers, index and caches are those of no policy.
    NeedsRebuild,
}

/// How far the end of a prompt has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndingPrompt {
    /// Tokens of the sequence: with others it is not this prompt.
    pub n_tokens: usize,
    /// The layer whose turn it is.
    pub layer: usize,
    pub step: LayerStep,
}

/// What comes next of the end of a prompt in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerStep {
    /// Rows leave the order of a policy before, and whole segments of a prompt are handed over.
    Order,
    /// The budgets of its heads.
    Budgets,
    /// What has to go of an index of fewer tokens, and the space in which tokens are compared.
    Space,
    /// Rows that the index lacks.
    Rows,
}

/// Fills rows `[rows, 2, Dh]` of a layer and a KV head, from a first row on.
pub type FillRows<'a> = dyn FnMut(LayerId, HeadId, usize, &mut [f32]) + 'a;

/// The KV of one sequence under a policy.
pub struct Sequence<B: Backend> {
    pub(super) backend: Arc<B>,
    pub(super) shape: KvShape,
    pub(super) policy: Policy,
    pub(super) options: SequenceOptions,
    pub(super) store: Box<dyn HostStore<B>>,
    pub(super) layers: Vec<Layer<B>>,
    pub(super) layout: DeviceLayout,
    pub(super) readiness: Readiness,
    /// While the end of a prompt is made in pieces.
    pub(super) ending: Option<EndingPrompt>,
    pub(super) n_tokens: usize,
    /// Drafted tokens behind them, whose rows are there and which nobody has accepted.
    pub(super) n_drafted: usize,
    /// First tokens that are known as a prompt read at once would have them.
    pub(super) known: KnownTokens,
    /// How their keys and values were computed.
    pub(super) was_read: PrefillMode,
    /// Only while a prompt is read sparsely.
    pub(super) sparse: Option<SparsePrefill<B>>,
    pub(super) block_counts: BlockCounts,
    pub(super) mover: RowMover<B>,
    pub(super) copies: CopyQueue<B>,
    pub(super) lists: RowLists<B>,
    /// Where rows of 8 bits are attended in place.
    pub(super) exact: Option<ExactRows<B>>,
    /// Where the device cache has rows of 8 bits.
    pub(super) coded: Option<CodedSlots<B>>,
    /// Rows of the layer in progress are yet to be fetched and attended: those on the device go
    /// first.
    pub(super) misses_wait: bool,
    /// Where the policy recalls.
    pub(super) recall: Option<RecallPath<B>>,
    /// Where first tokens are attended at other positions than those of the text.
    pub(super) sink_rotation: Option<SinkRotation<B>>,
    pub(super) trace: Trace,
    pub(super) tracked: Option<TrackedHead>,
    pub(super) stats: Stats,
    pub(super) writeback: Writeback,
    pub(super) worker: ClusterWorker<B>,
    /// Jobs of the size of a decode window, so that clustering one allocates nothing.
    pub(super) spare_jobs: Vec<Box<ClusterJob<B>>>,
    /// Ends the indexing of a prompt when it is raised.
    pub(super) stop: Arc<AtomicBool>,
    /// Memory to reuse for rows in bytes, and for orders of rows.
    pub(super) bytes: Vec<u8>,
    pub(super) order: Vec<u32>,
}

/// A queue that moves rows of a prompt between host and device while kernels run, where the device
/// can.
pub(super) struct CopyQueue<B: Backend> {
    pub queue: Option<Arc<B>>,
    /// Whether it may still move some.
    pub is_busy: bool,
}

impl<B: Backend> CopyQueue<B> {
    pub fn new(backend: &Arc<B>, options: &SequenceOptions) -> Self {
        let has_one = options.overlap
            && options.placement == Placement::Device
            && backend.capabilities().overlaps;
        Self { queue: has_one.then(|| Arc::new(backend.background())), is_busy: false }
    }

    /// Work on `backend` from now on sees the rows that this queue was told to move.
    pub fn join(&mut self, backend: &B) -> Result<(), OpError> {
        match &self.queue {
            Some(queue) if std::mem::take(&mut self.is_busy) => backend.after(queue),
            _ => Ok(()),
        }
    }
}

fn open_store<B: Backend>(
    backend: &Arc<B>,
    shape: &KvShape,
    policy: &Policy,
    options: &SequenceOptions,
) -> Result<Box<dyn HostStore<B>>, OpError> {
    if shape.host_rows == HostRows::EightBits {
        return open_eight_bit_store(backend, shape, policy, options);
    }
    Ok(match options.store {
        HostStoreKind::Plain => Box::new(PlainStore::new(shape)?),
        HostStoreKind::Elsewhere(open) => Box::new(PlainStore::opened_by(shape, open)?),
        HostStoreKind::Auto => match MappedStore::new(backend, shape)? {
            Some(store) => Box::new(store),
            None => Box::new(PlainStore::new(shape)?),
        },
    })
}

/// Kernels read rows of 8 bits where they attend to them, or fetch them into slots like them;
/// elsewhere the host widens what it sends.
fn open_eight_bit_store<B: Backend>(
    backend: &Arc<B>,
    shape: &KvShape,
    policy: &Policy,
    options: &SequenceOptions,
) -> Result<Box<dyn HostStore<B>>, OpError> {
    let layout = exact_layout(shape, policy, options);
    let is_mapped = match options.placement {
        Placement::InPlace => true,
        // Where a step goes by the selections of the last one, the host collects rows while kernels
        // run, which it could not with rows that they write.
        Placement::Device => {
            matches!(options.store, HostStoreKind::Auto)
                && options.eight_bit_slots
                && options.recall == RecallMode::Exact
        }
    };
    if is_mapped && let Some(store) = EightBitStore::mapped(backend, shape, layout)? {
        return Ok(Box::new(store));
    }
    Ok(match options.store {
        HostStoreKind::Elsewhere(open) => {
            Box::new(EightBitStore::<B>::opened_by(shape, layout, open)?)
        }
        HostStoreKind::Auto | HostStoreKind::Plain => {
            Box::new(EightBitStore::<B>::plain(shape, layout)?)
        }
    })
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
        let store = open_store(backend, &shape, &policy, &options)?;
        let mut sequence = Self::bare(backend, shape, policy, options, store)?;
        sequence.adopt_policy()?;
        sparse_means::check(&sequence.policy, &sequence.options)?;
        Ok(sequence)
    }

    /// An empty sequence whose rows will be those of `store`, without what its policy asks for.
    pub(super) fn bare(
        backend: &Arc<B>,
        shape: KvShape,
        policy: Policy,
        options: SequenceOptions,
        store: Box<dyn HostStore<B>>,
    ) -> Result<Self, SchedulerError> {
        let (first, in_place) = (LayerId(0), options.placement == Placement::InPlace);
        if in_place && store.buffer(first).is_none() && store.two_forms(first).is_none() {
            return Err(SchedulerError::NotUnified { backend: backend.name() });
        }
        let layers = (0..shape.n_layers)
            .map(|_| Layer::new(&**backend, &shape))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            mover: RowMover::new(&**backend, &shape, 1, true)?,
            copies: CopyQueue::new(backend, &options),
            lists: RowLists::new(&**backend, shape.n_kv_heads, 1, false)?,
            exact: None,
            coded: None,
            misses_wait: false,
            recall: None,
            sink_rotation: None,
            trace: Trace::default(),
            tracked: None,
            writeback: Writeback::with_layers(shape.n_layers),
            stats: Stats::new(shape.n_layers, shape.n_kv_heads),
            layout: policy.device_layout(shape.capacity),
            worker: ClusterWorker::new(backend, options.overlap, 2 * shape.n_layers),
            backend: Arc::clone(backend),
            shape,
            policy,
            options,
            store,
            layers,
            readiness: Readiness::Ready,
            ending: None,
            n_tokens: 0,
            n_drafted: 0,
            known: KnownTokens::default(),
            was_read: PrefillMode::Exact,
            sparse: None,
            block_counts: BlockCounts::default(),
            spare_jobs: Vec::new(),
            stop: Arc::default(),
            bytes: Vec::new(),
            order: Vec::new(),
        })
    }

    /// Lets `stop` end the indexing of prompts from now on, between two layers or two iterations of
    /// a clustering: it fails with [`SchedulerError::Stopped`], and the rows stay.
    pub fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    pub(super) fn check_stop(&self) -> Result<(), SchedulerError> {
        if self.stop.load(Ordering::Relaxed) { Err(SchedulerError::Stopped) } else { Ok(()) }
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

    /// Which query selects what steps recall.
    pub fn recall_mode(&self) -> RecallMode {
        self.options.recall
    }

    /// The layers' state, for probes and tests.
    pub fn layers(&self) -> &[Layer<B>] {
        &self.layers
    }

    /// The host store, for probes and tests.
    pub fn store(&self) -> &dyn HostStore<B> {
        &*self.store
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

    /// Bytes of rows in host memory that forks of this sequence, or what it was forked from, have
    /// too: [`Sequence::fork`].
    pub fn shared_host_kv_bytes(&self) -> u64 {
        self.store.shared_bytes().min(self.host_kv_bytes())
    }

    /// Whether [`Sequence::begin_policy`] or [`Sequence::begin_cut`] left an index to be made:
    /// [`Sequence::finish_prefill_piece`] does so, and then more of the prompt may come.
    pub fn is_behind(&self) -> bool {
        self.readiness == Readiness::Behind
    }

    /// Whether attention reads the host store itself.
    pub fn in_place(&self) -> bool {
        self.options.placement == Placement::InPlace
    }

    /// Whether buffers and index are those of no policy, so that not even a prefill can go on.
    pub fn needs_rebuild(&self) -> bool {
        self.readiness == Readiness::NeedsRebuild
    }

    /// Whether kernels carry new rows to the host, at a time of their own: they are there once
    /// something was read from the device.
    pub fn rows_come_later(&self) -> bool {
        let writes_rows = self.store.buffer(LayerId(0)).is_some() || self.kernels_write_two_forms();
        !self.in_place() && writes_rows
    }

    /// Whether the device is gone that the sequence lives on.
    pub fn is_lost(&self) -> bool {
        self.backend.is_lost()
    }

    /// Whether the sequence lives on this backend.
    pub fn is_on(&self, backend: &Arc<B>) -> bool {
        Arc::ptr_eq(&self.backend, backend)
    }

    pub(super) fn check_room(&self, more: usize) -> Result<(), SchedulerError> {
        let needed = self.n_tokens + more;
        if needed <= self.shape.capacity {
            return Ok(());
        }
        Err(SchedulerError::ContextFull { needed, capacity: self.shape.capacity })
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
        self.store.expect(end);
        while self.n_tokens < end {
            let (first, len) = (self.n_tokens, self.options.chunk.min(end - self.n_tokens));
            let mut rows = vec![0.0; len * width];
            for layer in self.shape.layers() {
                for head in self.shape.heads() {
                    fill(layer, head, first, &mut rows);
                    let bytes = encode_f32(self.shape.kv_dtype, &rows);
                    self.store.write_rows(layer, head, first, &bytes);
                }
                self.layers[layer].push_positions(first, len);
                self.layers[layer].rows_changed(first..first + len);
                self.keep_prompt_keys(layer, first..first + len);
                self.submit_segments(layer, first + len).await?;
            }
            self.known.read(self.n_tokens, len);
            self.n_tokens += len;
        }
        Ok(())
    }

    /// The rows of a layer in the host store.
    pub(super) fn rows(&self, layer: LayerId) -> LayerRows<'_, B> {
        LayerRows { shape: &self.shape, store: &*self.store, layer }
    }

    /// The first row behind the sinks that is always attended when the sequence has `n_rows` rows.
    pub(super) fn window_start(&self, layer: LayerId, n_rows: usize) -> usize {
        let sinks = self.layout.sinks.min(n_rows);
        let state = &self.layers[layer];
        match state.mode() {
            LayerMode::Dense => 0,
            LayerMode::Local => self.first_visible(layer, n_rows),
            LayerMode::Window => n_rows.saturating_sub(self.policy.recent).max(sinks),
            LayerMode::Recall | LayerMode::Kept => state.n_indexed.min(n_rows).max(sinks),
        }
    }

    /// Whether the last of `n_rows` tokens attends to all of them in `layer`.
    pub(super) fn attends_all(&self, layer: LayerId, n_rows: usize) -> bool {
        match self.layers[layer].mode() {
            LayerMode::Dense => true,
            // Rows of 8 bits are attended in two parts.
            LayerMode::Recall => {
                let lie_in_place = self.in_place() && self.exact.is_none();
                let lie_there = lie_in_place || self.layers[layer].resident.is_some();
                n_rows <= self.policy.attend_all && lie_there
            }
            LayerMode::Local | LayerMode::Window | LayerMode::Kept => false,
        }
    }

    /// Whether a window of `layer` goes to the worker when the sequence has `n_tokens` tokens.
    pub(super) fn fills_window(&self, layer: LayerId, n_tokens: usize) -> bool {
        let (Some(index), state) = (self.policy.index, &self.layers[layer]) else { return false };
        let pending = n_tokens.saturating_sub(state.n_indexed);
        state.recall().is_some()
            && state.n_submitted == state.n_indexed
            && pending >= self.policy.recent + index.window
    }

    /// Whether `layer` has no use for an index while the sequence has `n_rows` tokens, because
    /// every step attends to all of them. One layer after the other needs it before the end of
    /// that, so that no decode step has to index the tokens of all layers.
    pub(super) fn index_waits(&self, layer: LayerId, n_rows: usize) -> bool {
        let layers_left = self.shape.n_layers - layer.index();
        self.layers[layer].recall().is_some() && self.attends_all(layer, n_rows + layers_left)
    }

    /// Whether rows of some layer that recalls are not in its index because it waits.
    pub(crate) fn has_waiting_index(&self) -> bool {
        self.policy.attend_all > 0
            && self.shape.layers().any(|layer| self.fills_window(layer, self.n_tokens))
    }

    /// The first row that the last of `n_rows` tokens sees, under any policy.
    pub(super) fn first_visible(&self, layer: LayerId, n_rows: usize) -> usize {
        self.shape.window(layer).map_or(0, |window| n_rows.saturating_sub(window))
    }

    /// First tokens that `layer` always attends.
    pub(super) fn sinks(&self, layer: LayerId) -> usize {
        if self.layers[layer].mode() == LayerMode::Local { 0 } else { self.layout.sinks }
    }

    /// The device row of a row that is always attended.
    pub(super) fn device_row(&self, layer: LayerId, row: usize) -> usize {
        match self.layers[layer].mode() {
            LayerMode::Dense => row,
            LayerMode::Recall if self.layers[layer].resident.is_some() => row,
            LayerMode::Local => row % self.layers[layer].device_rows.max(1),
            LayerMode::Window | LayerMode::Recall | LayerMode::Kept => self.layout.row(row),
        }
    }

    /// The rows that attention of `layer` reads.
    pub(super) fn attended_rows(&self, layer: LayerId) -> KvView<'_, B> {
        let state = &self.layers[layer];
        match (&state.device, &state.state) {
            // Rings and pool of all heads are one array.
            (Some(buffer), LayerState::Kept(_)) => KvView::new(buffer, 0),
            (Some(buffer), _) => KvView::new(buffer, state.device_rows),
            (None, _) => match self.rounded_rows(layer) {
                Some(rounded) => rounded,
                None => {
                    let rows = self.store.buffer(layer);
                    let rows = rows.expect("in place: kernels read the store");
                    KvView::new(rows, self.shape.capacity)
                }
            },
        }
    }

    /// The slots of 8 bits of a layer that has some, and which of them the step attends.
    pub(super) fn slots(&self, layer: LayerId) -> Option<(&RowLists<B>, KvView<'_, B>)> {
        Some((&self.coded.as_ref()?.lists, self.layers[layer].slots.as_ref()?.view()))
    }

    /// Where rows lie of layers that keep some.
    pub(super) fn kept_places(&self) -> KeptPlaces {
        let n_kv_heads = self.shape.n_kv_heads;
        let in_place = self.in_place() && self.exact.is_none();
        KeptPlaces { in_place, layout: self.layout, n_kv_heads }
    }

    /// What has to be read after a decode step: the new rows where the host store is not mapped,
    /// what a step that speculates selected and compared, and what the device selected by itself
    /// where somebody looks at steps. Once it is read, call [`Sequence::finish_writeback`].
    pub fn writeback_parts(&mut self) -> ReadParts<'_, B> {
        let is_looked_at = self.is_looked_at();
        let sources = self.layers.iter().filter_map(Layer::writeback_source);
        let mut parts = self.writeback.read_parts(&self.shape, sources);
        let Some(recall) = &mut self.recall else { return parts };
        let (is_unread, was_compared) = (recall.is_unread(), recall.was_compared());
        let RecallPath { selector, speculation, device_cache, resident, .. } = recall;
        if is_unread || (is_looked_at && (device_cache.is_some() || resident.is_some())) {
            parts.extend(selector.read_parts());
        }
        let counted = device_cache.iter_mut().filter(|cache| cache.is_unread());
        parts.extend(counted.map(|cache| cache.read_part()));
        let counted = resident.iter_mut().filter(|resident| resident.is_unread());
        parts.extend(counted.map(|resident| resident.read_part()));
        if was_compared {
            parts.extend(speculation.iter_mut().map(|speculation| speculation.read_part()));
        }
        parts
    }

    /// Takes in what was read for [`Sequence::writeback_parts`]: rows go to the host store, or the
    /// step is taken back.
    pub fn finish_writeback(&mut self) -> StepVerdict {
        let ends_step = self.writeback.finished_token().is_some() || self.is_unread();
        if self.judge() == StepVerdict::RunAgain {
            return StepVerdict::RunAgain;
        }
        let layers = self.layers.iter().enumerate();
        let recalling = layers.filter(|(_, layer)| layer.recall().is_some()).map(|(i, _)| i);
        let resident = self.recall.as_mut().and_then(|recall| recall.resident.as_mut());
        if let Some(resident) = resident.filter(|resident| resident.is_unread()) {
            resident.report(&mut self.stats, recalling.clone());
        }
        if let Some(cache) = self.recall.as_mut().and_then(|recall| recall.device_cache.as_mut())
            && cache.is_unread()
        {
            let row_bytes = match self.coded {
                Some(_) => self.shape.host_row_bytes(),
                None => self.shape.row_bytes(),
            };
            cache.report(&mut self.stats, recalling, row_bytes);
        }
        self.writeback.write(&self.shape, &mut *self.store);
        if ends_step {
            self.submit_windows();
        }
        StepVerdict::Stands
    }

    /// Brings what the last step left on the device to the host now, if nobody has. Rows of a step
    /// that did not end are forgotten.
    pub async fn write_back(&mut self) -> Result<StepVerdict, SchedulerError> {
        if self.writeback.finished_token().is_none() {
            self.writeback.clear();
        }
        let was_compared = self.recall.as_ref().is_some_and(RecallPath::was_compared);
        if self.writeback.is_empty() && !was_compared {
            return Ok(StepVerdict::Stands);
        }
        let backend = Arc::clone(&self.backend);
        let mut parts = self.writeback_parts();
        backend.read_all(&mut parts).await?;
        drop(parts);
        Ok(self.finish_writeback())
    }

    /// [`Sequence::write_back`] for calls that build on the last step. One that may not stand is
    /// the caller's to look at first.
    pub(super) async fn bring_rows(&mut self) -> Result<(), SchedulerError> {
        if self.is_unread() {
            return Err(SchedulerError::VerdictUnread);
        }
        self.write_back().await.map(|_| ())
    }

    /// Whether a speculative step has ended whose verdict nobody has read.
    pub(super) fn is_unread(&self) -> bool {
        self.recall.as_ref().is_some_and(RecallPath::is_unread)
    }

    /// Looks at the comparisons that were read. A step that should not have speculated is taken
    /// back: the same token again will recall exactly.
    fn judge(&mut self) -> StepVerdict {
        let speculation = self.recall.as_mut().and_then(|recall| recall.speculation.as_mut());
        let Some(speculation) = speculation else { return StepVerdict::Stands };
        let verdict = speculation.judge(&mut self.stats);
        if verdict == StepVerdict::RunAgain {
            self.writeback.clear();
            self.n_tokens -= 1;
            self.known.cut(self.n_tokens);
            for positions in self.layers.iter_mut().flat_map(|layer| &mut layer.positions) {
                positions.truncate(self.n_tokens);
            }
        }
        verdict
    }

    /// `sum q q^T` and `sum k k^T` of `layer` over the tokens of all prompts, `[Hkv, Dh, Dh]` each.
    pub async fn gram_sums(&self, layer: LayerId) -> Result<(Vec<f32>, Vec<f32>), SchedulerError> {
        Ok(self.layers[layer].recorded.sums(&*self.backend).await?)
    }
}
