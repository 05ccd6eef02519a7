//! Descriptors of the ops that say which keys queries attended to: the statistics of policies that
//! keep some tokens and evict the others.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, grouped, of_float, reads, writes};
use crate::buffer::{DeviceBuffer, KvView, Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`ColumnMass`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ColumnMassParams {
    /// T: query tokens in `q` and `lse`.
    pub n_tokens: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Multiplies q . k.
    pub scale: f32,
    /// First query token that counts.
    pub q_start: u32,
    /// Query tokens that count.
    pub q_len: u32,
    /// Entries from one head's list to the next.
    pub list_stride: u32,
    /// Entries from one query head's sums to the next.
    pub out_stride: u32,
    /// Query `q_start + i` sees row j iff `j <= i + diagonal`.
    pub diagonal: i32,
    /// If not 0, it does not see rows `j <= i + diagonal - window` either.
    pub window: u32,
}

/// Attention that listed rows received: column sums of the attention matrix, made again from each
/// query's log-sum-exp.
pub struct ColumnMass<'a, B: Storage> {
    /// Sizes.
    pub p: ColumnMassParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[T, Hq]`: log-sum-exp of the scores of all rows that the query attended; minus infinity
    /// for a query that attended none, which adds nothing.
    pub lse: View<'a, B>,
    /// The rows.
    pub kv: KvView<'a, B>,
    /// U32 `[Hkv, list_stride]`: rows of `kv`.
    pub rows: View<'a, B>,
    /// U32 `[Hkv]`: entries in use; may be 0.
    pub n_rows: View<'a, B>,
    /// F32 `[Hq, out_stride]`, added to: entry i of a head is that of `rows[i]` of its KV head.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> ColumnMass<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::ColumnMass, &self.p);
        grouped(op, p.n_q_heads, p.n_kv_heads, p.head_dim)?;
        let (hq, h) = (p.n_q_heads as usize, p.n_kv_heads as usize);
        let (t, d) = (p.n_tokens as usize, p.head_dim as usize);
        let end = p.q_start.checked_add(p.q_len);
        ensure(op, end.is_some_and(|end| end <= p.n_tokens), || {
            format!("queries {}..+{} of {t}", p.q_start, p.q_len)
        })?;
        ensure(op, p.out_stride >= p.list_stride, || {
            format!("{} sums for {} rows", p.out_stride, p.list_stride)
        })?;
        reads(op, "q", &self.q, DType::F32, t * hq * d)?;
        reads(op, "lse", &self.lse, DType::F32, t * hq)?;
        reads(op, "rows", &self.rows, DType::U32, h * p.list_stride as usize)?;
        reads(op, "n_rows", &self.n_rows, DType::U32, h)?;
        of_float(op, "kv", self.kv.buffer.dtype())?;
        ensure(op, self.kv.holds(h, d, self.kv.head_stride), || {
            format!("kv: {} rows a head do not lie in the buffer", self.kv.head_stride)
        })?;
        writes(op, "out", &self.out, DType::F32, hq * p.out_stride as usize)
    }
}

/// Parameters of [`QuerySums`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct QuerySumsParams {
    /// T: query tokens in `q`.
    pub n_tokens: u32,
    /// Query heads.
    pub n_q_heads: u32,
    /// Hkv; divides Hq.
    pub n_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// First query token that counts.
    pub q_start: u32,
    /// Query tokens that count.
    pub q_len: u32,
    /// Position of the first of them in its sequence.
    pub position: u32,
    /// Positions of a block.
    pub block: u32,
    /// Blocks from one head's sums to the next.
    pub n_blocks: u32,
}

/// Sums of queries over blocks of positions and over the query heads of a group, added to what is
/// there: block b has the tokens at positions `b * block..(b + 1) * block`. The inner product of a
/// key with such sums is the sum of its scores (InfLLM's representative scores).
pub struct QuerySums<'a, B: Storage> {
    /// Sizes.
    pub p: QuerySumsParams,
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[Hkv, n_blocks, Dh]`, added to.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> QuerySums<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::QuerySums, &self.p);
        grouped(op, p.n_q_heads, p.n_kv_heads, p.head_dim)?;
        let fits = |first: u32, end: u64| u64::from(first) + u64::from(p.q_len) <= end;
        ensure(op, fits(p.q_start, p.n_tokens.into()), || {
            format!("queries {}..+{} of {}", p.q_start, p.q_len, p.n_tokens)
        })?;
        ensure(
            op,
            p.block > 0 && fits(p.position, u64::from(p.n_blocks) * u64::from(p.block)),
            || {
                format!(
                    "positions {}..+{} in {} blocks of {}",
                    p.position, p.q_len, p.n_blocks, p.block
                )
            },
        )?;
        let (hq, h, d) = (p.n_q_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
        reads(op, "q", &self.q, DType::F32, p.n_tokens as usize * hq * d)?;
        writes(op, "out", &self.out, DType::F32, h * p.n_blocks as usize * d)
    }
}

/// What neighbours are pooled to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PoolKind {
    /// Their mean; what lies outside counts as 0.
    #[default]
    Average = 0,
    /// Their maximum; what lies outside does not count.
    Max = 1,
}

/// Parameters of [`PoolScores`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PoolScoresParams {
    /// KV heads.
    pub n_kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Scores of a head.
    pub n: u32,
    /// Entries from one query head to the next.
    pub in_stride: u32,
    /// Entries from one KV head to the next.
    pub out_stride: u32,
    /// Neighbours pooled, itself included: odd.
    pub kernel: u32,
    /// [`PoolKind`] as a number.
    pub pool: u32,
    /// 1: a group's scores become their maximum; 0: their mean.
    pub group_max: u32,
    /// 1: heads are pooled, then grouped; 0: grouped, then pooled.
    pub pool_first: u32,
    /// Multiplies the result.
    pub scale: f32,
}

/// Scores of query heads to scores of KV heads, smoothed over neighbouring tokens (SnapKV's and
/// Ada-KV's clustering by pooling). For the mean of averages the order does not matter; with a
/// maximum it does.
pub struct PoolScores<'a, B: Storage> {
    /// Sizes.
    pub p: PoolScoresParams,
    /// F32 `[Hkv * G, in_stride]`.
    pub x: View<'a, B>,
    /// F32 `[Hkv, out_stride]`; only the first n of a head are written.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> PoolScores<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let (op, p) = (Op::PoolScores, &self.p);
        let flags = p.pool <= 1 && p.group_max <= 1 && p.pool_first <= 1;
        ensure(op, flags && p.group > 0 && p.kernel % 2 == 1, || {
            format!("kernel {}, pool {}, group of {}", p.kernel, p.pool, p.group)
        })?;
        ensure(op, p.n <= p.in_stride && p.n <= p.out_stride, || {
            format!("{} scores in {} and {}", p.n, p.in_stride, p.out_stride)
        })?;
        let heads = p.n_kv_heads as usize * p.group as usize;
        reads(op, "x", &self.x, DType::F32, heads * p.in_stride as usize)?;
        writes(op, "out", &self.out, DType::F32, p.n_kv_heads as usize * p.out_stride as usize)
    }
}
