//! How rows of a sequence come into the index: segments of a prompt, its end, and windows of
//! decoded tokens.

use std::sync::Arc;

use longview_core::{LayerId, SplitMix64};
use longview_ops::{Backend, BlockSummary, Distance, KvView, Pooling};

use super::kv_sequence::Sequence;
use super::layer_state::{Layer, LayerState};
use super::policy_change::no_query_sums;
use crate::error::SchedulerError;
use crate::eviction::{best, head_capacities};
use crate::index::{ClusterJob, ClusterTask, Observation, Observer, TaskKind};
use crate::layout::LAST_QUERIES;
use crate::policy::{BlockConfig, FLUSH_STEPS, HeadBudgets, Index, IndexKind, Residual};
use crate::store::{LayerRows, ReadParts, RowRange};

/// The mass of rows that become part of an index, `[Hkv, n]`, from the first that is not indexed
/// on; empty where it does not matter.
pub(super) type RowMass = Vec<f32>;

/// Where rows come from that become part of an index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowsOf {
    Prompt,
    /// Decoded tokens.
    Window,
}

impl<B: Backend> Sequence<B> {
    /// One job per recall layer, so that clustering a decode window allocates nothing.
    pub(super) fn reserve_jobs(&mut self) -> Result<(), SchedulerError> {
        self.spare_jobs.clear();
        let Some(index) = self.policy.index else { return Ok(()) };
        let recalling = || {
            let layers = self.shape.layers().zip(&self.layers);
            layers.filter(|(_, state)| state.recall().is_some()).map(|(layer, _)| layer)
        };
        let (n_recall, first) = (recalling().count(), recalling().next());
        // A window longer than the context never fills.
        let window = index.window.min(self.shape.capacity);
        let mut jobs = Vec::with_capacity(n_recall);
        for _ in 0..n_recall {
            let task = self.task(&index, first.unwrap_or_default(), (0, window), RowsOf::Window);
            let mut job = Box::new(ClusterJob::new(task));
            job.reserve(&*self.backend)?;
            jobs.push(job);
        }
        self.spare_jobs = jobs;
        self.bytes.reserve(2 * window * self.shape.row_bytes());
        self.order.reserve(window);
        Ok(())
    }

    fn task(
        &self,
        index: &Index,
        layer: LayerId,
        (row_start, n_points): (usize, usize),
        rows: RowsOf,
    ) -> ClusterTask {
        let plain = |kind: TaskKind, n_clusters: usize| ClusterTask {
            layer,
            row_start,
            kind,
            n_kv_heads: self.shape.n_kv_heads,
            n_points,
            n_clusters,
            head_dim: self.shape.head_dim,
            distance: Distance::default(),
            iterations: 0,
            max_cluster: usize::MAX,
            seed: 0,
            is_grouped: false,
        };
        match index.kind {
            IndexKind::Clusters(c) => {
                let n_clusters = match rows {
                    RowsOf::Window => c.window_clusters,
                    RowsOf::Prompt => n_points.div_ceil(c.cluster_tokens),
                };
                ClusterTask {
                    distance: c.distance,
                    iterations: c.iterations,
                    max_cluster: c.max_cluster,
                    seed: job_seed(c.seed, layer, row_start),
                    is_grouped: self.policy.residual == Residual::Groups,
                    ..plain(TaskKind::Clusters, n_clusters)
                }
            }
            IndexKind::Blocks(blocks) => {
                plain(TaskKind::Blocks(blocks), n_points.div_ceil(blocks.block))
            }
            IndexKind::Tokens(_) => {
                let rank = self.layers[layer].recall().map_or(0, |recall| recall.index.width());
                plain(TaskKind::Tokens(rank), n_points)
            }
        }
    }

    /// Hands the `n` rows of `layer` behind those that were submitted to the worker. `mass` says
    /// how much each of their keys counts, where that matters.
    pub(super) fn submit(
        &mut self,
        index: &Index,
        layer: LayerId,
        (n, rows): (usize, RowsOf),
        mass: RowMass,
    ) {
        let row_start = self.layers[layer].n_submitted;
        let task = self.task(index, layer, (row_start, n), rows);
        // Spare jobs are for decode windows; the larger ones of prefill come and go.
        let spare = self.spare_jobs.pop_if(|spare| spare.capacity() >= n);
        let mut job = match spare {
            Some(mut job) => {
                job.reset(task);
                job
            }
            None => Box::new(ClusterJob::new(task)),
        };
        let recall = self.layers[layer].recall();
        let projection = recall.and_then(|recall| recall.projection.as_ref());
        job.projection = projection.map(|p| Arc::clone(&p.w_k));
        let low_rank = projection.and_then(|projection| projection.low_rank.as_ref());
        job.landmarks = low_rank.map_or_else(Vec::new, |fit| fit.landmarks(row_start, n));
        job.mass = mass;
        // A window of decoded tokens takes no time, and counts at a fixed step.
        job.stop = (n > index.window).then(|| Arc::clone(&self.stop));
        self.give_keys(&mut job);
        self.layers[layer].n_submitted = row_start + n;
        self.worker.submit(job);
    }

    /// Gives a job the keys of its rows.
    pub(super) fn give_keys(&mut self, job: &mut ClusterJob<B>) {
        let ClusterTask { layer, row_start, n_points: n, head_dim: d, .. } = job.task;
        if let Some(rows) = self.store.buffer(layer) {
            let rows = KvView::new(rows, self.shape.capacity);
            return job.take_keys(&self.backend, rows, self.copies.queue.clone());
        }
        let rows = LayerRows { shape: &self.shape, store: &*self.store, layer };
        let recall = self.layers[layer].recall();
        let unrounded = recall.and_then(|recall| recall.prompt_keys.as_ref());
        let span = row_start..row_start + n;
        for (head, keys) in self.shape.heads().zip(job.host_keys().chunks_exact_mut(n * d)) {
            rows.keys(head, span.clone(), &mut self.bytes, keys);
            if let Some(unrounded) = unrounded {
                unrounded.put(&self.shape, head, span.clone(), keys);
            }
        }
    }

    /// In prefill: keeps the keys of new rows of `layer` as they are, where they are indexed later
    /// and the host store rounds them by then.
    pub(super) fn keep_prompt_keys(&mut self, layer: LayerId, rows: std::ops::Range<usize>) {
        let Self { shape, store, layers, .. } = self;
        let recall = layers[layer].recall_mut();
        if let Some(keys) = recall.and_then(|recall| recall.prompt_keys.as_mut()) {
            keys.take(LayerRows { shape, store: &**store, layer }, rows);
        }
    }

    /// Waits for the clustering of `layer` that was submitted, and applies it.
    pub(super) async fn apply_job(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let start = self.backend.now();
        let taken = self.worker.take(&*self.backend, layer).await;
        self.stats.cluster_wait += self.backend.now().saturating_sub(start);
        let state = &mut self.layers[layer];
        // A job that failed is forgotten: its rows stay unclustered and are submitted again.
        state.n_submitted = state.n_indexed;
        let Some(mut job) = taken? else { return Ok(()) };
        job.check_stop()?;
        self.permute(&job);
        self.mean_values(&mut job);
        let ClusterTask { row_start, n_points, kind, .. } = job.task;
        let state = &mut self.layers[layer];
        if let Some(recall) = state.recall_mut() {
            let end = row_start + n_points;
            recall.index.append(&*self.backend, row_start, end, &job.heads)?;
            if let Some(keys) = &mut recall.prompt_keys {
                keys.forget_below(end);
            }
            // With two stages the caches hold tokens, which come after.
            if recall.tokens.is_none() {
                recall.resize_caches();
            }
        }
        state.n_indexed = row_start + n_points;
        state.n_submitted = state.n_indexed;
        if kind == TaskKind::Clusters {
            state.permuted_to = state.permuted_to.max(state.n_indexed);
        }
        self.stats.clusterings += 1;
        self.spare(job);
        Ok(())
    }

    /// Puts the rows of a job into the order of its clusters.
    fn permute(&mut self, job: &ClusterJob<B>) {
        let ClusterTask { layer, row_start, n_points, .. } = job.task;
        let row_bytes = self.shape.row_bytes();
        for (head, clusters) in self.shape.heads().zip(&job.heads) {
            if clusters.order.is_empty() {
                continue;
            }
            let place = RowRange { layer, head, start: row_start };
            self.store.permute_rows(place, &clusters.order, row_bytes, &mut self.bytes);
            self.layers[layer].rows_changed(row_start..row_start + n_points);
            let positions =
                &mut self.layers[layer].positions[head][row_start..row_start + n_points];
            self.order.clear();
            self.order.extend_from_slice(positions);
            for (position, from) in positions.iter_mut().zip(&clusters.order) {
                *position = self.order[*from as usize];
            }
        }
    }

    /// The mean value of each cluster of a job, whose rows lie in the order of the clusters; only
    /// where the index keeps them.
    fn mean_values(&mut self, job: &mut ClusterJob<B>) {
        let ClusterTask { layer, row_start, head_dim: d, .. } = job.task;
        let index = self.layers[layer].recall().map(|recall| &recall.index);
        if index.is_none_or(|index| index.pairs().is_none()) {
            return;
        }
        let rows = LayerRows { shape: &self.shape, store: &*self.store, layer };
        for (head, clusters) in self.shape.heads().zip(&mut job.heads) {
            let mut row = row_start;
            for size in clusters.sizes.iter().map(|size| *size as usize) {
                let at = clusters.values.len();
                clusters.values.resize(at + d, 0.0);
                let mean = &mut clusters.values[at..];
                rows.each_value(head, row..row + size, &mut self.bytes, |value| {
                    let sums = mean.iter_mut().zip(value);
                    sums.for_each(|(mean, value)| *mean += value / size as f32);
                });
                row += size;
            }
        }
    }

    /// In prefill, before the next chunk: hands every finished segment of `layer` to the worker.
    /// The one before is applied first, so that a segment has the time of a whole segment to be
    /// clustered and the order of rows is a function of the input.
    pub(super) async fn submit_segments(
        &mut self,
        layer: LayerId,
        n_rows: usize,
    ) -> Result<(), SchedulerError> {
        let Some(index) = self.policy.index else { return Ok(()) };
        if index.segment == 0 || self.layers[layer].recall().is_none() {
            return Ok(());
        }
        self.drop_short_runs(&index, layer, n_rows).await?;
        while self.fills_segment(layer, n_rows) {
            self.submit_segment(&index, layer).await?;
        }
        Ok(())
    }

    /// Hands the next segment of `layer` to the worker, behind the one before.
    pub(super) async fn submit_segment(
        &mut self,
        index: &Index,
        layer: LayerId,
    ) -> Result<(), SchedulerError> {
        self.apply_outstanding(layer).await?;
        self.submit(index, layer, (index.segment, RowsOf::Prompt), RowMass::new());
        Ok(())
    }

    /// Whether the first `n_rows` rows of a prompt fill a further segment of `layer`.
    pub(super) fn fills_segment(&self, layer: LayerId, n_rows: usize) -> bool {
        let Some(index) = self.policy.index.filter(|index| index.segment > 0) else { return false };
        let state = &self.layers[layer];
        state.recall().is_some()
            && n_rows >= state.n_submitted + index.segment + self.policy.recent
            && self.ends_with_segment(&index, layer)
    }

    /// Whether a further segment may come behind what is indexed of `layer`, or being so: behind
    /// whole segments, and where runs are kept behind any.
    fn ends_with_segment(&self, index: &Index, layer: LayerId) -> bool {
        let behind_sinks = self.layers[layer].n_submitted.saturating_sub(self.policy.sinks);
        index.keeps_runs() || (index.segment > 0 && behind_sinks.is_multiple_of(index.segment))
    }

    /// Where a prompt goes on behind one that had ended: once its rows fill the segment in which
    /// that one ended, the runs that were made of them go.
    pub(super) async fn drop_short_runs(
        &mut self,
        index: &Index,
        layer: LayerId,
        n_rows: usize,
    ) -> Result<(), SchedulerError> {
        let (state, first) = (&self.layers[layer], self.policy.sinks);
        let Some(recall) = state.recall() else { return Ok(()) };
        if index.keeps_runs() || state.n_submitted > state.n_indexed {
            return Ok(());
        }
        let n_whole = state.n_indexed.saturating_sub(first) / index.segment * index.segment;
        let whole = index.common_runs(first, n_whole, recall.index.run_ends());
        if whole < state.n_indexed && n_rows >= whole + index.segment + self.policy.recent {
            self.cut_index(layer, whole).await?;
        }
        Ok(())
    }

    /// Dissolves the units of a layer behind row `end`; rows behind those that stay are in token
    /// order again.
    pub(super) async fn cut_index(
        &mut self,
        layer: LayerId,
        end: usize,
    ) -> Result<(), SchedulerError> {
        let state = &mut self.layers[layer];
        let indexed_before = state.n_indexed;
        let LayerState::Recall(recall) = &mut state.state else { return Ok(()) };
        state.n_indexed = recall.index.truncate(&*self.backend, end, self.policy.sinks)?;
        state.n_submitted = state.n_indexed;
        recall.forget_selection();
        // With two stages the caches hold tokens: `cut_tokens`.
        if recall.tokens.is_none() {
            recall.resize_caches();
        }
        let (indexed, selection) = (state.n_indexed, recall.selection);
        self.restore_token_order(layer, indexed);
        self.cut_tokens(layer).await?;
        if let Some(path) = self.recall.as_mut().filter(|_| indexed < indexed_before) {
            path.forget_cached(&*self.backend, selection)?;
        }
        Ok(())
    }

    /// Tokens of a prompt until the next segment is handed over, which puts the one before into the
    /// order of its clusters. A chunk that ends there, and none that goes beyond, makes the bits of
    /// later rows a matter of positions alone. `None` without segments.
    pub fn tokens_to_segment(&self) -> Option<usize> {
        let segment = self.policy.index.map(|index| index.segment).filter(|n| *n > 0)?;
        let recalling = self.layers.iter().filter(|state| state.recall().is_some());
        let to_end = |state: &Layer<B>| {
            let behind = self.n_tokens.checked_sub(state.n_submitted + self.policy.recent);
            // What is filled is handed over before the next chunk.
            let n_filled = behind.map_or(0, |behind| behind / segment);
            let end = state.n_submitted + (n_filled + 1) * segment + self.policy.recent;
            end - self.n_tokens
        };
        recalling.map(to_end).min()
    }

    /// Tokens that a chunk may have with which no segment ends, as far as the first `n_layers`
    /// layers say: the others are not there yet.
    pub(crate) fn tokens_before_segment(&self, n_layers: usize) -> usize {
        let segment = self.policy.index.map_or(0, |index| index.segment);
        if segment == 0 {
            return usize::MAX;
        }
        let there = self.layers.iter().take(n_layers).filter(|layer| layer.recall().is_some());
        let ends = there.map(|layer| layer.n_submitted + segment + self.policy.recent);
        ends.min().map_or(0, |end| end.saturating_sub(self.n_tokens + 1))
    }

    /// Whether prompts are read exactly, over rows that kernels read in the host store. Of rows of
    /// 8 bits the recent ones are in full beside, and go when others come: a prompt that is taken
    /// back would not leave them as they were.
    pub(super) fn attends_plain_rows(&self) -> bool {
        self.options.prefill.is_exact() && self.exact.is_none() && self.in_place()
    }

    pub(super) async fn apply_outstanding(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        while self.layers[layer].n_submitted > self.layers[layer].n_indexed {
            self.apply_job(layer).await?;
        }
        Ok(())
    }

    /// Copies what prefill recorded on the device to the host, where a lost device leaves it.
    pub(super) async fn save_recorded(&mut self) -> Result<(), SchedulerError> {
        if self.in_place() {
            return Ok(());
        }
        let mut parts = ReadParts::<B>::new();
        for layer in &mut self.layers {
            parts.extend(layer.recorded.read_parts().into_iter().flatten());
        }
        self.backend.read_all(&mut parts).await?;
        drop(parts);
        self.layers.iter_mut().for_each(|layer| layer.recorded.was_read());
        Ok(())
    }

    /// Brings the sums of queries to the host, where blocks are made of them and a lost device
    /// leaves them.
    pub(super) async fn save_query_sums(&mut self) -> Result<(), SchedulerError> {
        if self.policy.local_window().is_none() {
            return Ok(());
        }
        let (n, missing) = (self.n_tokens, no_query_sums(&self.policy));
        let mut parts = ReadParts::<B>::new();
        for layer in self.layers.iter_mut().filter(|layer| layer.recall().is_some()) {
            let recorded = layer.recorded.queries.as_mut().filter(|queries| queries.covered() == n);
            match recorded {
                Some(recorded) => parts.extend(recorded.save(n)),
                None => return Err(missing),
            }
        }
        Ok(self.backend.read_all(&mut parts).await?)
    }

    /// Heads whose attention is spread over more rows than others' get more of the budget (Ada-KV):
    /// by how many of the best rows of the layer are theirs.
    pub(super) async fn adapt_budgets(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let budget = self.policy.budget;
        let (HeadBudgets::Ada { safeguard, queries }, Some(tokens)) = (budget.heads, budget.tokens)
        else {
            return Ok(());
        };
        let (first, end) = (self.policy.sinks, self.n_tokens.saturating_sub(self.policy.recent));
        let always = first + self.policy.ring_rows();
        let recalled = tokens - always;
        if end <= first + recalled {
            // All of it may be recalled: nothing says who will need more.
            return Ok(());
        }
        let mass = self.observe(layer, &Observation::plain(queries), first..end).await?;
        let own = head_capacities(&mass, end - first, recalled, safeguard);
        let most = self.policy.most_attended();
        let budgets = own.into_iter().map(|rows| (always + rows).min(most));
        if let Some(recall) = self.layers[layer].recall_mut() {
            recall.budgets = Some(budgets.collect());
        }
        Ok(())
    }

    /// The attention that rows of a layer received from the last recorded queries, `[Hkv, rows]`.
    pub(super) async fn observe(
        &mut self,
        layer: LayerId,
        how: &Observation,
        rows: std::ops::Range<usize>,
    ) -> Result<Vec<f32>, SchedulerError> {
        let n_tokens = self.n_tokens;
        let rows_of_layer = LayerRows { shape: &self.shape, store: &*self.store, layer };
        let reader = crate::store::RowReader {
            backend: &self.backend,
            rows: rows_of_layer,
            mover: &mut self.mover,
            tile: self.options.tile,
        };
        let recorded = &self.layers[layer].recorded;
        let observed = Observer::new(reader)?.observe(recorded, how, rows, n_tokens).await?;
        observed.ok_or(SchedulerError::NoStatistics {
            policy: self.policy.preset,
            what: "the last queries of a prompt",
        })
    }

    /// Rows become part of the index, piece by piece.
    pub(super) async fn index_pieces(
        &mut self,
        index: &Index,
        layer: LayerId,
        pieces: Pieces,
    ) -> Result<(), SchedulerError> {
        let (Pieces { end, mass }, len) = (pieces, index.piece_rows());
        let first = self.layers[layer].n_indexed;
        let heads = self.shape.n_kv_heads;
        while self.layers[layer].n_indexed < end {
            let start = self.layers[layer].n_indexed;
            let n = len.min(end - start);
            let part = mass.as_ref().map(|mass| {
                let one = |head: usize| &mass[head * (end - first) + start - first..][..n];
                (0..heads).flat_map(|head| one(head).iter().copied()).collect()
            });
            self.submit(index, layer, (n, RowsOf::Prompt), part.unwrap_or_default());
            self.apply_outstanding(layer).await?;
        }
        Ok(())
    }

    /// Blocks of the rows up to `end`, and what the prompt's last queries narrow them to.
    pub(super) async fn index_blocks(
        &mut self,
        index: &Index,
        layer: LayerId,
        end: usize,
        blocks: BlockConfig,
    ) -> Result<(), SchedulerError> {
        let first = self.layers[layer].n_indexed;
        let preselect = blocks.preselect;
        let queries = preselect.map_or(LAST_QUERIES, |p| p.queries);
        let mass = if !index.observes() {
            None
        } else if let Some(window) = self.policy.local_window() {
            let recorded = self.layers[layer].recorded.queries.as_ref();
            let scores = recorded.map(|r| r.prompt_scores(window, self.rows(layer), first..end));
            Some(scores.unwrap_or_default())
        } else {
            Some(self.observe(layer, &Observation::plain(queries), first..end).await?)
        };
        let pooled = match preselect {
            Some(p) if p.kernel > 1 => {
                let plain = Observation::plain(queries);
                let how = Observation { kernel: p.kernel, pool: p.pool, ..plain };
                Some(self.observe(layer, &how, first..end).await?)
            }
            _ => None,
        };
        let chosen = preselect.zip(pooled.as_ref().or(mass.as_ref())).map(|(p, mass)| {
            let heads = mass.chunks_exact(end - first);
            let reach = if p.neighbours { blocks.block / 4 } else { 0 };
            let sums = heads.map(|head| block_sums(head, blocks.block, reach));
            (sums.collect::<Vec<_>>(), p.count)
        });
        let mass = mass.filter(|_| blocks.summary == BlockSummary::Top);
        self.index_pieces(index, layer, Pieces { end, mass }).await?;
        let Some((mut sums, count)) = chosen else { return Ok(()) };
        if index.pooling == Pooling::SharedScores {
            let total = |b: usize| sums.iter().map(|head| head[b]).sum();
            let all: Vec<f32> = (0..sums[0].len()).map(total).collect();
            sums.iter_mut().for_each(|head| head.clone_from(&all));
        }
        let Some(recall) = self.layers[layer].recall_mut() else { return Ok(()) };
        for (head, sums) in sums.iter().enumerate() {
            recall.index.narrow(&*self.backend, head, largest(sums, count))?;
        }
        Ok(())
    }

    /// Ends a decode step: full windows go to the worker.
    pub(super) fn submit_windows(&mut self) {
        for layer in self.shape.layers() {
            if self.fills_window(layer, self.n_tokens) && !self.index_waits(layer, self.n_tokens) {
                self.submit_window(layer);
            }
        }
    }

    /// A full window of `layer` goes to the worker.
    pub(super) fn submit_window(&mut self, layer: LayerId) {
        let Some(index) = self.policy.index else { return };
        if let Some(mass) = self.window_mass(&index, layer) {
            self.submit(&index, layer, (index.window, RowsOf::Window), mass);
        }
    }

    /// How much the keys of a window that becomes blocks count: by the queries of their local
    /// window, or the attention that the prompt's last queries, which are the ones that are known,
    /// would give them among themselves. `None` where what says so has not been read.
    fn window_mass(&mut self, index: &Index, layer: LayerId) -> Option<RowMass> {
        let is_top = |blocks: BlockConfig| blocks.summary == BlockSummary::Top;
        if !matches!(index.kind, IndexKind::Blocks(blocks) if is_top(blocks)) {
            return Some(RowMass::new());
        }
        let state = &self.layers[layer];
        let rows = LayerRows { shape: &self.shape, store: &*self.store, layer };
        let window = state.n_submitted..state.n_submitted + index.window;
        if let Some(local) = self.policy.local_window() {
            return state.recorded.queries.as_ref()?.window_scores(local, rows, window);
        }
        Some(mass_among(rows, &state.recorded.last_queries, window, &mut self.bytes))
    }

    /// Whether the decode step that begins finds a window of `layer` that was submitted
    /// [`FLUSH_STEPS`] steps ago.
    pub(super) fn window_is_due(&self, layer: LayerId) -> bool {
        let state = &self.layers[layer];
        let Some(index) = self.policy.index else { return false };
        state.n_submitted > state.n_indexed
            && self.n_tokens - state.n_indexed + 1
                >= self.policy.recent + index.window + FLUSH_STEPS
    }

    /// In a decode step: a window that is due becomes clusters; or, in the first step that needs
    /// the index of `layer`, all rows do that waited for it.
    pub(super) async fn apply_window(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        if let Some(index) = self.policy.index.filter(|_| self.policy.attend_all > 0)
            && self.fills_window(layer, self.n_tokens)
            && !self.index_waits(layer, self.n_tokens + 1)
        {
            return self.index_prompt(&index, layer).await;
        }
        if !self.window_is_due(layer) {
            return Ok(());
        }
        self.apply_job(layer).await?;
        self.extend_tokens(layer).await
    }

    /// Waits for outstanding clusterings and forgets them.
    pub(super) async fn drop_jobs(&mut self) -> Result<(), SchedulerError> {
        for layer in self.shape.layers() {
            while self.layers[layer].n_submitted > self.layers[layer].n_indexed {
                let job = self.worker.take(&*self.backend, layer).await?;
                let state: &mut Layer<B> = &mut self.layers[layer];
                state.n_submitted = state.n_indexed;
                if let Some(job) = job {
                    self.spare(job);
                }
            }
        }
        Ok(())
    }

    /// Keeps jobs of the size of a decode window for the next window.
    fn spare(&mut self, job: Box<ClusterJob<B>>) {
        if self.policy.index.is_some_and(|index| job.capacity() <= index.window) {
            self.spare_jobs.push(job);
        }
    }
}

/// A run of rows that is indexed piece by piece.
pub(super) struct Pieces {
    /// Behind its last row.
    pub end: usize,
    pub mass: Option<RowMass>,
}

/// The attention that `queries`, `[n, Hq, Dh]`, would give the keys of `window`, were there only
/// these, `[Hkv, window]`; `bytes` is memory to reuse.
fn mass_among<B: Backend>(
    rows: LayerRows<'_, B>,
    queries: &[f32],
    window: std::ops::Range<usize>,
    bytes: &mut Vec<u8>,
) -> RowMass {
    let shape = rows.shape;
    let (hq, hkv, d, n) = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim, window.len());
    let (mut mass, group) = (vec![0.0f32; hkv * n], hq / hkv);
    let (mut keys, mut scores) = (vec![0.0f32; n * d], vec![0.0f32; n]);
    for (head, mass) in shape.heads().zip(mass.chunks_exact_mut(n)) {
        rows.keys(head, window.clone(), bytes, &mut keys);
        for token in queries.chunks_exact(hq * d) {
            for q in token.chunks_exact(d).skip(head.index() * group).take(group) {
                for (score, key) in scores.iter_mut().zip(keys.chunks_exact(d)) {
                    let dot: f32 = q.iter().zip(key).map(|(a, b)| a * b).sum();
                    *score = shape.scale * dot;
                }
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
                let shares = scores.iter().map(|s| (s - max).exp() / sum);
                mass.iter_mut().zip(shares).for_each(|(mass, share)| *mass += share);
            }
        }
    }
    mass
}

/// Seeds differ between layers and runs of rows, and depend on nothing else.
fn job_seed(seed: u64, layer: LayerId, row_start: usize) -> u64 {
    SplitMix64::new(seed ^ (u64::from(layer.0) << 40) ^ row_start as u64).next_u64()
}

/// Sums over the tokens of each block, and over the `reach` nearest tokens of each neighbour; where
/// there is none they count as 0.
fn block_sums(mass: &[f32], block: usize, reach: usize) -> Vec<f32> {
    let starts = (0..mass.len()).step_by(block);
    let near = starts.map(|start| start.saturating_sub(reach)..start + block + reach);
    near.map(|near| mass[near.start..near.end.min(mass.len())].iter().sum()).collect()
}

/// Which of the scores are among the `count` largest, the first among equals.
fn largest(scores: &[f32], count: usize) -> Vec<bool> {
    let mut chosen = vec![false; scores.len()];
    best(scores, count).into_iter().for_each(|i| chosen[i as usize] = true);
    chosen
}

#[cfg(test)]
mod tests {
    use longview_core::{HeadId, encode_f32};
    use longview_ops::ReferenceBackend;

    use super::*;
    use crate::store::fixture::shape;
    use crate::store::{HostStore, PlainStore};

    /// Keys of rows 3 and 4 are the logarithms of 1 and 3 in head 0, of 4 and 1 in head 1: a query
    /// of 2 gives them these parts, with the scale of a half.
    #[test]
    fn rows_of_a_window_share_each_query_among_themselves() {
        let shape = shape();
        let mut store = PlainStore::new(&shape).unwrap();
        for (head, row, parts) in [(0, 3, 1.0f32), (0, 4, 3.0), (1, 3, 4.0), (1, 4, 1.0)] {
            let numbers = [parts.ln(), 1.0, 0.0, 0.0, 5.0, 5.0, 5.0, 5.0];
            let store: &mut dyn HostStore<ReferenceBackend> = &mut store;
            let bytes = encode_f32(shape.kv_dtype, &numbers);
            store.write_rows(LayerId(1), HeadId(head), row, &bytes);
        }
        let rows: LayerRows<'_, ReferenceBackend> =
            LayerRows { shape: &shape, store: &store, layer: LayerId(1) };
        // Two tokens alike of four query heads: all see but the second, which gives all the same.
        let (sees, blind) = ([2.0, 0.0, 0.0, 0.0], [0.0; 4]);
        let token = [sees, blind, sees, sees].concat();
        let mass = mass_among(rows, &token.repeat(2), 3..5, &mut vec![1; 9]);
        let want = [2.0 * (0.25 + 0.5), 2.0 * (0.75 + 0.5), 4.0 * 0.8, 4.0 * 0.2];
        for (x, y) in mass.iter().zip(want) {
            assert!((x - y).abs() < 1e-6, "{mass:?}");
        }
        assert_eq!(mass.len(), 4);
    }

    #[test]
    fn a_block_counts_the_nearest_tokens_of_its_neighbours() {
        let mass = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        assert_eq!(block_sums(&mass, 3, 0), [7.0, 56.0, 64.0]);
        assert_eq!(block_sums(&mass, 3, 1), [15.0, 124.0, 96.0]);
        assert_eq!(block_sums(&[], 3, 1), [0.0; 0]);
    }

    #[test]
    fn the_largest_scores_are_marked_the_first_among_equals() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0, 3.0], 2), [false, true, true, false, false]);
        assert_eq!(largest(&[1.0, 2.0], 5), [true, true]);
        assert_eq!(largest(&[1.0], 0), [false]);
    }

    #[test]
    fn seeds_differ_between_layers_and_runs_of_rows() {
        let seeds = [
            job_seed(7, LayerId(0), 0),
            job_seed(7, LayerId(0), 1),
            job_seed(7, LayerId(1), 0),
            job_seed(7, LayerId(1), 1),
            job_seed(8, LayerId(0), 0),
        ];
        for (i, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..i].contains(seed), "{seeds:?}");
        }
        assert_eq!(job_seed(7, LayerId(1), 1), seeds[3], "and depend on nothing else");
    }
}
