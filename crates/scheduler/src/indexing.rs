//! How rows of a sequence come into the index: segments of a prompt, its end, and windows of
//! decoded tokens.

use std::sync::Arc;

use longview_core::{SplitMix64, decode_f32_into};
use longview_ops::{Backend, BlockSummary, Distance, KvView, Pooling};

use crate::adaptive::Adaptive;
use crate::clusterer::{ClusterJob, ClusterTask, TaskKind};
use crate::error::SchedulerError;
use crate::index::LayerIndex;
use crate::keep::{best, head_capacities};
use crate::layer::{LAST_QUERIES, LayerMode};
use crate::observe::Observation;
use crate::policy::{BlockConfig, FLUSH_STEPS, INDEX_SEGMENT, IndexKind, TokenConfig};
use crate::projection::Projections;
use crate::sequence::{Placement, Sequence, Standing};
use crate::tier::RowRange;

impl<B: Backend> Sequence<B> {
    /// One job per recall layer, so that clustering a decode window allocates nothing.
    pub(crate) fn reserve_jobs(&mut self) -> Result<(), SchedulerError> {
        self.spare_jobs.clear();
        let Some(cluster) = self.policy.index else { return Ok(()) };
        let n_recall = self.layers.iter().filter(|l| l.mode == LayerMode::Recall).count();
        let first = self.layers.iter().position(|l| l.mode == LayerMode::Recall).unwrap_or(0);
        for _ in 0..n_recall {
            let mut job = Box::new(ClusterJob::new(self.task(first, 0, cluster.window)));
            job.reserve(&*self.backend)?;
            self.spare_jobs.push(job);
        }
        self.bytes.reserve(2 * cluster.window * self.shape.row_bytes());
        self.order.reserve(cluster.window);
        Ok(())
    }

    fn task(&self, layer: usize, row_start: usize, n_points: usize) -> ClusterTask {
        let index = self.policy.index.expect("only recall layers are indexed");
        let landmarks = |kind: TaskKind, n_clusters: usize| ClusterTask {
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
        };
        match index.kind {
            IndexKind::Clusters(c) => {
                let n_clusters = match n_points == index.window {
                    true => c.window_clusters,
                    false => n_points.div_ceil(c.cluster_tokens),
                };
                ClusterTask {
                    distance: c.distance,
                    iterations: c.iterations,
                    max_cluster: c.max_cluster,
                    seed: job_seed(c.seed, layer, row_start),
                    ..landmarks(TaskKind::Clusters, n_clusters)
                }
            }
            IndexKind::Blocks(blocks) => {
                landmarks(TaskKind::Blocks(blocks), n_points.div_ceil(blocks.block))
            }
            IndexKind::Tokens(_) => {
                let index = self.layers[layer].index.as_ref();
                let rank = index.map_or(0, LayerIndex::width);
                landmarks(TaskKind::Tokens(rank), n_points)
            }
        }
    }

    /// Hands rows `row_start..row_start + n` of `layer` to the worker.
    /// `mass` says how much each of their keys counts, where that matters.
    fn submit(&mut self, layer: usize, n: usize, mut mass: Vec<f32>) {
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
        let state = &self.layers[layer];
        job.projection = state.projection.as_ref().map(|p| Arc::clone(&p.w_k));
        job.mass = std::mem::take(&mut mass);
        job.landmarks = match &state.adaptive {
            Some(adaptive) => adaptive.landmarks(row_start, n),
            None => Vec::new(),
        };
        self.give_keys(&mut job);
        self.layers[layer].n_submitted = row_start + n;
        self.worker.submit(job);
    }

    /// Gives a job the keys of its rows.
    pub(crate) fn give_keys(&mut self, job: &mut ClusterJob<B>) {
        match self.tier.buffer(job.task.layer) {
            Some(rows) => {
                let rows = KvView::new(rows, self.shape.capacity);
                job.take_keys(&self.backend, rows, self.side.clone());
            }
            None => self.read_keys(job),
        }
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
            if clusters.order.is_empty() {
                continue;
            }
            let place = RowRange { layer, head, start: row_start };
            self.tier.permute_rows(place, &clusters.order, row_bytes, &mut self.bytes);
            let positions = &mut state.positions[head][row_start..row_start + n_points];
            self.order.clear();
            self.order.extend_from_slice(positions);
            for (position, from) in positions.iter_mut().zip(&clusters.order) {
                *position = self.order[*from as usize];
            }
        }
        let mut job = job;
        if self.policy.tail {
            self.mean_values(&mut job);
        }
        let state = &mut self.layers[layer];
        let index = state.index.as_mut().expect("only recall layers are clustered");
        index.append(&*self.backend, row_start, row_start + n_points, &job.heads)?;
        if state.fine.is_none() {
            for (cache, head) in state.caches.iter_mut().zip(index.heads()) {
                cache.set_clusters(head.sizes.len());
            }
        }
        state.n_indexed = row_start + n_points;
        state.n_submitted = state.n_indexed;
        if job.task.kind == TaskKind::Clusters {
            state.permuted_to = state.permuted_to.max(state.n_indexed);
        }
        self.stats.clusterings += 1;
        self.keep_job(job);
        Ok(())
    }

    /// The mean value of each cluster of a job, whose rows lie in the order of the clusters.
    fn mean_values(&mut self, job: &mut ClusterJob<B>) {
        let ClusterTask { layer, row_start, head_dim: d, .. } = job.task;
        let row_bytes = self.shape.row_bytes();
        let mut value = vec![0.0; d];
        for (head, clusters) in job.heads.iter_mut().enumerate() {
            let mut row = row_start;
            for size in clusters.sizes.iter().map(|size| *size as usize) {
                self.bytes.resize(size * row_bytes, 0);
                self.tier.read_rows(layer, head, row..row + size, &mut self.bytes);
                let at = clusters.values.len();
                clusters.values.resize(at + d, 0.0);
                for bytes in self.bytes.chunks_exact(row_bytes) {
                    decode_f32_into(self.shape.kv_dtype, &bytes[row_bytes / 2..], &mut value);
                    let mean = clusters.values[at..].iter_mut().zip(&value);
                    mean.for_each(|(mean, value)| *mean += value / size as f32);
                }
                row += size;
            }
        }
    }

    /// In prefill: hands every finished segment of `layer` to the worker. The one before is applied
    /// first, so that a segment has the time of a whole segment to be clustered and the order of
    /// rows is a function of the input.
    pub(crate) async fn submit_segments(
        &mut self,
        layer: usize,
        n_rows: usize,
    ) -> Result<(), SchedulerError> {
        let Some(index) = self.policy.index else { return Ok(()) };
        if index.segment == 0 || self.layers[layer].mode != LayerMode::Recall {
            return Ok(());
        }
        while n_rows >= self.layers[layer].n_submitted + index.segment + self.policy.recent {
            self.apply_outstanding(layer).await?;
            self.submit(layer, index.segment, Vec::new());
        }
        Ok(())
    }

    async fn apply_outstanding(&mut self, layer: usize) -> Result<(), SchedulerError> {
        while self.layers[layer].n_submitted > self.layers[layer].n_indexed {
            self.apply_job(layer).await?;
        }
        Ok(())
    }

    /// Ends a prefill: everything but the recent window is indexed if it is at least a window long,
    /// and the device holds what decode needs. Must be called before the first decode step.
    ///
    /// # Errors
    /// What the policy needs and cannot have; [`Sequence::settle`] tries again.
    pub async fn finish_prefill(&mut self) -> Result<(), SchedulerError> {
        if self.standing == Standing::Whole {
            self.standing = Standing::Unfinished;
        }
        self.index_all().await?;
        self.standing = Standing::Whole;
        Ok(())
    }

    async fn index_all(&mut self) -> Result<(), SchedulerError> {
        self.save_query_sums().await?;
        for layer in 0..self.layers.len() {
            match self.layers[layer].mode {
                LayerMode::Recall => {
                    self.adapt_budgets(layer).await?;
                    self.index_prompt(layer).await?;
                }
                LayerMode::Keep => self.keep_prompt(layer).await?,
                LayerMode::Dense | LayerMode::Window => {}
            }
        }
        if self.policy.keep.is_some() {
            // Heads may attend more than their share now.
            self.alloc_lists()?;
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
        let index = self.policy.index.expect("recall layers have an index");
        self.apply_outstanding(layer).await?;
        let end = self.n_tokens.saturating_sub(self.policy.recent);
        if index.segment > 0 {
            self.submit_segments(layer, self.n_tokens).await?;
            self.apply_outstanding(layer).await?;
        }
        if let (IndexKind::Tokens(tokens), true) = (index.kind, self.n_tokens > 0)
            && self.layers[layer].projection.is_none()
        {
            self.make_projection(layer, &tokens).await?;
        }
        if let (Some(refine), true) = (self.policy.refine, self.n_tokens > 0)
            && self.layers[layer].projection.is_none()
        {
            self.make_projection(layer, &refine.tokens).await?;
        }
        let left = end.saturating_sub(self.layers[layer].n_indexed);
        if left < index.window {
            return self.extend_tokens(layer).await;
        }
        match index.kind {
            IndexKind::Clusters(_) => {
                self.submit(layer, left, Vec::new());
                self.apply_outstanding(layer).await?;
                self.extend_tokens(layer).await
            }
            IndexKind::Blocks(blocks) => {
                let end = self.layers[layer].n_indexed + left / blocks.block * blocks.block;
                self.index_blocks(layer, end, blocks).await
            }
            IndexKind::Tokens(_) => self.index_pieces(layer, end, INDEX_SEGMENT, None).await,
        }
    }

    /// Heads whose attention is spread over more rows than others' get more of the budget (Ada-KV):
    /// by how many of the best rows of the layer are theirs.
    async fn adapt_budgets(&mut self, layer: usize) -> Result<(), SchedulerError> {
        let (Some(adapt), Some(budget)) = (self.policy.adapt, self.policy.budget) else {
            return Ok(());
        };
        let (first, end) = (self.policy.sinks, self.n_tokens.saturating_sub(self.policy.recent));
        let always = first + self.policy.ring_rows();
        let recalled = budget - always;
        if end <= first + recalled {
            // All of it may be recalled: nothing says who will need more.
            return Ok(());
        }
        let how = Observation::plain(adapt.queries);
        let mass = self.observe(layer, &how, first..end).await?;
        let own = head_capacities(&mass, end - first, recalled, adapt.safeguard);
        let most = self.policy.most_attended();
        let budgets = own.into_iter().map(|rows| (always + rows).min(most));
        self.layers[layer].budgets = Some(budgets.collect());
        Ok(())
    }

    /// Rows up to `end` become part of the index, `piece` at a time. `mass` is that of the rows
    /// from the first that is not indexed yet, `[Hkv, n]`.
    async fn index_pieces(
        &mut self,
        layer: usize,
        end: usize,
        piece: usize,
        mass: Option<Vec<f32>>,
    ) -> Result<(), SchedulerError> {
        let first = self.layers[layer].n_indexed;
        let heads = self.shape.n_kv_heads;
        while self.layers[layer].n_indexed < end {
            let start = self.layers[layer].n_indexed;
            let n = piece.min(end - start);
            let part = mass.as_ref().map(|mass| {
                let one = |head: usize| &mass[head * (end - first) + start - first..][..n];
                (0..heads).flat_map(|head| one(head).iter().copied()).collect()
            });
            self.submit(layer, n, part.unwrap_or_default());
            self.apply_outstanding(layer).await?;
        }
        Ok(())
    }

    /// Blocks of the rows up to `end`, and what the prompt's last queries narrow them to.
    async fn index_blocks(
        &mut self,
        layer: usize,
        end: usize,
        blocks: BlockConfig,
    ) -> Result<(), SchedulerError> {
        let first = self.layers[layer].n_indexed;
        let preselect = self.policy.preselect;
        let queries = preselect.map_or(LAST_QUERIES, |p| p.queries);
        let asks = blocks.summary == BlockSummary::Top || preselect.is_some();
        let mass = match asks {
            true if self.policy.local_window().is_some() => {
                Some(self.prompt_scores(layer, first..end))
            }
            true => Some(self.observe(layer, &Observation::plain(queries), first..end).await?),
            false => None,
        };
        let pooled = match preselect {
            Some(p) if p.kernel > 1 => {
                let plain = Observation::plain(queries);
                let how = Observation { kernel: p.kernel, pool: p.pool, ..plain };
                Some(self.observe(layer, &how, first..end).await?)
            }
            _ => None,
        };
        let chosen = preselect.map(|p| {
            let mass = pooled.as_ref().or(mass.as_ref()).expect("asked for");
            let heads = mass.chunks_exact(end - first);
            let reach = if p.neighbours { blocks.block / 4 } else { 0 };
            let sums = heads.map(|head| block_sums(head, blocks.block, reach));
            (sums.collect::<Vec<_>>(), p.count)
        });
        let piece = INDEX_SEGMENT.next_multiple_of(blocks.block);
        let mass = mass.filter(|_| blocks.summary == BlockSummary::Top);
        self.index_pieces(layer, end, piece, mass).await?;
        let Some((mut sums, count)) = chosen else { return Ok(()) };
        let shares = self.policy.index.is_some_and(|i| i.pooling == Pooling::SharedScores);
        if shares {
            let total = |b: usize| sums.iter().map(|head| head[b]).sum();
            let all: Vec<f32> = (0..sums[0].len()).map(total).collect();
            sums.iter_mut().for_each(|head| head.clone_from(&all));
        }
        let backend = Arc::clone(&self.backend);
        let index = self.layers[layer].index.as_mut().expect("recall layers have an index");
        for (head, sums) in sums.iter().enumerate() {
            index.narrow(&backend, head, largest(sums, count))?;
        }
        Ok(())
    }

    /// The space in which the layer's tokens are compared, and an index of that width.
    async fn make_projection(
        &mut self,
        layer: usize,
        tokens: &TokenConfig,
    ) -> Result<(), SchedulerError> {
        let backend = Arc::clone(&self.backend);
        let (gram_q, gram_k) = self.layers[layer].recorded.sums(&*backend).await?;
        if gram_k.iter().all(|x| *x == 0.0) {
            return Err(SchedulerError::NoStatistics {
                policy: self.policy.preset,
                what: "the sums of q q^T and k k^T",
            });
        }
        let made = Projections::new(tokens, &gram_q, &gram_k, self.shape.head_dim);
        if tokens.adapts {
            let adaptive = Adaptive::new(&made, &gram_q, &gram_k, self.shape.head_dim);
            self.layers[layer].adaptive = Some(adaptive);
        }
        self.layers[layer].set_projection(&*backend, &self.shape, &self.policy, made)?;
        self.reserve_jobs()
    }

    /// Ends a decode step: full windows go to the worker.
    pub(crate) fn submit_windows(&mut self) {
        for layer in 0..self.layers.len() {
            if self.fills_window(layer, self.n_tokens) {
                self.submit_window(layer);
            }
        }
    }

    /// A full window of `layer` goes to the worker.
    pub(crate) fn submit_window(&mut self, layer: usize) {
        let Some(index) = self.policy.index else { return };
        if let Some(mass) = self.window_mass(layer, index.window) {
            self.submit(layer, index.window, mass);
        }
    }

    /// Whether a window of `layer` goes to the worker when the sequence has `n_tokens` tokens.
    pub(crate) fn fills_window(&self, layer: usize, n_tokens: usize) -> bool {
        let (Some(index), state) = (self.policy.index, &self.layers[layer]) else { return false };
        let pending = n_tokens.saturating_sub(state.n_indexed);
        state.mode == LayerMode::Recall
            && state.n_submitted == state.n_indexed
            && pending >= self.policy.recent + index.window
    }

    /// How much the keys of a window that becomes blocks count: by the queries of their local
    /// window, or the attention that the prompt's last queries, which are the ones that are known,
    /// would give them among themselves. `None` where what says so has not been read.
    fn window_mass(&mut self, layer: usize, n: usize) -> Option<Vec<f32>> {
        let index = self.policy.index.expect("only recall layers submit");
        let is_top = |blocks: BlockConfig| blocks.summary == BlockSummary::Top;
        if !matches!(index.kind, IndexKind::Blocks(blocks) if is_top(blocks)) {
            return Some(Vec::new());
        }
        if self.policy.local_window().is_some() {
            return self.window_scores(layer, n);
        }
        let (hq, hkv, d) = (self.shape.n_q_heads, self.shape.n_kv_heads, self.shape.head_dim);
        let (start, row_bytes) = (self.layers[layer].n_submitted, self.shape.row_bytes());
        let mut mass = vec![0.0f32; hkv * n];
        let (mut keys, mut scores) = (vec![0.0f32; n * d], vec![0.0f32; n]);
        self.bytes.clear();
        self.bytes.resize(n * row_bytes, 0);
        for (head, mass) in mass.chunks_exact_mut(n).enumerate() {
            self.tier.read_rows(layer, head, start..start + n, &mut self.bytes);
            for (row, key) in self.bytes.chunks_exact(row_bytes).zip(keys.chunks_exact_mut(d)) {
                decode_f32_into(self.shape.kv_dtype, &row[..row_bytes / 2], key);
            }
            for token in self.layers[layer].recorded.last_queries.chunks_exact(hq * d) {
                for q in token.chunks_exact(d).skip(head * hq / hkv).take(hq / hkv) {
                    for (score, key) in scores.iter_mut().zip(keys.chunks_exact(d)) {
                        let dot: f32 = q.iter().zip(key).map(|(a, b)| a * b).sum();
                        *score = self.shape.scale * dot;
                    }
                    // The attention that the query would give, were there only these keys.
                    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
                    let shares = scores.iter().map(|s| (s - max).exp() / sum);
                    mass.iter_mut().zip(shares).for_each(|(mass, share)| *mass += share);
                }
            }
        }
        Some(mass)
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
            true => {
                self.apply_job(layer).await?;
                self.extend_tokens(layer).await
            }
            false => Ok(()),
        }
    }

    /// Waits for outstanding clusterings and forgets them.
    pub(crate) async fn drop_jobs(&mut self) -> Result<(), SchedulerError> {
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
}

/// Seeds differ between layers and runs of rows, and depend on nothing else.
fn job_seed(seed: u64, layer: usize, row_start: usize) -> u64 {
    SplitMix64::new(seed ^ ((layer as u64) << 40) ^ row_start as u64).next_u64()
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
