//! What drawn tokens say of a sum over all tokens: an upper limit of it, and how many draws bring
//! it near enough.

/// What the terms of draws tell, scaled by the largest of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The logarithm of the largest term.
    largest: f64,
    /// Of the terms over the largest.
    mean: f64,
    /// Their variance, and their third central moment.
    variance: f64,
    third: f64,
    n: f64,
}

/// The confidence with which each sampled bound of what was left out holds.
pub const SAMPLED_CONFIDENCE: f64 = 0.95;

/// Standard deviations of the mean that a limit is above it.
const DEVIATIONS: f64 = 4.0;

/// Draws of the largest term that a limit makes room for.
const LARGEST: f64 = 20.0;

impl Terms {
    /// Terms by their logarithms; `None` where there are none.
    pub fn new(logs: &[f64]) -> Option<Self> {
        let largest = logs.iter().copied().reduce(f64::max)?;
        let n = logs.len() as f64;
        let mean_of = |of: &dyn Fn(f64) -> f64| {
            logs.iter().map(|log| of((log - largest).exp())).sum::<f64>() / n
        };
        let mean = mean_of(&|x| x);
        let variance = n / (n - 1.0).max(1.0) * mean_of(&|x| (x - mean).powi(2));
        let third = mean_of(&|x| (x - mean).powi(3));
        Some(Self { largest, mean, variance, third, n })
    }

    /// The logarithm of what the mean of all terms is below with a confidence of 95 %.
    ///
    /// Terms are exponentials of scores: a few that no draw meets may hold much of the sum, so that
    /// 1.6 standard deviations, as of a normal distribution, are too few, and no number of draws
    /// tells how many are enough. The limit has what skewness adds to a one-sided limit (Johnson,
    /// 1978), and its two margins are such that it holds in at least 95 % of true cases (the tests
    /// of `longview-eval` count them).
    pub fn log_limit(&self) -> f64 {
        let deviation = (self.variance / self.n).sqrt();
        let skew = if self.variance > 0.0 {
            self.third / (6.0 * self.variance * self.n) * (1.0 + 2.0 * DEVIATIONS.powi(2))
        } else {
            0.0
        };
        let margin = DEVIATIONS * deviation + skew.max(0.0) + LARGEST / self.n;
        self.largest + (self.mean + margin).ln()
    }

    /// Draws among `n_all` tokens after which the sum of their terms, with what is `held` beside it
    /// (a logarithm), is wrong by more than the share `error` of both with the chance that lies
    /// beyond `z` standard deviations on either side: `f / (1 + f / M)` with
    /// `f = (z M sigma / (error D))^2`.
    pub fn draws(&self, n_all: usize, held: f64, z: f64, error: f64) -> usize {
        let all = n_all as f64;
        let total = all * self.mean + (held - self.largest).exp();
        let f = (z * all / (error * total)).powi(2) * self.variance;
        if f.is_finite() { (f / (1.0 + f / all)).ceil() as usize } else { n_all }
    }
}

/// Standard deviations of a normal distribution below which the share `p` of it lies, above 0 and
/// below 1: Acklam's approximation, to 9 digits.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    let polynomial = |c: &[f64], x: f64| c.iter().fold(0.0, |sum, c| sum * x + c);
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    if p < 0.02425 {
        let q = (-2.0 * p.ln()).sqrt();
        return polynomial(&C, q) / polynomial(&D, q);
    }
    let (q, r) = (p - 0.5, (p - 0.5).powi(2));
    polynomial(&A, r) * q / polynomial(&B, r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (p, z) in [
            (0.5, 0.0),
            (0.95, 1.644_853_627),
            (0.975, 1.959_963_985),
            (0.01, -2.326_347_874),
            (0.999, 3.090_232_306),
        ] {
            assert!((normal_quantile(p) - z).abs() < 1e-8, "{p}: {}", normal_quantile(p));
        }
    }

    /// Terms of 1, 2 and 6: mean 3, variance 7, third central moment 6.
    #[test]
    fn a_limit_adds_deviations_skewness_and_room_for_the_largest() {
        let logs = [1f64, 6.0, 2.0].map(f64::ln);
        let limit = Terms::new(&logs).unwrap().log_limit().exp();
        let want =
            3.0 + 4.0 * (7f64 / 3.0).sqrt() + 6.0 / (6.0 * 7.0 * 3.0) * 33.0 + 20.0 * 6.0 / 3.0;
        assert!((limit - want).abs() < 1e-9, "{limit} for {want}");
        let far = logs.map(|log| log + 2000.0);
        let far = Terms::new(&far).unwrap().log_limit();
        assert!((far - 2000.0 - want.ln()).abs() < 1e-9, "sizes neither overflow nor vanish");
        assert!(Terms::new(&[]).is_none());
    }

    #[test]
    fn draws_follow_from_the_spread_and_the_wished_error() {
        let terms = Terms::new(&[1f64, 6.0, 2.0].map(f64::ln)).unwrap();
        // M = 100, D = 300 + 500, z = 2, error 1 / 10: f = 4 x 10,000 x 7 / 6,400 = 43.75.
        let held = 500f64.ln();
        assert_eq!(terms.draws(100, held, 2.0, 0.1), (43.75f64 / 1.4375).ceil() as usize);
        let few = terms.draws(100, held, 2.0, 0.5);
        let many = terms.draws(100, held, 2.0, 0.01);
        assert!((1..4).contains(&few) && (98..=100).contains(&many), "{few} {many}");
        let equal = Terms::new(&[3.0; 5]).unwrap();
        assert_eq!(equal.draws(100, 1.0, 2.0, 0.01), 0, "equal terms need none");
    }
}
