//! Launches `attend_chunk.wgsl`, and for few queries `attend_list.wgsl` over the run.

use longview_ops::{AttendChunk, ChunkEdges, ChunkSpan, Op, OpError, OpResult};

use crate::attention::{
    ListLaunch, ListRows, MAX_PARTIALS, Merge, Splits, check_width, kv_defines, kv_row_bytes,
    partial_buffer,
};
use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Query heads of one KV head that the list kernel takes: more fill the tiles of the other.
const FEW_QUERIES: u32 = 16;
/// Workgroups below which a run is split. Times the queries of a tile it is [`MAX_PARTIALS`].
const FULL: usize = 256;
const _: () = assert!(FULL * 64 <= MAX_PARTIALS);
/// Rows of a split, at least.
const SPLIT_ROWS: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: AttendChunk<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    if d.spans.iter().any(|span| span.order.is_some()) {
        let reason = "rows of a run are read in their order".to_owned();
        return Err(OpError::Unsupported { backend: "wgpu", op: Op::AttendChunk, reason });
    }
    check_width(Op::AttendChunk, d.p.head_dim)?;
    d.spans.iter().filter(|span| span.q_len > 0).try_for_each(|span| one(backend, &d, span))
}

fn one(
    backend: &WgpuBackend,
    d: &AttendChunk<'_, WgpuBackend>,
    span: &ChunkSpan<'_, WgpuBackend>,
) -> OpResult<()> {
    let group = d.p.n_q_heads / d.p.n_kv_heads;
    let edges = span.edges();
    if span.q_len == 1 || (span.q_len <= 4 && span.q_len * group <= FEW_QUERIES) {
        let (first, n) = (span.row_start as usize, span.n_rows as usize);
        let launch = ListLaunch {
            p: d.p,
            q: d.q,
            first_token: span.q_start as usize,
            n_tokens: span.q_len as usize,
            kv: span.kv,
            rows: ListRows::Run { first, n, edges },
        };
        return launch.run(backend, &d.out, &d.lse);
    }
    tiles(backend, d, span, edges)
}

/// Sizes of `shared/attend_tiles.wgsl`.
pub(super) struct TileSizes {
    /// Queries of a workgroup.
    pub queries: u32,
    /// Rows that it takes at a time.
    pub keys: u32,
    /// Octets of the head width that pass through shared memory at a time.
    pub slice: u32,
}

/// The sizes for heads of this width.
pub(super) fn tile_sizes(head_dim: u32) -> TileSizes {
    // Wide heads leave registers for fewer queries.
    let (queries, keys) = if head_dim <= 128 { (64, 32) } else { (32, 64) };
    // Four, or two where four would leave much of the last slice empty.
    let left = head_dim.div_ceil(8) % 4;
    let slice = if queries == 64 && matches!(left, 1 | 2) { 2 } else { 4 };
    TileSizes { queries, keys, slice }
}

fn tiles(
    backend: &WgpuBackend,
    d: &AttendChunk<'_, WgpuBackend>,
    span: &ChunkSpan<'_, WgpuBackend>,
    edges: ChunkEdges,
) -> OpResult<()> {
    let p = d.p;
    let sizes = tile_sizes(p.head_dim);
    let group = (p.n_q_heads / p.n_kv_heads) as usize;
    let n_tiles = (span.q_len as usize * group).div_ceil(sizes.queries as usize);
    let n_groups = n_tiles * p.n_kv_heads as usize;
    let splits = if backend.gpu.fills {
        tile_splits(span.n_rows as usize, n_groups)
    } else {
        Splits { n: 1, rows: (span.n_rows as usize).next_multiple_of(64).max(64) }
    };
    let query_vector = p.head_dim.is_multiple_of(8) && d.q.offset.is_multiple_of(4);
    let launch = Launch::new(backend, "attend_chunk", "attend_chunk");
    let mut launch = kv_defines(launch, &span.kv, p.head_dim)
        .define("QUERY_VECTOR", query_vector.into())
        .define("QUERY_TILE", sizes.queries)
        .define("KEY_TILE", sizes.keys)
        .define("SLICE", sizes.slice)
        .define("PARTIAL", (splits.n > 1).into())
        .params(&p)
        .params(&f32::NEG_INFINITY)
        .params(&span.q_start)
        .params(&span.q_len)
        .u32(n_tiles)
        .u32(span.kv.head_stride)
        .u32(splits.rows)
        .u32(splits.n)
        .params(&span.n_rows)
        .params(&span.row_start)
        .params(&[edges.seen, edges.hidden])
        .view(&d.q)
        .reads(&span.kv.buffer.raw)
        .u32(span.kv.offset);
    let partials = partial_buffer(backend, p.head_dim)?;
    launch = if splits.n > 1 {
        launch.writes(&partials)
    } else {
        launch.view_mut(&d.out).view_mut(&d.lse)
    };
    let row_bytes = kv_row_bytes(&span.kv, p.head_dim);
    let bytes = span.n_rows as usize * p.n_kv_heads as usize * row_bytes;
    launch.counts(bytes as u64).run_grid([n_groups, 1, splits.n])?;
    let (first_token, n_tokens) = (span.q_start as usize, span.q_len as usize);
    let merge = Merge { p: &p, first_token, n_tokens, n_splits: splits.n, partials: &partials };
    merge.run(backend, &d.out, &d.lse)
}

/// How a run is cut where each split takes `n_groups` workgroups of the tile kernel: only so that
/// the device is full.
fn tile_splits(n_rows: usize, n_groups: usize) -> Splits {
    let wanted = (FULL / n_groups.max(1)).clamp(1, (n_rows / SPLIT_ROWS).max(1));
    let rows = n_rows.div_ceil(wanted).next_multiple_of(64).max(64);
    Splits { n: n_rows.div_ceil(rows).max(1), rows }
}
