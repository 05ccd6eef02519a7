//! A sequence into a file, and a file into a sequence.

use std::io::Write;
use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Backend, View, ViewMut};

use super::SessionFileError;
use super::content::{self, SessionContent};
use super::frame::{BLOCK_BYTES, FrameWriter, SessionReader};
use super::header::{Fingerprint, SessionHeader};
use super::record::{
    ChoiceRecord, Dimensions, KeepRecord, PlacesRecord, RecallRecord, RecordedRecord, StateRecord,
};
use crate::adaptive::Adaptive;
use crate::error::SchedulerError;
use crate::importance::RecordedQueries;
use crate::index::LayerIndex;
use crate::keep::Kept;
use crate::layer::{Chosen, LayerMode};
use crate::mirror::ReadParts;
use crate::policy::{Policy, PolicyOptions};
use crate::projection::Projections;
use crate::sequence::{Sequence, SequenceOptions};
use crate::shape::KvShape;

/// Bytes of rows that are moved at a time.
const ROW_BYTES: usize = 1 << 16;

/// How a session is saved.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions<'a> {
    /// What its rows depend on.
    pub fingerprint: &'a Fingerprint,
    /// What the user said about the policy in force.
    pub policy: &'a PolicyOptions,
    /// Bytes of a block: a power of two up to [`BLOCK_BYTES`], of at least 512.
    pub block_bytes: usize,
}

impl<'a> SaveOptions<'a> {
    /// With blocks of [`BLOCK_BYTES`].
    pub fn new(fingerprint: &'a Fingerprint, policy: &'a PolicyOptions) -> Self {
        Self { fingerprint, policy, block_bytes: BLOCK_BYTES }
    }
}

impl<B: Backend> Sequence<B> {
    /// Writes the sequence, in order and without seeking. The sequence goes on as if it had not
    /// been saved.
    ///
    /// # Errors
    /// If `out` or the device refuses, and after a step whose verdict was not read.
    ///
    /// # Panics
    /// If `content` has another number of tokens than the sequence.
    pub async fn save(
        &mut self,
        options: &SaveOptions<'_>,
        content: &SessionContent,
        out: &mut dyn Write,
    ) -> Result<(), SchedulerError> {
        self.bring_rows().await?;
        self.join_side()?;
        assert_eq!(content.tokens.len(), self.n_tokens, "a token for each row");
        let shape = &self.shape;
        let header = SessionHeader {
            fingerprint: options.fingerprint.clone(),
            kv_dtype: shape.kv_dtype,
            n_layers: shape.n_layers,
            n_q_heads: shape.n_q_heads,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            context: shape.capacity,
            n_tokens: self.n_tokens,
            options: options.policy.text(),
            policy: self.policy.text(),
        };
        let mut file = FrameWriter::new(out, &header, options.block_bytes)?;
        content.write(&mut file)?;
        for layer in 0..self.layers.len() {
            file.bytes(b"LAYR")?;
            self.places(layer).write(&mut file)?;
            self.write_rows(layer, &mut file)?;
            self.recorded(layer).await?.write(&mut file)?;
            self.state(layer).await?.write(&mut file)?;
        }
        content::write_end(&mut file)?;
        Ok(file.finish()?)
    }

    fn places(&self, layer: usize) -> PlacesRecord {
        let state = &self.layers[layer];
        let permuted_to = state.permuted_to.min(self.n_tokens);
        let positions = state.positions.iter().map(|head| head[..permuted_to].to_vec()).collect();
        PlacesRecord { permuted_to, positions }
    }

    fn write_rows(&self, layer: usize, file: &mut FrameWriter<'_>) -> Result<(), SessionFileError> {
        let (row_bytes, n) = (self.shape.row_bytes(), self.n_tokens);
        let step = (ROW_BYTES / row_bytes).max(1);
        let mut bytes = vec![0; step.min(n) * row_bytes];
        for head in 0..self.shape.n_kv_heads {
            for start in (0..n).step_by(step) {
                let end = n.min(start + step);
                let bytes = &mut bytes[..(end - start) * row_bytes];
                self.tier.read_rows(layer, head, start..end, bytes);
                file.bytes(bytes)?;
            }
        }
        Ok(())
    }

    async fn recorded(&self, layer: usize) -> Result<RecordedRecord, SchedulerError> {
        let (backend, recorded) = (&*self.backend, &self.layers[layer].recorded);
        let (gram_q, gram_k) = recorded.sums(backend).await?;
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
            gram_q,
            gram_k,
            last_queries: recorded.last_queries.clone(),
            last_end: recorded.last_end,
            mass_rows: if mass.is_empty() { 0 } else { rows },
            mass,
            queries: match &recorded.queries {
                Some(queries) => Some(queries.record_all(backend).await?),
                None => None,
            },
        })
    }

    async fn state(&self, layer: usize) -> Result<StateRecord, SchedulerError> {
        let state = &self.layers[layer];
        if let Some(kept) = &state.kept {
            return Ok(StateRecord::Keep(kept.record(&self.backend, state.n_indexed).await?));
        }
        let Some(index) = &state.index else { return Ok(StateRecord::Plain) };
        let budgets = state.budgets.as_ref();
        Ok(StateRecord::Recall(Box::new(RecallRecord {
            n_indexed: state.n_indexed,
            is_submitted: state.n_submitted > state.n_indexed,
            budgets: budgets.map(|budgets| budgets.iter().map(|b| *b as u32).collect()),
            projection: state.projection.as_ref().map(|p| p.record(&self.shape)),
            adaptive: state.adaptive.as_ref().map(Adaptive::record),
            index: index.record(),
            fine: state.fine.as_ref().map(LayerIndex::record),
            choice: self.choice_record(layer),
        })))
    }

    /// The choice of a layer, where later steps look at it and the host has it.
    fn choice_record(&self, layer: usize) -> Option<ChoiceRecord> {
        let state = &self.layers[layer];
        let outlives = self.policy.token_step > 1 || state.adaptive.is_some();
        let selector = self.selector.as_ref().filter(|_| outlives && self.resolver.is_none())?;
        let (chosen, slot) = (state.chosen?, self.selection_slot(layer));
        let head = |head: usize| {
            let chosen = selector.selected(slot, head);
            chosen.map(|(cluster, take)| [cluster as u32, take as u32]).collect()
        };
        let heads = (0..self.shape.n_kv_heads).map(head).collect();
        Some(ChoiceRecord { n_tokens: chosen.n_tokens, n_indexed: chosen.n_indexed, heads })
    }

    /// The sequence of a file, of which [`SessionContent::read`] has taken its part and
    /// [`SessionHeader::check`] approved. Under the policy that it was saved under it is as it was,
    /// without clustering; under another one its rows are indexed anew, as
    /// [`Sequence::set_policy`] does. Speculation begins anew, and so does a choice that is to hold
    /// for several steps where the device resolves.
    ///
    /// # Errors
    /// If the file changed since it was verified or contradicts itself, if the device refuses, or
    /// for a policy that needs what no prefill recorded.
    pub async fn restore(
        backend: &Arc<B>,
        shape: KvShape,
        policy: Policy,
        options: SequenceOptions,
        file: &mut SessionReader<'_>,
    ) -> Result<Self, SchedulerError> {
        let header = file.header();
        let (n_tokens, is_same) = (header.n_tokens, header.policy == policy.text());
        header.check(&header.fingerprint.clone(), &shape)?;
        let dim = Dimensions::of(header);
        let mut sequence = Self::new(backend, shape, policy, options)?;
        sequence.n_tokens = n_tokens;
        let mut submitted = Vec::new();
        let mut choices = Vec::new();
        for layer in 0..sequence.layers.len() {
            file.section(b"LAYR", "a layer does not begin where it should")?;
            let places = PlacesRecord::read(file, &dim)?;
            sequence.load_rows_of(layer, places, file)?;
            let recorded = RecordedRecord::read(file, &dim)?;
            sequence.load_recorded(layer, recorded)?;
            let state = StateRecord::read(file, &dim)?;
            if let (true, StateRecord::Recall(recall)) = (is_same, &state) {
                submitted.extend(recall.is_submitted.then_some(layer));
                choices.extend(recall.choice.clone().map(|choice| (layer, choice)));
            }
            if is_same {
                sequence.load_state(layer, state)?;
            }
        }
        content::read_end(file)?;
        if !is_same {
            sequence.sort_rows();
            sequence.finish_prefill().await?;
            return Ok(sequence);
        }
        sequence.alloc_lists()?;
        for (layer, choice) in choices {
            sequence.load_choice(layer, choice)?;
        }
        sequence.load_device()?;
        for layer in submitted {
            sequence.submit_window(layer);
        }
        Ok(sequence)
    }

    /// Rows of the file go to the host tier, piece by piece.
    fn load_rows_of(
        &mut self,
        layer: usize,
        places: PlacesRecord,
        file: &mut SessionReader<'_>,
    ) -> Result<(), SessionFileError> {
        let (row_bytes, n) = (self.shape.row_bytes(), self.n_tokens);
        let step = (ROW_BYTES / row_bytes).max(1);
        let mut bytes = vec![0; step.min(n) * row_bytes];
        for head in 0..self.shape.n_kv_heads {
            for start in (0..n).step_by(step) {
                let len = step.min(n - start);
                let bytes = &mut bytes[..len * row_bytes];
                file.take(bytes)?;
                self.tier.write_rows(layer, head, start, bytes);
            }
        }
        let state = &mut self.layers[layer];
        state.permuted_to = places.permuted_to;
        for (positions, head) in state.positions.iter_mut().zip(&places.positions) {
            positions.extend_from_slice(head);
            positions.extend(places.permuted_to as u32..n as u32);
        }
        Ok(())
    }

    fn load_recorded(
        &mut self,
        layer: usize,
        record: RecordedRecord,
    ) -> Result<(), SchedulerError> {
        let (backend, shape) = (&*self.backend, &self.shape);
        let recorded = &mut self.layers[layer].recorded;
        recorded.load_sums(backend, &record.gram_q, &record.gram_k)?;
        (recorded.last_queries, recorded.last_end) = (record.last_queries, record.last_end);
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
            let is_used = self.layers[layer].mode == LayerMode::Recall;
            let window = self.policy.local_window().filter(|_| is_used);
            if window.is_none_or(|window| queries.serves(window)) {
                self.layers[layer].recorded.queries = Some(queries);
            }
        }
        Ok(())
    }

    fn load_state(&mut self, layer: usize, state: StateRecord) -> Result<(), SchedulerError> {
        let state = match (self.layers[layer].mode, state) {
            (LayerMode::Dense, StateRecord::Plain) => true,
            (LayerMode::Window, StateRecord::Plain) => self.layers[layer].permuted_to == 0,
            (LayerMode::Recall, StateRecord::Recall(recall)) => self.load_recall(layer, *recall)?,
            (LayerMode::Keep, StateRecord::Keep(keep)) => self.load_keep(layer, keep)?,
            _ => false,
        };
        match state {
            true => Ok(()),
            false => {
                let what = "a layer's state is not one of its policy";
                Err(SessionFileError::Inconsistent(what).into())
            }
        }
    }

    /// `false` if the record is not of this layer under this policy.
    fn load_recall(&mut self, layer: usize, record: RecallRecord) -> Result<bool, SchedulerError> {
        let (sinks, n_tokens) = (self.policy.sinks, self.n_tokens);
        let state = &self.layers[layer];
        let adapts = self.policy.index.is_some_and(|index| index.adapts());
        let is_fit = record.is_sound(sinks, self.policy.ring_rows(), n_tokens)
            && state.permuted_to <= record.n_indexed
            && record.fine.is_some() == state.fine.is_some()
            && (adapts || record.adaptive.is_none());
        if !is_fit {
            return Ok(false);
        }
        let backend = Arc::clone(&self.backend);
        let (shape, policy) = (&self.shape, &self.policy);
        let state = &mut self.layers[layer];
        if let Some(projection) = record.projection {
            let width = record.fine.as_ref().map_or(record.index.width, |fine| fine.width);
            if projection.rank != width || width == 0 {
                return Ok(false);
            }
            let (rank, w_q, w_k) = (projection.rank, projection.w_q, projection.w_k);
            state.set_projection(&backend, shape, policy, Projections { rank, w_q, w_k })?;
        }
        let rank_is_known = record.adaptive.as_ref().is_none_or(|adaptive| {
            state.projection.is_some() && adaptive.rank == record.index.width
        });
        if !rank_is_known {
            return Ok(false);
        }
        state.adaptive =
            record.adaptive.map(|adaptive| Adaptive::from_record(adaptive, shape.head_dim));
        let most = policy.most_attended();
        let budgets = record
            .budgets
            .map(|budgets| budgets.into_iter().map(|b| (b as usize).min(most)).collect::<Vec<_>>());
        (state.budgets, state.n_indexed) = (budgets, record.n_indexed);
        state.n_submitted = record.n_indexed;
        let index = state.index.as_mut().expect("recall layers have an index");
        let mut is_fit = index.load(&backend, sinks, record.index)?;
        if let (Some(fine), Some(saved)) = (&mut state.fine, record.fine) {
            is_fit &= fine.load(&backend, sinks, saved)?;
        }
        let chosen = state.fine.as_ref().or(state.index.as_ref()).expect("an index");
        for (cache, head) in state.caches.iter_mut().zip(chosen.heads()) {
            cache.set_clusters(head.sizes.len());
        }
        Ok(is_fit)
    }

    /// `false` if the record is not of this layer under this policy.
    fn load_keep(&mut self, layer: usize, record: KeepRecord) -> Result<bool, SchedulerError> {
        let (backend, ring) = (Arc::clone(&self.backend), self.layout.ring);
        let n_indexed = record.n_indexed;
        let is_permuted = self.layers[layer].permuted_to > 0;
        if is_permuted || n_indexed > self.n_tokens || self.n_tokens - n_indexed > ring {
            return Ok(false);
        }
        let Some(kept) = Kept::from_record(&*backend, &self.shape, record, ring)? else {
            return Ok(false);
        };
        let state = &mut self.layers[layer];
        state.kept = Some(kept);
        (state.n_indexed, state.n_submitted) = (n_indexed, n_indexed);
        if state.device.is_some() {
            state.device = None;
            state.device = Some(state.alloc_device(&*backend, &self.shape)?);
        }
        Ok(true)
    }

    fn load_choice(&mut self, layer: usize, choice: ChoiceRecord) -> Result<(), SessionFileError> {
        if self.resolver.is_some() {
            // The device has its own, and would not know of this one.
            return Ok(());
        }
        let slot = self.selection_slot(layer);
        let selector = self.selector.as_mut().expect("a recall policy has a selector");
        if !selector.set_selected(slot, &choice.heads) {
            return Err(SessionFileError::Inconsistent("a choice of more than there may be"));
        }
        let ChoiceRecord { n_tokens, n_indexed, .. } = choice;
        self.layers[layer].chosen = Some(Chosen { n_tokens, n_indexed });
        Ok(())
    }
}
