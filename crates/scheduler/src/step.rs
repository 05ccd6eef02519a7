//! One step of the model over a list of sequences: where each layer's attention happens.
//!
//! The model hands over queries, keys and values after RoPE; the scheduler stores the rows, chooses
//! what each KV head attends, and writes the attention's output. Prefill spans attend exactly;
//! decode spans follow their policy.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{
    AttendChunk, AttendList, AttendParams, Backend, ChunkSpan, KvScatter, KvScatterParams, KvView,
    ListSpan, OpResult, View, ViewMut,
};
use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::error::SchedulerError;
use crate::held::HeldLists;
use crate::layer::{Chosen, LayerMode};
use crate::resolver::Resolution;
use crate::rows::DeviceRows;
use crate::select::Query;
use crate::sequence::{Placement, Sequence};
use crate::shape::KvShape;

/// How a span attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanMode {
    /// To everything before it and itself, causally; prefill. `remaining` tokens of the same prompt
    /// follow.
    Exact {
        /// Prompt tokens after this chunk.
        remaining: usize,
    },
    /// As the policy says; one token.
    Policy,
}

/// One sequence's part of a step.
pub struct StepSpan<'a, B: Backend> {
    /// The sequence.
    pub sequence: &'a mut Sequence<B>,
    /// Its first token among the step's tokens.
    pub start: usize,
    /// Its tokens.
    pub len: usize,
    /// How it attends.
    pub mode: SpanMode,
}

/// Buffers that steps share, made once per model and device.
pub struct StepScratch<B: Backend> {
    pub(crate) max_tokens: usize,
    pub(crate) lse: B::Buffer,
    row_ids: HeldLists<B>,
    host_row_ids: Vec<u32>,
    /// `[Hkv, chunk, 2, Dh]`: the rows of the chunk being prefilled; only where rows are not
    /// attended in place.
    pub(crate) chunk: Option<B::Buffer>,
    /// Two tiles `[Hkv, tile, 2, Dh]` of the past.
    pub(crate) tiles: Option<[B::Buffer; 2]>,
}

/// Queries, keys and values of one layer after RoPE, and where the output goes.
pub struct LayerTensors<'a, B: Backend> {
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub k: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub v: View<'a, B>,
    /// F32 `[T, Hq, Dh]`.
    pub out: ViewMut<'a, B>,
}

/// A step in progress.
pub struct Step<'s, 'a, B: Backend> {
    /// The step's sequences.
    pub spans: &'s mut [StepSpan<'a, B>],
    /// Shared buffers.
    pub scratch: &'s mut StepScratch<B>,
}

impl<B: Backend> StepScratch<B> {
    /// Buffers for steps of up to `max_tokens` tokens of sequences of this shape.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        max_tokens: usize,
        tile: usize,
        placement: Placement,
    ) -> OpResult<Self> {
        let rows = |n: usize| shape.n_kv_heads * n * 2 * shape.head_dim;
        let separate = placement == Placement::Device;
        let tile_buffer = || backend.alloc(shape.kv_dtype, rows(tile), "prefill tile");
        Ok(Self {
            max_tokens,
            lse: backend.alloc(DType::F32, max_tokens * shape.n_q_heads, "log-sum-exp")?,
            row_ids: HeldLists::new(backend, 1, max_tokens.max(2), "row ids")?,
            host_row_ids: Vec::with_capacity(max_tokens.max(2)),
            chunk: match separate {
                true => Some(backend.alloc(shape.kv_dtype, rows(max_tokens), "prefill chunk")?),
                false => None,
            },
            tiles: match separate {
                true => Some([tile_buffer()?, tile_buffer()?]),
                false => None,
            },
        })
    }
}

impl<B: Backend> Step<'_, '_, B> {
    /// Checks that all spans fit before anything is stored.
    pub fn check(&self) -> Result<(), SchedulerError> {
        for span in self.spans.iter() {
            span.sequence.check_room(span.len)?;
            if span.start + span.len > self.scratch.max_tokens {
                let len = span.start + span.len;
                return Err(SchedulerError::Chunk { len, chunk: self.scratch.max_tokens });
            }
        }
        Ok(())
    }

    /// Attention of `layer` for all spans.
    pub async fn attend(
        &mut self,
        layer: usize,
        mut t: LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        for span in self.spans.iter_mut() {
            match span.mode {
                SpanMode::Exact { remaining } => {
                    let chunk = Chunk { layer, start: span.start, len: span.len, remaining };
                    chunk.attend(span.sequence, self.scratch, &mut t).await?;
                }
                SpanMode::Policy => {
                    assert_eq!(span.len, 1, "a policy span is one token");
                    let token = Token { layer, index: span.start };
                    token.prepare(span.sequence, self.scratch, &t).await?;
                }
            }
        }
        self.attend_tokens(layer, &mut t)?;
        self.attend_misses(layer, &mut t)?;
        for span in self.spans.iter_mut().filter(|span| span.mode == SpanMode::Policy) {
            let lse = &mut self.scratch.lse;
            span.sequence.attend_on_host(layer, span.start, &mut t, lse)?;
        }
        self.measure(layer, &t)?;
        for span in self.spans.iter_mut().filter(|span| span.mode == SpanMode::Policy) {
            let sequence = &mut *span.sequence;
            if sequence.policy.certify && sequence.layers[layer].mode == LayerMode::Recall {
                let (hq, d) = (sequence.shape.n_q_heads, sequence.shape.head_dim);
                let q = View::part(t.q.buffer, t.q.offset + span.start * hq * d, hq * d);
                let lse = View::part(&self.scratch.lse, span.start * hq, hq);
                sequence.certify(layer, q, lse).await?;
            }
            span.sequence.attend_turned(layer, span.start, &mut t, &mut self.scratch.lse)?;
            span.sequence.attend_tail(layer, span.start, &mut t, &mut self.scratch.lse)?;
            span.sequence.look_on(layer, span.start, &t).await?;
        }
        Ok(())
    }

    /// What tokens gave to rows that are kept by it.
    fn measure(&mut self, layer: usize, t: &LayerTensors<'_, B>) -> Result<(), SchedulerError> {
        for span in self.spans.iter_mut().filter(|span| span.mode == SpanMode::Policy) {
            let sequence = &mut *span.sequence;
            if sequence.layers[layer].mode == LayerMode::Keep {
                let n_tokens = t.q.len / (sequence.shape.n_q_heads * sequence.shape.head_dim);
                let len = n_tokens * sequence.shape.n_q_heads;
                sequence.measure(layer, span.start, t, View::part(&self.scratch.lse, 0, len))?;
            }
        }
        Ok(())
    }

    /// Where a step speculates, rows that are on the device are attended first. While the device is
    /// busy with them the host collects the others, which are then attended and merged by
    /// log-sum-exp.
    fn attend_misses(
        &mut self,
        layer: usize,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let Some(first) = self.spans.iter().find(|span| span.sequence.speculates()) else {
            return Ok(());
        };
        let backend = Arc::clone(&first.sequence.backend);
        let shape = first.sequence.shape.clone();
        backend.submit()?;
        let begin = backend.now();
        for span in self.spans.iter_mut().filter(|span| span.sequence.misses_wait) {
            span.sequence.lists.upload_rest(&*backend)?;
            span.sequence.load_misses(layer)?;
        }
        let missing = self.spans.iter().filter(|span| span.sequence.misses_wait);
        let lists: SmallVec<[ListSpan<'_, B>; 4]> = missing
            .filter_map(|span| {
                span.sequence.lists.rest(span.sequence.attended_rows(layer), span.start)
            })
            .collect();
        if !lists.is_empty() {
            let n_tokens = t.q.len / (shape.n_q_heads * shape.head_dim);
            backend.attend_list(AttendList {
                p: attend_params(&shape, n_tokens, true),
                q: t.q,
                spans: &lists,
                out: reborrow(&mut t.out),
                lse: ViewMut::part(&mut self.scratch.lse, 0, n_tokens * shape.n_q_heads),
            })?;
        }
        drop(lists);
        let spent = backend.now().saturating_sub(begin);
        if let Some(span) = self.spans.iter_mut().find(|span| span.sequence.speculates()) {
            span.sequence.stats.fetch += spent;
        }
        Ok(())
    }

    /// Ends the step: the tokens count, and full windows go to the clustering worker. Where the
    /// host tier is not mapped, new rows are still on the device until somebody reads
    /// [`Sequence::mirror_parts`]; the next step does so if nobody else has. With
    /// [`crate::RecallMode::Speculative`] the caller must, and look at the verdict.
    pub fn finish(self) {
        for span in self.spans.iter_mut() {
            let sequence = &mut *span.sequence;
            sequence.n_tokens += span.len;
            if span.mode == SpanMode::Policy {
                sequence.stats.steps += 1;
                sequence.end_token();
                if let Some(resolver) = &mut sequence.resolver {
                    resolver.end_step();
                }
                if !sequence.mirror.is_empty() {
                    sequence.mirror.finish_step(sequence.n_tokens - 1);
                } else if !sequence.is_unread() {
                    sequence.submit_windows();
                }
            }
        }
    }

    /// One launch for all decode spans with lists, one for those that attend to everything.
    fn attend_tokens(
        &mut self,
        layer: usize,
        t: &mut LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let decode = || self.spans.iter().filter(|span| span.mode == SpanMode::Policy);
        let Some(first) = decode().next() else { return Ok(()) };
        let (backend, shape) = (&first.sequence.backend, first.sequence.shape.clone());
        let begin = backend.now();
        let mut lists: SmallVec<[ListSpan<'_, B>; 4]> = SmallVec::new();
        let mut runs: SmallVec<[ChunkSpan<'_, B>; 4]> = SmallVec::new();
        for span in decode() {
            let sequence = &*span.sequence;
            let kv = sequence.attended_rows(layer);
            match sequence.layers[layer].mode {
                LayerMode::Dense => runs.push(ChunkSpan {
                    q_start: span.start as u32,
                    q_len: 1,
                    kv,
                    row_start: 0,
                    n_rows: sequence.n_tokens as u32 + 1,
                    diagonal: i32::MAX,
                }),
                mode => {
                    let mut list = sequence.lists.first(kv, span.start);
                    if let (LayerMode::Recall, Some(resolver)) = (mode, &sequence.resolver) {
                        list.n_rows = resolver.n_rows(sequence.selection_slot(layer));
                    }
                    lists.push(list);
                }
            }
        }
        let n_tokens = t.q.len / (shape.n_q_heads * shape.head_dim);
        let p = attend_params(&shape, n_tokens, false);
        let lse_len = n_tokens * shape.n_q_heads;
        if !lists.is_empty() {
            backend.attend_list(AttendList {
                p,
                q: t.q,
                spans: &lists,
                out: reborrow(&mut t.out),
                lse: ViewMut::part(&mut self.scratch.lse, 0, lse_len),
            })?;
        }
        if !runs.is_empty() {
            backend.attend_chunk(AttendChunk {
                p,
                q: t.q,
                spans: &runs,
                out: reborrow(&mut t.out),
                lse: ViewMut::part(&mut self.scratch.lse, 0, lse_len),
            })?;
        }
        let spent = backend.now().saturating_sub(begin);
        drop((lists, runs));
        if let Some(span) = self.spans.iter_mut().find(|span| span.mode == SpanMode::Policy) {
            span.sequence.stats.attend += spent;
        }
        Ok(())
    }
}

pub(crate) fn reborrow<'a, B: Backend>(view: &'a mut ViewMut<'_, B>) -> ViewMut<'a, B> {
    ViewMut { buffer: view.buffer, offset: view.offset, len: view.len }
}

pub(crate) fn attend_params(shape: &KvShape, n_tokens: usize, accumulate: bool) -> AttendParams {
    AttendParams {
        n_tokens: n_tokens as u32,
        n_q_heads: shape.n_q_heads as u32,
        n_kv_heads: shape.n_kv_heads as u32,
        head_dim: shape.head_dim as u32,
        scale: shape.scale,
        accumulate: accumulate.into(),
    }
}

/// Writes `len` tokens' keys and values to rows `first_row..` of `dst`.
pub(crate) fn scatter<B: Backend>(
    backend: &B,
    shape: &KvShape,
    t: &LayerTensors<'_, B>,
    span: (usize, usize),
    row_ids: View<'_, B>,
    dst: DeviceRows<'_, B>,
) -> OpResult<()> {
    let (start, len) = span;
    let width = shape.n_kv_heads * shape.head_dim;
    backend.kv_scatter(KvScatter {
        p: KvScatterParams {
            n_tokens: len as u32,
            n_kv_heads: shape.n_kv_heads as u32,
            head_dim: shape.head_dim as u32,
            dst_head_stride: dst.head_stride as u32,
        },
        k: View::part(t.k.buffer, t.k.offset + start * width, len * width),
        v: View::part(t.v.buffer, t.v.offset + start * width, len * width),
        rows: row_ids,
        dst: dst.buffer,
    })
}

impl<B: Backend> StepScratch<B> {
    /// Row numbers for [`scatter`], as many as a chunk has tokens; a token has two.
    pub(crate) fn set_rows(
        &mut self,
        backend: &B,
        rows: impl Iterator<Item = usize>,
    ) -> OpResult<()> {
        self.host_row_ids.clear();
        self.host_row_ids.extend(rows.map(|row| row as u32));
        self.row_ids.put(backend, 0, &self.host_row_ids)
    }

    /// Some of them.
    pub(crate) fn rows(&self, first: usize, n: usize) -> View<'_, B> {
        self.row_ids.part(first, n)
    }
}

/// A decoded token in one layer.
struct Token {
    layer: usize,
    index: usize,
}

impl Token {
    /// Stores the token's row and lists the rows that each KV head attends.
    async fn prepare<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        if self.layer == 0 {
            sequence.bring_rows().await?;
            sequence.begin_token();
            sequence.join_side()?;
        }
        sequence.misses_wait = false;
        match sequence.layers[self.layer].mode {
            LayerMode::Keep => sequence.rechoose(self.layer).await?,
            _ => sequence.apply_window(self.layer).await?,
        }
        self.store(sequence, scratch, t)?;
        match sequence.layers[self.layer].mode {
            LayerMode::Dense => self.count_all(sequence),
            LayerMode::Window => self.list_window(sequence, true)?,
            LayerMode::Recall => self.recall(sequence, t).await?,
            LayerMode::Keep => {
                sequence.list_kept(self.layer)?;
                self.seal(sequence)?;
            }
        }
        Ok(())
    }

    /// Writes the row to the device, and to the host where kernels reach it.
    fn store<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        scratch: &mut StepScratch<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        let (row, layer) = (sequence.n_tokens, self.layer);
        sequence.layers[layer].push_positions(row, 1);
        let in_place = sequence.options.placement == Placement::InPlace;
        let at = if in_place { row } else { sequence.device_row(layer, row) };
        let (shape, backend) = (&sequence.shape, &*sequence.backend);
        scratch.set_rows(backend, [at, row].into_iter())?;
        let (on_device, on_host) = (scratch.rows(0, 1), scratch.rows(1, 1));
        if in_place {
            let buffer = sequence.tier.buffer_mut(layer).expect("in place: kernels read the tier");
            let dst = DeviceRows { buffer, head_stride: shape.capacity };
            return Ok(scatter(backend, shape, t, (self.index, 1), on_device, dst)?);
        }
        let state = &mut sequence.layers[layer];
        let buffer = state.device.as_mut().expect("device placement has device rows");
        let dst = DeviceRows { buffer, head_stride: state.device_rows };
        scatter(backend, shape, t, (self.index, 1), on_device, dst)?;
        let Some(buffer) = sequence.tier.buffer_mut(layer) else {
            sequence.mirror.push(at);
            return Ok(());
        };
        let dst = DeviceRows { buffer, head_stride: shape.capacity };
        Ok(scatter(backend, shape, t, (self.index, 1), on_host, dst)?)
    }

    fn count_all<B: Backend>(&self, sequence: &mut Sequence<B>) {
        let (heads, rows) = (sequence.shape.n_kv_heads, sequence.n_tokens as u32 + 1);
        sequence.stats.attended_last[self.layer * heads..][..heads].fill(rows);
        sequence.stats.attended_rows += u64::from(rows) * heads as u64;
    }

    /// Sinks and the rows that no cluster holds.
    fn list_window<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        complete: bool,
    ) -> Result<(), SchedulerError> {
        let n_rows = sequence.n_tokens + 1;
        let heads = sequence.shape.n_kv_heads;
        let sinks = sequence.layout.sinks.min(n_rows);
        let window = sequence.window_start(self.layer, n_rows)..n_rows;
        let in_place = sequence.options.placement == Placement::InPlace;
        // First tokens that are to be turned are attended by themselves.
        let listed = if sequence.gone(self.layer).is_some() { 0 } else { sinks };
        sequence.lists.clear();
        for head in 0..heads {
            for row in (0..listed).chain(window.clone()) {
                let at = if in_place { row } else { sequence.device_row(self.layer, row) };
                sequence.lists.push(head, at);
            }
        }
        if complete {
            self.seal(sequence)?;
            for n in &mut sequence.stats.attended_last[self.layer * heads..][..heads] {
                *n += (sinks - listed) as u32;
            }
            sequence.stats.attended_rows += ((sinks - listed) * heads) as u64;
        }
        Ok(())
    }

    /// Hands the lists to the device and counts them.
    fn seal<B: Backend>(&self, sequence: &mut Sequence<B>) -> Result<(), SchedulerError> {
        let heads = sequence.shape.n_kv_heads;
        sequence.lists.upload(&*sequence.backend)?;
        let counts = sequence.lists.counts();
        sequence.stats.attended_last[self.layer * heads..][..heads].copy_from_slice(counts);
        sequence.stats.attended_rows += counts.iter().map(|n| u64::from(*n)).sum::<u64>();
        Ok(())
    }

    /// Counts what the host attends.
    fn count_on_host<B: Backend>(&self, sequence: &mut Sequence<B>, slot: usize) {
        let Sequence { selector, host_attention: Some(_), stats, shape, .. } = sequence else {
            return;
        };
        let selector = selector.as_ref().expect("a recall policy has a selector");
        for head in 0..shape.n_kv_heads {
            let rows: usize = selector.selected(slot, head).map(|(_, take)| take).sum();
            stats.attended_last[self.layer * shape.n_kv_heads + head] += rows as u32;
            stats.attended_rows += rows as u64;
        }
    }

    async fn recall<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        t: &LayerTensors<'_, B>,
    ) -> Result<(), SchedulerError> {
        self.list_window(sequence, false)?;
        let always = sequence.lists.counts()[0] as usize;
        let n_tokens = t.q.len / (sequence.shape.n_q_heads * sequence.shape.head_dim);
        let (slot, is_due) = sequence.choice(self.layer);
        // A choice that holds for several steps leaves room for the tokens that come meanwhile.
        let taken = always + if is_due { sequence.policy.token_step - 1 } else { 0 };
        let budgets = sequence.left_to_recall(self.layer, taken);
        let was_ahead = sequence.take_ahead(self.layer);
        let query = Query { q: t.q, n_tokens, index: self.index, slot };
        sequence.follow_query(self.layer, &query).await?;
        sequence.follow_step(self.layer, &query, t).await?;
        let begin = sequence.backend.now();
        if sequence.resolver.is_some() {
            if is_due && !was_ahead {
                sequence.choose(self.layer, &query, &budgets)?;
            }
            self.resolve(sequence, slot)?;
            sequence.stats.fetch += sequence.backend.now().saturating_sub(begin);
            return Ok(());
        }
        let speculates = sequence.speculates();
        let chooses = is_due && !speculates && !was_ahead;
        if chooses {
            sequence.choose(self.layer, &query, &budgets)?;
        }
        let selector = sequence.selector.as_mut().expect("a recall policy has a selector");
        let backend = &*sequence.backend;
        // Where the host attends, it needs the query too.
        let for_host = sequence.host_attention.as_mut().map(|host| {
            host.slot = Some(slot);
            let token = host.q.len();
            let q = View::part(t.q.buffer, t.q.offset + self.index * token, token);
            (q, bytemuck::cast_slice_mut(&mut host.q))
        });
        match (chooses, for_host) {
            (true, other) => selector.read(backend, slot, other).await?,
            (false, Some((q, out))) => {
                selector.trim(slot, &budgets);
                backend.read(q, out).await?;
            }
            (false, None) => selector.trim(slot, &budgets),
        }
        if chooses {
            sequence.trim_choice(self.layer, slot);
        }
        let selector = sequence.selector.as_ref().expect("a recall policy has a selector");
        let selected = sequence.backend.now();
        sequence.stats.select += selected.saturating_sub(begin);
        sequence.stats.selected_clusters += selector.n_selected(slot);
        match sequence.options.placement {
            Placement::InPlace => self.list_in_place(sequence, slot),
            Placement::Device if sequence.host_attention.is_some() => {}
            Placement::Device => self.fetch(sequence, slot)?,
        }
        self.seal(sequence)?;
        self.count_on_host(sequence, slot);
        let fetched = sequence.backend.now();
        sequence.stats.fetch += fetched.saturating_sub(selected);
        if speculates {
            sequence.choose(self.layer, &query, &budgets)?;
        }
        sequence.keep_query(&query)?;
        sequence.stats.select += sequence.backend.now().saturating_sub(fetched);
        Ok(())
    }

    /// Lets the device find the slots of what it chose, and fetch what is missing.
    fn resolve<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        slot: usize,
    ) -> Result<(), SchedulerError> {
        let Sequence { backend, shape, tier, layers, lists, selector, resolver, stats, .. } =
            sequence;
        lists.upload(&**backend)?;
        let (resolver, selector) = (resolver.as_mut(), selector.as_ref());
        let (resolver, selector) = resolver.zip(selector).expect("a recall policy has both");
        let state = &mut layers[self.layer];
        let src = tier.buffer(self.layer).expect("the device resolves where it reads the tier");
        stats.attended_rows += lists.counts().iter().map(|n| u64::from(*n)).sum::<u64>();
        let resolution = Resolution {
            slot,
            index: state.index.as_ref().expect("recall layers have an index"),
            selector,
            lists,
            src: KvView::new(src, shape.capacity),
            dst: DeviceRows {
                buffer: state.device.as_mut().expect("device placement has device rows"),
                head_stride: state.device_rows,
            },
        };
        Ok(resolver.run(&**backend, shape, resolution)?)
    }

    /// Recalled rows are attended in the host tier.
    fn list_in_place<B: Backend>(&self, sequence: &mut Sequence<B>, slot: usize) {
        let index =
            sequence.layers[self.layer].chosen_index().expect("recall layers have an index");
        let selector = sequence.selector.as_ref().expect("a recall policy has a selector");
        for (head, clusters) in index.heads().iter().enumerate() {
            for (cluster, take) in selector.selected(slot, head) {
                let start = clusters.starts[cluster] as usize;
                (start..start + take).for_each(|row| sequence.lists.push(head, row));
            }
        }
    }

    /// Recalled rows that are not in the device cache are fetched into it.
    fn fetch<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        slot: usize,
    ) -> Result<(), SchedulerError> {
        let speculates = sequence.speculates();
        let state = &mut sequence.layers[self.layer];
        let index = state.fine.as_ref().or(state.index.as_ref());
        let index = index.expect("recall layers have an index");
        let selector = sequence.selector.as_mut().expect("a recall policy has a selector");
        let first_slot = sequence.layout.first_slot_row();
        sequence.mover.clear();
        if let Some(sight) = &mut sequence.sight {
            sight.begin_layer(self.layer);
        }
        for (head, cache) in state.caches.iter_mut().enumerate() {
            let hits =
                selector.resolve(slot, head, cache, &mut sequence.lists, first_slot, speculates);
            let starts = &index.heads()[head].starts;
            for miss in &selector.misses {
                let row = starts[miss.cluster.index()] as usize + miss.member as usize;
                sequence.mover.push(head, row, first_slot + miss.slot.index());
                if let Some(sight) = &mut sequence.sight {
                    sight.note_miss(self.layer, head, row);
                }
            }
            sequence.stats.hits += hits as u64;
            sequence.stats.misses += selector.misses.len() as u64;
        }
        let rows = sequence.mover.len();
        sequence.stats.fetched_bytes += (rows * sequence.shape.row_bytes()) as u64;
        sequence.misses_wait = speculates && rows > 0;
        match sequence.misses_wait {
            true => Ok(()),
            false => sequence.load_misses(self.layer),
        }
    }
}

impl<B: Backend> Sequence<B> {
    /// Tokens that a head may attend in a step.
    fn head_budget(&self, layer: usize, head: usize) -> usize {
        let own = self.layers[layer].budgets.as_ref().map(|budgets| budgets[head]);
        own.or(self.policy.budget).unwrap_or(usize::MAX)
    }

    /// Tokens that each head may recall when it attends `taken` others.
    pub(crate) fn left_to_recall(&self, layer: usize, taken: usize) -> SmallVec<[u32; 16]> {
        let left = |head: usize| self.head_budget(layer, head).saturating_sub(taken) as u32;
        (0..self.shape.n_kv_heads).map(left).collect()
    }

    /// Lets the device choose the clusters of `layer`.
    pub(crate) fn choose(
        &mut self,
        layer: usize,
        query: &Query<'_, B>,
        budgets: &[u32],
    ) -> OpResult<()> {
        let Self { backend, shape, policy, layers, selector, .. } = self;
        let selector = selector.as_mut().expect("a recall policy has a selector");
        selector.select(&**backend, shape, policy, &layers[layer], query, budgets)
    }

    /// Cuts a choice that was read where its scores say that it is enough.
    pub(crate) fn trim_choice(&mut self, layer: usize, slot: usize) {
        let Self { policy, layers, selector, .. } = self;
        let selector = selector.as_mut().expect("a recall policy has a selector");
        if let Some(mass) = policy.mass {
            let index = layers[layer].index.as_ref().expect("recall layers have one");
            selector.trim_to_mass(slot, mass, index.heads());
        }
        if let Some(alpha) = policy.alpha {
            selector.trim_to_best(slot, alpha);
        }
    }

    /// The selection that a layer attends in this step, and whether it is due to be made anew: the
    /// first of every `layer_step` layers chooses for all of them, for `token_step` steps or until
    /// there is more to choose from.
    fn choice(&mut self, layer: usize) -> (usize, bool) {
        let own = self.selection_slot(layer);
        let (layers, steps) = (self.policy.layer_step, self.policy.token_step);
        if !own.is_multiple_of(layers) {
            return (own - own % layers, false);
        }
        let (n_tokens, state) = (self.n_tokens, &mut self.layers[layer]);
        let holds = |c: &Chosen| {
            c.n_indexed == state.n_indexed && (c.n_tokens..c.n_tokens + steps).contains(&n_tokens)
        };
        if steps > 1 && state.chosen.as_ref().is_some_and(holds) {
            return (own, false);
        }
        state.chosen = Some(Chosen { n_tokens, n_indexed: state.n_indexed });
        (own, true)
    }

    /// Carries the rows that were listed from the host tier into their slots.
    fn load_misses(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let Sequence { backend, shape, tier, mover, layers, .. } = self;
        let state = &mut layers[layer];
        let buffer = state.device.as_mut().expect("device placement has device rows");
        let dst = DeviceRows { buffer, head_stride: state.device_rows };
        Ok(mover.load(&**backend, shape, &**tier, layer, dst)?)
    }

    /// The rows that attention of `layer` reads.
    pub(crate) fn attended_rows(&self, layer: usize) -> KvView<'_, B> {
        let is_pool = self.layers[layer].mode == LayerMode::Keep;
        match &self.layers[layer].device {
            Some(buffer) if is_pool => KvView::new(buffer, 0),
            Some(buffer) => KvView::new(buffer, self.layers[layer].device_rows),
            None => {
                let buffer = self.tier.buffer(layer).expect("in place: kernels read the tier");
                KvView::new(buffer, self.shape.capacity)
            }
        }
    }
}
