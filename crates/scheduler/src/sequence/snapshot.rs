//! The layers of a sequence as plain data, and back: what a session file holds of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use longview_core::{DType, HeadId, LayerId, decode_f32, encode_f32};
use longview_ops::{Backend, OpResult, View, ViewMut};

use super::known_tokens::KnownTokens;
use super::kv_sequence::Sequence;
use super::layer_state::{LayerState, Recall, SelectedAt};
use super::options::SequenceOptions;
use crate::error::{SchedulerError, SessionFileError};
use crate::eviction::{Kept, KeptRecord};
use crate::index::{
    ClustersRecord, HeadClusters, IndexRecord, LayerIndex, LayerProjection, LowRankDecode,
    LowRankRecord, ProjectionRecord, QueriesRecord, RecordedQueries, projection::Projections,
};
use crate::layout::{KvShape, PrefillMode, SUMMED_TOKENS};
use crate::policy::{INDEX_SEGMENT, Policy};
use crate::store::{HostStore, ReadParts};

/// Which token each row is, as far as rows are out of token order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlacesRecord {
    /// Rows below this may be out of token order.
    pub permuted_to: usize,
    /// `[Hkv]`: the tokens of these rows.
    pub positions: Vec<Vec<u32>>,
}

/// What prefill recorded for later policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordedRecord {
    /// `sum q q^T`, `[Hkv, Dh, Dh]`.
    pub gram_q: Vec<f32>,
    /// `sum k k^T`.
    pub gram_k: Vec<f32>,
    /// `[n, Hq, Dh]`.
    pub last_queries: Vec<f32>,
    /// Tokens of the sequence behind the last of these.
    pub last_end: usize,
    /// What rows received from all queries, `[Hq, mass_rows]`.
    pub mass: Vec<f32>,
    /// Rows of `mass`; 0 where it was not recorded.
    pub mass_rows: usize,
    /// Sums of queries over blocks of positions.
    pub queries: Option<QueriesRecord>,
}

/// What a layer has of its policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LayerStateRecord {
    /// Nothing: it attends everything, or a window.
    Plain,
    /// Clusters, blocks or tokens to recall.
    Recall(Box<RecallRecord>),
    /// Rows kept for their attention.
    Kept(KeptRecord),
}

/// The state of a layer that recalls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecallRecord {
    /// Rows below this are sinks or indexed.
    pub n_indexed: usize,
    /// Whether the window behind them is being indexed.
    pub is_submitted: bool,
    /// B of each head, where they differ.
    pub budgets: Option<Vec<u32>>,
    /// The space of tokens.
    pub projection: Option<ProjectionRecord>,
    /// Its bases, where every step moves them.
    pub low_rank: Option<LowRankRecord>,
    /// What is recalled.
    pub index: IndexRecord,
    /// Tokens inside of clusters.
    pub tokens: Option<IndexRecord>,
    /// The selection in force, where it outlives its step.
    pub selection: Option<SelectionRecord>,
}

/// The selection of one layer that was made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectionRecord {
    /// Tokens that the sequence had.
    pub n_tokens: usize,
    /// Rows that were indexed.
    pub n_indexed: usize,
    /// Unit and tokens taken, best first, of each head.
    pub heads: Vec<Vec<[u32; 2]>>,
}

/// One layer, but for its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerRecord {
    pub recorded: RecordedRecord,
    pub state: LayerStateRecord,
}

impl RecallRecord {
    /// Whether the layer's rows can be what its indexes say, when the first `sinks` rows are in
    /// none and at most `pending` are behind them.
    fn is_sound(&self, sinks: usize, pending: usize, n_tokens: usize) -> bool {
        let ends = self.n_indexed <= n_tokens.max(sinks)
            && n_tokens.saturating_sub(self.n_indexed) < pending.max(1);
        let tokens = self.tokens.iter().all(|tokens| tokens.covers(sinks, self.n_indexed));
        let units = self.tokens.as_ref().unwrap_or(&self.index);
        let exists = |[unit, take]: &[u32; 2], head: &ClustersRecord| {
            head.sizes.get(*unit as usize).is_some_and(|size| (1..=*size).contains(take))
        };
        let choices = self.selection.iter().flat_map(|c| c.heads.iter().zip(&units.heads));
        let mut choices = choices.map(|(choice, head)| choice.iter().all(|c| exists(c, head)));
        ends && self.index.covers(sinks, self.n_indexed)
            && tokens
            && choices.all(|is_sound| is_sound)
    }
}

impl<B: Backend> Sequence<B> {
    /// Which token each row of a layer is.
    pub(crate) fn places(&self, layer: LayerId) -> PlacesRecord {
        let (state, permuted_to) = (&self.layers[layer], self.n_moved(layer));
        let positions = state.positions.iter().map(|head| head[..permuted_to].to_vec()).collect();
        PlacesRecord { permuted_to, positions }
    }

    /// Rows of a layer up to the last one that an index has moved.
    pub(crate) fn n_moved(&self, layer: LayerId) -> usize {
        self.layers[layer].permuted_to.min(self.n_tokens)
    }

    /// First tokens that are those of prompts.
    pub(crate) fn n_read(&self) -> usize {
        self.known.n_read()
    }

    /// Everything of the last step is on the host; rows may be read, in an order of this policy.
    pub(crate) async fn settle_rows(&mut self) -> Result<(), SchedulerError> {
        self.bring_rows().await?;
        self.shape.layers().for_each(|layer| self.leave_old_order(layer));
        Ok(self.copies.join(&self.backend)?)
    }

    /// A layer as a session file has it.
    pub(crate) async fn layer_record(&self, layer: LayerId) -> Result<LayerRecord, SchedulerError> {
        let state = self.state(layer, &|index| index.record(&self.backend)).await?;
        let recorded = self.recorded(layer).await?;
        Ok(LayerRecord { recorded, state })
    }

    /// What prefill recorded of a layer.
    pub(crate) async fn recorded(&self, layer: LayerId) -> Result<RecordedRecord, SchedulerError> {
        let (gram_q, gram_k) = self.gram_sums(layer).await?;
        Ok(RecordedRecord { gram_q, gram_k, ..self.recorded_but_sums(layer).await? })
    }

    async fn recorded_but_sums(&self, layer: LayerId) -> Result<RecordedRecord, SchedulerError> {
        let (backend, recorded) = (&*self.backend, &self.layers[layer].recorded);
        let (hq, capacity, rows) = (self.shape.n_q_heads, self.shape.capacity, recorded.mass_rows);
        let mut mass = Vec::new();
        if let Some(buffer) = recorded.mass.as_ref().filter(|_| rows > 0) {
            mass.resize(hq * rows, 0.0f32);
            let heads = mass.chunks_exact_mut(rows).enumerate();
            let mut parts: ReadParts<'_, B> = heads
                .map(|(g, out)| {
                    (View::part(buffer, g * capacity, rows), bytemuck::cast_slice_mut(out))
                })
                .collect();
            backend.read_all(&mut parts).await?;
        }
        Ok(RecordedRecord {
            gram_q: Vec::new(),
            gram_k: Vec::new(),
            last_queries: recorded.last_queries.clone(),
            last_end: recorded.last_end,
            mass_rows: if mass.is_empty() { 0 } else { rows },
            mass,
            queries: match &recorded.queries {
                Some(queries) => Some(queries.record(backend).await?),
                None => None,
            },
        })
    }

    /// [`Sequence::recorded`] in the middle of a prompt: its last queries are yet to come, those of
    /// a prompt before it are of no use any more, and all that was read counts.
    pub(crate) async fn recorded_so_far(
        &self,
        layer: LayerId,
    ) -> Result<RecordedRecord, SchedulerError> {
        let mut record = self.recorded(layer).await?;
        if self.known.is_prompt(record.last_end + 1) {
            record.last_end = self.known.n_read();
            record.last_queries.clear();
        }
        Ok(record)
    }

    /// `indexed` makes the record of an index.
    async fn state(
        &self,
        layer: LayerId,
        indexed: &dyn Fn(&LayerIndex<B>) -> IndexRecord,
    ) -> Result<LayerStateRecord, SchedulerError> {
        let state = &self.layers[layer];
        let recall = match &state.state {
            LayerState::Dense | LayerState::Window | LayerState::Local => {
                return Ok(LayerStateRecord::Plain);
            }
            LayerState::Kept(kept) => {
                let record = kept.0.record(&self.backend, state.n_indexed).await?;
                return Ok(LayerStateRecord::Kept(record));
            }
            LayerState::Recall(recall) => recall,
        };
        let projection = recall.projection.as_ref();
        let low_rank = projection.and_then(|projection| projection.low_rank.as_ref());
        let budgets = recall.budgets.as_ref();
        Ok(LayerStateRecord::Recall(Box::new(RecallRecord {
            n_indexed: state.n_indexed,
            is_submitted: state.n_submitted > state.n_indexed,
            budgets: budgets.map(|budgets| budgets.iter().map(|b| *b as u32).collect()),
            projection: projection.map(|p| p.record(&self.shape)),
            low_rank: low_rank.map(LowRankDecode::record),
            index: indexed(&recall.index),
            tokens: recall.tokens.as_ref().map(indexed),
            selection: self.selection_record(recall),
        })))
    }

    /// The selection of a layer, where later steps look at it and the host has it.
    fn selection_record(&self, recall: &Recall<B>) -> Option<SelectionRecord> {
        let path = self.recall.as_ref().filter(|path| path.device_cache.is_none())?;
        let outlives = self.policy.index?.remembers_selection();
        let at = recall.selected_at.filter(|_| outlives)?;
        let head = |head: HeadId| {
            let selected = path.selector.selected(recall.selection, head);
            selected.map(|(unit, take)| [unit as u32, take as u32]).collect()
        };
        let heads = self.shape.heads().map(head).collect();
        Some(SelectionRecord { n_tokens: at.n_tokens, n_indexed: at.n_indexed, heads })
    }
}

/// A sequence that is being made from records, layer after layer.
pub(crate) struct Restored<B: Backend> {
    sequence: Sequence<B>,
    /// Whether the records are of the policy in force.
    is_same_policy: bool,
    /// Whether indexes are there, those of a sequence that is forked, and records have none.
    is_fork: bool,
    /// Layers whose window was being indexed.
    submitted: Vec<LayerId>,
    selections: Vec<(LayerId, SelectionRecord)>,
}

impl<B: Backend> Restored<B> {
    /// An empty sequence that will have `n_tokens`.
    pub fn new(
        backend: &Arc<B>,
        shape: KvShape,
        policy: Policy,
        options: SequenceOptions,
        n_tokens: usize,
        is_same_policy: bool,
    ) -> Result<Self, SchedulerError> {
        let mut sequence = Sequence::new(backend, shape, policy, options)?;
        sequence.n_tokens = n_tokens;
        let (submitted, selections) = (Vec::new(), Vec::new());
        Ok(Self { sequence, is_same_policy, is_fork: false, submitted, selections })
    }

    /// A sequence under the policy of `origin`, with its rows in a store of its own, and its
    /// indexes.
    pub(super) fn fork_of(origin: &mut Sequence<B>) -> Result<Self, SchedulerError> {
        let store = origin.store.fork(origin.n_tokens)?;
        let Sequence { backend, shape, policy, options, n_tokens, was_read, known, layers, .. } =
            origin;
        let mut sequence = Sequence::bare(backend, shape.clone(), policy.clone(), *options, store)?;
        let forked = layers.iter_mut().map(|layer| {
            let recall = layer.recall_mut();
            recall.map(|recall| recall.fork_indexes(&**backend)).transpose()
        });
        sequence.adopt_layers(forked.collect::<OpResult<Vec<_>>>()?)?;
        sequence.n_tokens = *n_tokens;
        sequence.was_read = *was_read;
        sequence.known = *known;
        let (submitted, selections) = (Vec::new(), Vec::new());
        Ok(Self { sequence, is_same_policy: true, is_fork: true, submitted, selections })
    }

    /// Says how its tokens were read.
    pub fn set_read(&mut self, how: PrefillMode) {
        self.sequence.was_read = how;
    }

    /// Lets `stop` end what is to come: [`Sequence::stop_with`].
    pub fn stop_with(&mut self, stop: &Arc<AtomicBool>) {
        self.sequence.stop_with(Arc::clone(stop));
    }

    /// Fails once it was stopped.
    pub fn check_stop(&self) -> Result<(), SchedulerError> {
        self.sequence.check_stop()
    }

    /// Whether layers that are there may take tokens while others are not.
    pub fn may_be_used(&self) -> bool {
        self.is_same_policy && self.submitted.is_empty() && self.sequence.attends_plain_rows()
    }

    /// The sequence as far as it is there.
    pub fn sequence(&mut self) -> &mut Sequence<B> {
        &mut self.sequence
    }

    /// The dimensions of its rows.
    pub fn shape(&self) -> &KvShape {
        self.sequence.shape()
    }

    /// Its host store.
    pub fn store(&self) -> &dyn HostStore<B> {
        self.sequence.store()
    }

    /// Its host store, to be filled.
    pub fn store_mut(&mut self) -> &mut dyn HostStore<B> {
        &mut *self.sequence.store
    }

    /// Writes rows of a layer from `start` on to the host store.
    pub fn write_rows(&mut self, layer: LayerId, head: HeadId, start: usize, bytes: &[u8]) {
        self.sequence.store.write_rows(layer, head, start, bytes);
    }

    /// The same of rows that do not follow each other.
    pub fn scatter_rows(&mut self, layer: LayerId, head: HeadId, rows: &[u32], bytes: &[u8]) {
        self.sequence.store.scatter_rows(layer, head, rows, bytes);
    }

    /// Which token each row of a layer is.
    pub fn set_places(&mut self, layer: LayerId, places: &PlacesRecord) {
        let n = self.sequence.n_tokens as u32;
        let state = &mut self.sequence.layers[layer];
        state.permuted_to = places.permuted_to;
        for (positions, head) in state.positions.iter_mut().zip(&places.positions) {
            positions.extend_from_slice(head);
            positions.extend(places.permuted_to as u32..n);
        }
    }

    /// A layer, whose rows and places are there.
    pub fn set_layer(&mut self, layer: LayerId, record: LayerRecord) -> Result<(), SchedulerError> {
        let RecordedRecord { gram_q, gram_k, .. } = &record.recorded;
        let sums = [&gram_q[..], gram_k].concat().into();
        self.put_layer(layer, record, sums)
    }

    /// [`Restored::set_layer`] with the sums of the record apart, as [`Recorded::shared_sums`] has
    /// them.
    ///
    /// [`Recorded::shared_sums`]: crate::index::Recorded::shared_sums
    fn put_layer(
        &mut self,
        layer: LayerId,
        record: LayerRecord,
        sums: Arc<[f32]>,
    ) -> Result<(), SchedulerError> {
        self.load_recorded(layer, record.recorded, sums)?;
        if !self.is_same_policy {
            return Ok(());
        }
        if let LayerStateRecord::Recall(recall) = &record.state {
            self.submitted.extend(recall.is_submitted.then_some(layer));
            self.selections.extend(recall.selection.clone().map(|selection| (layer, selection)));
        }
        self.load_state(layer, record.state)
    }

    /// A layer of `origin`, whose places are there.
    pub(super) async fn fork_layer(
        &mut self,
        layer: LayerId,
        origin: &mut Sequence<B>,
    ) -> Result<(), SchedulerError> {
        let state = origin.state(layer, &|_| IndexRecord::default()).await?;
        let recorded = origin.recorded_but_sums(layer).await?;
        let sums = origin.layers[layer].recorded.shared_sums(&*origin.backend).await?;
        self.put_layer(layer, LayerRecord { recorded, state }, sums)?;
        let (own, other) = (&mut self.sequence.layers[layer], &origin.layers[layer]);
        own.recorded.share_sums(&other.recorded);
        if let (Some(own), Some(other)) = (own.recall_mut(), other.recall()) {
            own.projected = other.projected;
        }
        Ok(())
    }

    /// The sequence: as it was under the policy of the records, else indexed anew.
    pub async fn finish(mut self) -> Result<Sequence<B>, SchedulerError> {
        if !self.is_fork {
            self.know_prompt();
        }
        if !self.is_same_policy {
            self.sequence.sort_rows();
            self.sequence.finish_prefill().await?;
            return Ok(self.sequence);
        }
        self.sequence.alloc_shared()?;
        for (layer, selection) in std::mem::take(&mut self.selections) {
            self.load_selection(layer, &selection)?;
        }
        let Self { mut sequence, submitted, .. } = self;
        // Older files have rows where clusters of a policy before had put them.
        for layer in sequence.shape.layers() {
            if sequence.layers[layer].recall().is_none() {
                sequence.restore_token_order(layer, 0);
            }
        }
        sequence.load_device()?;
        for layer in submitted {
            sequence.submit_window(layer);
        }
        Ok(sequence)
    }

    /// Of a saved sequence the end of the last prompt says what is known: an answer behind a prompt
    /// is read again before the next one. Where nothing was recorded, rows came from elsewhere.
    fn know_prompt(&mut self) {
        let Sequence { layers, n_tokens, known, .. } = &mut self.sequence;
        let end = layers.iter().map(|layer| layer.recorded.last_end).max();
        let end = end.filter(|end| *end > 0).unwrap_or(*n_tokens);
        *known = KnownTokens::of_prompt(end.min(*n_tokens));
    }

    fn load_recorded(
        &mut self,
        layer: LayerId,
        record: RecordedRecord,
        sums: Arc<[f32]>,
    ) -> Result<(), SchedulerError> {
        let Sequence { backend, shape, policy, layers, .. } = &mut self.sequence;
        let (backend, layer) = (&**backend, &mut layers[layer]);
        let recorded = &mut layer.recorded;
        recorded.load_sums(sums);
        (recorded.last_queries, recorded.last_end) = (record.last_queries, record.last_end);
        recorded.n_summed = record.last_end.min(SUMMED_TOKENS);
        if policy.needs_sums() {
            // Before a step adds to them: what is begun while other layers come may be undone.
            recorded.keep_loaded();
        }
        if record.mass_rows > 0 {
            let (hq, capacity) = (shape.n_q_heads, shape.capacity);
            // Rows beyond this context were of tokens that were taken back.
            let rows = record.mass_rows.min(capacity);
            let len = (hq + 1) * capacity;
            let mut mass = backend.alloc(DType::F32, len, "received attention")?;
            for (g, head) in record.mass.chunks_exact(record.mass_rows).enumerate() {
                let place = ViewMut::part(&mut mass, g * capacity, rows);
                backend.write(place, bytemuck::cast_slice(&head[..rows]))?;
            }
            (recorded.mass, recorded.mass_rows) = (Some(mass), rows);
        }
        if let Some(queries) = record.queries {
            let queries = RecordedQueries::from_record(backend, shape, queries)?;
            let wrong = SessionFileError::Inconsistent("its sums of queries");
            let queries = queries.ok_or(wrong)?;
            // As a change of the policy: sums over other blocks do not serve it.
            let is_used = layer.recall().is_some();
            let window = policy.local_window().filter(|_| is_used);
            if window.is_none_or(|window| queries.serves(window)) {
                layer.recorded.queries = Some(queries);
            }
        }
        Ok(())
    }

    fn load_state(
        &mut self,
        layer: LayerId,
        state: LayerStateRecord,
    ) -> Result<(), SchedulerError> {
        let fits = match (&self.sequence.layers[layer].state, state) {
            (LayerState::Dense, LayerStateRecord::Plain) => true,
            (LayerState::Window | LayerState::Local, LayerStateRecord::Plain) => {
                self.sequence.layers[layer].permuted_to == 0
            }
            (LayerState::Recall(_), LayerStateRecord::Recall(recall)) => {
                self.load_recall(layer, *recall)?
            }
            (LayerState::Kept(_), LayerStateRecord::Kept(kept)) => self.load_kept(layer, kept)?,
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(SessionFileError::Inconsistent("a layer's state is not one of its policy").into())
    }

    /// `false` if the record is not of this layer under this policy.
    fn load_recall(
        &mut self,
        layer: LayerId,
        record: RecallRecord,
    ) -> Result<bool, SchedulerError> {
        let is_fork = self.is_fork;
        let Sequence { backend, shape, policy, layers, n_tokens, .. } = &mut self.sequence;
        let (backend, sinks, state) = (&**backend, policy.sinks, &mut layers[layer]);
        let LayerState::Recall(recall) = &mut state.state else { return Ok(false) };
        let adapts = policy.index.is_some_and(|index| index.adapts());
        let is_fit = (is_fork || record.is_sound(sinks, policy.ring_rows(), *n_tokens))
            && state.permuted_to <= record.n_indexed
            && record.tokens.is_some() == recall.tokens.is_some()
            && (adapts || record.low_rank.is_none());
        if !is_fit {
            return Ok(false);
        }
        let (width, token_width) = if is_fork {
            (recall.index.width(), recall.tokens.as_ref().map(LayerIndex::width))
        } else {
            (record.index.width, record.tokens.as_ref().map(|tokens| tokens.width))
        };
        let low_rank_fits = record
            .low_rank
            .as_ref()
            .is_none_or(|low_rank| record.projection.is_some() && low_rank.rank == width);
        if !low_rank_fits {
            return Ok(false);
        }
        if let Some(ProjectionRecord { rank, w_q, w_k }) = record.projection {
            let width = token_width.unwrap_or(width);
            if rank != width || width == 0 {
                return Ok(false);
            }
            let low_rank = record
                .low_rank
                .map(|low_rank| LowRankDecode::from_record(low_rank, shape.head_dim));
            let made = Projections { rank, w_q, w_k };
            let projection = LayerProjection::new(backend, made, low_rank)?;
            recall.set_projection(backend, shape, policy, rank, projection)?;
            // A prompt's end made it, of what it had by then.
            let n_read = state.recorded.last_end.min(*n_tokens);
            let n_rows = policy.index.map_or(0, |index| {
                index.covers(n_read.saturating_sub(sinks + policy.recent)).min(INDEX_SEGMENT)
            });
            let is_coded = recall.tokens.is_some();
            recall.projected = (state.recorded.n_summed, if is_coded { n_rows } else { 0 });
        }
        let most = policy.most_attended();
        recall.budgets =
            record.budgets.map(|budgets| budgets.iter().map(|b| (*b as usize).min(most)).collect());
        (state.n_indexed, state.n_submitted) = (record.n_indexed, record.n_indexed);
        if is_fork {
            recall.follow_tokens(backend, sinks)?;
            recall.resize_caches();
            return Ok(true);
        }
        let mut is_fit = recall.index.load(backend, sinks, record.index)?;
        if let (Some(tokens), Some(mut saved)) = (&mut recall.tokens, record.tokens) {
            if let Some(projection) = recall.projection.as_mut().filter(|_| !saved.is_coded) {
                to_codes(backend, shape, projection, &mut saved)?;
            }
            is_fit &= tokens.load(backend, sinks, saved)?;
        }
        if is_fit {
            recall.follow_tokens(backend, sinks)?;
        }
        recall.resize_caches();
        Ok(is_fit)
    }

    /// `false` if the record is not of this layer under this policy.
    fn load_kept(&mut self, layer: LayerId, record: KeptRecord) -> Result<bool, SchedulerError> {
        let sequence = &mut self.sequence;
        let (ring, n_indexed) = (sequence.layout.ring, record.n_indexed);
        let is_permuted = sequence.layers[layer].permuted_to > 0;
        let n = sequence.n_tokens;
        if is_permuted || n_indexed > n || n - n_indexed > ring {
            return Ok(false);
        }
        let (backend, shape, pending) = (&*sequence.backend, &sequence.shape, n - n_indexed);
        let kept = Kept::from_record(backend, shape, record, ring, pending)?;
        let Some(kept) = kept else { return Ok(false) };
        let state = &mut sequence.layers[layer];
        (state.n_indexed, state.n_submitted) = (n_indexed, n_indexed);
        sequence.set_kept(layer, kept)?;
        Ok(true)
    }

    fn load_selection(
        &mut self,
        layer: LayerId,
        record: &SelectionRecord,
    ) -> Result<(), SessionFileError> {
        let Sequence { layers, recall: path, .. } = &mut self.sequence;
        let (Some(recall), Some(path)) = (layers[layer].recall_mut(), path) else { return Ok(()) };
        if path.device_cache.is_some() {
            // The device has its own, and would not know of this one.
            return Ok(());
        }
        if !path.selector.set_selected(recall.selection, &record.heads) {
            return Err(SessionFileError::Inconsistent("a choice of more than there may be"));
        }
        let SelectionRecord { n_tokens, n_indexed, .. } = *record;
        recall.selected_at = Some(SelectedAt { n_tokens, n_indexed });
        Ok(())
    }
}

/// Turns an index of tokens in the KV type, as older files have it, to codes in units that
/// `projection` takes over.
fn to_codes<B: Backend>(
    backend: &B,
    shape: &KvShape,
    projection: &mut LayerProjection<B>,
    saved: &mut IndexRecord,
) -> OpResult<()> {
    let numbers = |head: &ClustersRecord| HeadClusters {
        centroids: decode_f32(shape.kv_dtype, &head.centroids),
        ..HeadClusters::default()
    };
    let mut heads: Vec<_> = saved.heads.iter().map(numbers).collect();
    projection.fit_codes(backend, shape, &mut heads)?;
    for (head, codes) in saved.heads.iter_mut().zip(&heads) {
        head.centroids = encode_f32(DType::I8, &codes.centroids);
    }
    saved.is_coded = true;
    Ok(())
}

#[cfg(test)]
mod tests;
