//! What the launches of attention share: variants, how rows are cut into splits, and the splits'
//! merge.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::{
    AttendParams, ChunkEdges, DeviceBuffer, KvView, Op, OpError, OpResult, View, ViewMut, kind,
};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::raw_buffer::RawBuffer;

/// Widest head that the kernels hold in registers and shared memory.
const MAX_HEAD_DIM: u32 = 256;
/// Query heads that the list kernel sums up at the same time.
const MAX_ROWS: u32 = 8;
/// Workgroups of the list kernel, at most, where rows are split: what fills large devices several
/// times over.
const MAX_WORKGROUPS: usize = 2048;
/// Query rows times splits, at most, of both kernels: each has workgroups times queries of one.
pub(crate) const MAX_PARTIALS: usize = MAX_WORKGROUPS * MAX_ROWS as usize;

/// Widths that the kernels can do.
pub(crate) fn check_width(op: Op, head_dim: u32) -> OpResult<()> {
    if head_dim <= MAX_HEAD_DIM {
        return Ok(());
    }
    let reason = format!("heads of width {head_dim}, of at most {MAX_HEAD_DIM}");
    Err(OpError::Unsupported { backend: "wgpu", op, reason })
}

/// Constants of `shared/kv_rows.wgsl`.
pub(crate) fn kv_defines<'a>(
    launch: Launch<'a>,
    kv: &KvView<'_, WgpuBackend>,
    head_dim: u32,
) -> Launch<'a> {
    let dtype = kv.buffer.dtype();
    let alignment = match dtype {
        DType::F16 | DType::BF16 => 8,
        _ => 4,
    };
    let vector = head_dim.is_multiple_of(8) && kv.offset.is_multiple_of(alignment);
    launch
        .define("HEAD_DIM", head_dim)
        .define("KV_KIND", kind(dtype))
        .define("VECTOR", vector.into())
}

/// Bytes of a row.
pub(crate) fn kv_row_bytes(kv: &KvView<'_, WgpuBackend>, head_dim: u32) -> usize {
    kv.row_len(head_dim as usize) * kv.buffer.dtype().size()
}

/// Rows cut into parts that different workgroups take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Splits {
    pub n: usize,
    /// Rows of a split.
    pub rows: usize,
}

/// How `n_rows` rows are cut where each split takes `n_groups` workgroups of the list kernel. Short
/// splits while few workgroups have work, then longer ones, since each has to be merged.
fn list_splits(n_rows: usize, n_groups: usize) -> Splits {
    // One workgroup is through before a second dispatch would begin.
    if n_rows <= 128 {
        return Splits { n: 1, rows: 128 };
    }
    let of = |rows: usize| Splits { n: n_rows.div_ceil(rows), rows };
    for (rows, most) in [(64, 256), (128, 1024)] {
        if of(rows).n * n_groups <= most {
            return of(rows);
        }
    }
    let n = (MAX_WORKGROUPS / n_groups.max(1)).max(1);
    of(n_rows.div_ceil(n).next_multiple_of(128).max(256))
}

/// Vectors of 16 bytes that a split leaves for one query row: its state and its sums.
fn partial_vectors(head_dim: u32) -> usize {
    1 + 2 * head_dim.div_ceil(8) as usize
}

/// Where a query's rows come from.
pub(crate) enum ListRows<'a> {
    /// Lists of ids, with their lengths on the device, and how many keys each entry stands for.
    Listed {
        rows: View<'a, WgpuBackend>,
        counts: View<'a, WgpuBackend>,
        weights: Option<View<'a, WgpuBackend>>,
        stride: usize,
    },
    /// Rows from `first`; token i sees those of the `n` that its edges, moved by i, enclose.
    Run { first: usize, n: usize, edges: ChunkEdges },
}

/// One span of the list kernel: few tokens over many rows.
pub(crate) struct ListLaunch<'a> {
    pub p: AttendParams,
    pub q: View<'a, WgpuBackend>,
    pub first_token: usize,
    pub n_tokens: usize,
    pub kv: KvView<'a, WgpuBackend>,
    pub rows: ListRows<'a>,
}

impl ListLaunch<'_> {
    /// Attends, with a merge where rows are split.
    pub fn run(
        self,
        backend: &WgpuBackend,
        out: &ViewMut<'_, WgpuBackend>,
        lse: &ViewMut<'_, WgpuBackend>,
    ) -> OpResult<()> {
        let p = self.p;
        let (n_rows, first_row, edges) = match &self.rows {
            ListRows::Listed { stride, .. } => (*stride, 0, ChunkEdges { seen: 0, hidden: 0 }),
            ListRows::Run { first, n, edges } => (*n, *first, *edges),
        };
        let group = p.n_q_heads / p.n_kv_heads;
        let n_parts = group.div_ceil(MAX_ROWS);
        let n_groups = self.n_tokens * p.n_kv_heads as usize * n_parts as usize;
        let splits = list_splits(n_rows, n_groups);
        let listed = matches!(self.rows, ListRows::Listed { .. });
        let weighted = matches!(self.rows, ListRows::Listed { weights: Some(_), .. });
        let launch = Launch::new(backend, "attend_list", "attend_list");
        let mut launch = kv_defines(launch, &self.kv, p.head_dim)
            .define("ROWS", group.div_ceil(n_parts))
            .define("KEYS", if splits.rows == 64 { 1 } else { 2 })
            .define("LISTED", listed.into())
            .define("PARTIAL", (splits.n > 1).into())
            .define("WEIGHTED", weighted.into())
            .params(&p)
            .params(&f32::NEG_INFINITY)
            .u32(self.first_token)
            .params(&n_parts)
            .u32(self.kv.head_stride)
            .u32(splits.rows)
            .u32(splits.n)
            .u32(n_rows)
            .u32(first_row)
            .params(&[edges.seen, edges.hidden])
            .view(&self.q)
            .reads(&self.kv.buffer.raw)
            .u32(self.kv.offset);
        let partials = partial_buffer(backend, p.head_dim)?;
        launch = if splits.n > 1 {
            launch.writes(&partials)
        } else {
            launch.view_mut(out).view_mut(lse)
        };
        if let ListRows::Listed { rows, counts, weights, .. } = &self.rows {
            launch = launch.view(rows).view(counts);
            launch = weights.iter().fold(launch, Launch::view);
        }
        let bytes = n_rows * kv_row_bytes(&self.kv, p.head_dim);
        launch
            .counts(bytes as u64 * u64::from(p.n_kv_heads) * self.n_tokens as u64)
            .run_grid([splits.n, n_groups, 1])?;
        let (first_token, n_tokens) = (self.first_token, self.n_tokens);
        let merge = Merge { p: &p, first_token, n_tokens, n_splits: splits.n, partials: &partials };
        merge.run(backend, out, lse)
    }
}

/// Scratch for the results of splits: all that they may ever take, and also where nothing is split,
/// so that a growing context allocates nothing.
pub(crate) fn partial_buffer(backend: &WgpuBackend, head_dim: u32) -> OpResult<Arc<RawBuffer>> {
    let bytes = MAX_PARTIALS * partial_vectors(head_dim) * 16;
    backend.scratch.take(&backend.gpu, bytes as u64)
}

/// What splits left to be merged: the results of some tokens, once for each split.
pub(crate) struct Merge<'a> {
    pub p: &'a AttendParams,
    pub first_token: usize,
    pub n_tokens: usize,
    pub n_splits: usize,
    pub partials: &'a Arc<RawBuffer>,
}

impl Merge<'_> {
    /// Merges, where there are several splits.
    pub fn run(
        &self,
        backend: &WgpuBackend,
        out: &ViewMut<'_, WgpuBackend>,
        lse: &ViewMut<'_, WgpuBackend>,
    ) -> OpResult<()> {
        if self.n_splits == 1 {
            return Ok(());
        }
        let n_rows = self.n_tokens * self.p.n_q_heads as usize;
        Launch::new(backend, "shared/attend_merge", "attend_merge")
            .define("HEAD_DIM", self.p.head_dim)
            .params(self.p)
            .params(&f32::NEG_INFINITY)
            .u32(self.first_token)
            .u32(n_rows)
            .u32(self.n_splits)
            .reads(self.partials)
            .view_mut(out)
            .view_mut(lse)
            .run(n_rows)
    }
}
