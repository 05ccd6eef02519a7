//! Frequencies of the rotary embedding, and the table rows that the `rope` op reads.
//!
//! Everything is in f64 on the host: at position 1,000,000 an f32 angle is off by up to 0.03 rad,
//! and the sine of a GPU may be worse. A row is made once per token and step, which is nothing
//! beside a single matrix product.

use std::f64::consts::TAU;

use crate::config::{RopeConfig, RopeScaling};

/// The frequencies of one model, fixed for one planned context.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position for each rotated pair.
    inv_freq: Vec<f64>,
    /// Multiplies cosine and sine (YaRN, LongRoPE), else 1.
    attention_factor: f64,
}

impl RopeTable {
    /// Frequencies for contexts of up to `planned_context` tokens.
    ///
    /// The length matters for dynamic NTK and LongRoPE. transformers changes the base of the one,
    /// and the list of factors of the other, when a sequence has grown enough, so that cached keys
    /// disagree with new ones or must be computed again. Here the planned length decides for all
    /// tokens, as in llama.cpp, which equals a prefill of that length in transformers: a context
    /// planned longer than LongRoPE's trained one has the long factors from its first token on.
    pub fn new(config: &RopeConfig, planned_context: usize) -> Self {
        let dim = config.rotary_dim as f64;
        let base = scaled_base(config, planned_context);
        let inv_freq = (0..config.rotary_dim / 2)
            .map(|pair| {
                let frequency = base.powf(-2.0 * pair as f64 / dim);
                scaled_frequency(config, planned_context, pair, frequency)
            })
            .collect();
        let attention_factor = match config.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        Self { inv_freq, attention_factor }
    }

    /// Elements of one token's row: `rotary_dim`.
    pub fn row_len(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Radians per position, one per rotated pair.
    pub fn inv_freq(&self) -> &[f64] {
        &self.inv_freq
    }

    /// Multiplies cosine and sine.
    pub(crate) fn attention_factor(&self) -> f64 {
        self.attention_factor
    }

    /// Writes `[cos(half) | sin(half)]` for each position, the attention factor multiplied in.
    ///
    /// # Panics
    /// If `out` is not `positions.len() * row_len()` long.
    pub fn fill_rope_rows(&self, positions: &[u32], out: &mut [f32]) {
        assert_eq!(out.len(), positions.len() * self.row_len(), "one row per position");
        if self.inv_freq.is_empty() {
            return;
        }
        for (position, row) in positions.iter().zip(out.chunks_exact_mut(self.row_len())) {
            let (cosines, sines) = row.split_at_mut(self.inv_freq.len());
            for (pair, frequency) in self.inv_freq.iter().enumerate() {
                let (sine, cosine) = (f64::from(*position) * frequency).sin_cos();
                cosines[pair] = (cosine * self.attention_factor) as f32;
                sines[pair] = (sine * self.attention_factor) as f32;
            }
        }
    }
}

/// The base, grown for dynamic NTK: `theta * (s * n / n0 - (s - 1))^(d / (d - 2))`.
fn scaled_base(config: &RopeConfig, planned_context: usize) -> f64 {
    let RopeScaling::Dynamic { factor, original_max_positions } = config.scaling else {
        return config.theta;
    };
    let dim = config.rotary_dim as f64;
    let stretch =
        planned_context.max(original_max_positions) as f64 / original_max_positions as f64;
    config.theta * (factor * stretch - (factor - 1.0)).powf(dim / (dim - 2.0))
}

/// The frequency of one pair after scaling.
fn scaled_frequency(
    config: &RopeConfig,
    planned_context: usize,
    pair: usize,
    frequency: f64,
) -> f64 {
    match &config.scaling {
        RopeScaling::Default | RopeScaling::Dynamic { .. } => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Factors { factors } => frequency / factors[pair],
        RopeScaling::Llama3 { .. } => llama3_frequency(&config.scaling, frequency),
        RopeScaling::Yarn { factor, .. } => {
            let divided = yarn_ramp(config, pair);
            frequency * (1.0 - divided) + frequency / factor * divided
        }
        RopeScaling::LongRope { short_factor, long_factor, original_max_positions, .. } => {
            let is_long = planned_context > *original_max_positions;
            frequency / if is_long { long_factor } else { short_factor }[pair]
        }
    }
}

/// Llama 3.1: by wavelength, divided, kept, or a blend of both in between.
fn llama3_frequency(scaling: &RopeScaling, frequency: f64) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } =
        *scaling
    else {
        return frequency;
    };
    // Rotations that this pair makes within the original context.
    let rotations = original_max_positions as f64 * frequency / TAU;
    if rotations < low_freq_factor {
        return frequency / factor;
    }
    if rotations > high_freq_factor {
        return frequency;
    }
    let smooth = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}

/// How far YaRN divides this pair's frequency: 0 keeps it, 1 divides it fully.
fn yarn_ramp(config: &RopeConfig, pair: usize) -> f64 {
    let RopeScaling::Yarn { beta_fast, beta_slow, truncate, original_max_positions, .. } =
        config.scaling
    else {
        return 0.0;
    };
    let dim = config.rotary_dim as f64;
    // The pair that makes `rotations` turns within the original context.
    let pair_of = |rotations: f64| {
        dim * (original_max_positions as f64 / (rotations * TAU)).ln() / (2.0 * config.theta.ln())
    };
    let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 10_000.0, scaling, rotary_dim: 8 }
    }

    fn frequencies(scaling: RopeScaling, planned: usize) -> Vec<f64> {
        RopeTable::new(&config(scaling), planned).inv_freq().to_vec()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{found:?} against {expected:?}");
        }
    }

    #[test]
    fn default_and_linear_are_a_geometric_series() {
        assert_close(&frequencies(RopeScaling::Default, 0), &[1.0, 0.1, 0.01, 0.001]);
        let linear = frequencies(RopeScaling::Linear { factor: 4.0 }, 0);
        assert_close(&linear, &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn dynamic_changes_nothing_within_the_trained_context() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, original_max_positions: 128 };
        assert_close(&frequencies(scaling.clone(), 100), &[1.0, 0.1, 0.01, 0.001]);
        let base: f64 = 10_000.0 * (2.0 * 256.0 / 128.0 - 1.0f64).powf(8.0 / 6.0);
        let expected: Vec<f64> = (0..4).map(|pair| base.powf(-f64::from(pair) / 4.0)).collect();
        assert_close(&frequencies(scaling, 256), &expected);
    }

    #[test]
    fn longrope_takes_its_long_factors_beyond_the_trained_context() {
        let scaling = RopeScaling::LongRope {
            short_factor: vec![1.0, 1.0, 2.0, 4.0],
            long_factor: vec![1.0, 2.0, 5.0, 10.0],
            attention_factor: 1.5,
            original_max_positions: 128,
        };
        let short = [1.0, 0.1, 0.005, 0.000_25];
        assert_close(&frequencies(scaling.clone(), 128), &short);
        let long = [1.0, 0.05, 0.002, 0.000_1];
        assert_close(&frequencies(scaling.clone(), 129), &long);
        let table = RopeTable::new(&config(scaling), 128);
        let mut row = vec![0.0; table.row_len()];
        table.fill_rope_rows(&[0], &mut row);
        assert_eq!(row, [1.5, 1.5, 1.5, 1.5, 0.0, 0.0, 0.0, 0.0]);
    }

    /// Values of transformers 5.23 for the same parameters (f32 there).
    #[test]
    fn llama3_and_yarn_agree_with_transformers() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 128,
        };
        assert_close(&frequencies(llama3, 0), LLAMA3);
        for (truncate, expected) in [(true, YARN), (false, YARN_EXACT)] {
            let yarn = RopeScaling::Yarn {
                factor: 4.0,
                attention_factor: 1.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate,
                original_max_positions: 1024,
            };
            assert_close(&frequencies(yarn, 0), expected);
        }
    }

    const LLAMA3: &[f64] = &[1.0, 0.042_751_178_145, 0.001_25, 0.000_125];
    const YARN: &[f64] = &[1.0, 0.075, 0.005, 0.000_25];
    const YARN_EXACT: &[f64] = &[1.0, 0.085_398_636_758, 0.003_556_971_438, 0.000_25];

    #[test]
    fn rows_hold_cosines_then_sines_with_the_factor() {
        let yarn = RopeScaling::Yarn {
            factor: 1.0,
            attention_factor: 2.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            original_max_positions: 64,
        };
        let table = RopeTable::new(&config(yarn), 0);
        let mut rows = vec![0.0; 2 * table.row_len()];
        table.fill_rope_rows(&[0, 3], &mut rows);
        assert_eq!(rows[..8], [2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(rows[8], (2.0 * 3f64.cos()) as f32);
        assert_eq!(rows[12], (2.0 * 3f64.sin()) as f32);
    }
}
