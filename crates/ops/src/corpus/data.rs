//! Random data and the sizes that cases are made of.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};

use super::plan::PlannedWeight;
use crate::weight::{Activations, WeightSource};

/// Sizes of one dimension: 1, primes, and one below, at and above the tiles of 8, 16, 32, 64 and
/// 128; 257 is more than two of the widest.
pub(super) const EDGES: [u32; 20] =
    [1, 2, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 61, 63, 64, 65, 127, 128, 129, 257];

/// Widths of heads that models have.
pub(super) const HEAD_DIMS: [u32; 5] = [20, 40, 64, 80, 128];

/// Query and KV heads: one, all their own (MHA), groups (GQA), one for all (MQA).
pub(super) const HEADS: [(u32, u32); 6] = [(1, 1), (4, 4), (6, 2), (8, 1), (14, 2), (12, 4)];

/// Types of weights, KV rows and centroids.
pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Types of KV rows that attention reads and new rows are stored in.
pub(super) const ROWS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8];

/// FNV-1a of a case's name: the seed of its data.
pub(super) fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Normal numbers of standard deviation `spread`.
pub(super) fn normals(rng: &mut SplitMix64, len: usize, spread: f32) -> Vec<f32> {
    (0..len).map(|_| rng.next_normal() * spread).collect()
}

/// Numbers below `limit`.
pub(super) fn indices(rng: &mut SplitMix64, len: usize, limit: u32) -> Vec<u32> {
    (0..len).map(|_| rng.below(limit as usize) as u32).collect()
}

/// A weight `[n_rows, n_cols]` with entries of standard deviation `spread`.
pub(super) fn weight(
    rng: &mut SplitMix64,
    name: &str,
    dtype: DType,
    n_rows: u32,
    n_cols: u32,
    spread: f32,
) -> PlannedWeight {
    let (n_rows, n_cols) = (n_rows as usize, n_cols as usize);
    let values = normals(rng, n_rows * n_cols, spread);
    let bytes = HostBytes::from_vec(encode_f32(dtype, &values));
    let (name, activations) = (name.into(), Activations::F32);
    PlannedWeight::Plain(WeightSource { name, dtype, n_rows, n_cols, bytes, activations })
}

/// KV rows `[n_heads, stride, 2, head_dim]`, not-a-number but in the rows `used` of each head.
pub(super) fn kv_rows(
    rng: &mut SplitMix64,
    n_heads: u32,
    stride: u32,
    head_dim: u32,
    used: impl Fn(u32, u32) -> bool,
) -> Vec<f32> {
    let width = 2 * head_dim as usize;
    let mut rows = Vec::with_capacity((n_heads * stride) as usize * width);
    for head in 0..n_heads {
        for row in 0..stride {
            if used(head, row) {
                rows.extend(normals(rng, width, 1.0))
            } else {
                rows.extend(std::iter::repeat_n(f32::NAN, width))
            }
        }
    }
    rows
}

/// The elements of slices that a backend returns as a fixed number of parts.
///
/// # Panics
/// If there are not exactly `N`: then a case's plan and its launch disagree.
pub(super) fn exactly<const N: usize, T>(parts: &mut [T]) -> &mut [T; N] {
    let n = parts.len();
    parts.try_into().unwrap_or_else(|_| panic!("a plan of {n} buffers where {N} are launched"))
}
