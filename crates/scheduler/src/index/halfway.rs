//! What stands for a run of tokens in a search: halfway from the mean of their codes to bounds.
//!
//! Clusters have it ([`super::ClusterBounds`]), and so have parts of their groups
//! ([`super::ClusterParts`]).

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
        most.iter_mut().zip(row).for_each(|(most, x)| *most = (*most).max(*x));
        least.iter_mut().zip(row).for_each(|(least, x)| *least = (*least).min(*x));
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += i32::from(*x));
    }
    for ((most, least), sum) in most.iter_mut().zip(least).zip(sums) {
        let mean = *sum as f32 / n.max(1) as f32;
        *most = halfway(mean, *most);
        *least = halfway(mean, *least);
    }
}

/// The code between a mean and an extreme.
fn halfway(mean: f32, extreme: i8) -> i8 {
    (0.5 * (mean + f32::from(extreme))).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

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
