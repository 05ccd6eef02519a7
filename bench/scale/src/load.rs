//! What is asked: documents, how often each is asked for, and when.

use longview_core::SplitMix64;

use crate::lru::Doc;
use crate::queue::{Time, time};

/// Uniform in (0, 1].
fn uniform(rng: &mut SplitMix64) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// The time to the next arrival of a Poisson process, in seconds.
pub fn exponential(rng: &mut SplitMix64, per_second: f64) -> f64 {
    -uniform(rng).ln() / per_second
}

/// Documents by how often they are asked for: the i-th has a share in proportion to
/// `1 / (i + 1)^exponent`.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sums of the shares up to each document.
    sums: Vec<f64>,
}

impl Zipf {
    /// `n` documents, one at least.
    pub fn new(n: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=n.max(1)).map(|rank| (rank as f64).powf(-exponent));
        let mut sums: Vec<f64> = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        sums.iter_mut().for_each(|s| *s /= sum);
        Self { sums }
    }

    /// The share of questions that are about document `i`.
    pub fn share(&self, i: usize) -> f64 {
        self.sums[i] - if i == 0 { 0.0 } else { self.sums[i - 1] }
    }

    /// The document of a question.
    pub fn draw(&self, rng: &mut SplitMix64) -> Doc {
        let u = uniform(rng);
        self.sums.partition_point(|sum| *sum < u).min(self.sums.len() - 1) as Doc
    }
}

/// Tokens of each document: equally many for each factor between the shortest and the longest.
pub fn lengths(n: usize, shortest: u64, longest: u64, seed: u64) -> Vec<u64> {
    let mut rng = SplitMix64::new(seed);
    let ratio = longest as f64 / shortest as f64;
    (0..n).map(|_| (shortest as f64 * ratio.powf(uniform(&mut rng))).round() as u64).collect()
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// When it comes.
    pub at: Time,
    /// What it is about.
    pub doc: Doc,
    /// Tokens of its answer.
    pub answer: u64,
}

/// `n` questions that come at random moments, so many a second on average.
pub fn questions(n: usize, zipf: &Zipf, per_second: f64, answer: u64, seed: u64) -> Vec<Question> {
    let mut rng = SplitMix64::new(seed);
    let mut at = 0.0;
    let next = |_| {
        at += exponential(&mut rng, per_second);
        Question { at: time(at), doc: zipf.draw(&mut rng), answer }
    };
    (0..n).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_zipf() {
        let zipf = Zipf::new(3, 1.0);
        let sum = 1.0 + 0.5 + 1.0 / 3.0;
        for (i, weight) in [1.0, 0.5, 1.0 / 3.0].into_iter().enumerate() {
            assert!((zipf.share(i) - weight / sum).abs() < 1e-12);
        }
        let mut rng = SplitMix64::new(9);
        let n_first = (0..100_000).filter(|_| zipf.draw(&mut rng) == 0).count();
        assert!((n_first as f64 / 1e5 - 1.0 / sum).abs() < 0.01);
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_poisson() {
        let all = questions(50_000, &Zipf::new(1, 1.0), 4.0, 1, 3);
        let gaps: Vec<f64> = all.windows(2).map(|w| (w[1].at - w[0].at) as f64 / 1e9).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let var = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 4.0 - 1.0).abs() < 0.02 && (var * 16.0 - 1.0).abs() < 0.05);
        assert_eq!(all, questions(50_000, &Zipf::new(1, 1.0), 4.0, 1, 3), "a function of the seed");
    }

    #[test]
    fn lengths_stay_within_their_bounds() {
        let all = lengths(10_000, 32_768, 1 << 20, 5);
        assert!(all.iter().all(|n| (32_768..=1 << 20).contains(n)));
        let middle = all.iter().filter(|n| **n < 185_364).count();
        assert!((4_800..5_200).contains(&middle), "half are below the geometric mean: {middle}");
    }
}
