//! A decoded token in one layer: its row is stored, what each KV head attends is listed, and the
//! parts of its attention that other mechanisms add are added.

use longview_core::{HeadId, LayerId};
use longview_ops::{Backend, KvView, ListSpan, OpResult, View};
use smallvec::SmallVec;

use super::kv_sequence::Sequence;
use super::layer_state::{Layer, LayerState, Recall, SelectedAt};
use super::options::Placement;
use super::scratch::{IDS_OF_TOKEN, TokenScratch};
use super::two_forms::TwoFormRows;
use crate::error::SchedulerError;
use crate::eviction::RotatedSinks;
use crate::index::{AddedQueries, DecodeStep};
use crate::layout::{LayerMode, LayerTensors, Query, SelectionId};
use crate::recall::{HostSelection, Lookup, RecallPath, Unread};
use crate::store::{DeviceRows, LayerRows, NewRows, ReadParts, scatter, scatter_twice};

/// A decoded token in one layer.
pub(super) struct Token {
    pub layer: LayerId,
    /// Among the step's tokens.
    pub index: usize,
    /// Tokens of its sequence before it in the step.
    pub round: usize,
}

/// What a layer recalls, until its rows are listed.
pub(super) struct Recalling {
    selection: Selection,
    /// Whether this token's query makes the selection.
    is_new: bool,
}

impl Recalling {
    /// The selection.
    pub fn id(&self) -> SelectionId {
        self.selection.id
    }
}

/// A selection that a layer attends in this step.
struct Selection {
    id: SelectionId,
    /// Whether it is to be made anew.
    is_due: bool,
    /// Whether the layer before has made it.
    was_prefetched: bool,
    /// Tokens that each head may recall.
    budgets: SmallVec<[u32; 16]>,
}

impl Token {
    /// Brings the sequence, or the layer, into the state in which the token finds it.
    pub async fn begin<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
    ) -> Result<(), SchedulerError> {
        if self.layer == LayerId(0) && self.round == 0 {
            sequence.bring_rows().await?;
            sequence.begin_token();
            sequence.copies.join(&sequence.backend)?;
        }
        sequence.misses_wait = false;
        match sequence.layers[self.layer].mode() {
            LayerMode::Kept => sequence.rechoose(self.layer).await,
            _ => {
                sequence.apply_window(self.layer).await?;
                sequence.load_stale(self.layer)
            }
        }
    }

    /// Stores the row of a token that attends to all before it, and counts them.
    pub async fn prepare_exact<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut TokenScratch<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        self.begin(sequence).await?;
        scratch.set_rows(&*sequence.backend, self.rows(sequence).into_iter())?;
        self.store(sequence, scratch, 0, t)?;
        let recalling = self.list(sequence, t).await?;
        assert!(recalling.is_none(), "a token that attends to all before it selects nothing");
        Ok(())
    }

    /// Lists the rows that each KV head attends, but for those that the token selects.
    pub async fn list<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<Option<Recalling>, SchedulerError> {
        match sequence.layers[self.layer].mode() {
            LayerMode::Dense | LayerMode::Local => {
                self.count_all(sequence);
                sequence.list_exact(self.layer)?;
            }
            LayerMode::Window => {
                self.list_window(sequence);
                self.seal(sequence)?;
                self.count_rotated(sequence);
            }
            LayerMode::Recall if sequence.attends_all(self.layer, sequence.n_tokens + 1) => {
                self.count_all(sequence);
            }
            LayerMode::Recall => return self.start_recall(sequence, t).await,
            LayerMode::Kept => {
                sequence.list_kept(self.layer);
                self.seal(sequence)?;
            }
        }
        Ok(None)
    }

    /// The places of the token's row: on the device, in the host store, and there as it is written
    /// where it is rounded too.
    pub fn rows<B: Backend>(&self, sequence: &Sequence<B>) -> [usize; IDS_OF_TOKEN] {
        let (row, layer) = (sequence.n_tokens, self.layer);
        let (_, to) = sequence.layers[layer].place_of(sequence.device_row(layer, row));
        let exact = sequence.store.two_forms(layer).map_or(0, |forms| forms.layout.row(row));
        [to, row, exact]
    }

    /// Writes the row to the device, and to the host where kernels reach it. `i` says whose rows
    /// those of the token are in `scratch`.
    pub fn store<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &TokenScratch<B>,
        i: usize,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (row, layer) = (sequence.n_tokens, self.layer);
        sequence.layers[layer].push_positions(row, 1);
        let at = sequence.device_row(layer, row);
        let (segment, _) = sequence.layers[layer].place_of(at);
        let ids = |id: usize| scratch.rows(i * IDS_OF_TOKEN + id, 1);
        let new = |id: usize| NewRows { start: self.index, len: 1, row_ids: ids(id) };
        let (on_device, on_host, in_full) = (new(0), new(1), new(2));
        let has_two_forms = sequence.kernels_write_two_forms();
        let Sequence { shape, backend, layers, store, writeback, .. } = sequence;
        let (backend, device) = (&**backend, layers[layer].segment_mut(segment));
        if has_two_forms {
            let own = device.map(|device| (on_device, device));
            let new = TwoFormRows { at: (layer, row), rounded: on_host, exact: in_full, own };
            return Ok(new.scatter(backend, shape, &mut **store, t)?);
        }
        let host = store.buffer_mut(layer, row..row + 1);
        let host = host.map(|buffer| DeviceRows { buffer, head_stride: shape.capacity });
        match (device, host) {
            (Some(device), Some(host)) => {
                scatter_twice(backend, shape, t, [(on_device, device), (on_host, host)])?;
            }
            (None, Some(host)) => scatter(backend, shape, t, &on_host, host)?,
            (Some(device), None) => {
                scatter(backend, shape, t, &on_device, device)?;
                writeback.push(at);
            }
            (None, None) => unreachable!("rows are on the device, or kernels read the store"),
        }
        Ok(())
    }

    /// Counts all rows that the layer's window shows, if it has one.
    fn count_all<B: Backend>(&self, sequence: &mut Sequence<B>) {
        let (heads, n_rows) = (sequence.shape.n_kv_heads, sequence.n_tokens + 1);
        let rows = (n_rows - sequence.first_visible(self.layer, n_rows)) as u32;
        sequence.stats.attended_last[self.layer.index() * heads..][..heads].fill(rows);
        sequence.stats.attended_rows += u64::from(rows) * heads as u64;
    }

    /// Sinks and the rows that no cluster holds.
    fn list_window<B: Backend>(&self, sequence: &mut Sequence<B>) {
        let n_rows = sequence.n_tokens + 1;
        let window = sequence.window_start(self.layer, n_rows)..n_rows;
        let in_place = sequence.in_place();
        // First tokens that are to be rotated are attended by themselves.
        let is_rotated = sequence.rotated_gap(self.layer).is_some();
        let sinks = if is_rotated { 0 } else { sequence.layout.sinks.min(n_rows) };
        sequence.lists.clear();
        if let Some(coded) = &mut sequence.coded {
            coded.lists.clear();
        }
        if sequence.exact.is_some() {
            return sequence.list_two_forms(self.layer, 0..sinks, window);
        }
        for head in sequence.shape.heads() {
            for row in (0..sinks).chain(window.clone()) {
                let at = if in_place { row } else { sequence.device_row(self.layer, row) };
                sequence.lists.push(head, at);
            }
        }
    }

    /// Counts first tokens that are attended by themselves.
    fn count_rotated<B: Backend>(&self, sequence: &mut Sequence<B>) {
        if sequence.rotated_gap(self.layer).is_none() {
            return;
        }
        let heads = sequence.shape.n_kv_heads;
        let sinks = sequence.layout.sinks.min(sequence.n_tokens + 1);
        for n in &mut sequence.stats.attended_last[self.layer.index() * heads..][..heads] {
            *n += sinks as u32;
        }
        sequence.stats.attended_rows += (sinks * heads) as u64;
    }

    /// Hands the lists to the device and counts them.
    fn seal<B: Backend>(&self, sequence: &mut Sequence<B>) -> Result<(), SchedulerError> {
        let heads = sequence.shape.n_kv_heads;
        sequence.lists.upload(&*sequence.backend)?;
        let Sequence { lists, exact, coded, stats, backend, layers, .. } = sequence;
        let attended = &mut stats.attended_last[self.layer.index() * heads..][..heads];
        attended.copy_from_slice(lists.counts());
        let in_place = layers[self.layer].device.is_none();
        if let Some(exact) = exact.as_mut().filter(|_| in_place) {
            exact.lists.upload(&**backend)?;
            attended.iter_mut().zip(exact.lists.counts()).for_each(|(n, more)| *n += more);
        }
        if let Some(coded) = coded.as_mut().filter(|_| layers[self.layer].slots.is_some()) {
            coded.lists.upload(&**backend)?;
            attended.iter_mut().zip(coded.lists.counts()).for_each(|(n, more)| *n += more);
        }
        stats.attended_rows += attended.iter().map(|n| u64::from(*n)).sum::<u64>();
        Ok(())
    }

    /// Lists what a layer that recalls attends before its query selects: sinks, and rows that are
    /// not indexed.
    async fn start_recall<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<Option<Recalling>, SchedulerError> {
        self.list_window(sequence);
        let Some(selection) = self.selection(sequence) else { return Ok(None) };
        let query = self.query(sequence, &selection, t);
        self.record_query(sequence, &query).await?;
        self.fit_low_rank(sequence, &query, t).await?;
        let is_new = selection.is_due && !selection.was_prefetched && !sequence.speculates();
        Ok(Some(Recalling { selection, is_new }))
    }

    fn query<'a, B: Backend>(
        &self,
        sequence: &Sequence<B>,
        selection: &Selection,
        t: &LayerTensors<'a, B>,
    ) -> Query<'a, B> {
        let n_tokens = t.n_tokens(&sequence.shape);
        Query { q: t.q, n_tokens, index: self.index, selection: selection.id }
    }

    /// Lets the device select, where this token's query does.
    pub fn select<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        recalling: &Recalling,
        t: &LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let Recalling { selection, is_new } = recalling;
        if !is_new {
            return Ok(());
        }
        let query = self.query(sequence, selection, t);
        sequence.select(self.layer, &query, &selection.budgets)
    }

    /// What of a selection is to be read: itself, where it was just made, and the query where the
    /// host attends.
    pub fn selection_parts<'a, B: Backend>(
        &self,
        sequence: &'a mut Sequence<B>,
        recalling: &Recalling,
        q: View<'a, B>,
    ) -> ReadParts<'a, B> {
        let Recalling { selection, is_new } = recalling;
        let Sequence { shape, recall: path, .. } = sequence;
        let Some(RecallPath { selector, host_attention, .. }) = path else {
            return ReadParts::new();
        };
        let mut parts = if *is_new { selector.parts_of(selection.id) } else { ReadParts::new() };
        if let Some(host) = host_attention {
            host.waiting = Some(selection.id);
            let own = shape.n_q_heads * shape.head_dim;
            let q = View::part(q.buffer, q.offset + self.index * own, own);
            parts.push((q, bytemuck::cast_slice_mut(&mut host.q)));
        }
        parts
    }

    /// Takes a selection that was read, cut by its scores where the policy says so; or one that
    /// holds, cut to what it would be with this step's budgets.
    pub fn take_selection<B: Backend>(&self, sequence: &mut Sequence<B>, recalling: &Recalling) {
        let Recalling { selection, is_new } = recalling;
        let Sequence { policy, layers, recall: path, stats, .. } = sequence;
        let Some(RecallPath { selector, .. }) = path else { return };
        match &layers[self.layer].state {
            _ if !is_new => selector.trim(selection.id, &selection.budgets),
            LayerState::Recall(recall) => {
                selector.trim_by_scores(selection.id, &policy.budget, recall.index.heads());
            }
            _ => {}
        }
        stats.selected_clusters += selector.n_selected(selection.id);
    }

    /// Adds the selected rows to the lists, and hands these over.
    pub fn list_selected<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        recalling: &Recalling,
    ) -> Result<(), SchedulerError> {
        let id = recalling.selection.id;
        self.add_selected(sequence, id)?;
        self.seal(sequence)?;
        self.count_on_host(sequence, id);
        Ok(())
    }

    /// Where a step speculates: selects for the next one. Notes how near the query is to the last.
    pub fn select_for_next<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        recalling: &Recalling,
        t: &LayerTensors<'_, B>,
    ) -> OpResult<()> {
        let selection = &recalling.selection;
        let query = self.query(sequence, selection, t);
        if sequence.speculates() {
            sequence.select(self.layer, &query, &selection.budgets)?;
        }
        sequence.compare_query(&query)
    }

    /// The selection that the layer attends in this step: the first of every `layer_step` layers
    /// selects for all of them, for `token_step` steps or until there is more to select from.
    fn selection<B: Backend>(&self, sequence: &mut Sequence<B>) -> Option<Selection> {
        let schedule = sequence.policy.index?.schedule;
        let n_tokens = sequence.n_tokens;
        let state = &mut sequence.layers[self.layer];
        let n_indexed = state.n_indexed;
        let recall = state.recall_mut()?;
        let id = recall.selection.shared(schedule.layer_step);
        let holds = |at: SelectedAt| {
            at.n_indexed == n_indexed
                && (at.n_tokens..at.n_tokens + schedule.token_step).contains(&n_tokens)
        };
        let is_due = id == recall.selection
            && !(schedule.token_step > 1 && recall.selected_at.is_some_and(holds));
        if is_due {
            recall.selected_at = Some(SelectedAt { n_tokens, n_indexed });
        }
        let was_prefetched = recall.prefetch.take(n_tokens);
        // A selection that holds for several steps leaves room for the tokens that come meanwhile.
        let in_full = sequence.exact.as_ref().map_or(0, |exact| exact.lists.counts()[0]);
        let always = (sequence.lists.counts()[0] + in_full) as usize;
        let taken = always + if is_due { schedule.token_step - 1 } else { 0 };
        let budgets = sequence.left_to_recall(self.layer, taken);
        Some(Selection { id, is_due, was_prefetched, budgets })
    }

    /// Adds the token's query to the sums that blocks are made by, and reads what the window needs
    /// that this step fills.
    async fn record_query<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        query: &Query<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Some(index) = sequence.policy.index else { return Ok(()) };
        if sequence.policy.local_window().is_none() {
            return Ok(());
        }
        let n = sequence.n_tokens;
        let fills = sequence.fills_window(self.layer, n + 1);
        let (backend, shape) = (&*sequence.backend, &sequence.shape);
        let state = &mut sequence.layers[self.layer];
        let Some(recorded) = &mut state.recorded.queries else { return Ok(()) };
        let added = AddedQueries { start: query.index, len: 1, position: n };
        recorded.add(backend, shape, query.q, added)?;
        if fills {
            let first = state.n_submitted;
            let mut parts = recorded.prepare(first..first + index.window);
            backend.read_all(&mut parts).await?;
        }
        Ok(())
    }

    /// Where every step fits the space of tokens: fits it to this one, and hands the query's low
    /// rank over.
    async fn fit_low_rank<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        query: &Query<'_, B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Sequence { backend, shape, store, layers, recall: path, n_tokens, .. } = sequence;
        let state = &mut layers[self.layer];
        let pending = state.n_indexed.min(*n_tokens)..*n_tokens;
        let (LayerState::Recall(recall), Some(path)) = (&mut state.state, path) else {
            return Ok(());
        };
        let Recall { index, projection, .. } = &mut **recall;
        let low_rank = projection.as_mut().and_then(|projection| projection.low_rank.as_mut());
        let Some(low_rank) = low_rank else { return Ok(()) };
        let (hq, hkv, d) = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim);
        let (mut q, mut k) = (vec![0.0f32; hq * d], vec![0.0f32; hkv * d]);
        let from_k = View::part(t.k.buffer, t.k.offset + query.index * hkv * d, hkv * d);
        let mut parts = [
            (query.own(shape), bytemuck::cast_slice_mut(&mut q)),
            (from_k, bytemuck::cast_slice_mut(&mut k)),
        ];
        // Before anything changes: a read that fails leaves the bases where they are.
        backend.read_all(&mut parts).await?;
        let step = DecodeStep { q: &q, k: &k, pending };
        let rows = LayerRows { shape, store: &**store, layer: self.layer };
        let features = low_rank.fit(rows, (&**backend, index), &step, |head| {
            path.selector.selected(query.selection, head).map(|(token, _)| token).collect()
        });
        Ok(path.selector.set_features(&**backend, &features)?)
    }

    /// Adds the selected rows to the lists, and fetches those that are absent where the device
    /// attends them.
    fn add_selected<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        selection: SelectionId,
    ) -> Result<(), SchedulerError> {
        let attends_on_host =
            sequence.recall.as_ref().is_some_and(|path| path.host_attention.is_some());
        match sequence.options.placement {
            Placement::InPlace => self.list_in_place(sequence, selection),
            Placement::Device if attends_on_host => {}
            Placement::Device if sequence.layers[self.layer].resident.is_some() => {
                self.list_in_place(sequence, selection);
            }
            Placement::Device => self.fetch(sequence, selection)?,
        }
        Ok(())
    }

    /// Recalled rows are attended where they lie.
    fn list_in_place<B: Backend>(&self, sequence: &mut Sequence<B>, selection: SelectionId) {
        let Sequence { layers, recall: path, lists, shape, .. } = sequence;
        let (Some(recall), Some(path)) = (layers[self.layer].recall(), path) else { return };
        for (head, units) in shape.heads().zip(recall.selected_index().heads()) {
            let selected = path.selector.selected(selection, head);
            if recall.tokens.is_some() {
                // Each is a row behind the one before. To look them up, all over the index, would
                // take a twentieth of a step.
                let first = units.starts.first().map_or(0, |start| *start as usize);
                lists.extend(head, selected.map(|(token, _)| first + token));
                continue;
            }
            for (unit, take) in selected {
                let start = units.starts[unit] as usize;
                (start..start + take).for_each(|row| lists.push(head, row));
            }
        }
    }

    /// Recalled rows that are not in the device cache are fetched into it.
    fn fetch<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        selection: SelectionId,
    ) -> Result<(), SchedulerError> {
        let speculates = sequence.speculates();
        let Sequence { layers, recall: path, lists, mover, coded, tracked, .. } = sequence;
        let Sequence { stats, shape, layout, .. } = sequence;
        let Layer { state, slots, .. } = &mut layers[self.layer];
        let (LayerState::Recall(recall), Some(path)) = (state, path) else {
            return Ok(());
        };
        let Recall { index, tokens, caches, .. } = &mut **recall;
        let index = tokens.as_ref().unwrap_or(index);
        // Slots of 8 bits are by themselves.
        let (lists, mover, first_slot_row, row_bytes) = match (coded, slots) {
            (Some(coded), Some(_)) => {
                (&mut coded.lists, &mut coded.mover, 0, shape.host_row_bytes())
            }
            _ => (lists, mover, layout.first_slot_row(), shape.row_bytes()),
        };
        mover.clear();
        if let Some(tracked) = tracked {
            tracked.begin_layer(self.layer);
        }
        for (head, cache) in shape.heads().zip(caches) {
            let lookup = Lookup { selection, head, first_slot_row, hits_first: speculates };
            let hits = path.selector.look_up(&lookup, cache, lists);
            let starts = &index.heads()[head].starts;
            for miss in &path.selector.misses {
                let row = starts[miss.cluster.index()] as usize + miss.member as usize;
                mover.push(head, row, first_slot_row + miss.slot.index());
                if let Some(tracked) = tracked {
                    tracked.note_miss(self.layer, head, row);
                }
            }
            stats.hits += hits as u64;
            stats.misses += path.selector.misses.len() as u64;
        }
        let rows = mover.len();
        stats.fetched_bytes += (rows * row_bytes) as u64;
        sequence.misses_wait = speculates && rows > 0;
        if sequence.misses_wait { Ok(()) } else { self.load_misses(sequence) }
    }

    /// Carries the rows that were listed from the host store into their slots.
    pub fn load_misses<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
    ) -> Result<(), SchedulerError> {
        let Sequence { backend, shape, store, mover, coded, layers, .. } = sequence;
        let layer = &mut layers[self.layer];
        if let (Some(coded), Some(slots)) = (coded, &mut layer.slots) {
            let (mover, dst) = (&mut coded.mover, slots.rows_mut());
            return Ok(mover.load(&**backend, shape, &**store, self.layer, dst)?);
        }
        let Some(dst) = layer.device_rows_mut() else { return Ok(()) };
        Ok(mover.load(&**backend, shape, &**store, self.layer, dst)?)
    }

    /// Counts what the host attends.
    fn count_on_host<B: Backend>(&self, sequence: &mut Sequence<B>, selection: SelectionId) {
        let Sequence { recall: path, stats, shape, .. } = sequence;
        let Some(RecallPath { selector, host_attention: Some(_), .. }) = path else { return };
        for head in shape.heads() {
            let rows: usize = selector.selected(selection, head).map(|(_, take)| take).sum();
            let at = self.layer.index() * shape.n_kv_heads + head.index();
            stats.attended_last[at] += rows as u32;
            stats.attended_rows += rows as u64;
        }
    }

    /// After the device was given the token's attention: what waits for the host is attended here
    /// and merged there.
    pub fn attend_on_host<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> Result<(), SchedulerError> {
        let Sequence { backend, shape, store, layers, recall: path, stats, .. } = sequence;
        let Some(RecallPath { selector, host_attention: Some(host), .. }) = path else {
            return Ok(());
        };
        let Some(selection) = host.waiting.take() else { return Ok(()) };
        let LayerState::Recall(recall) = &layers[self.layer].state else { return Ok(()) };
        backend.submit()?;
        let begin = backend.now();
        let chosen = HostSelection {
            rows: LayerRows { shape, store: &**store, layer: self.layer },
            heads: recall.selected_index().heads(),
            selector,
            selection,
        };
        host.merge(&**backend, &chosen, self.index, t, lse)?;
        stats.attend += backend.now().saturating_sub(begin);
        Ok(())
    }

    /// What the token gave to rows that are kept by it.
    pub fn measure<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &LayerTensors<'_, B>,
        lse: &B::Buffer,
    ) -> Result<(), SchedulerError> {
        let len = t.n_tokens(&sequence.shape) * sequence.shape.n_q_heads;
        sequence.measure(self.layer, self.index, t, View::part(lse, 0, len))
    }

    /// Adds the first tokens to the token's attention, where they were left out of its list because
    /// they are attended at other positions.
    pub fn attend_rotated_sinks<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> Result<(), SchedulerError> {
        let Some(gone) = sequence.rotated_gap(self.layer) else { return Ok(()) };
        // Taken out, because it reads the sequence's rows meanwhile.
        let Some(mut rotation) = sequence.sink_rotation.take() else { return Ok(()) };
        let in_full = sequence.exact_rows(self.layer);
        let rows = in_full.unwrap_or_else(|| sequence.attended_rows(self.layer));
        let at = RotatedSinks { rows, gone, index: self.index };
        let result = rotation.attend(&*sequence.backend, &sequence.shape, &at, t, lse);
        sequence.sink_rotation = Some(rotation);
        Ok(result?)
    }

    /// Lists what stands for the tokens that the last selection left unread.
    pub fn prepare_residual<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
    ) -> Result<(), SchedulerError> {
        if sequence.attends_all(self.layer, sequence.n_tokens + 1) {
            return Ok(());
        }
        let Sequence { backend, shape, policy, layers, recall: path, .. } = sequence;
        let Some(RecallPath { selector, residual: Some(residual), .. }) = path else {
            return Ok(());
        };
        let LayerState::Recall(recall) = &layers[self.layer].state else { return Ok(()) };
        let selection = recall.selection;
        if policy.budget.mass.is_some() {
            selector.upload_cut(&**backend, selection)?;
        }
        let unread = Unread { clusters: &recall.index, selector, selection };
        Ok(residual.prepare(&**backend, shape, &unread)?)
    }

    /// A part of what [`Token::prepare_residual`] has listed, to be added to the token's attention.
    pub fn residual_span<'a, B: Backend>(
        &self,
        sequence: &'a Sequence<B>,
        part: usize,
    ) -> Option<ListSpan<'a, B>> {
        if sequence.attends_all(self.layer, sequence.n_tokens + 1) {
            return None;
        }
        let residual = sequence.recall.as_ref()?.residual.as_ref()?;
        let LayerState::Recall(recall) = &sequence.layers[self.layer].state else { return None };
        residual.span(&recall.index, self.index, part)
    }

    /// Selects for the layer by the predicted query of the token in `q`, F32 `[T, Hq, Dh]`.
    pub async fn prefetch<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        q: View<'_, B>,
    ) -> Result<(), SchedulerError> {
        // What becomes part of the index in this step may be selected.
        sequence.apply_window(self.layer).await?;
        let n_rows = sequence.n_tokens + 1;
        let window = n_rows - sequence.window_start(self.layer, n_rows);
        let budgets =
            sequence.left_to_recall(self.layer, sequence.layout.sinks.min(n_rows) + window);
        let n_tokens = q.len / (sequence.shape.n_q_heads * sequence.shape.head_dim);
        let Some(id) = sequence.layers[self.layer].recall().map(|recall| recall.selection) else {
            return Ok(());
        };
        let query = Query { q, n_tokens, index: self.index, selection: id };
        Ok(sequence.select(self.layer, &query, &budgets)?)
    }

    /// What is to be read of the layer's selection, where the host looks rows up.
    pub fn prefetched_parts<'a, B: Backend>(
        &self,
        sequence: &'a mut Sequence<B>,
    ) -> ReadParts<'a, B> {
        let on_device = sequence.chooses_on_device();
        let id = sequence.layers[self.layer].recall().map(|recall| recall.selection);
        match (&mut sequence.recall, id) {
            (Some(path), Some(id)) if !on_device => path.selector.parts_of(id),
            _ => ReadParts::new(),
        }
    }

    /// Takes the layer's selection for the token that comes to it.
    pub fn note_prefetched<B: Backend>(&self, sequence: &mut Sequence<B>) {
        let on_device = sequence.chooses_on_device();
        let Sequence { policy, layers, recall: path, n_tokens, .. } = sequence;
        let (LayerState::Recall(recall), Some(path)) = (&mut layers[self.layer].state, path) else {
            return;
        };
        if !on_device {
            let index = recall.index.heads();
            path.selector.trim_by_scores(recall.selection, &policy.budget, index);
        }
        recall.prefetch.note(*n_tokens);
    }
}

impl<B: Backend> Sequence<B> {
    /// Decides how the decode step that begins recalls.
    fn begin_token(&mut self) {
        // As a rule all full windows were submitted when the step before ended. A job that was lost
        // with its device begins anew here, so that its clusters count from the same token on.
        if self.writeback.is_empty() && !self.is_unread() {
            self.submit_windows();
        }
        let changes = self.shape.layers().any(|layer| self.window_is_due(layer));
        let Self { recall, stats, .. } = self;
        if let Some(RecallPath { resident: Some(resident), .. }) = recall {
            resident.begin_step();
        }
        if let Some(RecallPath { speculation: Some(speculation), .. }) = recall {
            speculation.begin_step(changes, stats);
        }
    }

    /// The token's layers are done and it counts: full windows go to the clustering worker, unless
    /// something of the step is still to be read.
    pub(super) fn end_token(&mut self) {
        let Self { recall, stats, .. } = self;
        if let Some(path) = recall {
            if let Some(speculation) = &mut path.speculation {
                speculation.end_step(stats);
            }
            if let Some(cache) = &mut path.device_cache {
                cache.end_step();
            }
            if let Some(resident) = &mut path.resident {
                resident.end_step();
            }
        }
        if !self.writeback.is_empty() {
            self.writeback.finish_step(self.n_tokens - 1, 1 + self.n_drafted);
        } else if !self.is_unread() {
            self.submit_windows();
        }
    }

    /// Tokens between the first ones and the recent ones that the step in progress does not attend,
    /// where first tokens are attended at other positions for it.
    fn rotated_gap(&self, layer: LayerId) -> Option<usize> {
        let is_window = self.layers[layer].mode() == LayerMode::Window;
        self.sink_rotation.as_ref().filter(|_| is_window)?;
        // There may be fewer tokens than first ones.
        let start = self.window_start(layer, self.n_tokens + 1);
        let gone = start.saturating_sub(self.layout.sinks);
        (gone > 0).then_some(gone)
    }

    /// Whether `layer` selects by the query that the layer before predicts.
    pub(super) fn prefetches(&self, layer: LayerId) -> bool {
        let asks = self.policy.index.is_some_and(|index| index.schedule.layer_prefetch);
        let recalls = |layer: LayerId| self.layers[layer].recall().is_some();
        asks && layer > LayerId(0) && layer.index() < self.layers.len() && recalls(layer)
    }

    /// Tokens that each head may recall when it attends `taken` others.
    fn left_to_recall(&self, layer: LayerId, taken: usize) -> SmallVec<[u32; 16]> {
        let own = self.layers[layer].recall().and_then(|recall| recall.budgets.as_ref());
        let budget = |head: HeadId| match (own, self.policy.budget.tokens) {
            (Some(budgets), _) => budgets[head],
            (None, Some(tokens)) => tokens,
            (None, None) => usize::MAX,
        };
        let left = |head: HeadId| budget(head).saturating_sub(taken) as u32;
        self.shape.heads().map(left).collect()
    }

    /// Lets the device select among the units of `layer`.
    fn select(&mut self, layer: LayerId, query: &Query<'_, B>, budgets: &[u32]) -> OpResult<()> {
        let reads_keys = self.in_place() && self.exact.is_none();
        let Self { backend, shape, policy, layers, store, recall: path, .. } = self;
        let rows = match &layers[layer] {
            Layer { device: Some(device), resident: Some(_), .. } => Some(device),
            _ => store.buffer(layer).filter(|_| reads_keys),
        };
        let (Some(recall), Some(path)) = (layers[layer].recall(), path) else { return Ok(()) };
        // Either has room for all rows.
        let searched = recall.searched(rows.map(|rows| KvView::new(rows, shape.capacity)));
        path.selector.select(&**backend, shape, policy, &searched, query, budgets)
    }

    /// Keeps the query with which a layer selected, if the next step may go by it.
    fn compare_query(&mut self, query: &Query<'_, B>) -> OpResult<()> {
        let Self { backend, shape, recall, .. } = self;
        match recall {
            Some(RecallPath { speculation: Some(speculation), .. }) => {
                speculation.compare(&**backend, shape, query)
            }
            _ => Ok(()),
        }
    }
}
