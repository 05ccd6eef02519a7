//! Launches `centroid_scores.wgsl`: two dispatches per sequence.

use std::sync::Arc;

use longview_ops::{CentroidScores, DeviceBuffer, OpResult, ScoreSpan};

use super::kind;
use crate::backend::WgpuBackend;
use crate::buffer::RawBuffer;
use crate::launch::Launch;

/// Clusters of a workgroup.
const BLOCK: usize = 64;
/// Query heads of a workgroup, at most.
const MOST_HEADS: usize = 8;
/// Workgroups over which a head's scores are spread, at most: each joins all blocks first.
const MOST_SHARES: usize = 32;

pub(crate) fn run(backend: &WgpuBackend, d: CentroidScores<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_heads, n_q_heads) = (d.p.n_kv_heads as usize, d.p.n_q_heads as usize);
    for (i, span) in d.spans.iter().enumerate() {
        let room = span.cluster_stride.min(d.p.score_stride) as usize;
        let n_blocks = room.div_ceil(BLOCK);
        let words = n_q_heads * (room + 2 * n_blocks);
        let part = Part {
            d: &d,
            span,
            room,
            n_blocks,
            share: room.div_ceil(MOST_SHARES).max(1).next_multiple_of(256),
            first_score: d.scores.offset + i * n_heads * d.p.score_stride as usize,
            scratch: backend.scratch.take(&backend.gpu, (words * 4) as u64)?,
        };
        part.logits(backend)?;
        part.pool(backend)?;
    }
    Ok(())
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

impl Part<'_, '_> {
    fn logits(&self, backend: &WgpuBackend) -> OpResult<()> {
        let (p, span) = (&self.d.p, self.span);
        let (n_heads, width) = (p.n_kv_heads as usize, p.head_dim as usize);
        let group = p.n_q_heads as usize / n_heads;
        let n_passes = group.div_ceil(MOST_HEADS);
        let centroids = &span.centroids;
        let is_vector = width.is_multiple_of(8) && centroids.offset.is_multiple_of(8);
        let bytes = n_heads * self.room * width * centroids.buffer.dtype().size();
        self.common(Launch::new(backend, "centroid_scores", "logits"))
            .define("CENTROID_KIND", kind(centroids.buffer.dtype()))
            .define("VECTOR", is_vector.into())
            .define("HEADS", group.div_ceil(n_passes) as u32)
            .reads(&self.d.q.buffer.raw)
            .reads(&centroids.buffer.raw)
            .writes(&self.scratch)
            .counts(bytes as u64)
            .run_grid([self.n_blocks, n_heads, n_passes])
    }

    fn pool(&self, backend: &WgpuBackend) -> OpResult<()> {
        self.common(Launch::new(backend, "centroid_scores", "pool"))
            .define("POOL", 1)
            .reads(&self.scratch)
            .writes(&self.d.scores.buffer.raw)
            .run_grid([self.room.div_ceil(self.share), self.d.p.n_kv_heads as usize, 1])
    }

    /// The parameters, and the bindings that both kernels begin with.
    fn common<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let Self { d, span, .. } = self;
        launch
            .params(&d.p)
            .params(&[span.q_index, span.cluster_stride])
            .u32(self.room)
            .u32(self.n_blocks)
            .u32(self.first_score)
            .u32(self.share)
            .u32(d.q.offset)
            .u32(span.centroids.offset)
            .u32(span.sizes.offset)
            .u32(span.n_clusters.offset)
            .reads(&span.sizes.buffer.raw)
            .reads(&span.n_clusters.buffer.raw)
    }
}
