//! One layer of a sequence that is being made from records, apart from all others: several threads
//! fill layers of one sequence at once.

use std::sync::Arc;

use longview_core::{DType, decode_f32, encode_f32};
use longview_ops::{Backend, OpResult, ViewMut};

use super::layer_record::{
    LayerRecord, LayerStateRecord, PlacesRecord, RecallRecord, RecordedRecord, SelectionRecord,
};
use super::layer_state::{Layer, LayerState};
use crate::error::{SchedulerError, SessionFileError};
use crate::eviction::{Kept, KeptRecord};
use crate::index::{
    ClustersRecord, HeadClusters, IndexRecord, LayerIndex, LayerProjection, LowRankDecode,
    ProjectionRecord, RecordedQueries, projection::Projections,
};
use crate::layout::{KvShape, SUMMED_TOKENS};
use crate::policy::{FLUSH_STEPS, INDEX_SEGMENT, Policy};
use crate::store::LayerStore;

/// A layer, to be filled.
pub(crate) struct LayerPlace<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) shape: &'a KvShape,
    pub(super) policy: &'a Policy,
    /// Recent rows that the device has room for.
    pub(super) ring: usize,
    /// Tokens that the sequence will have.
    pub(super) n_tokens: usize,
    /// Whether the records are of the policy in force.
    pub(super) is_same_policy: bool,
    /// Whether indexes are there, those of a sequence that is forked, and records have none.
    pub(super) is_fork: bool,
    pub(super) state: &'a mut Layer<B>,
}

/// A layer, and where its rows go.
pub(crate) type LayerToFill<'a, B> = (LayerPlace<'a, B>, Box<dyn LayerStore + 'a>);

/// What the sequence has to know of a layer that was filled.
#[derive(Debug, Default)]
pub(crate) struct LoadedLayer {
    /// Whether the window behind its index was being indexed.
    pub is_submitted: bool,
    /// The selection in force.
    pub selection: Option<SelectionRecord>,
}

impl<B: Backend> LayerPlace<'_, B> {
    /// The dimensions of its rows.
    pub fn shape(&self) -> &KvShape {
        self.shape
    }

    /// Which token each row is.
    pub fn set_places(&mut self, places: &PlacesRecord) {
        self.state.permuted_to = places.permuted_to;
        for (positions, head) in self.state.positions.iter_mut().zip(&places.positions) {
            positions.extend_from_slice(head);
            positions.extend(places.permuted_to as u32..self.n_tokens as u32);
        }
    }

    /// All but rows; places are there.
    pub fn set(&mut self, record: LayerRecord<'_>) -> Result<LoadedLayer, SchedulerError> {
        let RecordedRecord { gram_q, gram_k, .. } = &record.recorded;
        let sums = [&gram_q[..], gram_k].concat().into();
        self.put(record, sums)
    }

    /// [`LayerPlace::set`] with the sums of the record apart, as [`Recorded::shared_sums`] has
    /// them.
    ///
    /// [`Recorded::shared_sums`]: crate::index::Recorded::shared_sums
    pub(super) fn put(
        &mut self,
        record: LayerRecord<'_>,
        sums: Arc<[f32]>,
    ) -> Result<LoadedLayer, SchedulerError> {
        self.load_recorded(record.recorded, sums)?;
        if !self.is_same_policy {
            return Ok(LoadedLayer::default());
        }
        let loaded = match &record.state {
            LayerStateRecord::Recall(recall) => LoadedLayer {
                is_submitted: recall.is_submitted,
                selection: recall.selection.clone(),
            },
            _ => LoadedLayer::default(),
        };
        self.load_state(record.state)?;
        Ok(loaded)
    }

    fn load_recorded(
        &mut self,
        record: RecordedRecord,
        sums: Arc<[f32]>,
    ) -> Result<(), SchedulerError> {
        let Self { backend, shape, policy, state: layer, .. } = self;
        let backend = *backend;
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

    fn load_state(&mut self, state: LayerStateRecord<'_>) -> Result<(), SchedulerError> {
        let fits = match (&self.state.state, state) {
            (LayerState::Dense, LayerStateRecord::Plain) => true,
            (LayerState::Window | LayerState::Local, LayerStateRecord::Plain) => {
                self.state.permuted_to == 0
            }
            (LayerState::Recall(_), LayerStateRecord::Recall(recall)) => {
                self.load_recall(*recall)?
            }
            (LayerState::Kept(_), LayerStateRecord::Kept(kept)) => self.load_kept(kept)?,
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(SessionFileError::Inconsistent("a layer's state is not one of its policy").into())
    }

    /// `false` if the record is not of this layer under this policy.
    fn load_recall(&mut self, record: RecallRecord<'_>) -> Result<bool, SchedulerError> {
        let Self { backend, shape, policy, n_tokens, is_fork, state, .. } = self;
        let (backend, is_fork, sinks) = (*backend, *is_fork, policy.sinks);
        let LayerState::Recall(recall) = &mut state.state else { return Ok(false) };
        let adapts = policy.index.is_some_and(|index| index.adapts());
        // A window that is being indexed has all of its rows.
        let window = policy.index.map_or(0, |index| index.window);
        let has_window =
            !record.is_submitted || record.n_indexed.saturating_add(window) <= *n_tokens;
        // A full window is handed over in the step that fills it, and indexed some steps later.
        let later = if record.is_submitted { 0 } else { FLUSH_STEPS };
        let pending = policy.ring_rows().saturating_sub(later);
        let is_fit = (is_fork || record.is_sound(sinks, pending, *n_tokens))
            && has_window
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
    fn load_kept(&mut self, record: KeptRecord) -> Result<bool, SchedulerError> {
        let Self { backend, shape, ring, n_tokens: n, state, .. } = self;
        let n_indexed = record.n_indexed;
        if state.permuted_to > 0 || n_indexed > *n || *n - n_indexed > *ring {
            return Ok(false);
        }
        let pending = *n - n_indexed;
        let kept = Kept::from_record(*backend, shape, record, *ring, pending)?;
        let Some(kept) = kept else { return Ok(false) };
        (state.n_indexed, state.n_submitted) = (n_indexed, n_indexed);
        state.set_kept(*backend, shape, kept)?;
        Ok(true)
    }
}

/// Turns an index of tokens in the KV type, as older files have it, to codes in units that
/// `projection` takes over.
fn to_codes<B: Backend>(
    backend: &B,
    shape: &KvShape,
    projection: &mut LayerProjection<B>,
    saved: &mut IndexRecord<'_>,
) -> OpResult<()> {
    let numbers = |head: &ClustersRecord<'_>| HeadClusters {
        centroids: decode_f32(shape.kv_dtype, &head.centroids),
        ..HeadClusters::default()
    };
    let mut heads: Vec<_> = saved.heads.iter().map(numbers).collect();
    projection.fit_codes(backend, shape, &mut heads)?;
    for (head, codes) in saved.heads.iter_mut().zip(&heads) {
        head.centroids = encode_f32(DType::I8, &codes.centroids).into();
    }
    saved.is_coded = true;
    Ok(())
}
