//! Makes an index of keys on a backend queue: clusters by k-means and the ordering that the host
//! store wants, landmarks of blocks, or keys in a space of few dimensions.
//!
//! A [`ClusterJob`] owns its buffers and is reused, so that clustering a decode window allocates
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::cast_slice;
use longview_core::{DType, LayerId, SplitMix64};
use longview_ops::{
    Backend, BlockReduce, BlockReduceParams, ClusterStats, DeviceBuffer, Distance, KmeansAssign,
    KmeansParams, KmeansUpdate, KvKeys, KvKeysParams, KvView, OpResult, ProjectHeads,
    ProjectHeadsParams, View, ViewMut,
};

use super::cluster_groups::in_groups;
use crate::error::SchedulerError;
use crate::policy::BlockConfig;

/// What a run of keys becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TaskKind {
    /// Clusters, by the task's k-means.
    Clusters,
    /// Blocks of consecutive keys.
    Blocks(BlockConfig),
    /// Single keys, projected to this many dimensions.
    Tokens(usize),
}

/// What to cluster and how; fixed before a job runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterTask {
    /// Layer, for the caller.
    pub layer: LayerId,
    /// First row of the run in the host store, for the caller.
    pub row_start: usize,
    /// What is made of the keys.
    pub kind: TaskKind,
    /// KV heads, each clustered alone, Hkv.
    pub n_kv_heads: usize,
    /// Keys to cluster, N.
    pub n_points: usize,
    /// C: clusters, blocks or tokens.
    pub n_clusters: usize,
    /// Numbers of a key, Dh.
    pub head_dim: usize,
    /// What near means.
    pub distance: Distance,
    /// Most iterations.
    pub iterations: usize,
    /// Larger clusters are split.
    pub max_cluster: usize,
    /// Seed of the initial centroids.
    pub seed: u64,
    /// Whether clusters lie in an order in which neighbours are alike.
    pub is_grouped: bool,
}

/// The clusters of one KV head, members of a cluster side by side and closest first.
#[derive(Clone, Debug, Default)]
pub struct HeadClusters {
    /// The points (0..N) in cluster-major order; empty where they stay in their own.
    pub order: Vec<u32>,
    /// Members of each cluster; never 0.
    pub sizes: Vec<u32>,
    /// `[clusters, width]`: the mean of the members' keys, or what else stands for them.
    pub centroids: Vec<f32>,
    /// Largest distance of a member's key from the centroid; of clusters only.
    pub radius: Vec<f32>,
    /// `[clusters, width]`: the mean of the members' values, where somebody asks for it.
    pub values: Vec<f32>,
}

/// A run of keys being clustered, with all the memory that takes.
pub struct ClusterJob<B: Backend> {
    /// What to do.
    pub task: ClusterTask,
    /// Keys `[Hkv, N, Dh]` from the host; unused where they come from rows that kernels read.
    points: Vec<f32>,
    /// Whether the keys are on the device, or why they are not.
    keys: OpResult<Keys<B>>,
    /// See [`ClusterJob::mark`].
    marker: Option<Arc<B>>,
    /// `[Hkv, N]`: how much each key counts, for blocks that are stood for by some of theirs.
    pub mass: Vec<f32>,
    /// `[Hkv, Dh, r]`, for tokens. On the host: the job's queue takes it up itself, because what
    /// another queue was given may not be there yet.
    pub projection: Option<Arc<Vec<f32>>>,
    /// `[Hkv, N, r]`, for tokens whose places in the space are known; else of no elements.
    pub landmarks: Vec<f32>,
    /// The result, one entry per KV head.
    pub heads: Vec<HeadClusters>,
    /// Iterations that ran before no label changed or the limit was reached.
    pub iterations_run: usize,
    /// Ends the job between two iterations when it is raised.
    pub stop: Option<Arc<AtomicBool>>,
    /// Whether it was ended so: there are no clusters then.
    pub was_stopped: bool,
    stage: Stage,
    buffers: Option<JobBuffers<B>>,
    host: HostScratch,
    capacity: usize,
}

/// How far a job is: what its next piece begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is done.
    Keys,
    /// Clusters: an iteration, after those that [`ClusterJob::iterations_run`] says.
    Iterating,
    /// Clusters: the labels are final.
    Labelled,
    /// The result is there, or there will be none.
    Done,
}

/// Where a job's keys are.
enum Keys<B: Backend> {
    /// In `points`.
    Host,
    /// On the device, with the first centroids, once all work of the other queue is done, if there
    /// is one.
    Device(Option<Arc<B>>),
}

struct JobBuffers<B: Backend> {
    points: B::Buffer,
    centroids: B::Buffer,
    /// `[Hkv, Dh, r]`; of one element where there is no projection.
    projection: B::Buffer,
    labels: B::Buffer,
    scores: B::Buffer,
    n_changed: B::Buffer,
    counts: B::Buffer,
    radius: B::Buffer,
}

#[derive(Default)]
struct HostScratch {
    labels: Vec<u32>,
    centroids: Vec<f32>,
    counts: Vec<u32>,
    closeness: Vec<f32>,
    radius: Vec<f32>,
    n_changed: Vec<u32>,
    starts: Vec<u32>,
    chosen: Vec<u32>,
}

impl<B: Backend> ClusterJob<B> {
    /// A job with memory for `task`; later tasks that are not larger need no more.
    pub fn new(task: ClusterTask) -> Self {
        let mut job = Self {
            task,
            points: Vec::new(),
            keys: Ok(Keys::Host),
            marker: None,
            mass: Vec::new(),
            projection: None,
            landmarks: Vec::new(),
            heads: vec![HeadClusters::default(); task.n_kv_heads],
            stop: None,
            was_stopped: false,
            iterations_run: 0,
            stage: Stage::Keys,
            buffers: None,
            host: HostScratch::default(),
            capacity: 0,
        };
        job.reset(task);
        job
    }

    /// Takes on another task, growing what is too small.
    pub fn reset(&mut self, task: ClusterTask) {
        let ClusterTask { n_kv_heads, n_points, .. } = task;
        let room = task.room();
        self.task = task;
        (self.stop, self.was_stopped) = (None, false);
        (self.stage, self.iterations_run) = (Stage::Keys, 0);
        self.capacity = self.capacity.max(n_points);
        self.keys = Ok(Keys::Host);
        self.heads.resize(n_kv_heads, HeadClusters::default());
        for head in &mut self.heads {
            head.order.clear();
            head.sizes.clear();
            head.centroids.clear();
            head.radius.clear();
            head.values.clear();
            if task.kind == TaskKind::Clusters {
                head.order.reserve(n_points);
                head.radius.reserve(room);
            }
            head.sizes.reserve(room);
            head.centroids.reserve(room * task.width());
        }
        self.host.reset(&task);
    }

    /// The keys, to be filled in.
    pub fn host_keys(&mut self) -> &mut [f32] {
        let ClusterTask { n_kv_heads, n_points, head_dim, .. } = self.task;
        self.points.clear();
        self.points.resize(n_kv_heads * n_points * head_dim, 0.0);
        &mut self.points
    }

    /// Takes the keys from rows that kernels read, without waiting: on `queue`, or on another queue
    /// after it. Either way the job then runs after that. An error is that of the run.
    pub fn take_keys(&mut self, queue: &B, rows: KvView<'_, B>, other: Option<Arc<B>>) {
        let result = match other {
            Some(other) => {
                let taken = other.after(queue).and_then(|()| self.gather_keys(&other, rows));
                taken.map(|()| Some(other))
            }
            None => self.gather_keys(queue, rows).and_then(|()| self.mark(queue)),
        };
        self.keys = result.map(Keys::Device);
    }

    /// A queue that stands for all that `queue` was given so far, so that the worker's, which may
    /// be another one, can wait for it. `None` where queues are in order anyway.
    fn mark(&mut self, queue: &B) -> OpResult<Option<Arc<B>>> {
        if !queue.capabilities().overlaps {
            return Ok(None);
        }
        let marker = self.marker.get_or_insert_with(|| Arc::new(queue.background()));
        marker.after(queue)?;
        Ok(Some(Arc::clone(marker)))
    }

    fn gather_keys(&mut self, queue: &B, src: KvView<'_, B>) -> OpResult<()> {
        let mut buffers = self.take_buffers(queue)?;
        let result = self.gather_into(queue, src, &mut buffers);
        self.buffers = Some(buffers);
        result
    }

    fn gather_into(
        &mut self,
        queue: &B,
        src: KvView<'_, B>,
        b: &mut JobBuffers<B>,
    ) -> OpResult<()> {
        let ClusterTask { row_start, n_kv_heads: h, n_points, n_clusters, head_dim, .. } =
            self.task;
        // The labels are not needed yet: rows are listed in their place.
        let list = &mut self.host.labels;
        let mut gather = |list: &[u32], n: usize, out: &mut B::Buffer| {
            write(queue, &mut b.labels, cast_slice(list), list.len())?;
            queue.kv_keys(KvKeys {
                p: KvKeysParams {
                    n_kv_heads: h as u32,
                    head_dim: head_dim as u32,
                    n_rows: n as u32,
                },
                src,
                rows: View::part(&b.labels, 0, list.len()),
                out: ViewMut::part(out, 0, list.len() * head_dim),
            })
        };
        list.clear();
        (0..h).for_each(|_| list.extend(row_start as u32..(row_start + n_points) as u32));
        gather(list, n_points, &mut b.points)?;
        if self.task.kind != TaskKind::Clusters {
            return Ok(());
        }
        list.clear();
        for head in 0..h {
            self.task.draw_start(head, &mut self.host.chosen);
            list.extend(self.host.chosen.iter().map(|i| row_start as u32 + i));
        }
        gather(list, n_clusters, &mut b.centroids)
    }

    /// Points of the largest task so far.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Device memory for the current task, allocated now instead of when the job runs.
    pub fn reserve(&mut self, backend: &B) -> OpResult<()> {
        self.buffers = Some(self.take_buffers(backend)?);
        Ok(())
    }

    /// The buffers of the last task if they are large enough, else new ones.
    fn take_buffers(&mut self, backend: &B) -> OpResult<JobBuffers<B>> {
        match self.buffers.take().filter(|buffers| buffers.fit(&self.task)) {
            Some(buffers) => Ok(buffers),
            None => JobBuffers::new(backend, &self.task),
        }
    }

    /// Fails if the job was ended before it had a result.
    pub fn check_stop(&self) -> Result<(), SchedulerError> {
        if self.was_stopped { Err(SchedulerError::Stopped) } else { Ok(()) }
    }

    /// Clusters the points; the result is in `heads`. A job of which pieces were run goes on there.
    pub async fn run(&mut self, backend: &B) -> OpResult<()> {
        while !self.run_piece(backend).await? {}
        Ok(())
    }

    /// A piece of [`ClusterJob::run`]: an iteration of the k-means of all heads, what comes before
    /// the first one or after the last; blocks and tokens are of one piece. Returns whether it was
    /// the last piece.
    ///
    /// # Errors
    /// If the device fails: the job is of no use then.
    pub async fn run_piece(&mut self, backend: &B) -> OpResult<bool> {
        if self.stage == Stage::Done {
            return Ok(true);
        }
        let mut buffers = self.take_buffers(backend)?;
        let result = self.piece_in(backend, &mut buffers).await;
        self.buffers = Some(buffers);
        self.stage = result?;
        Ok(self.stage == Stage::Done)
    }

    /// Returns the stage after it.
    async fn piece_in(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<Stage> {
        match self.stage {
            Stage::Keys => self.begin(backend, b).await,
            Stage::Iterating => self.iterate(backend, b).await,
            Stage::Labelled => {
                self.end(backend, b).await?;
                Ok(Stage::Done)
            }
            Stage::Done => Ok(Stage::Done),
        }
    }

    async fn begin(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<Stage> {
        match std::mem::replace(&mut self.keys, Ok(Keys::Host))? {
            Keys::Host => self.upload_keys(backend, b)?,
            Keys::Device(None) => {}
            Keys::Device(Some(other)) => backend.after(&other)?,
        }
        match self.task.kind {
            TaskKind::Clusters => {
                self.host.labels.clear();
                self.host.labels.resize(self.task.n_kv_heads * self.task.n_points, u32::MAX);
                self.upload_labels(backend, b)?;
                return Ok(Stage::Iterating);
            }
            TaskKind::Blocks(blocks) => {
                self.reduce(backend, b, blocks)?;
                self.take_landmarks(backend, b, blocks.block).await?;
            }
            TaskKind::Tokens(_) if !self.landmarks.is_empty() => {
                let len = self.landmarks.len() / self.task.n_kv_heads;
                for (head, own) in self.heads.iter_mut().zip(self.landmarks.chunks_exact(len)) {
                    head.centroids.extend_from_slice(own);
                    head.sizes.resize(self.task.n_points, 1);
                }
            }
            TaskKind::Tokens(rank) => {
                self.project(backend, b, rank)?;
                self.take_landmarks(backend, b, 1).await?;
            }
        }
        Ok(Stage::Done)
    }

    /// Splits what is too large, and brings the clusters to the host.
    async fn end(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<()> {
        let mut n_clusters = self.task.n_clusters;
        if let Some(more) = self.split_oversized(n_clusters) {
            n_clusters = more;
            self.upload_labels(backend, b)?;
            self.update(backend, b, n_clusters)?;
        }
        self.download(backend, b, n_clusters).await?;
        self.order_members(n_clusters);
        Ok(())
    }

    /// A landmark for each block.
    fn reduce(&mut self, backend: &B, b: &mut JobBuffers<B>, blocks: BlockConfig) -> OpResult<()> {
        let ClusterTask { n_kv_heads: h, n_points: n, head_dim: d, n_clusters, .. } = self.task;
        let width = self.task.width();
        let p = BlockReduceParams {
            n_kv_heads: h as u32,
            n_points: n as u32,
            head_dim: d as u32,
            block: blocks.block as u32,
            summary: blocks.summary as u32,
            n_top: blocks.n_top as u32,
        };
        let n_mass = if p.uses_mass() { h * n } else { 0 };
        if n_mass > 0 {
            assert_eq!(self.mass.len(), n_mass, "the mass of every key");
            write(backend, &mut b.scores, cast_slice(&self.mass), n_mass)?;
        }
        backend.block_reduce(BlockReduce {
            p,
            points: View::part(&b.points, 0, h * n * d),
            mass: View::part(&b.scores, 0, n_mass),
            out: ViewMut::part(&mut b.centroids, 0, h * n_clusters * width),
        })
    }

    /// Every key in the space of the projection.
    fn project(&mut self, backend: &B, b: &mut JobBuffers<B>, rank: usize) -> OpResult<()> {
        let ClusterTask { n_kv_heads: h, n_points: n, head_dim: d, .. } = self.task;
        let w = self.projection.as_ref().expect("tokens have a projection");
        write(backend, &mut b.projection, cast_slice(w), h * d * rank)?;
        backend.project_heads(ProjectHeads {
            p: ProjectHeadsParams {
                n_tokens: n as u32,
                n_heads: h as u32,
                group: 1,
                head_dim: d as u32,
                rank: rank as u32,
                head_major: 1,
            },
            x: View::part(&b.points, 0, h * n * d),
            w: View::part(&b.projection, 0, h * d * rank),
            out: ViewMut::part(&mut b.centroids, 0, h * n * rank),
        })
    }

    /// Brings the landmarks of units of `size` keys to the host.
    async fn take_landmarks(
        &mut self,
        backend: &B,
        b: &mut JobBuffers<B>,
        size: usize,
    ) -> OpResult<()> {
        let ClusterTask { n_kv_heads: h, n_clusters, .. } = self.task;
        let len = n_clusters * self.task.width();
        self.host.centroids.resize(h * len, 0.0);
        let out = bytemuck::cast_slice_mut(&mut self.host.centroids);
        backend.read(View::part(&b.centroids, 0, h * len), out).await?;
        for (head, landmarks) in self.heads.iter_mut().zip(self.host.centroids.chunks_exact(len)) {
            head.centroids.extend_from_slice(landmarks);
            head.sizes.resize(n_clusters, size as u32);
        }
        Ok(())
    }

    fn params(&self, n_clusters: usize) -> KmeansParams {
        KmeansParams {
            n_kv_heads: self.task.n_kv_heads as u32,
            n_points: self.task.n_points as u32,
            n_clusters: n_clusters as u32,
            head_dim: self.task.head_dim as u32,
            distance: self.task.distance as u32,
        }
    }

    /// Keys and initial centroids.
    fn upload_keys(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<()> {
        let ClusterTask { n_kv_heads, n_points, head_dim: d, .. } = self.task;
        self.host.centroids.clear();
        if self.task.kind != TaskKind::Clusters {
            return write(backend, &mut b.points, cast_slice(&self.points), self.points.len());
        }
        for head in 0..n_kv_heads {
            self.task.draw_start(head, &mut self.host.chosen);
            for i in &self.host.chosen {
                let start = (head * n_points + *i as usize) * d;
                self.host.centroids.extend_from_slice(&self.points[start..start + d]);
            }
        }
        write(backend, &mut b.points, cast_slice(&self.points), self.points.len())?;
        write(
            backend,
            &mut b.centroids,
            cast_slice(&self.host.centroids),
            self.host.centroids.len(),
        )
    }

    /// One of Lloyd's iterations, until no label changes, ending with means of the final members.
    async fn iterate(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<Stage> {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            self.was_stopped = true;
            return Ok(Stage::Done);
        }
        let n_clusters = self.task.n_clusters;
        self.assign(backend, b, n_clusters)?;
        self.update(backend, b, n_clusters)?;
        self.iterations_run += 1;
        if self.iterations_run < self.task.iterations && self.any_changed(backend, b).await? {
            return Ok(Stage::Iterating);
        }
        let labels = View::part(&b.labels, 0, self.host.labels.len());
        backend.read(labels, bytemuck::cast_slice_mut(&mut self.host.labels)).await?;
        let n = self.task.n_kv_heads * n_clusters;
        self.host.counts.resize(n, 0);
        let counts = bytemuck::cast_slice_mut(&mut self.host.counts);
        backend.read(View::part(&b.counts, 0, n), counts).await?;
        Ok(Stage::Labelled)
    }

    async fn any_changed(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<bool> {
        let out = bytemuck::cast_slice_mut(&mut self.host.n_changed);
        backend.read(View::part(&b.n_changed, 0, self.task.n_kv_heads), out).await?;
        Ok(self.host.n_changed.iter().any(|n| *n > 0))
    }

    fn assign(&mut self, backend: &B, b: &mut JobBuffers<B>, n_clusters: usize) -> OpResult<()> {
        let p = self.params(n_clusters);
        let (h, n, d) = (self.task.n_kv_heads, self.task.n_points, self.task.head_dim);
        backend.kmeans_assign(KmeansAssign {
            p,
            points: View::part(&b.points, 0, h * n * d),
            centroids: View::part(&b.centroids, 0, h * n_clusters * d),
            labels: ViewMut::part(&mut b.labels, 0, h * n),
            scores: ViewMut::part(&mut b.scores, 0, h * n),
            n_changed: ViewMut::part(&mut b.n_changed, 0, h),
        })
    }

    fn update(&mut self, backend: &B, b: &mut JobBuffers<B>, n_clusters: usize) -> OpResult<()> {
        let p = self.params(n_clusters);
        let (h, n, d) = (self.task.n_kv_heads, self.task.n_points, self.task.head_dim);
        backend.kmeans_update(KmeansUpdate {
            p,
            points: View::part(&b.points, 0, h * n * d),
            labels: View::part(&b.labels, 0, h * n),
            centroids: ViewMut::part(&mut b.centroids, 0, h * n_clusters * d),
            counts: ViewMut::part(&mut b.counts, 0, h * n_clusters),
        })
    }

    /// Relabels members of clusters above the limit, so that each becomes equal parts in the order
    /// of the tokens; returns the new number of clusters if any was split. (Oversized clusters are
    /// piles of nearly equal keys: a cut by position keeps neighbours together and needs no second
    /// k-means.)
    fn split_oversized(&mut self, n_clusters: usize) -> Option<usize> {
        let ClusterTask { n_kv_heads, n_points, max_cluster, .. } = self.task;
        let mut most = n_clusters;
        for head in 0..n_kv_heads {
            let counts = &self.host.counts[head * n_clusters..(head + 1) * n_clusters];
            let labels = &mut self.host.labels[head * n_points..(head + 1) * n_points];
            let mut next = n_clusters as u32;
            for (cluster, count) in counts.iter().enumerate() {
                let count = *count as usize;
                if count <= max_cluster {
                    continue;
                }
                let parts = count.div_ceil(max_cluster);
                relabel_parts(labels, cluster as u32, count.div_ceil(parts), next);
                next += parts as u32 - 1;
            }
            most = most.max(next as usize);
        }
        (most > n_clusters).then_some(most)
    }

    fn upload_labels(&mut self, backend: &B, b: &mut JobBuffers<B>) -> OpResult<()> {
        write(backend, &mut b.labels, cast_slice(&self.host.labels), self.host.labels.len())
    }

    async fn download(
        &mut self,
        backend: &B,
        b: &mut JobBuffers<B>,
        n_clusters: usize,
    ) -> OpResult<()> {
        let p = self.params(n_clusters);
        let (h, n, d) = (self.task.n_kv_heads, self.task.n_points, self.task.head_dim);
        backend.cluster_stats(ClusterStats {
            p,
            points: View::part(&b.points, 0, h * n * d),
            labels: View::part(&b.labels, 0, h * n),
            centroids: View::part(&b.centroids, 0, h * n_clusters * d),
            closeness: ViewMut::part(&mut b.scores, 0, h * n),
            radius: ViewMut::part(&mut b.radius, 0, h * n_clusters),
        })?;
        let s = &mut self.host;
        s.closeness.resize(h * n, 0.0);
        s.radius.resize(h * n_clusters, 0.0);
        s.counts.resize(h * n_clusters, 0);
        s.centroids.resize(h * n_clusters * d, 0.0);
        let out = bytemuck::cast_slice_mut(&mut s.closeness);
        backend.read(View::part(&b.scores, 0, h * n), out).await?;
        let out = bytemuck::cast_slice_mut(&mut s.radius);
        backend.read(View::part(&b.radius, 0, h * n_clusters), out).await?;
        let out = bytemuck::cast_slice_mut(&mut s.counts);
        backend.read(View::part(&b.counts, 0, h * n_clusters), out).await?;
        let out = bytemuck::cast_slice_mut(&mut s.centroids);
        backend.read(View::part(&b.centroids, 0, h * n_clusters * d), out).await
    }

    /// Counting sort by label, in the order of labels or of [`in_groups`], then closest first
    /// inside each cluster; empty clusters vanish.
    fn order_members(&mut self, n_clusters: usize) {
        let (n, d) = (self.task.n_points, self.task.head_dim);
        for (h, head) in self.heads.iter_mut().enumerate() {
            let labels = &self.host.labels[h * n..(h + 1) * n];
            let closeness = &self.host.closeness[h * n..(h + 1) * n];
            let counts = &self.host.counts[h * n_clusters..(h + 1) * n_clusters];
            let (starts, ids) = (&mut self.host.starts, &mut self.host.chosen);
            ids.clear();
            ids.extend((0..n_clusters as u32).filter(|c| counts[*c as usize] > 0));
            if self.task.is_grouped {
                in_groups(ids, &self.host.centroids[h * n_clusters * d..][..n_clusters * d], d);
            }
            starts.clear();
            starts.resize(n_clusters, 0);
            let mut sum = 0;
            for c in ids.iter().map(|c| *c as usize) {
                starts[c] = sum;
                sum += counts[c];
            }
            head.order.resize(n, 0);
            for (i, label) in labels.iter().enumerate() {
                let place = &mut starts[*label as usize];
                head.order[*place as usize] = i as u32;
                *place += 1;
            }
            let mut start = 0;
            for c in ids.iter().map(|c| *c as usize) {
                let count = counts[c];
                let members = &mut head.order[start..start + count as usize];
                members.sort_unstable_by(|a, b| {
                    closeness[*b as usize].total_cmp(&closeness[*a as usize]).then(a.cmp(b))
                });
                let row = (h * n_clusters + c) * d;
                head.sizes.push(count);
                head.centroids.extend_from_slice(&self.host.centroids[row..row + d]);
                head.radius.push(self.host.radius[h * n_clusters + c]);
                start += count as usize;
            }
        }
    }
}

impl ClusterTask {
    /// The points that a head's centroids start as: distinct and random, drawn for each head alone.
    fn draw_start(&self, head: usize, chosen: &mut Vec<u32>) {
        let seed = self.seed ^ (head as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        draw_distinct(&mut SplitMix64::new(seed), self.n_points, self.n_clusters, chosen);
    }

    /// Clusters there may be after splitting.
    pub fn room(&self) -> usize {
        match self.kind {
            TaskKind::Clusters => self.n_clusters + 2 * self.n_points.div_ceil(self.max_cluster),
            TaskKind::Blocks(_) | TaskKind::Tokens(_) => self.n_clusters,
        }
    }

    /// Elements of the projection of keys; one where there is none.
    fn projection_len(&self) -> usize {
        match self.kind {
            TaskKind::Tokens(rank) => self.n_kv_heads * self.head_dim * rank,
            TaskKind::Clusters | TaskKind::Blocks(_) => 1,
        }
    }

    /// Numbers that describe a cluster, a block or a token.
    pub fn width(&self) -> usize {
        match self.kind {
            TaskKind::Clusters => self.head_dim,
            TaskKind::Blocks(blocks) => blocks.summary.width(self.head_dim),
            TaskKind::Tokens(rank) => rank,
        }
    }
}

impl HostScratch {
    fn reset(&mut self, task: &ClusterTask) {
        let (labels, room) = (task.n_kv_heads * task.n_points, task.n_kv_heads * task.room());
        reserve(&mut self.labels, labels);
        reserve(&mut self.closeness, labels);
        reserve(&mut self.centroids, room * task.width());
        reserve(&mut self.counts, room);
        reserve(&mut self.radius, room);
        reserve(&mut self.starts, task.room());
        reserve(&mut self.chosen, task.n_points.max(task.room()));
        self.n_changed.resize(task.n_kv_heads, 0);
    }
}

fn reserve<T>(vec: &mut Vec<T>, len: usize) {
    vec.clear();
    vec.reserve(len);
}

impl<B: Backend> JobBuffers<B> {
    fn new(backend: &B, task: &ClusterTask) -> OpResult<Self> {
        let ClusterTask { n_kv_heads: h, n_points: n, head_dim: d, .. } = *task;
        let (c, width) = (task.room(), task.width());
        let alloc =
            |dtype, len, what: &str| backend.alloc(dtype, len, &format!("clustering: {what}"));
        Ok(Self {
            points: alloc(DType::F32, h * n * d, "keys")?,
            centroids: alloc(DType::F32, h * c * width, "centroids")?,
            projection: alloc(DType::F32, task.projection_len(), "projection")?,
            labels: alloc(DType::U32, h * n, "labels")?,
            scores: alloc(DType::F32, h * n, "scores")?,
            n_changed: alloc(DType::U32, h, "changes")?,
            counts: alloc(DType::U32, h * c, "counts")?,
            radius: alloc(DType::F32, h * c, "radius")?,
        })
    }

    fn fit(&self, task: &ClusterTask) -> bool {
        let ClusterTask { n_kv_heads: h, n_points: n, head_dim: d, .. } = *task;
        self.labels.len() >= h * n
            && self.points.len() >= h * n * d
            && self.counts.len() >= h * task.room()
            && self.centroids.len() >= h * task.room() * task.width()
            && self.projection.len() >= task.projection_len()
    }
}

fn write<B: Backend>(
    backend: &B,
    buffer: &mut B::Buffer,
    bytes: &[u8],
    len: usize,
) -> OpResult<()> {
    backend.write(ViewMut::part(buffer, 0, len), bytes)
}

/// Gives the members of `cluster` after the first `part` the labels `next`, `next + 1`, .. in parts
/// of that length.
fn relabel_parts(labels: &mut [u32], cluster: u32, part: usize, next: u32) {
    let members = labels.iter_mut().filter(|label| **label == cluster);
    for (i, label) in members.enumerate().skip(part) {
        *label = next + (i / part) as u32 - 1;
    }
}

/// `k` distinct numbers below `n` in `out`, without allocating beyond its capacity of `n`.
fn draw_distinct(rng: &mut SplitMix64, n: usize, k: usize, out: &mut Vec<u32>) {
    out.clear();
    out.extend(0..n as u32);
    for i in 0..k {
        let j = i + rng.below(n - i);
        out.swap(i, j);
    }
    out.truncate(k);
}

#[cfg(test)]
mod tests;
