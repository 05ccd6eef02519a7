//! How far a result may lie from the reference: one table, by op and data type, never by backend.
//!
//! The elementwise bound decides; the bound on the normalised mean square error (NMSE) finds what
//! is a little wrong everywhere. Entries are a few times the error that f32 sums in any order can
//! make on the corpus, and far below the error of one missing row, element or head. A backend that
//! needs more shows why, here, in a comment.

use longview_core::DType;

use crate::op::Op;

/// Bounds on one output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// An element may be off by `atol + rtol * |reference|`.
    pub atol: f64,
    /// See `atol`.
    pub rtol: f64,
    /// `sum (got - reference)^2 / sum reference^2` may be at most this.
    pub nmse: f64,
}

impl Tolerance {
    /// Nothing but equality; among equal scores the lowest index.
    pub const EXACT: Self = Self { atol: 0.0, rtol: 0.0, nmse: 0.0 };

    const fn of(atol: f64, rtol: f64, nmse: f64) -> Self {
        Self { atol, rtol, nmse }
    }

    /// For scores without a softmax (`Pooling::SumScores`): f32 sums of products, which cancel.
    pub const RAW_SCORES: Self = Self::of(1e-4, 1e-4, 1e-10);
    /// Scores of about +-100 of queries that were rounded to 15 bits: their errors of 2e-3 are
    /// relative errors of the probabilities.
    pub const SHARP_CODES: Tolerance = Tolerance::of(1e-4, 2e-2, 1e-4);

    /// For products with weights of bf16 that say whether x is rounded: then only the sums differ.
    /// Tensor cores cut them off, and AVX-512 BF16 takes denormals for 0. A product that did not
    /// round x, or did although it must not, has an NMSE of 1e-6.
    pub const SAID_ROUNDING: Self = Self::of(1e-4, 1e-4, 1e-9);

    /// The same for numbers that are larger by `factor`.
    pub fn times(self, factor: f64) -> Self {
        Self { atol: self.atol * factor, ..self }
    }

    /// How far from `reference` an element may lie.
    pub fn allows(&self, reference: f64) -> f64 {
        self.atol + self.rtol * reference.abs()
    }

    /// Whether only equality passes.
    pub fn is_exact(&self) -> bool {
        *self == Self::EXACT
    }
}

/// The table. `dtype` is that of the weights, the KV rows or the centroids; F32 for ops without
/// them.
pub fn tolerance(op: Op, dtype: DType) -> Tolerance {
    match (op, dtype) {
        // Widening a stored number to f32 is exact, and so is a product with a power of two. Other
        // scales round once.
        (Op::Embed, _) => Tolerance::of(0.0, 6e-8, 1e-14),
        // One sum of squares of like sign, one root (2 ulp on some devices), two products.
        (Op::RmsNorm, _) => Tolerance::of(1e-6, 1e-5, 1e-11),
        // f16 and bf16 products of tensor cores round x to the weight's type: 2^-12 and 2^-9 a term
        // at random, for outputs of size 1. Otherwise f32 sums of up to 4864 terms.
        (Op::Matmul | Op::Matvec, DType::F16) => Tolerance::of(3e-3, 1e-3, 5e-7),
        (Op::Matmul | Op::Matvec, DType::BF16) => Tolerance::of(2e-2, 5e-3, 2e-5),
        (Op::Matmul | Op::Matvec, _) => Tolerance::of(2e-5, 1e-5, 1e-11),
        // Two products and a sum of numbers of size 1.
        (Op::Rope, _) => Tolerance::of(2e-6, 1e-5, 1e-12),
        // `exp` in f32 may be off by 3 + 2 |x| ulp (WGSL), and x goes up to about 300 here, where
        // the result is nearly 0.
        (Op::SiluMul | Op::GeluMul, _) => Tolerance::of(1e-5, 2e-5, 1e-10),
        // Storing in the row's type may round either way where the device's conversion does (WGSL):
        // one ulp of f16. bf16 is made of the bits of an f32, and f32 is copied: both exact.
        (Op::KvScatter, DType::F16) => Tolerance::of(6e-8, 9.8e-4, 3e-7),
        (Op::KvScatter, _) => Tolerance::EXACT,
        // Copies; widening is exact.
        (Op::KvGather | Op::KvKeys, _) => Tolerance::EXACT,
        // Scores up to 100 carry f32 errors of 2e-5, which softmax makes relative errors of the
        // weights. Rows are widened exactly, so the row type does not count.
        (Op::AttendChunk | Op::AttendList | Op::AttendBlocks, _) => Tolerance::of(1e-4, 1e-4, 1e-8),
        // Two weights of e^(difference), a mean.
        (Op::LseMerge, _) => Tolerance::of(1e-5, 1e-5, 1e-10),
        // f32 dot products of up to 128 terms of size 1; L2 adds |c|^2 / 2 of size 64.
        (Op::KmeansAssign, _) => Tolerance::of(5e-5, 1e-5, 1e-10),
        // f32 sums of up to a few hundred terms, divided by their number.
        (Op::KmeansUpdate, _) => Tolerance::of(1e-5, 1e-5, 1e-11),
        // |k - c| must be summed from the differences: |k|^2 - 2 k.c + |c|^2 loses half of the
        // digits and fails.
        (Op::ClusterStats, _) => Tolerance::of(3e-5, 1e-5, 1e-11),
        // As attention, on probabilities: small ones count too, hence a smaller absolute part.
        // Queries may be rounded to 15 bits of their largest number: errors of some 6e-5 of scores.
        (Op::CentroidScores, DType::I8) => Tolerance::of(1e-5, 1e-3, 1e-6),
        (Op::CentroidScores, _) => Tolerance::of(2e-6, 2e-4, 1e-8),
        // f32 sums of up to 128 products.
        (Op::BlockReduce, _) => Tolerance::of(1e-6, 1e-5, 1e-12),
        (Op::ProjectHeads, _) => Tolerance::of(3e-5, 1e-5, 1e-11),
        // A choice of x or 0.
        (Op::SplitSigns, _) => Tolerance::EXACT,
        // As CentroidScores: a probability for each query, and their sum.
        (Op::ColumnMass, _) => Tolerance::of(2e-6, 2e-4, 1e-8),
        // A mean of up to 9 * 21 numbers of size 1.
        (Op::PoolScores, _) => Tolerance::of(2e-6, 1e-5, 1e-12),
        // Scores are inputs and nothing is rounded, so the order, ties included, has one answer.
        (Op::ClusterRest | Op::ClusterRows, _) => Tolerance::EXACT,
        // Whole numbers.
        (Op::OwnerCounts | Op::RestLists, _) => Tolerance::EXACT,
        // As Rope, then rounded to the row's type: one ulp where the sum lies at a boundary.
        (Op::RotateRows, DType::F16) => Tolerance::of(3e-6, 1.1e-3, 4e-7),
        (Op::RotateRows, DType::BF16) => Tolerance::of(1e-5, 8e-3, 2e-5),
        (Op::RotateRows, _) => Tolerance::of(2e-6, 1e-5, 1e-12),
        // f32 sums of up to 64 * 8 terms of size 1.
        (Op::QuerySums, _) => Tolerance::of(3e-5, 1e-5, 1e-12),
        (Op::SelectClusters | Op::LookUpRows | Op::Argmax | Op::TopK, _) => Tolerance::EXACT,
        // f32 sums of up to 128 rows.
        (Op::RowMeans, _) => Tolerance::of(1e-6, 1e-5, 1e-12),
        // As ColumnMass, relative to the largest.
        (Op::ScoreBlocks, _) => Tolerance::of(1e-5, 2e-4, 1e-8),
        // f32 sums of up to 257 * 8 products.
        (Op::Gram, _) => Tolerance::of(1e-3, 1e-5, 1e-11),
        // A cosine: three f32 sums of up to 257 products, two roots, a quotient, of size 1.
        (Op::QueryGate, _) => Tolerance::of(3e-6, 1e-5, 1e-11),
    }
}
