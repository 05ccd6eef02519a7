//! The one generator of pseudo-random numbers in Longview.

/// SplitMix64 (Steele, Lea, Flood 2014): 64 bits of state, every seed good, the same on every
/// machine.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator whose whole output is a function of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, by multiplication (bias below 2^-32 for every `n` that fits 32 bits).
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "SplitMix64::below(0)");
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Uniform in `[0, 1)` with 24 random bits.
    pub fn next_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
    }

    /// Standard normal, by Box and Muller.
    pub fn next_normal(&mut self) -> f32 {
        let u = 1.0 - self.next_f32();
        let v = self.next_f32();
        (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
    }

    /// `k` distinct numbers below `n` in random order (partial Fisher-Yates).
    ///
    /// # Panics
    /// If `k > n`.
    pub fn distinct(&mut self, n: usize, k: usize) -> Vec<u32> {
        assert!(k <= n, "SplitMix64::distinct({n}, {k})");
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in 0..k {
            let j = i + self.below(n - i);
            all.swap(i, j);
        }
        all.truncate(k);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_pinned_to_the_published_sequence() {
        let mut rng = SplitMix64::new(1234567);
        assert_eq!(rng.next_u64(), 6457827717110365317);
        assert_eq!(rng.next_u64(), 3203168211198807973);
    }

    #[test]
    fn distinct_numbers_are_distinct_and_cover_the_range() {
        let mut all = SplitMix64::new(7).distinct(100, 100);
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(i, v)| i as u32 == *v));
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut rng = SplitMix64::new(3);
        let samples: Vec<f32> = (0..100_000).map(|_| rng.next_normal()).collect();
        let mean = samples.iter().sum::<f32>() / 1e5;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
