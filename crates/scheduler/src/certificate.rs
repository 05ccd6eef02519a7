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
use longview_ops::{Backend, BlockSummary, OpResult, View};
use serde::Serialize;
use serde::ser::SerializeStruct;

use crate::policy::IndexKind;
use crate::sequence::Sequence;

/// Bounds of many steps, layers and query heads, counted by size.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// By the power of two of U / Z.
    counts: Vec<u64>,
    n: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for Bounds {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Bounds", 3)?;
        fields.serialize_field("n", &self.n)?;
        fields.serialize_field("median", &self.median())?;
        fields.serialize_field("share_telling", &self.share_telling())?;
        fields.end()
    }
}

/// The smallest and largest power of two that is told apart.
const POWERS: std::ops::Range<i32> = -32..32;

impl Bounds {
    /// None yet.
    pub fn new() -> Self {
        Self { counts: vec![0; POWERS.len()], n: 0 }
    }

    /// None, and no room for any.
    pub(crate) fn empty() -> Self {
        Self { counts: Vec::new(), n: 0 }
    }

    /// Counts one: U / Z.
    pub fn add(&mut self, ratio: f64) {
        let power = ratio.log2().ceil().clamp(f64::from(POWERS.start), f64::from(POWERS.end - 1));
        self.counts[(power as i32 - POWERS.start) as usize] += 1;
        self.n += 1;
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.n = 0;
    }

    /// The median bound of the share of attention that was left out, up to the next power of two of
    /// U / Z.
    pub fn median(&self) -> Option<f64> {
        let mut seen = 0;
        let at = self.counts.iter().position(|n| {
            seen += n;
            2 * seen >= self.n
        })?;
        let ratio = 2f64.powi(POWERS.start + at as i32);
        (self.n > 0).then(|| ratio / (1.0 + ratio))
    }

    /// Share of bounds that say something: U is at most Z, so at most half was left out.
    pub fn share_telling(&self) -> Option<f64> {
        let telling = &self.counts[..(1 - POWERS.start) as usize];
        (self.n > 0).then(|| telling.iter().sum::<u64>() as f64 / self.n as f64)
    }
}

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
        match high == f64::NEG_INFINITY {
            true => high,
            false => high + (low - high).exp().ln_1p(),
        }
    })
}

impl<B: Backend> Sequence<B> {
    /// Counts the bounds of a decode step in one layer; waits for its query.
    pub(crate) async fn certify(
        &mut self,
        layer: usize,
        q: View<'_, B>,
        lse: View<'_, B>,
    ) -> OpResult<()> {
        let (hq, d) = (self.shape.n_q_heads, self.shape.head_dim);
        let (mut queries, mut sums) = (vec![0.0f32; hq * d], vec![0.0f32; hq]);
        let mut parts = [
            (q, bytemuck::cast_slice_mut(&mut queries)),
            (lse, bytemuck::cast_slice_mut(&mut sums)),
        ];
        self.backend.read_all(&mut parts).await?;
        for bound in self.bounds(layer, &queries, &sums).into_iter().flatten() {
            self.stats.bounds.add(bound);
        }
        Ok(())
    }

    /// For each query head of a layer, an upper bound of U / Z after a decode step: of the mass
    /// that it did not attend over the mass that it did. `q` is the step's query `[Hq, Dh]`, `lse`
    /// the log-sum-exp of what it attended `[Hq]`. `None` where the index bounds nothing: indexes
    /// of tokens, blocks stood for by some of their keys, policies that evict, and where the device
    /// resolves.
    pub fn bounds(&self, layer: usize, q: &[f32], lse: &[f32]) -> Option<Vec<f64>> {
        let index = self.policy.index?;
        let is_block = match index.kind {
            IndexKind::Clusters(_) => false,
            IndexKind::Blocks(b) if b.summary == BlockSummary::MinMax => true,
            IndexKind::Blocks(_) | IndexKind::Tokens(_) => return None,
        };
        let (selector, state) = (self.selector.as_ref()?, self.layers[layer].index.as_ref()?);
        if self.resolver.is_some() {
            return None;
        }
        let own = self.selection_slot(layer);
        let slot = own - own % self.policy.layer_step;
        let d = self.shape.head_dim;
        let group = self.shape.n_q_heads / self.shape.n_kv_heads;
        let dtype = self.shape.kv_dtype;
        let mut all = Vec::with_capacity(self.shape.n_q_heads);
        for (head, clusters) in state.heads().iter().enumerate() {
            let mut takes = vec![0; clusters.sizes.len()];
            for (cluster, take) in selector.selected(slot, head) {
                takes[cluster] = take as u32;
            }
            let landmarks = decode_f32(dtype, &clusters.centroids);
            let units = Units {
                sizes: &clusters.sizes,
                takes: &takes,
                landmarks: &landmarks,
                radius: &clusters.radius,
                rounding: rounding(dtype),
                scale: f64::from(self.shape.scale),
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

    #[test]
    fn bounds_are_counted_by_size() {
        let mut bounds = Bounds::new();
        assert_eq!((bounds.median(), bounds.share_telling()), (None, None));
        [0.1, 0.9, 5.0].into_iter().for_each(|ratio| bounds.add(ratio));
        // 0.9 is at most 1: at most half was left out.
        assert_eq!(bounds.median(), Some(0.5));
        assert_eq!(bounds.share_telling(), Some(2.0 / 3.0));
        bounds.add(0.0);
        bounds.add(f64::INFINITY);
        assert_eq!(bounds.len(), 5);
        bounds.clear();
        assert!(bounds.is_empty());
    }
}
