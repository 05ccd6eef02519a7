//! What stands for a run of tokens in a search: halfway from the mean of their codes to bounds.
//!
//! Clusters have it ([`super::ClusterBounds`]), and so have parts of their groups
//! ([`super::ClusterParts`]).

/// Codes of 8 bits that a sum of 16 bits has room for.
const SUMMED: usize = 256;

/// Adds the bounds of tokens with these codes of `rank` factors: from the means halfway to the
/// largest codes, then to the least.
pub(super) fn halfway_bounds(codes: &[i8], rank: usize, to: &mut Vec<i8>) {
    // Where the number of factors is known, the compiler keeps them in registers.
    match rank {
        16 => bounds_of::<16>(codes, to),
        32 => bounds_of::<32>(codes, to),
        64 => bounds_of::<64>(codes, to),
        _ => bounds_of_any(codes, rank, to),
    }
}

fn bounds_of<const R: usize>(codes: &[i8], to: &mut Vec<i8>) {
    let (rows, _) = codes.as_chunks::<R>();
    // What has no token is never taken.
    let first = rows.first().copied().unwrap_or([0; R]);
    let (mut most, mut least, mut sums) = (first, first, [0i32; R]);
    for rows in rows.chunks(SUMMED) {
        let mut part = [0i16; R];
        for row in rows {
            for i in 0..R {
                most[i] = most[i].max(row[i]);
                least[i] = least[i].min(row[i]);
                part[i] += i16::from(row[i]);
            }
        }
        for i in 0..R {
            sums[i] += i32::from(part[i]);
        }
    }
    let n = rows.len().max(1) as f32;
    for i in 0..R {
        let mean = sums[i] as f32 / n;
        most[i] = halfway(mean, most[i]);
        least[i] = halfway(mean, least[i]);
    }
    to.extend_from_slice(&most);
    to.extend_from_slice(&least);
}

fn bounds_of_any(codes: &[i8], rank: usize, to: &mut Vec<i8>) {
    let n = codes.len() / rank.max(1);
    let of = |i: usize| codes.chunks_exact(rank).map(move |row| row[i]);
    let mean_of = |i: usize| of(i).map(i32::from).sum::<i32>() as f32 / n.max(1) as f32;
    to.extend((0..rank).map(|i| halfway(mean_of(i), of(i).max().unwrap_or(0))));
    to.extend((0..rank).map(|i| halfway(mean_of(i), of(i).min().unwrap_or(0))));
}

/// The code between a mean and an extreme.
#[inline]
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
    fn ranks_that_are_known_have_the_bounds_of_any() {
        let mut rng = longview_core::SplitMix64::new(8);
        for rank in [16, 32, 64] {
            for n in [0, 1, 2, 15, SUMMED, 3 * SUMMED + 1] {
                for spread in [40.0, 400.0] {
                    let code = |_| (rng.next_normal() * spread) as i8;
                    let codes: Vec<i8> = (0..rank * n).map(code).collect();
                    let (mut known, mut any) = (vec![1, 2], vec![1, 2]);
                    halfway_bounds(&codes, rank, &mut known);
                    bounds_of_any(&codes, rank, &mut any);
                    assert_eq!(known, any, "{n} of {rank}");
                    assert_eq!(known.len(), 2 + 2 * rank);
                }
            }
            // The largest sums that there are.
            for code in [i8::MIN, i8::MAX] {
                let mut bounds = Vec::new();
                halfway_bounds(&vec![code; rank * 2 * SUMMED], rank, &mut bounds);
                assert_eq!(bounds, vec![code; 2 * rank]);
            }
        }
    }

    /// What a cluster scores lies halfway between its mean and the most that its codes allow, but
    /// for the rounding.
    #[test]
    fn clusters_score_between_their_mean_and_what_bounds_score() {
        let mut rng = longview_core::SplitMix64::new(5);
        let mut bounds = Vec::new();
        for _ in 0..200 {
            let n = 1 + rng.below(16);
            let codes: Vec<i8> = (0..8 * n).map(|_| (rng.next_normal() * 40.0) as i8).collect();
            bounds.clear();
            halfway_bounds(&codes, 8, &mut bounds);
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
