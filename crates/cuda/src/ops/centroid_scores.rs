//! Launches `centroid_scores.cu` for each sequence: logits and their sums, then the pooled scores;
//! without a softmax the scores at once, and their sum over the heads where it is wanted.

use longview_core::DType;
use longview_ops::{CentroidScores, DeviceBuffer, OpResult, Pooling, ScoreSpan};

use crate::args::Address;
use crate::backend::CudaBackend;
use crate::buffer::At;
use crate::driver::{Driver, Grid};
use crate::kernel_args::{
    CentroidLogitsArgs, CentroidPoolArgs, CentroidShareArgs, CentroidSumsArgs,
};
use crate::kernels::Kernel;
use crate::variant::by_type;

/// Clusters that a block reads together.
const TILE: usize = 64;
/// Blocks enough for every device; with more clusters a block has more tiles, and the queries are
/// read less often.
const MANY_BLOCKS: usize = 512;
/// Threads of a block that pools.
const POOL_THREADS: usize = 256;
/// Blocks over which the scores of a head are spread, at most: each joins all pairs first.
const MOST_SHARES: usize = 64;

const F32: [Kernel; 3] =
    [Kernel::centroid_logits_f32_1, Kernel::centroid_logits_f32_2, Kernel::centroid_logits_f32_8];
const F16: [Kernel; 3] =
    [Kernel::centroid_logits_f16_1, Kernel::centroid_logits_f16_2, Kernel::centroid_logits_f16_8];
const BF16: [Kernel; 3] = [
    Kernel::centroid_logits_bf16_1,
    Kernel::centroid_logits_bf16_2,
    Kernel::centroid_logits_bf16_8,
];
const I8: [Kernel; 3] =
    [Kernel::centroid_logits_i8_1, Kernel::centroid_logits_i8_2, Kernel::centroid_logits_i8_8];
const SUMS: [Kernel; 3] =
    [Kernel::centroid_sums_f32, Kernel::centroid_sums_f16, Kernel::centroid_sums_bf16];

pub(crate) fn run<D: Driver>(
    backend: &CudaBackend<D>,
    d: CentroidScores<'_, CudaBackend<D>>,
) -> OpResult<()> {
    d.check()?;
    let token = d.p.n_q_heads as usize * d.p.head_dim as usize;
    let sequence = d.p.n_kv_heads as usize * d.p.score_stride as usize;
    for (i, span) in d.spans.iter().enumerate() {
        let q = d.q.buffer.address(d.q.offset + span.q_index as usize * token);
        let scores = d.scores.buffer.address(d.scores.offset + i * sequence);
        if d.p.pooling >= Pooling::SumScores as u32 {
            raw(backend, &d, span, [q, scores])?;
        } else {
            one(backend, &d, span, [q, scores])?;
        }
    }
    Ok(())
}

/// How the clusters of a sequence are cut into blocks.
struct Cut {
    room: usize,
    per_block: usize,
    n_blocks: usize,
    is_aligned: bool,
}

fn cut<D: Driver>(
    d: &CentroidScores<'_, CudaBackend<D>>,
    span: &ScoreSpan<'_, CudaBackend<D>>,
) -> Cut {
    let room = span.room(d.p.score_stride);
    let n_heads = d.p.n_kv_heads as usize;
    let per_block = TILE * (room * n_heads).div_ceil(TILE * MANY_BLOCKS).clamp(1, 8);
    let row_bytes = d.p.head_dim as usize * span.centroids.buffer.dtype().size();
    let is_aligned = row_bytes.is_multiple_of(16) && span.centroids.at().is_aligned(16);
    Cut { room, per_block, n_blocks: room.div_ceil(per_block), is_aligned }
}

/// One sequence without a softmax, with the places of its queries and scores.
fn raw<D: Driver>(
    backend: &CudaBackend<D>,
    d: &CentroidScores<'_, CudaBackend<D>>,
    span: &ScoreSpan<'_, CudaBackend<D>>,
    [q, scores]: [Address; 2],
) -> OpResult<()> {
    let (p, n_clusters) = (&d.p, span.n_clusters.at());
    let Cut { room, per_block, n_blocks, is_aligned } = cut(d, span);
    let n_heads = p.n_kv_heads as usize;
    let sum = |sums, sum_stride| {
        let args = CentroidSumsArgs {
            q,
            centroids: span.centroids.at(),
            n_clusters,
            sums,
            n_q_heads: p.n_q_heads,
            n_kv_heads: p.n_kv_heads,
            head_dim: p.head_dim,
            cluster_stride: span.cluster_stride,
            room: room as u32,
            per_block: per_block as u32,
            sum_stride,
            scale: p.scale,
            is_aligned: is_aligned.into(),
            unused: 0,
        };
        let kernel = by_type(span.centroids.buffer.dtype(), SUMS);
        backend.launch(kernel, Grid::new([n_blocks, n_heads, 1]), &args)
    };
    if p.pooling == Pooling::SumScores as u32 || n_heads == 1 {
        return sum(scores, p.score_stride);
    }
    backend.queue.with_scratch((n_heads * room * 4) as u64, |sums| {
        sum(sums, room as u32)?;
        let args = CentroidShareArgs {
            sums,
            n_clusters,
            scores,
            n_kv_heads: p.n_kv_heads,
            score_stride: p.score_stride,
            room: room as u32,
            unused: 0,
        };
        backend.launch(Kernel::centroid_share, Grid::over(room, POOL_THREADS), &args)
    })
}

/// One sequence with a softmax, with the places of its queries and scores.
fn one<D: Driver>(
    backend: &CudaBackend<D>,
    d: &CentroidScores<'_, CudaBackend<D>>,
    span: &ScoreSpan<'_, CudaBackend<D>>,
    [q, scores]: [Address; 2],
) -> OpResult<()> {
    let p = &d.p;
    let (n_heads, n_q_heads) = (p.n_kv_heads as usize, p.n_q_heads as usize);
    let Cut { room, per_block, n_blocks, is_aligned } = cut(d, span);
    let share = room.div_ceil(MOST_SHARES).max(1).next_multiple_of(POOL_THREADS);
    let dtype = span.centroids.buffer.dtype();
    let first = span.centroids.offset + (span.placed.first * p.head_dim) as usize;
    let centroids = span.centroids.buffer.address(first);
    let pair_bytes = n_q_heads * n_blocks * 8;
    let scratch_bytes = (pair_bytes + n_q_heads * room * 4) as u64;
    backend.queue.with_scratch(scratch_bytes, |pairs| {
        let logits = Address(pairs.0 + pair_bytes as u64);
        let (sizes, n_clusters) = (span.sizes.at(), span.n_clusters.at());
        let args = CentroidLogitsArgs {
            q,
            centroids,
            sizes,
            n_clusters,
            logits,
            pairs,
            ids: span.listed.map_or(Address(0), |listed| listed.ids.at()),
            n_q_heads: p.n_q_heads,
            n_kv_heads: p.n_kv_heads,
            head_dim: p.head_dim,
            cluster_stride: span.cluster_stride,
            room: room as u32,
            per_block: per_block as u32,
            n_blocks: n_blocks as u32,
            scale: p.scale,
            pooling: p.pooling,
            is_aligned: is_aligned.into(),
            id_stride: span.listed.map_or(0, |listed| listed.stride),
            id_limit: span.placed.limit(span.cluster_stride),
            id_width: span.placed.step * p.head_dim,
            unused: 0,
        };
        // One query head at a time, two, or up to eight.
        let variant = (n_q_heads / n_heads).min(3) - 1;
        let kernels = if dtype == DType::I8 { I8 } else { by_type(dtype, [F32, F16, BF16]) };
        let kernel = kernels[variant];
        backend.launch(kernel, Grid::new([n_blocks, n_heads, 1]), &args)?;
        let args = CentroidPoolArgs {
            logits,
            pairs,
            sizes,
            n_clusters,
            scores,
            n_q_heads: p.n_q_heads,
            n_kv_heads: p.n_kv_heads,
            cluster_stride: span.cluster_stride,
            score_stride: p.score_stride,
            room: room as u32,
            per_block: per_block as u32,
            n_blocks: n_blocks as u32,
            share: share as u32,
            pooling: p.pooling,
            unused: 0,
        };
        let grid = Grid::new([room.div_ceil(share), n_heads, 1]);
        backend.launch(Kernel::centroid_pool, grid, &args)
    })
}
