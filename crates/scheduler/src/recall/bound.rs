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
        DType::F32 | DType::U32 | DType::Q8 | DType::I8 => 2f64.powi(-24),
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
            // A product rounded to f32 may be below the true one, and the bound with it.
            let channel = |c: usize| {
                let q = f64::from(q[c]);
                (q * f64::from(most[c])).max(q * f64::from(least[c]))
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

pub(super) fn log_sum(terms: impl Iterator<Item = f64>) -> f64 {
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
    pub fn ratios(&self, backend: &B, q: &[f32], lse: &[f32]) -> Option<Vec<f64>> {
        let is_block = match self.kind {
            IndexKind::Clusters(_) => false,
            IndexKind::Blocks(b) if b.summary == BlockSummary::MinMax => true,
            IndexKind::Blocks(_) | IndexKind::Tokens(_) => return None,
        };
        let KvShape { head_dim: d, n_q_heads, kv_dtype, scale, .. } = *self.shape;
        let mut all = Vec::with_capacity(n_q_heads);
        for (head, clusters) in self.shape.heads().zip(self.index.heads()) {
            let mut takes = vec![0; clusters.sizes.len()];
            for (cluster, take) in self.selector.selected(self.selection, head) {
                takes[cluster] = take as u32;
            }
            let landmarks = self.index.landmarks(backend, head.index());
            let landmarks = decode_f32(kv_dtype, &landmarks.get(0..clusters.sizes.len()));
            let units = Units {
                sizes: &clusters.sizes,
                takes: &takes,
                landmarks: &landmarks,
                radius: &clusters.radius,
                rounding: rounding(kv_dtype),
                scale: f64::from(scale),
            };
            for h in self.shape.query_heads(head) {
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
    use longview_core::SplitMix64;

    use super::*;
    use crate::index::HeadClusters;
    use crate::policy::{BlockConfig, Importance, Projection, Rank, TokenConfig};
    use crate::recall::testing::{self as t, Device, HeadRows, SELECTION, SINKS, WIDTH};

    #[test]
    fn the_logarithm_of_cosh_is_right_for_small_and_large() {
        for x in [0.0, 1e-9, 0.3, 2.0, 20.0] {
            assert!((log_cosh(x) - f64::cosh(x).ln()).abs() < 1e-12, "{x}");
        }
        assert!((log_cosh(2000.0) - (2000.0 - std::f64::consts::LN_2)).abs() < 1e-9);
        assert_eq!(log_sum(std::iter::empty()), f64::NEG_INFINITY);
    }

    #[test]
    fn a_logarithm_of_a_sum_takes_terms_in_any_order_and_size() {
        let of = |terms: &[f64]| log_sum(terms.iter().map(|t| t.ln()));
        assert!((of(&[1.0, 2.0, 4.0]).exp() - 7.0).abs() < 1e-12);
        assert!((of(&[4.0, 0.0, 1.0, 2.0]).exp() - 7.0).abs() < 1e-12);
        assert_eq!(log_sum([2000.0, -2000.0, 2000.0].into_iter()), 2000.0 + 2f64.ln());
    }

    fn blocks(summary: BlockSummary) -> IndexKind {
        IndexKind::Blocks(BlockConfig {
            block: 4,
            summary,
            n_top: 1,
            importance: Importance::Last,
            preselect: None,
        })
    }

    fn clusters() -> IndexKind {
        t::policy(8).index.unwrap().kind
    }

    /// The ratios of what `choice` left out for `q`, where every query head attended a mass of
    /// `e^lse`.
    fn ratios(
        shape: &KvShape,
        kind: IndexKind,
        made: &[HeadClusters],
        choice: &[Vec<[u32; 2]>],
        q: &[f32],
        lse: &[f32],
    ) -> Option<Vec<f64>> {
        let device = Device::new();
        let width = made[0].centroids.len() / made[0].sizes.len();
        let mut index = LayerIndex::new(&device, shape, width, 8, 1).unwrap();
        let n_rows = made[0].sizes.iter().sum::<u32>() as usize;
        index.append(&device, SINKS, SINKS + n_rows, made).unwrap();
        let selector = t::chosen(&device, shape, &t::policy(20), choice);
        let bounded =
            Bounded { shape, kind, index: &index, selector: &selector, selection: SELECTION };
        bounded.ratios(&device, q, lse)
    }

    /// The largest and smallest of every channel, as Quest has them.
    fn min_max(rows: &HeadRows) -> HeadClusters {
        let mut made = rows.clusters();
        (made.centroids, made.radius) = (vec![], vec![]);
        for cluster in 0..rows.sizes.len() {
            let keys = &rows.keys[rows.tokens(cluster)];
            let of = |c: usize, pick: fn(f32, f32) -> f32| keys.iter().map(|k| k[c]).reduce(pick);
            made.centroids.extend((0..WIDTH).filter_map(|c| of(c, f32::max)));
            made.centroids.extend((0..WIDTH).filter_map(|c| of(c, f32::min)));
        }
        made
    }

    /// The mass of the rows that `choice` left out.
    fn left_out(rows: &HeadRows, choice: &[[u32; 2]], q: &[f32], scale: f32) -> f64 {
        let mass = |c: usize| -> f64 {
            let read = choice.iter().find(|[chosen, _]| *chosen as usize == c);
            let unread = rows.tokens(c).skip(read.map_or(0, |[_, take]| *take as usize));
            unread.map(|i| (f64::from(scale) * t::dot(q, &rows.keys[i])).exp()).sum()
        };
        (0..rows.sizes.len()).map(mass).sum()
    }

    /// Some clusters whole, one in part, the others not at all.
    fn random_choice(rng: &mut SplitMix64, sizes: &[u32]) -> Vec<[u32; 2]> {
        let n = rng.below(sizes.len() + 1);
        let mut choice: Vec<_> =
            rng.distinct(sizes.len(), n).into_iter().map(|c| [c, sizes[c as usize]]).collect();
        if let Some([_, take]) = choice.last_mut() {
            *take = 1 + rng.below(*take as usize) as u32;
        }
        choice
    }

    #[test]
    fn a_bound_is_never_below_the_mass_that_was_left_out() {
        let mut rng = SplitMix64::new(17);
        let (mut n_tight, mut n_all) = (0, 0);
        for round in 0..2_000 {
            let kv_dtype = [DType::F32, DType::F16, DType::BF16][round % 3];
            let shape = KvShape { kv_dtype, ..t::shape() };
            let sizes: [&[u32]; 2] = [&[3, 1, 5, 2], &[4, 6, 1]];
            let mut rows = sizes.map(|sizes| HeadRows::random(&mut rng, sizes));
            for key in rows.iter_mut().flat_map(|rows| &mut rows.keys) {
                *key = t::stored(kv_dtype, *key);
            }
            let choice = sizes.map(|sizes| random_choice(&mut rng, sizes));
            let q: Vec<f32> = t::normals(&mut rng, 16).iter().map(|x| 3.0 * x).collect();
            let lse = t::normals(&mut rng, 4);
            let means = rows.each_ref().map(HeadRows::clusters);
            let edges = rows.each_ref().map(min_max);
            let by_means = ratios(&shape, clusters(), &means, &choice, &q, &lse).unwrap();
            let quest = blocks(BlockSummary::MinMax);
            let by_edges = ratios(&shape, quest, &edges, &choice, &q, &lse).unwrap();
            for h in 0..4 {
                let (rows, choice) = (&rows[h / 2], &choice[h / 2]);
                let mass = left_out(rows, choice, &q[h * WIDTH..][..WIDTH], shape.scale);
                let truth = mass / f64::from(lse[h]).exp();
                for bound in [by_means[h], by_edges[h]] {
                    assert!(bound >= truth * (1.0 - 1e-12), "{bound} for {truth}");
                    n_tight += usize::from(bound <= 50.0 * truth);
                    n_all += 1;
                }
            }
        }
        assert!(n_tight * 2 > n_all, "{n_tight} of {n_all} bounds say something");
    }

    /// Scale 1/2, so that a query of 2 in channel 0 scores a key by that channel.
    const Q: [f32; 4] = [2.0, 0.0, 0.0, 0.0];

    fn near(found: &[f64], expected: &[f64]) {
        let near = |(f, e): (&f64, &f64)| (f - e).abs() <= 2e-6 * e.abs();
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(near),
            "{found:?} for {expected:?}"
        );
    }

    #[test]
    fn clusters_of_equal_keys_are_bounded_by_their_mass() {
        let key = |n: f32| [n.ln(), 1.0, 0.0, 0.0];
        let rows = [
            HeadRows::of_equal_keys(&[(3, key(2.0)), (2, key(3.0)), (4, key(5.0))]),
            HeadRows::of_equal_keys(&[(8, key(7.0)), (1, key(11.0))]),
        ];
        let made = rows.each_ref().map(HeadRows::clusters);
        // Left out: 3 x 2 and 3 of 4 x 5; 8 x 7.
        let choice = [vec![[1, 2], [2, 1]], vec![[1, 1]]];
        let q = [Q, [0.0; 4], Q, [0.0; 4]].concat();
        let lse = [1.0, 2.0, 7.0, 4.0].map(|mass: f32| mass.ln());
        let found = ratios(&t::shape(), clusters(), &made, &choice, &q, &lse).unwrap();
        near(&found, &[21.0, 6.0 / 2.0, 8.0, 8.0 / 4.0]);
    }

    /// Two keys at mean +- radius along the query: cosh is exact, and half of them read leaves the
    /// larger bound.
    #[test]
    fn keys_at_the_radius_are_bounded_by_a_cosh_and_a_rest_by_its_end() {
        let mut rows = HeadRows::of_equal_keys(&[(2, [0.0; 4])]);
        (rows.keys[0][0], rows.keys[1][0]) = (1.5, -0.5);
        let made = [rows.clusters(), rows.clusters()];
        let both = 1.5f64.exp() + (-0.5f64).exp();
        let choice = [vec![], vec![[0, 1]]];
        let q = [Q; 4].concat();
        let found = ratios(&t::shape(), clusters(), &made, &choice, &q, &[0.0; 4]).unwrap();
        near(&found, &[both, both, 1.5f64.exp(), 1.5f64.exp()]);
    }

    /// Channel by channel: the largest where the query is above 0, the smallest where it is below.
    #[test]
    fn blocks_are_bounded_by_the_better_end_of_every_channel() {
        let mut rows = HeadRows::of_equal_keys(&[(3, [0.0; 4])]);
        rows.keys = vec![[1.0, -1.0, 4.0, 0.0], [-2.0, 3.0, 4.0, 0.0], [0.5, 0.0, 4.0, 0.0]];
        let made = [min_max(&rows), min_max(&rows)];
        let q = [[2.0, 2.0, 0.0, 5.0], [-2.0, -2.0, 0.0, 5.0], Q, [0.0, 0.0, -1.0, 0.0]].concat();
        let choice = [vec![], vec![[0, 2]]];
        let quest = blocks(BlockSummary::MinMax);
        let found = ratios(&t::shape(), quest, &made, &choice, &q, &[0.0; 4]).unwrap();
        let expected = [3.0 * 4f64.exp(), 3.0 * 3f64.exp(), 1f64.exp(), (-2f64).exp()];
        near(&found, &expected);
    }

    #[test]
    fn nothing_is_left_where_everything_was_read() {
        let rows = [1, 2].map(|seed| HeadRows::random(&mut SplitMix64::new(seed), &[3, 2]));
        let made = rows.each_ref().map(HeadRows::clusters);
        let choice = [vec![[0, 3], [1, 2]], vec![[1, 2], [0, 3]]];
        let found = ratios(&t::shape(), clusters(), &made, &choice, &[1.0; 16], &[0.0; 4]);
        assert_eq!(found, Some(vec![0.0; 4]));
    }

    /// 1024 and 1025 have the mean 1024.5, of which half precision makes 1024: without what was
    /// lost the bound would be `e^-0.5` of what it must be.
    #[test]
    fn what_rounding_takes_from_a_mean_is_given_back() {
        for (kv_dtype, first) in [(DType::F16, 1024.0), (DType::BF16, 128.0)] {
            let shape = KvShape { kv_dtype, ..t::shape() };
            let mut rows = HeadRows::of_equal_keys(&[(2, [first, 0.0, 0.0, 0.0])]);
            rows.keys[1][0] = first + 1.0;
            assert_eq!(t::stored(kv_dtype, rows.keys[1]), rows.keys[1]);
            let made = [rows.clusters(), rows.clusters()];
            assert_eq!(t::stored(kv_dtype, made[0].centroids[..].try_into().unwrap())[0], first);
            let (q, lse) = ([Q; 4].concat(), [first; 4]);
            let found = ratios(&shape, clusters(), &made, &[vec![], vec![]], &q, &lse).unwrap();
            assert!(found.iter().all(|ratio| *ratio >= 1.0 + 1f64.exp()), "{found:?}");
        }
    }

    #[test]
    fn summaries_that_bound_no_key_bound_nothing() {
        let tokens = TokenConfig {
            projection: Projection::PrincipalKeys,
            rank: Rank::Given(None),
            adapts: false,
        };
        let others = [BlockSummary::Mean, BlockSummary::Max, BlockSummary::Strided];
        let kinds = others.map(blocks).into_iter();
        for kind in kinds.chain([blocks(BlockSummary::Top), IndexKind::Tokens(tokens)]) {
            let rows = HeadRows::of_equal_keys(&[(2, [1.0; 4])]);
            let made = [rows.clusters(), rows.clusters()];
            let choice = [vec![], vec![]];
            assert_eq!(ratios(&t::shape(), kind, &made, &choice, &Q.repeat(4), &[0.0; 4]), None);
        }
    }
}
