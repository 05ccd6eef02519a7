//! Launches `centroid_scores.wgsl`: two dispatches per sequence, or one where a group's scores are
//! summed as they are.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{
    CentroidScores, CentroidScoresParams, DeviceBuffer, OpResult, Pooling, ScoreSpan, kind,
};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::ops::select_clusters::Logits;
use crate::raw_buffer::RawBuffer;

/// Clusters of a workgroup.
const BLOCK: usize = 64;
/// Query heads of a workgroup, at most.
const MOST_HEADS: usize = 8;
/// Workgroups over which a head's scores are spread, at most: each joins all blocks first.
const MOST_SHARES: usize = 32;

pub(crate) fn run(backend: &WgpuBackend, d: CentroidScores<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    (0..d.spans.len()).try_for_each(|i| Part::new(backend, &d, i, 0)?.run(backend))
}

/// The logits of the only sequence, of which others are to make scores.
pub(crate) struct Left {
    scratch: Arc<RawBuffer>,
    scores_at: usize,
    room: usize,
    n_blocks: usize,
}

impl Left {
    pub fn of(&self, p: CentroidScoresParams) -> Logits<'_> {
        let Self { ref scratch, scores_at, room, n_blocks } = *self;
        let CentroidScoresParams { n_q_heads, pooling, .. } = p;
        Logits { scratch, scores_at, n_q_heads, pooling, room, n_blocks }
    }
}

/// Launches the first kernel alone, for one sequence and a pooling with a softmax. The scratch has
/// room for the scores of a list behind the logits.
pub(crate) fn logits(backend: &WgpuBackend, d: &CentroidScores<'_, WgpuBackend>) -> OpResult<Left> {
    d.check()?;
    let listed = d.spans[0].listed.as_ref().map_or(0, |_| d.p.n_kv_heads as usize);
    let part = Part::new(backend, d, 0, listed)?;
    part.softmax_logits(backend)?;
    let Part { room, n_blocks, scratch, .. } = part;
    Ok(Left { scratch, scores_at: words(d, room, n_blocks), room, n_blocks })
}

/// What the first kernel leaves: logits, and two numbers for each block.
fn words(d: &CentroidScores<'_, WgpuBackend>, room: usize, n_blocks: usize) -> usize {
    d.p.n_q_heads as usize * (room + 2 * n_blocks)
}

/// One sequence.
struct Part<'d, 'a> {
    d: &'d CentroidScores<'a, WgpuBackend>,
    span: &'d ScoreSpan<'a, WgpuBackend>,
    room: usize,
    n_blocks: usize,
    share: usize,
    first_score: usize,
    scratch: Arc<RawBuffer>,
}

/// Where the sums over groups go.
struct Sums<'b> {
    buffer: &'b Arc<RawBuffer>,
    first: usize,
    /// From one KV head to the next.
    stride: usize,
}

impl<'d, 'a> Part<'d, 'a> {
    /// Sequence `i`, with room in the scratch for so many scores of each cluster.
    fn new(
        backend: &WgpuBackend,
        d: &'d CentroidScores<'a, WgpuBackend>,
        i: usize,
        n_scores: usize,
    ) -> OpResult<Self> {
        let span = &d.spans[i];
        let room = span.room(d.p.score_stride);
        let n_blocks = room.div_ceil(BLOCK);
        let words = words(d, room, n_blocks) + n_scores * room;
        Ok(Self {
            d,
            span,
            room,
            n_blocks,
            share: room.div_ceil(MOST_SHARES).max(1).next_multiple_of(256),
            first_score: d.scores.offset + i * d.p.n_kv_heads as usize * d.p.score_stride as usize,
            scratch: backend.scratch.take(&backend.gpu, (words * 4) as u64)?,
        })
    }

    fn run(&self, backend: &WgpuBackend) -> OpResult<()> {
        let pooling = self.d.p.pooling;
        if pooling == Pooling::SumScores as u32 {
            return self.raw(backend, &self.scores());
        }
        if pooling == Pooling::SharedScores as u32 {
            let sums = Sums { buffer: &self.scratch, first: 0, stride: self.room };
            self.raw(backend, &sums)?;
            return self.share(backend, &sums);
        }
        self.softmax_logits(backend)?;
        self.pool(backend)
    }

    fn softmax_logits(&self, backend: &WgpuBackend) -> OpResult<()> {
        let group = (self.d.p.n_q_heads / self.d.p.n_kv_heads) as usize;
        let n_passes = group.div_ceil(MOST_HEADS);
        let heads = group.div_ceil(n_passes);
        let grid = [self.n_blocks, self.d.p.n_kv_heads as usize, n_passes];
        let logits = self.logits(backend, heads, &self.scores()).writes(&self.scratch);
        match &self.span.listed {
            Some(listed) => logits.reads(&listed.ids.buffer.raw).run_grid(grid),
            None => logits.run_grid(grid),
        }
    }

    /// The sums over each KV head's group.
    fn raw(&self, backend: &WgpuBackend, sums: &Sums<'_>) -> OpResult<()> {
        let grid = [self.n_blocks, self.d.p.n_kv_heads as usize, 1];
        self.logits(backend, 1, sums).define("RAW", 1).writes(sums.buffer).run_grid(grid)
    }

    /// The scores' first kernel, all but where it writes.
    fn logits<'b>(&self, backend: &'b WgpuBackend, heads: usize, sums: &Sums<'_>) -> Launch<'b> {
        let (p, centroids) = (&self.d.p, &self.span.centroids);
        let width = p.head_dim as usize;
        let dtype = centroids.buffer.dtype();
        let unit = if dtype == DType::I8 { 16 } else { 8 };
        let is_vector = width.is_multiple_of(unit) && centroids.offset.is_multiple_of(unit);
        let bytes = p.n_kv_heads as usize * self.room * width * dtype.size();
        self.common(Launch::new(backend, "centroid_scores", "logits"), sums)
            .define("CENTROID_KIND", kind(dtype))
            .define("VECTOR", is_vector.into())
            .define("HEADS", heads as u32)
            .define("LISTED", self.span.listed.is_some().into())
            .reads(&self.d.q.buffer.raw)
            .reads(&centroids.buffer.raw)
            .counts(bytes as u64)
    }

    fn share(&self, backend: &WgpuBackend, sums: &Sums<'_>) -> OpResult<()> {
        self.common(Launch::new(backend, "centroid_scores", "share"), sums)
            .define("SHARE", 1)
            .reads(sums.buffer)
            .writes(&self.d.scores.buffer.raw)
            .run_grid([self.room.div_ceil(256), 1, 1])
    }

    fn pool(&self, backend: &WgpuBackend) -> OpResult<()> {
        self.common(Launch::new(backend, "centroid_scores", "pool"), &self.scores())
            .define("POOL", 1)
            .reads(&self.scratch)
            .writes(&self.d.scores.buffer.raw)
            .run_grid([self.room.div_ceil(self.share), self.d.p.n_kv_heads as usize, 1])
    }

    /// Sums that are the scores.
    fn scores(&self) -> Sums<'_> {
        let stride = self.d.p.score_stride as usize;
        Sums { buffer: &self.d.scores.buffer.raw, first: self.first_score, stride }
    }

    /// The parameters, and the bindings that all kernels begin with.
    fn common<'l>(&self, launch: Launch<'l>, sums: &Sums<'_>) -> Launch<'l> {
        let Self { d, span, .. } = self;
        launch
            .params(&d.p)
            .params(&[span.q_index, span.cluster_stride])
            .u32(self.room)
            .u32(self.n_blocks)
            .u32(self.first_score)
            .u32(self.share)
            .u32(sums.first)
            .u32(sums.stride)
            .u32(d.q.offset)
            .u32(span.centroids.offset)
            .u32(span.sizes.offset)
            .u32(span.n_clusters.offset)
            .u32(span.listed.map_or(0, |listed| listed.ids.offset))
            .u32(span.listed.map_or(0, |listed| listed.stride as usize))
            .u32(span.placed.first as usize)
            .u32(span.placed.step as usize)
            .reads(&span.sizes.buffer.raw)
            .reads(&span.n_clusters.buffer.raw)
    }
}
