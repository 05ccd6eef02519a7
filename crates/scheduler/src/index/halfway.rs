//! What stands for a run of tokens in a search: halfway from the mean of their codes to bounds.
//!
//! Clusters have it ([`super::ClusterBounds`]), and so have parts of their groups
//! ([`super::ClusterParts`]).

use std::borrow::Cow;

use bytemuck::cast_slice;
use longview_ops::Backend;

use crate::store::{Task, together};

/// Runs of tokens that one thread takes at a time: more than a step adds.
const SHARE: usize = 256;

/// Adds the bounds of tokens with these codes, whose factors are as many as `sums`: from the means
/// halfway to the largest codes, then to the least.
pub(super) fn halfway_bounds(codes: &[i8], sums: &mut [i32], to: &mut Vec<i8>) {
    let (first, rank) = (to.len(), sums.len());
    let n = codes.len() / rank.max(1);
    // What has no token is never taken.
    let any = codes.get(..rank).unwrap_or_default();
    to.extend_from_slice(any);
    to.extend_from_slice(any);
    to.resize(first + 2 * rank, 0);
    let (most, least) = to[first..].split_at_mut(rank);
    sums.fill(0);
    for row in codes.chunks_exact(rank.max(1)) {
        add(row, most, least, sums);
    }
    for ((most, least), sum) in most.iter_mut().zip(least).zip(sums) {
        let mean = *sum as f32 / n.max(1) as f32;
        *most = halfway(mean, *most);
        *least = halfway(mean, *least);
    }
}

/// The bounds of several runs of tokens, by all threads of the backend where they are many.
pub(super) fn all_bounds<'a, B: Backend>(
    backend: &B,
    runs: impl ExactSizeIterator<Item = Cow<'a, [u8]>>,
    sums: &mut [i32],
    to: &mut Vec<i8>,
) {
    if runs.len() < 2 * SHARE {
        return runs.for_each(|codes| halfway_bounds(cast_slice(&codes), sums, to));
    }
    let (rank, first, runs) = (sums.len(), to.len(), runs.collect::<Vec<_>>());
    to.resize(first + runs.len() * 2 * rank, 0);
    let shares = to[first..].chunks_mut((SHARE * 2 * rank).max(1)).zip(runs.chunks(SHARE));
    let task = |(to, runs): (&'_ mut [i8], &'_ [Cow<'_, [u8]>])| {
        let (mut sums, mut bounds) = (vec![0; rank], Vec::with_capacity(to.len()));
        runs.iter().for_each(|codes| halfway_bounds(cast_slice(codes), &mut sums, &mut bounds));
        to.copy_from_slice(&bounds);
    };
    let tasks = shares.map(|share| Box::new(move || task(share)) as Task<'_>);
    together(backend, tasks.collect());
}

/// Adds a token: in one loop over its factors, which the compiler makes vectors of.
fn add(row: &[i8], most: &mut [i8], least: &mut [i8], sums: &mut [i32]) {
    let rank = row.len();
    let (most, least, sums) = (&mut most[..rank], &mut least[..rank], &mut sums[..rank]);
    for i in 0..rank {
        most[i] = most[i].max(row[i]);
        least[i] = least[i].min(row[i]);
        sums[i] += i32::from(row[i]);
    }
}

/// The code between a mean and an extreme.
fn halfway(mean: f32, extreme: i8) -> i8 {
    // Added to this, a small number is rounded to a whole one, half to even, which is then in the
    // last byte. The function of that name is a call where the processor may lack it.
    const WHOLE: f32 = (3 << 22) as f32;
    (0.5 * (mean + f32::from(extreme)) + WHOLE).to_bits() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_between_is_rounded_half_to_even() {
        for extreme in i8::MIN..=i8::MAX {
            for step in -512..=508 {
                let mean = step as f32 / 4.0;
                let rounded = (0.5 * (mean + f32::from(extreme))).round_ties_even() as i8;
                assert_eq!(halfway(mean, extreme), rounded, "{mean} and {extreme}");
            }
        }
    }

    #[test]
    fn many_runs_have_the_bounds_that_each_has() {
        let mut rng = longview_core::SplitMix64::new(8);
        let codes: Vec<i8> = (0..6 * 5000).map(|_| (rng.next_normal() * 40.0) as i8).collect();
        for n in [0, 1, 2 * SHARE - 1, 2 * SHARE, 3 * SHARE + 1] {
            let runs = || (0..n).map(|i| &codes[6 * i..6 * (i + 1 + i % 7)]);
            let (mut sums, mut one_by_one, mut all) = (vec![0; 6], vec![1, 2], vec![1, 2]);
            runs().for_each(|codes| halfway_bounds(codes, &mut sums, &mut one_by_one));
            let backend = longview_ops::ReferenceBackend::new();
            let bytes = runs().map(|codes| Cow::Borrowed(cast_slice(codes)));
            all_bounds(&backend, bytes, &mut sums, &mut all);
            assert_eq!(all, one_by_one, "{n}");
        }
    }

    /// What a cluster scores lies halfway between its mean and the most that its codes allow, but
    /// for the rounding.
    #[test]
    fn clusters_score_between_their_mean_and_what_bounds_score() {
        let mut rng = longview_core::SplitMix64::new(5);
        let (mut sums, mut bounds) = (vec![0; 8], vec![]);
        for _ in 0..200 {
            let n = 1 + rng.below(16);
            let codes: Vec<i8> = (0..8 * n).map(|_| (rng.next_normal() * 40.0) as i8).collect();
            bounds.clear();
            halfway_bounds(&codes, &mut sums, &mut bounds);
            let q: Vec<f32> = (0..8).map(|_| rng.next_normal()).collect();
            let of = |pick: fn(f32, f32) -> f32, i: usize| {
                let factor = codes.chunks_exact(8).map(|row| f32::from(row[i]));
                factor.reduce(pick).unwrap()
            };
            let score = |most: &dyn Fn(usize) -> f32, least: &dyn Fn(usize) -> f32| -> f32 {
                (0..8).map(|i| q[i].max(0.0) * most(i) + q[i].min(0.0) * least(i)).sum()
            };
            let mean = |i| of(|a, b| a + b, i) / n as f32;
            let highest = score(&|i| of(f32::max, i), &|i| of(f32::min, i));
            let halfway = 0.5 * (highest + score(&mean, &mean));
            let (most, least) = bounds.split_at(8);
            let own = score(&|i| f32::from(most[i]), &|i| f32::from(least[i]));
            let rounding = 0.5 * q.iter().map(|x| x.abs()).sum::<f32>();
            assert!((own - halfway).abs() <= rounding + 1e-3, "{own} and {halfway}");
        }
    }
}
