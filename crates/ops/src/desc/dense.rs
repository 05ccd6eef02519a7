//! Descriptors of the dense part of a transformer: embedding, norms, products, rotation,
//! activation.

use bytemuck::{Pod, Zeroable};
use longview_core::DType;

use super::checks::{ensure, reads, writes};
use crate::buffer::{Storage, View, ViewMut};
use crate::error::OpResult;
use crate::op::Op;

/// Parameters of [`Embed`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct EmbedParams {
    /// Query tokens.
    pub n_tokens: u32,
    /// Width of a row.
    pub width: u32,
    /// Multiplies the rows.
    pub scale: f32,
}

/// Embedding lookup.
pub struct Embed<'a, B: Storage> {
    /// Sizes.
    pub p: EmbedParams,
    /// U32 `[T]`.
    pub ids: View<'a, B>,
    /// `[V, D]`.
    pub table: &'a B::Weight,
    /// F32 `[T, D]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> Embed<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let n = self.p.n_tokens as usize;
        reads(Op::Embed, "ids", &self.ids, DType::U32, n)?;
        writes(Op::Embed, "out", &self.out, DType::F32, n * self.p.width as usize)
    }
}

/// Parameters of [`RmsNorm`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RmsNormParams {
    /// Rows: T, or T * heads for a norm per head.
    pub n_rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// 1: add to what `out` holds (the residual); 0: overwrite.
    pub accumulate: u32,
}

/// Root-mean-square norm.
pub struct RmsNorm<'a, B: Storage> {
    /// Sizes and epsilon.
    pub p: RmsNormParams,
    /// F32 `[n_rows, width]`.
    pub x: View<'a, B>,
    /// `[1, width]`.
    pub weight: &'a B::Weight,
    /// F32 `[n_rows, width]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> RmsNorm<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        ensure(Op::RmsNorm, self.p.width > 0, || "width is 0".into())?;
        let len = self.p.n_rows as usize * self.p.width as usize;
        reads(Op::RmsNorm, "x", &self.x, DType::F32, len)?;
        writes(Op::RmsNorm, "out", &self.out, DType::F32, len)
    }
}

/// Parameters of [`Linear`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LinearParams {
    /// Query tokens.
    pub n_rows: u32,
    /// Columns of W.
    pub n_in: u32,
    /// Rows of W.
    pub n_out: u32,
    /// 1: add to what `out` holds (the residual); 0: overwrite.
    pub accumulate: u32,
}

/// A linear layer, for both [`crate::Backend::matmul`] and [`crate::Backend::matvec`].
pub struct Linear<'a, B: Storage> {
    /// Sizes.
    pub p: LinearParams,
    /// F32 `[n_rows, n_in]`.
    pub x: View<'a, B>,
    /// `[n_out, n_in]` of any weight type.
    pub weight: &'a B::Weight,
    /// `[1, n_out]`.
    pub bias: Option<&'a B::Weight>,
    /// F32 `[n_rows, n_out]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> Linear<'_, B> {
    /// Checks lengths and types; `op` says which of the two methods was called.
    pub fn check(&self, op: Op) -> OpResult<()> {
        let n = self.p.n_rows as usize;
        reads(op, "x", &self.x, DType::F32, n * self.p.n_in as usize)?;
        writes(op, "out", &self.out, DType::F32, n * self.p.n_out as usize)
    }
}

/// Parameters of [`Rope`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RopeParams {
    /// Query tokens.
    pub n_tokens: u32,
    /// Heads of `x`.
    pub n_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Elements of a head that rotate; even, at most Dh.
    pub rotary_dim: u32,
}

/// Rotary position embedding.
pub struct Rope<'a, B: Storage> {
    /// Sizes.
    pub p: RopeParams,
    /// F32 `[T, heads, Dh]`.
    pub x: View<'a, B>,
    /// F32 `[T, rotary_dim]`: the cosines of the token's `rotary_dim / 2` angles, then the sines.
    pub table: View<'a, B>,
    /// F32 `[T, heads, Dh]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> Rope<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let RopeParams { n_tokens, n_heads, head_dim, rotary_dim } = self.p;
        ensure(Op::Rope, rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim, || {
            format!("rotary_dim {rotary_dim} of head width {head_dim}")
        })?;
        let len = n_tokens as usize * n_heads as usize * head_dim as usize;
        reads(Op::Rope, "x", &self.x, DType::F32, len)?;
        reads(Op::Rope, "table", &self.table, DType::F32, n_tokens as usize * rotary_dim as usize)?;
        writes(Op::Rope, "out", &self.out, DType::F32, len)
    }
}

/// Parameters of [`SiluMul`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SiluMulParams {
    /// Elements.
    pub n: u32,
}

/// Gated activation.
pub struct SiluMul<'a, B: Storage> {
    /// Size.
    pub p: SiluMulParams,
    /// F32 `[n]`.
    pub gate: View<'a, B>,
    /// F32 `[n]`.
    pub up: View<'a, B>,
    /// F32 `[n]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> SiluMul<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let n = self.p.n as usize;
        reads(Op::SiluMul, "gate", &self.gate, DType::F32, n)?;
        reads(Op::SiluMul, "up", &self.up, DType::F32, n)?;
        writes(Op::SiluMul, "out", &self.out, DType::F32, n)
    }
}

/// Parameters of [`GeluMul`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GeluMulParams {
    /// Elements.
    pub n: u32,
}

/// Gated activation by a Gaussian, in its approximation by a hyperbolic tangent.
pub struct GeluMul<'a, B: Storage> {
    /// Size.
    pub p: GeluMulParams,
    /// F32 `[n]`.
    pub gate: View<'a, B>,
    /// F32 `[n]`.
    pub up: View<'a, B>,
    /// F32 `[n]`.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> GeluMul<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let n = self.p.n as usize;
        reads(Op::GeluMul, "gate", &self.gate, DType::F32, n)?;
        reads(Op::GeluMul, "up", &self.up, DType::F32, n)?;
        writes(Op::GeluMul, "out", &self.out, DType::F32, n)
    }
}

/// Parameters of [`Argmax`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ArgmaxParams {
    /// Rows of x, one result each.
    pub n_rows: u32,
    /// V; at least 1.
    pub width: u32,
}

/// Index of the largest element of each row: the lowest among equals; a not-a-number wins.
pub struct Argmax<'a, B: Storage> {
    /// Sizes.
    pub p: ArgmaxParams,
    /// F32 `[n_rows, width]`.
    pub x: View<'a, B>,
    /// U32 `[n_rows]`; with [`ArgmaxParams::NOT_FINITE`] where that element is a not-a-number or
    /// plus infinity.
    pub out: ViewMut<'a, B>,
}

impl ArgmaxParams {
    /// The bit of an index whose element is no finite number, so that who reads the index alone
    /// sees it.
    pub const NOT_FINITE: u32 = 1 << 31;
}

impl<B: Storage> Argmax<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let n = self.p.n_rows as usize;
        ensure(Op::Argmax, self.p.width > 0, || "width is 0".into())?;
        let has_bit = self.p.width <= ArgmaxParams::NOT_FINITE;
        ensure(Op::Argmax, has_bit, || format!("width {} is above 2^31", self.p.width))?;
        reads(Op::Argmax, "x", &self.x, DType::F32, n * self.p.width as usize)?;
        writes(Op::Argmax, "out", &self.out, DType::U32, n)
    }
}

/// Parameters of [`TopK`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TopKParams {
    /// Rows of x, one result each.
    pub n_rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// Elements taken of each row: at least 1, at most V and [`TopKParams::MAX_K`].
    pub k: u32,
}

impl TopKParams {
    /// The largest k: what one workgroup sorts in its own memory.
    pub const MAX_K: u32 = 256;
}

/// The k largest elements of each row.
pub struct TopK<'a, B: Storage> {
    /// Sizes.
    pub p: TopKParams,
    /// F32 `[n_rows, width]`.
    pub x: View<'a, B>,
    /// F32 `[n_rows, k]`: the elements, largest first.
    pub values: ViewMut<'a, B>,
    /// U32 `[n_rows, k]`: their indices.
    pub ids: ViewMut<'a, B>,
}

impl<B: Storage> TopK<'_, B> {
    /// Checks lengths and types, and that k is in its range.
    pub fn check(&self) -> OpResult<()> {
        let TopKParams { n_rows, width, k } = self.p;
        ensure(Op::TopK, k > 0 && k <= width && k <= TopKParams::MAX_K, || {
            format!("k is {k}, expected 1 to {} and at most the width {width}", TopKParams::MAX_K)
        })?;
        let (n, k) = (n_rows as usize, k as usize);
        reads(Op::TopK, "x", &self.x, DType::F32, n * width as usize)?;
        writes(Op::TopK, "values", &self.values, DType::F32, n * k)?;
        writes(Op::TopK, "ids", &self.ids, DType::U32, n * k)
    }
}

/// Parameters of [`Gram`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GramParams {
    /// Query tokens.
    pub n_tokens: u32,
    /// Heads of `x`.
    pub n_heads: u32,
    /// G: heads summed into one matrix; divides `n_heads`.
    pub group: u32,
    /// Width of a head.
    pub head_dim: u32,
}

/// Sum of outer products, accumulated over chunks.
pub struct Gram<'a, B: Storage> {
    /// Sizes.
    pub p: GramParams,
    /// F32 `[T, heads, Dh]`.
    pub x: View<'a, B>,
    /// F32 `[heads / G, Dh, Dh]`, added to.
    pub out: ViewMut<'a, B>,
}

impl<B: Storage> Gram<'_, B> {
    /// Checks lengths and types.
    pub fn check(&self) -> OpResult<()> {
        let GramParams { n_tokens, n_heads, group, head_dim } = self.p;
        ensure(Op::Gram, group > 0 && n_heads.is_multiple_of(group), || {
            format!("{n_heads} heads in groups of {group}")
        })?;
        let (n, h, d) = (n_tokens as usize, n_heads as usize, head_dim as usize);
        reads(Op::Gram, "x", &self.x, DType::F32, n * h * d)?;
        writes(Op::Gram, "out", &self.out, DType::F32, h / group as usize * d * d)
    }
}
