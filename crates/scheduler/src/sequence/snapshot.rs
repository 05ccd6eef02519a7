//! The layers of a sequence as plain data, and back: what a session file holds of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use longview_core::{HeadId, LayerId};
use longview_ops::{Backend, OpResult, View};

use super::known_tokens::KnownTokens;
use super::kv_sequence::Sequence;
use super::layer_place::{LayerPlace, LayerToFill, LoadedLayer};
use super::layer_record::{
    LayerRecord, LayerStateRecord, PlacesRecord, RecallRecord, RecordedRecord, SelectionRecord,
};
use super::layer_state::{Layer, LayerState, Recall, SelectedAt};
use super::options::SequenceOptions;
use crate::error::{SchedulerError, SessionFileError};
use crate::index::{IndexRecord, LayerIndex, LowRankDecode};
use crate::layout::{KvShape, PrefillMode};
use crate::policy::Policy;
use crate::store::{HostStore, ReadParts};

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
    pub(crate) async fn layer_record(
        &self,
        layer: LayerId,
    ) -> Result<LayerRecord<'_>, SchedulerError> {
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
    async fn state<'a, 'i>(
        &'a self,
        layer: LayerId,
        indexed: &dyn Fn(&'a LayerIndex<B>) -> IndexRecord<'i>,
    ) -> Result<LayerStateRecord<'i>, SchedulerError> {
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
        let path = self.recall.as_ref().filter(|path| !path.is_on_device())?;
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
        sequence.store.expect(n_tokens);
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

    /// Threads of the host that may fill its layers.
    pub fn host_threads(&self) -> usize {
        self.sequence.backend.host_threads()
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

    /// A layer, to be filled.
    pub fn layer(&mut self, layer: LayerId) -> LayerToFill<'_, B> {
        self.layers(layer.index()..layer.index() + 1).pop().expect("one layer").1
    }

    /// Some layers, to be filled, with their numbers.
    pub fn layers(&mut self, layers: Range<usize>) -> Vec<(LayerId, LayerToFill<'_, B>)> {
        let (places, store) = self.places(layers.clone());
        let to_fill = places.into_iter().zip(store.layers_mut(layers.clone()));
        layers.map(LayerId::new).zip(to_fill).collect()
    }

    /// Some layers without their rows, and the store that has these.
    fn places(
        &mut self,
        range: Range<usize>,
    ) -> (Vec<LayerPlace<'_, B>>, &mut (dyn HostStore<B> + 'static)) {
        let Self { sequence, is_same_policy, is_fork, .. } = self;
        let Sequence { backend, shape, policy, layout, n_tokens, layers, store, .. } = sequence;
        let backend = &**backend;
        let place = |state| LayerPlace {
            backend,
            shape,
            policy,
            ring: layout.ring,
            n_tokens: *n_tokens,
            is_same_policy: *is_same_policy,
            is_fork: *is_fork,
            state,
        };
        (layers[range].iter_mut().map(place).collect(), &mut **store)
    }

    /// A layer, whose place got what there is.
    pub fn note_loaded(&mut self, layer: LayerId, loaded: LoadedLayer) {
        self.submitted.extend(loaded.is_submitted.then_some(layer));
        self.selections.extend(loaded.selection.map(|selection| (layer, selection)));
    }

    /// A layer of `origin`.
    pub(super) async fn fork_layer(
        &mut self,
        layer: LayerId,
        origin: &mut Sequence<B>,
    ) -> Result<(), SchedulerError> {
        let state = origin.state(layer, &|_| IndexRecord::default()).await?;
        let recorded = origin.recorded_but_sums(layer).await?;
        let sums = origin.layers[layer].recorded.shared_sums(&*origin.backend).await?;
        let (mut places, _) = self.places(layer.index()..layer.index() + 1);
        let mut place = places.pop().expect("one layer");
        place.set_places(&origin.places(layer));
        let loaded = place.put(LayerRecord { recorded, state }, sums)?;
        self.note_loaded(layer, loaded);
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
        self.check_shared_selections()?;
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

    /// Layers that share a selection find its units in their own index, so these are as many in
    /// each of them.
    fn check_shared_selections(&self) -> Result<(), SessionFileError> {
        let Sequence { policy, layers, .. } = &self.sequence;
        let layer_step = policy.index.map_or(1, |index| index.schedule.layer_step);
        if layer_step < 2 {
            return Ok(());
        }
        let recalls = layers.iter().filter_map(Layer::recall);
        let shared: Vec<_> =
            recalls.map(|recall| (recall.selection.shared(layer_step), recall)).collect();
        let are_alike = shared.windows(2).all(|two| {
            let [(a, first), (b, second)] = two else { return true };
            let [first, second] = [first, second].map(|recall| recall.selected_index().heads());
            a != b || first.iter().zip(second).all(|(a, b)| a.sizes.len() == b.sizes.len())
        });
        if are_alike {
            return Ok(());
        }
        Err(SessionFileError::Inconsistent("indexes of layers that share a selection"))
    }

    /// Of a saved sequence the end of the last prompt says what is known: an answer behind a prompt
    /// is read again before the next one. Where nothing was recorded, rows came from elsewhere.
    fn know_prompt(&mut self) {
        let Sequence { layers, n_tokens, known, .. } = &mut self.sequence;
        let end = layers.iter().map(|layer| layer.recorded.last_end).max();
        let end = end.filter(|end| *end > 0).unwrap_or(*n_tokens);
        *known = KnownTokens::of_prompt(end.min(*n_tokens));
    }

    fn load_selection(
        &mut self,
        layer: LayerId,
        record: &SelectionRecord,
    ) -> Result<(), SessionFileError> {
        let Sequence { layers, recall: path, .. } = &mut self.sequence;
        let (Some(recall), Some(path)) = (layers[layer].recall_mut(), path) else { return Ok(()) };
        if path.is_on_device() {
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

#[cfg(test)]
mod tests;
