//! What a step left out, bounded: an upper bound of the attention mass of rows that a recalling
//! head did not attend, from nothing but its index.
//!
//! A cluster of s keys with mean c and radius r, for a query q: with `mu = scale q.c` and `delta =
//! scale |q| r`, every score lies within delta of mu and they are mu on average, so the sum of
//! their exponentials is at most `s e^mu cosh(delta)` (Edmundson and Madansky). The unread rest of
//! a cluster has another mean: each of its keys counts `e^(mu + delta)`. Blocks known by their
//! largest and smallest keys are bounded channel by channel, as Quest does. With Z the mass of what
//! was attended and U the sum of these bounds, the share that was left out is at most `U / (Z +
//! U)`.

use longview_core::{DType, decode_f32};
use longview_ops::{Backend, BlockSummary};

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::{KvShape, SelectionId};
use crate::policy::IndexKind;

/// The largest relative error of a number that is stored.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 | DType::U32 => 2f64.powi(-24),
    }
}

/// One head's clusters, or blocks.
struct Units<'a> {
    sizes: &'a [u32],
    takes: &'a [u32],
    /// `[units, width]`.
    landmarks: &'a [f32],
    radius: &'a [f32],
    /// Relative error of the landmarks.
    rounding: f64,
    scale: f64,
}

impl Units<'_> {
    /// The logarithm of the largest mass that unread rows of clusters can have for `q`.
    fn clusters(&self, q: &[f32]) -> f64 {
        let norm_q = norm(q);
        let bound = |i: usize| {
            let c = &self.landmarks[i * q.len()..(i + 1) * q.len()];
            // What was lost when the mean was stored may have been in the query's direction.
            let lost = self.scale * norm_q * norm(c) * self.rounding * 1.01;
            let mu = self.scale * dot(q, c) + lost;
            let delta = self.scale * norm_q * f64::from(self.radius[i]) + lost;
            let left = f64::from(self.sizes[i] - self.takes[i]);
            match self.takes[i] {
                0 => left.ln() + mu + log_cosh(delta),
                _ => left.ln() + mu + delta,
            }
        };
        log_sum(self.unread().map(bound))
    }

    /// The same for blocks known by `[largest; smallest]`.
    fn blocks(&self, q: &[f32]) -> f64 {
        let d = q.len();
        let bound = |i: usize| {
            let (most, least) = self.landmarks[i * 2 * d..(i + 1) * 2 * d].split_at(d);
            let channel = |c: usize| {
                let (a, b) = (f64::from(q[c] * most[c]), f64::from(q[c] * least[c]));
                a.max(b)
            };
            let left = f64::from(self.sizes[i] - self.takes[i]);
            left.ln() + self.scale * (0..d).map(channel).sum::<f64>()
        };
        log_sum(self.unread().map(bound))
    }

    fn unread(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.sizes.len()).filter(|i| self.sizes[*i] > self.takes[*i])
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn norm(a: &[f32]) -> f64 {
    dot(a, a).sqrt()
}

/// `ln cosh x` without overflow.
fn log_cosh(x: f64) -> f64 {
    x + (-2.0 * x).exp().ln_1p() - std::f64::consts::LN_2
}

fn log_sum(terms: impl Iterator<Item = f64>) -> f64 {
    terms.fold(f64::NEG_INFINITY, |sum, term| {
        let (low, high) = if sum < term { (sum, term) } else { (term, sum) };
        if high == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
    })
}

/// A selection in one layer, and what it was made from.
pub(crate) struct Bounded<'a, B: Backend> {
    pub shape: &'a KvShape,
    pub kind: IndexKind,
    pub index: &'a LayerIndex<B>,
    pub selector: &'a Selector<B>,
    pub selection: SelectionId,
}

impl<B: Backend> Bounded<'_, B> {
    /// For each query head, an upper bound of U / Z: of the mass that it did not attend over the
    /// mass that it did. `q` is the step's query `[Hq, Dh]`, `lse` the log-sum-exp of what it
    /// attended `[Hq]`. `None` where the index bounds nothing.
    pub fn ratios(&self, q: &[f32], lse: &[f32]) -> Option<Vec<f64>> {
        let is_block = match self.kind {
            IndexKind::Clusters(_) => false,
            IndexKind::Blocks(b) if b.summary == BlockSummary::MinMax => true,
            IndexKind::Blocks(_) | IndexKind::Tokens(_) => return None,
        };
        let KvShape { head_dim: d, n_q_heads, n_kv_heads, kv_dtype, scale, .. } = *self.shape;
        let group = n_q_heads / n_kv_heads;
        let mut all = Vec::with_capacity(n_q_heads);
        for (head, clusters) in self.index.heads().iter().enumerate() {
            let mut takes = vec![0; clusters.sizes.len()];
            for (cluster, take) in self.selector.selected(self.selection, head) {
                takes[cluster] = take as u32;
            }
            let landmarks = decode_f32(kv_dtype, &clusters.centroids);
            let units = Units {
                sizes: &clusters.sizes,
                takes: &takes,
                landmarks: &landmarks,
                radius: &clusters.radius,
                rounding: rounding(kv_dtype),
                scale: f64::from(scale),
            };
            for h in head * group..(head + 1) * group {
                let q = &q[h * d..(h + 1) * d];
                let left = if is_block { units.blocks(q) } else { units.clusters(q) };
                all.push((left - f64::from(lse[h])).exp());
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_of_cosh_is_right_for_small_and_large() {
        for x in [0.0, 1e-9, 0.3, 2.0, 20.0] {
            assert!((log_cosh(x) - f64::cosh(x).ln()).abs() < 1e-12, "{x}");
        }
        assert!((log_cosh(2000.0) - (2000.0 - std::f64::consts::LN_2)).abs() < 1e-9);
        assert_eq!(log_sum(std::iter::empty()), f64::NEG_INFINITY);
    }
}
