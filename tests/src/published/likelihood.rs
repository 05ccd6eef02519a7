//! How likely a book is to a model: in f32 as to the reference, and what rounding costs, of
//! activations and of KV rows.
//!
//! All windows go through the model side by side, a token of each in a step, by both ways in turn:
//! so their probabilities can be compared without keeping them.

use std::fmt;

use longview_core::DType;
use longview_cpu::CpuBackend;
use longview_engine::{Engine, Session, SessionStep};
use longview_scheduler::{PolicyOptions, Preset, SpanMode};
use pollster::block_on;

use super::checkpoint::{Checked, Checkpoint, Way};

/// Windows that are computed side by side.
const BESIDE: usize = 64;

/// Relative difference of the f32 way's negative log-likelihood from the reference's.
const MAX_NLL_ERROR: f64 = 1e-5;

/// Share by which rounding may make the perplexity larger, and the mean divergence that it may
/// cause. Measured are 0.00001 and 0.000001 (`bench/record`), and the standard error of the share
/// over the thousand tokens of a run of CI is below 0.0001. Activations of 8 bits cost 0.003 each.
const MAX_LOSS: f64 = 5e-4;
const MAX_DIVERGENCE: f64 = 1e-5;

/// Tokens of a window of which rows of 8 bits are measured: the last 128 that a token sees have 16.
const LONG_WINDOW: usize = 1024;

/// As [`MAX_LOSS`] and [`MAX_DIVERGENCE`], of rows of 8 bits against those of f16.
const MAX_ROW_LOSS: f64 = 0.002;
const MAX_ROW_DIVERGENCE: f64 = 0.002;

/// What both ways say about the same tokens.
#[derive(Default)]
struct Likelihood {
    n_tokens: usize,
    /// Negative log-likelihood in nats, by the exact way and by the one that rounds.
    nll: [f64; 2],
    /// Sum of the divergences of the rounding way's distributions from those of the exact one.
    divergence: f64,
    /// Sum of squares of what a token's likelihood differs by.
    squares: f64,
    /// Tokens of which both find the same most likely.
    n_same_best: usize,
}

impl fmt::Display for Likelihood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.n_tokens as f64;
        let [exact, fast] = self.nll.map(|nll| (nll / n).exp());
        let mean = (self.nll[1] - self.nll[0]) / n;
        let deviation = (self.squares / n - mean * mean).max(0.0).sqrt();
        write!(
            f,
            "{} tokens: perplexity {exact:.4}, {fast:.4} rounded: {:+.3} % (+- {:.3} %); \
             divergence {:.6}; same best token {:.2} %",
            self.n_tokens,
            100.0 * self.loss(),
            100.0 * deviation / n.sqrt(),
            self.divergence / n,
            100.0 * self.n_same_best as f64 / n
        )
    }
}

impl Likelihood {
    /// By an exact way and by one that rounds.
    fn of(
        checkpoint: &Checkpoint<'_>,
        ways: [Way; 2],
        windows: &[Vec<u32>],
    ) -> Result<Self, String> {
        let mut found = Self::default();
        let (window, most) = (windows[0].len(), BESIDE.min(windows.len()));
        let mut ways = ways.map(|way| checkpoint.engine(way, window, most));
        let [Ok(exact), Ok(fast)] = &mut ways else {
            let [a, b] = ways.map(|way| way.err());
            return Err(a.or(b).unwrap_or_default());
        };
        for part in windows.chunks(BESIDE) {
            found.add(exact, fast, part).map_err(|e| e.to_string())?;
        }
        Ok(found)
    }

    /// Adds windows that are computed side by side.
    fn add(
        &mut self,
        exact: &mut Engine<CpuBackend>,
        fast: &mut Engine<CpuBackend>,
        windows: &[Vec<u32>],
    ) -> Result<(), longview_engine::EngineError> {
        let (mut a, mut b) = (sessions(exact, windows.len())?, sessions(fast, windows.len())?);
        for place in 0..windows[0].len() - 1 {
            let ids: Vec<u32> = windows.iter().map(|window| window[place]).collect();
            step(exact, &mut a, &ids)?;
            step(fast, &mut b, &ids)?;
            for ((a, b), window) in a.iter().zip(&b).zip(windows) {
                self.compare(a.logits(), b.logits(), window[place + 1] as usize);
            }
        }
        Ok(())
    }

    /// Adds a token that was to follow.
    fn compare(&mut self, exact: &[f32], fast: &[f32], next: usize) {
        let ([a, b], apart) = Softmax::both(exact, fast);
        let nll = [a.log_sum - f64::from(exact[next]), b.log_sum - f64::from(fast[next])];
        self.n_tokens += 1;
        self.nll[0] += nll[0];
        self.nll[1] += nll[1];
        self.squares += (nll[1] - nll[0]).powi(2);
        self.n_same_best += usize::from(a.best == b.best);
        // Of p (log p - log q), with log p = x - log_sum.
        self.divergence += apart / a.sum - a.log_sum + b.log_sum;
    }

    /// Share by which rounding makes the perplexity larger.
    fn loss(&self) -> f64 {
        ((self.nll[1] - self.nll[0]) / self.n_tokens as f64).exp_m1()
    }
}

/// A distribution, by its logits.
struct Softmax {
    best: usize,
    sum: f64,
    log_sum: f64,
}

impl Softmax {
    /// Those of two ways, and the sum of what their logits differ by, weighted by the first one. In
    /// plain loops over both at once: vocabularies are large, and the dev profile does not optimise
    /// this crate.
    fn both(exact: &[f32], fast: &[f32]) -> ([Self; 2], f64) {
        let n = exact.len();
        assert_eq!(fast.len(), n, "lengths of logits");
        let (mut best, mut max, mut i) = ([0; 2], [f32::NEG_INFINITY; 2], 0);
        while i < n {
            if exact[i] > max[0] {
                (best[0], max[0]) = (i, exact[i]);
            }
            if fast[i] > max[1] {
                (best[1], max[1]) = (i, fast[i]);
            }
            i += 1;
        }
        let (mut sums, mut apart, mut i) = ([0.0; 2], 0.0, 0);
        while i < n {
            // Unnormalised.
            let weight = (exact[i] - max[0]).exp() as f64;
            sums[0] += weight;
            sums[1] += (fast[i] - max[1]).exp() as f64;
            apart += weight * (exact[i] - fast[i]) as f64;
            i += 1;
        }
        let of = |i: usize| Self {
            best: best[i],
            sum: sums[i],
            log_sum: sums[i].ln() + f64::from(max[i]),
        };
        ([of(0), of(1)], apart)
    }
}

fn sessions(
    engine: &Engine<CpuBackend>,
    n: usize,
) -> Result<Vec<Session<CpuBackend>>, longview_engine::EngineError> {
    let full = PolicyOptions::new(Preset::Full);
    (0..n).map(|_| engine.session(&full)).collect()
}

fn step(
    engine: &mut Engine<CpuBackend>,
    sessions: &mut [Session<CpuBackend>],
    ids: &[u32],
) -> Result<(), longview_engine::EngineError> {
    let part =
        |(session, id)| SessionStep::new(session, std::slice::from_ref(id), SpanMode::Policy);
    let mut batch: Vec<_> = sessions.iter_mut().zip(ids).map(part).collect();
    block_on(engine.step(&mut batch))
}

/// In f32 as likely as to the reference, and about as likely by the fast way: the first `n_windows`
/// windows of the reference.
pub(super) fn as_reference(checkpoint: &Checkpoint<'_>, n_windows: usize) -> Checked {
    let reference = &checkpoint.reference;
    let windows = reference.windows(n_windows);
    let found = Likelihood::of(checkpoint, [Way::F32, Way::Fast], &windows)?;
    let wanted: f64 = reference.window_nll[..windows.len()].iter().sum();
    let error = (found.nll[0] / wanted - 1.0).abs();
    if error.is_nan() || error > MAX_NLL_ERROR {
        return Err(format!("{found}; in f32 off by {error:.1e} of the reference's {wanted:.1}"));
    }
    let divergence = found.divergence / found.n_tokens as f64;
    // Written so that a NaN fails.
    if !(found.loss() <= MAX_LOSS && divergence <= MAX_DIVERGENCE) {
        return Err(format!("{found}; above {MAX_LOSS} or {MAX_DIVERGENCE}"));
    }
    Ok(format!("{found}; in f32 off by {error:.1e}"))
}

/// About as likely with KV rows of 8 bits as with those of f16: as many tokens as the first
/// `n_windows` windows of the reference have, in windows of which most rows are rounded.
pub(super) fn with_rows_of_8_bits(checkpoint: &Checkpoint<'_>, n_windows: usize) -> Checked {
    let windows = checkpoint.reference.long_windows(n_windows, LONG_WINDOW);
    let ways = [DType::F16, DType::Q8].map(Way::Rows);
    let found = Likelihood::of(checkpoint, ways, &windows)?;
    let divergence = found.divergence / found.n_tokens as f64;
    // Written so that a NaN fails.
    if !(found.loss() <= MAX_ROW_LOSS && divergence <= MAX_ROW_DIVERGENCE) {
        return Err(format!("{found}; above {MAX_ROW_LOSS} or {MAX_ROW_DIVERGENCE}"));
    }
    Ok(found.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_a_distribution_by_hand() {
        let mut found = Likelihood::default();
        // Three to one against even.
        found.compare(&[3f32.ln(), 0.0], &[0.5, 0.5], 0);
        let (exact, fast) = ((4f64 / 3.0).ln(), 2f64.ln());
        assert!((found.nll[0] - exact).abs() < 1e-6 && (found.nll[1] - fast).abs() < 1e-6);
        let divergence = 0.75 * (0.75f64 / 0.5).ln() + 0.25 * (0.25f64 / 0.5).ln();
        assert!((found.divergence - divergence).abs() < 1e-6, "{}", found.divergence);
        assert!((found.loss() - 0.5).abs() < 1e-6, "{}", found.loss());
        assert_eq!(found.n_same_best, 1);
    }

    #[test]
    fn the_same_logits_diverge_by_nothing_whatever_their_offset() {
        let mut found = Likelihood::default();
        found.compare(&[1.0, -2.0, 30.0], &[11.0, 8.0, 40.0], 1);
        assert!(found.divergence.abs() < 1e-9 && found.loss().abs() < 1e-9);
    }
}
