//! Descriptors of attention: a chunk over a run of rows, one token over a list of rows, and the
//! merge.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, grouped, of_rows, reads, writes};
use crate::buffer::{DeviceBuffer, KvView, Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`AttendChunk`] and [`AttendList`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct AttendParams {
    /// Query tokens of all sequences together.
    pub n_tokens: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq. Query head h reads KV head `h / (Hq / Hkv)`.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Multiplies q . k, usually `1 / sqrt(Dh)`.
    pub scale: f32,
    /// 1: merge into what `out` and `lse` hold; 0: overwrite.
    pub accumulate: u32,
}

impl AttendParams {
    pub(super) fn check<B: Storage>(
        &self,
        op: Op,
        q: &View<'_, B>,
        out: &ViewMut<'_, B>,
        lse: &ViewMut<'_, B>,
    ) -> OpResult<()> {
        grouped(op, self.n_q_heads, self.n_kv_heads, self.head_dim)?;
        let heads = self.n_tokens as usize * self.n_q_heads as usize;
        let len = heads * self.head_dim as usize;
        reads(op, "q", q, DType::F32, len)?;
        writes(op, "out", out, DType::F32, len)?;
        writes(op, "lse", lse, DType::F32, heads)
    }
}

/// One sequence's part of an [`AttendChunk`].
pub struct ChunkSpan<'a, B: Storage> {
    /// First query token of this sequence among the step's tokens.
    pub q_start: u32,
    /// Query tokens of this sequence.
    pub q_len: u32,
    /// The sequence's KV rows.
    pub kv: KvView<'a, B>,
    /// First row of the run.
    pub row_start: u32,
    /// Rows of the run; may be 0.
    pub n_rows: u32,
    /// Query i sees row j of the run iff `j <= i + diagonal`; `i32::MAX` shows everything (a tile
    /// of the past), `n_rows - q_len` is the causal mask of a run that ends with the chunk itself.
    pub diagonal: i32,
    /// Of these rows a query sees the last so many: those with `j + window > i + diagonal`.
    /// [`ChunkSpan::ALL`] hides none.
    pub window: u32,
    /// Where the rows of the run lie, if not one behind the other. Only on backends whose
    /// capabilities say [`orders_chunk_rows`](crate::Capabilities::orders_chunk_rows).
    pub order: Option<RowOrder<'a, B>>,
}

/// Where the rows of a run lie: row j of it is row `rows[h, row_start + j]` of KV head h.
pub struct RowOrder<'a, B: Storage> {
    /// U32 `[Hkv, stride]`: row ids, each below the head stride of the rows.
    pub rows: View<'a, B>,
    /// Entries from one head's list to the next.
    pub stride: u32,
}

impl<B: Storage> Clone for RowOrder<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Storage> Copy for RowOrder<'_, B> {}

impl<B: Storage> ChunkSpan<'_, B> {
    /// A window that no run is longer than.
    pub const ALL: u32 = u32::MAX;

    /// Rows that token 0 of the span sees, and those of them that its window hides, brought to a
    /// size that no sum overflows with. Token i sees rows `hidden + i` to `seen + i`, as far as
    /// there are such.
    pub fn edges(&self) -> ChunkEdges {
        let (q_len, n_rows) = (i64::from(self.q_len), i64::from(self.n_rows));
        let seen = i64::from(self.diagonal) + 1;
        let hidden = match self.window {
            Self::ALL => i64::MIN,
            window => seen - i64::from(window),
        };
        let bring = |row: i64| i32::try_from(row.clamp(-q_len, n_rows)).unwrap_or(i32::MAX / 2);
        ChunkEdges { seen: bring(seen), hidden: bring(hidden) }
    }
}

/// The rows of a run that token 0 of a span attends: [`ChunkSpan::edges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEdges {
    /// The first row behind those that it sees.
    pub seen: i32,
    /// The first row that its window does not hide.
    pub hidden: i32,
}

/// Attention of chunks of queries over runs of KV rows. Tokens that no span names are left as they
/// are.
pub struct AttendChunk<'a, B: Storage> {
    /// Sizes.
    pub p: AttendParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// One entry per sequence; spans do not overlap.
    pub spans: &'a [ChunkSpan<'a, B>],
    /// F32 `[T, Hq, Dh]`.
    pub out: ViewMut<'a, B>,
    /// F32 `[T, Hq]`, natural logarithm.
    pub lse: ViewMut<'a, B>,
}

impl<B: Storage> AttendChunk<'_, B> {
    /// Checks lengths, types and spans.
    pub fn check(&self) -> OpResult<()> {
        let op = Op::AttendChunk;
        self.p.check(op, &self.q, &self.out, &self.lse)?;
        for (i, s) in self.spans.iter().enumerate() {
            of_rows(op, "kv", s.kv.buffer.dtype())?;
            let end = u64::from(s.q_start) + u64::from(s.q_len);
            ensure(op, end <= u64::from(self.p.n_tokens), || {
                format!("span {i}: tokens {}..{end} of {}", s.q_start, self.p.n_tokens)
            })?;
            let mut rows = s.row_start as usize + s.n_rows as usize;
            if let Some(order) = &s.order {
                let stride = order.stride as usize;
                reads(op, "order", &order.rows, DType::U32, self.p.n_kv_heads as usize * stride)?;
                ensure(op, rows <= stride, || format!("span {i}: {rows} rows of {stride} listed"))?;
                rows = s.kv.head_stride;
            }
            ensure(
                op,
                s.kv.holds(self.p.n_kv_heads as usize, self.p.head_dim as usize, rows),
                || {
                    format!(
                        "span {i}: {rows} rows of stride {} do not lie in the buffer",
                        s.kv.head_stride
                    )
                },
            )?;
        }
        Ok(())
    }
}

/// One sequence's part of an [`AttendList`].
pub struct ListSpan<'a, B: Storage> {
    /// The sequence's query token among the step's tokens.
    pub q_index: u32,
    /// The sequence's KV rows.
    pub kv: KvView<'a, B>,
    /// U32 `[Hkv, list_stride]`: row ids, each below `kv.head_stride`.
    pub rows: View<'a, B>,
    /// U32 `[Hkv]`: entries in use; may be 0.
    pub n_rows: View<'a, B>,
    /// U32 `[Hkv, list_stride]`: how many keys each entry stands for, 0 for none: its score grows
    /// by the logarithm. `None` for one each.
    pub weights: Option<View<'a, B>>,
    /// Entries from one head's list to the next.
    pub list_stride: u32,
}

/// Attention of one token per sequence over a list of KV rows. Tokens that no span names are left
/// as they are.
pub struct AttendList<'a, B: Storage> {
    /// Sizes.
    pub p: AttendParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// One entry per sequence; all `q_index` differ.
    pub spans: &'a [ListSpan<'a, B>],
    /// F32 `[T, Hq, Dh]`.
    pub out: ViewMut<'a, B>,
    /// F32 `[T, Hq]`, natural logarithm.
    pub lse: ViewMut<'a, B>,
}

impl<B: Storage> AttendList<'_, B> {
    /// Checks lengths, types and spans.
    pub fn check(&self) -> OpResult<()> {
        let op = Op::AttendList;
        self.p.check(op, &self.q, &self.out, &self.lse)?;
        let h = self.p.n_kv_heads as usize;
        for (i, s) in self.spans.iter().enumerate() {
            of_rows(op, "kv", s.kv.buffer.dtype())?;
            reads(op, "rows", &s.rows, DType::U32, h * s.list_stride as usize)?;
            reads(op, "n_rows", &s.n_rows, DType::U32, h)?;
            if let Some(weights) = &s.weights {
                reads(op, "weights", weights, DType::U32, h * s.list_stride as usize)?;
            }
            ensure(op, s.q_index < self.p.n_tokens, || {
                format!("span {i}: token {} of {}", s.q_index, self.p.n_tokens)
            })?;
            ensure(op, s.kv.holds(h, self.p.head_dim as usize, s.kv.head_stride), || {
                format!("span {i}: {} rows a head do not lie in the buffer", s.kv.head_stride)
            })?;
        }
        Ok(())
    }
}

/// Parameters of [`LseMerge`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LseMergeParams {
    /// T * Hq.
    pub n_rows: u32,
    /// Width of a head.
    pub head_dim: u32,
}

/// Merge of two attentions over disjoint keys, in place in the first.
pub struct LseMerge<'a, B: Storage> {
    /// Sizes.
    pub p: LseMergeParams,
    /// F32 `[n_rows, Dh]`.
    pub other_out: View<'a, B>,
    /// F32 `[n_rows]`.
    pub other_lse: View<'a, B>,
    /// F32 `[n_rows, Dh]`, read and written.
    pub out: ViewMut<'a, B>,
    /// F32 `[n_rows]`, read and written.
    pub lse: ViewMut<'a, B>,
}

impl<B: Storage> LseMerge<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let op = Op::LseMerge;
        let (n, d) = (self.p.n_rows as usize, self.p.head_dim as usize);
        reads(op, "other_out", &self.other_out, DType::F32, n * d)?;
        reads(op, "other_lse", &self.other_lse, DType::F32, n)?;
        writes(op, "out", &self.out, DType::F32, n * d)?;
        writes(op, "lse", &self.lse, DType::F32, n)
    }
}
