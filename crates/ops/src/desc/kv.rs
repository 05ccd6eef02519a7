//! Descriptors of the ops that move KV rows.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, of_float, of_rows, of_type, reads, writes};
use crate::buffer::{DeviceBuffer, KvView, Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`KvScatter`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct KvScatterParams {
    /// Query tokens.
    pub n_tokens: u32,
    /// KV heads.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Rows from one head of `dst` to the next.
    pub dst_head_stride: u32,
}

/// New keys and values into KV rows.
pub struct KvScatter<'a, B: Storage> {
    /// Sizes.
    pub p: KvScatterParams,
    /// F32 `[T, Hkv, Dh]`.
    pub k: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub v: View<'a, B>,
    /// U32 `[T]`: the row of each token, below `dst_head_stride`.
    pub rows: View<'a, B>,
    /// KV rows `[Hkv, dst_head_stride, 2, Dh]` from element 0, or as many of 8 bits.
    pub dst: &'a mut B::Buffer,
}

impl<B: Storage> KvScatter<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let op = Op::KvScatter;
        let (n, h, d) =
            (self.p.n_tokens as usize, self.p.n_kv_heads as usize, self.p.head_dim as usize);
        reads(op, "k", &self.k, DType::F32, n * h * d)?;
        reads(op, "v", &self.v, DType::F32, n * h * d)?;
        reads(op, "rows", &self.rows, DType::U32, n)?;
        of_rows(op, "dst", self.dst.dtype())?;
        let len = h * self.p.dst_head_stride as usize * self.dst.dtype().kv_row_len(d);
        ensure(op, self.dst.len() >= len, || {
            format!("dst has {} elements, needs {len}", self.dst.len())
        })
    }
}

/// Where new rows go besides.
pub struct KvScatterTo<'a, B: Storage> {
    /// U32 `[T]`: the row of each token, below `head_stride`.
    pub rows: View<'a, B>,
    /// KV rows `[Hkv, head_stride, 2, Dh]` from element 0, or as many of 8 bits.
    pub dst: &'a mut B::Buffer,
    /// Rows from one head of `dst` to the next.
    pub head_stride: u32,
}

/// The same new keys and values into KV rows of two buffers: [`KvScatter`] of each.
pub struct KvScatterTwice<'a, B: Storage> {
    /// Into the first one.
    pub first: KvScatter<'a, B>,
    /// Into another one, in place of the first one's.
    pub second: KvScatterTo<'a, B>,
}

impl<'a, B: Storage> KvScatterTwice<'a, B> {
    /// As two calls.
    pub fn calls(self) -> [KvScatter<'a, B>; 2] {
        let Self { first, second: KvScatterTo { rows, dst, head_stride } } = self;
        let p = KvScatterParams { dst_head_stride: head_stride, ..first.p };
        let second = KvScatter { p, k: first.k, v: first.v, rows, dst };
        [first, second]
    }
}

/// Parameters of [`KvGather`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct KvGatherParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Entries from one head's list to the next.
    pub list_stride: u32,
    /// Rows from one head of `dst` to the next.
    pub dst_head_stride: u32,
}

/// KV rows to KV rows, a list for each KV head.
pub struct KvGather<'a, B: Storage> {
    /// Sizes.
    pub p: KvGatherParams,
    /// Where rows come from.
    pub src: KvView<'a, B>,
    /// U32 `[Hkv, list_stride]`: rows of `src`.
    pub src_rows: View<'a, B>,
    /// U32 `[Hkv, list_stride]`: rows of `dst`, distinct within a head.
    pub dst_rows: View<'a, B>,
    /// U32 `[Hkv]`: entries in use.
    pub n_rows: View<'a, B>,
    /// KV rows `[Hkv, dst_head_stride, 2, Dh]` from element 0, or as many of 8 bits; of the data
    /// type of `src`.
    pub dst: &'a mut B::Buffer,
}

impl<B: Storage> KvGather<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let op = Op::KvGather;
        let (h, d) = (self.p.n_kv_heads as usize, self.p.head_dim as usize);
        let list = h * self.p.list_stride as usize;
        reads(op, "src_rows", &self.src_rows, DType::U32, list)?;
        reads(op, "dst_rows", &self.dst_rows, DType::U32, list)?;
        reads(op, "n_rows", &self.n_rows, DType::U32, h)?;
        of_rows(op, "src", self.src.buffer.dtype())?;
        of_type(op, "dst", self.dst.dtype(), self.src.buffer.dtype())?;
        ensure(op, self.src.holds(h, d, self.src.head_stride), || {
            format!("src: {} rows a head do not lie in the buffer", self.src.head_stride)
        })?;
        let len = h * self.p.dst_head_stride as usize * self.src.row_len(d);
        ensure(op, self.dst.len() >= len, || {
            format!("dst has {} elements, needs {len}", self.dst.len())
        })
    }
}

/// Parameters of [`RotateRows`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RotateRowsParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Elements of a key that rotate; even, at most Dh.
    pub rotary_dim: u32,
    /// Rows of each head, from row 0.
    pub n_rows: u32,
    /// Rows from one head of `dst` to the next.
    pub dst_head_stride: u32,
}

/// KV rows whose keys are rotated further, all by the same angles: keys that were rotated to one
/// position become those of another (the cache positions of StreamingLLM). Values are copied.
pub struct RotateRows<'a, B: Storage> {
    /// Sizes.
    pub p: RotateRowsParams,
    /// Where rows come from.
    pub src: KvView<'a, B>,
    /// F32 `[rotary_dim]`: the cosines of the `rotary_dim / 2` angles, then the sines, for pairs as
    /// in [`crate::Rope`].
    pub table: View<'a, B>,
    /// KV rows `[Hkv, dst_head_stride, 2, Dh]` from element 0, of the data type of `src`.
    pub dst: &'a mut B::Buffer,
}

impl<B: Storage> RotateRows<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::RotateRows, &self.p);
        let (h, d, n) = (p.n_kv_heads as usize, p.head_dim as usize, p.n_rows as usize);
        ensure(op, p.rotary_dim.is_multiple_of(2) && p.rotary_dim <= p.head_dim, || {
            format!("rotary_dim {} of head width {d}", p.rotary_dim)
        })?;
        ensure(op, p.n_rows <= p.dst_head_stride, || {
            format!("{n} rows into {} a head", p.dst_head_stride)
        })?;
        reads(op, "table", &self.table, DType::F32, p.rotary_dim as usize)?;
        of_float(op, "src", self.src.buffer.dtype())?;
        of_type(op, "dst", self.dst.dtype(), self.src.buffer.dtype())?;
        ensure(op, self.src.holds(h, d, n), || {
            format!("src: {n} rows of stride {} do not lie in the buffer", self.src.head_stride)
        })?;
        let len = h * p.dst_head_stride as usize * 2 * d;
        ensure(op, self.dst.len() >= len, || {
            format!("dst has {} elements, needs {len}", self.dst.len())
        })
    }
}

/// Parameters of [`KvKeys`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct KvKeysParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// N: rows of each head.
    pub n_rows: u32,
}

/// Keys of listed KV rows, widened.
pub struct KvKeys<'a, B: Storage> {
    /// Sizes.
    pub p: KvKeysParams,
    /// Where rows are.
    pub src: KvView<'a, B>,
    /// U32 `[Hkv, N]`: rows of `src`.
    pub rows: View<'a, B>,
    /// F32 `[Hkv, N, Dh]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> KvKeys<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let op = Op::KvKeys;
        let (h, d, n) =
            (self.p.n_kv_heads as usize, self.p.head_dim as usize, self.p.n_rows as usize);
        reads(op, "rows", &self.rows, DType::U32, h * n)?;
        writes(op, "out", &self.out, DType::F32, h * n * d)?;
        of_float(op, "src", self.src.buffer.dtype())?;
        ensure(op, self.src.holds(h, d, self.src.head_stride), || {
            format!("src: {} rows a head do not lie in the buffer", self.src.head_stride)
        })
    }
}
