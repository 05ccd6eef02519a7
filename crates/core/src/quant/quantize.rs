//! Numbers to blocks: the codes and scales that make the squared error small.
//!
//! Scales are found by trying: for each of a few scales near that of the largest value, codes are
//! rounded and the best scale for these codes follows by least squares. Errors of large values
//! count more, because large weights meet large activations as often as small ones do, and matter
//! more to a product.

use half::f16;

use super::blocks::{IQ4_NL, MXFP4, power};
use super::types::QuantType;

/// Makes the blocks of type `ty` of `values`.
///
/// # Panics
/// If `values` are no whole blocks, or `blocks` are not as long as theirs.
pub fn quantize(ty: QuantType, values: &[f32], blocks: &mut [u8]) {
    let n = values.len() / ty.block_len();
    assert_eq!(values.len(), n * ty.block_len(), "the values of whole blocks of {ty}");
    assert_eq!(blocks.len(), n * ty.block_bytes(), "blocks of {ty}");
    let blocks = blocks.chunks_exact_mut(ty.block_bytes());
    for (values, block) in values.chunks_exact(ty.block_len()).zip(blocks) {
        block.fill(0);
        match ty {
            QuantType::Q8_0 => q8_0(values, block),
            QuantType::Q4_0 | QuantType::Q5_0 => even(ty, values, block),
            QuantType::Q4_1 | QuantType::Q5_1 => with_min(ty, values, block),
            QuantType::Iq4Nl => iq4_nl(values, block),
            QuantType::Mxfp4 => mxfp4(values, block),
            QuantType::Q4K | QuantType::Q5K => super_min(ty, values, block),
            QuantType::Q6K => q6_k(values, block),
        }
    }
}

/// Factors that are tried side by side, each in its lane: whole vectors of four.
const LANES: usize = 12;

/// Factors on the first guess of a scale. Those behind the first [`N_FACTORS`] fill the lanes, and
/// as repetitions they never win.
const FACTORS: [f32; LANES] = [1.0, 0.84, 0.88, 0.92, 0.96, 1.04, 1.08, 1.12, 1.16, 1.0, 1.0, 1.0];
const N_FACTORS: usize = 9;

fn put(block: &mut [u8], at: usize, x: f32) -> f32 {
    let half = f16::from_f32(x.clamp(-65_504.0, 65_504.0));
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// The value of the largest magnitude, with its sign.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

/// What an error of each value counts.
fn importance(values: &[f32]) -> impl Fn(f32) -> f32 {
    let mean = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
    let root = mean.sqrt();
    move |x| root + x.abs()
}

/// A whole number in `low..=high` nearest to `x * inverse`.
fn round(x: f32, inverse: f32, low: i32, high: i32) -> i32 {
    whole(x * inverse, low as f32, high as f32) as i32
}

/// The whole number in `low..=high`, which are of less than 22 bits, nearest to `x`; the even one
/// of two. Not-a-number, which no weight is, becomes 0.
#[inline(always)]
fn whole(x: f32, low: f32, high: f32) -> f32 {
    /// Floats near this number are whole numbers, so adding it rounds. (Without SSE 4.1
    /// `round_ties_even` is a call.)
    const WHOLE: f32 = 1.5 * (1 << 23) as f32;
    let x = if x.is_nan() { 0.0 } else { x };
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    x + WHOLE - WHOLE
}

/// The scale d of `values = d * codes` for whole codes in `low..=high`.
fn even_scale(values: &[f32], low: i32, high: i32) -> f32 {
    let most = largest(values);
    if most == 0.0 {
        return 0.0;
    }
    // The end of the range that reaches further belongs to the largest value.
    let guess = most / if low.abs() > high { low } else { high } as f32;
    let weight = importance(values);
    let (low, high) = (low as f32, high as f32);
    let inverses = FACTORS.map(|factor| 1.0 / (guess * factor));
    let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for x in values {
        let w = weight(*x);
        for i in 0..LANES {
            let code = whole(x * inverses[i], low, high);
            products[i] += w * x * code;
            squares[i] += w * code * code;
        }
    }
    let (mut best, mut best_gain) = (guess, 0.0);
    for (product, square) in products.into_iter().zip(squares) {
        // The error with the best scale, product / square, is the sum of squares less this.
        let gain = product * product / square;
        if square > 0.0 && gain > best_gain {
            (best, best_gain) = (product / square, gain);
        }
    }
    best
}

/// Scale d and smallest value m of `values = d * codes + m` for codes in `0..=high`; m is not above
/// `most_min`.
fn scale_and_min(values: &[f32], high: i32, most_min: f32) -> (f32, f32) {
    let low_end = values.iter().copied().fold(f32::INFINITY, f32::min).min(most_min);
    let high_end = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if high_end <= low_end {
        return (0.0, low_end);
    }
    let weight = importance(values);
    let guess = (high_end - low_end) / high as f32;
    let lines = Lines { d: FACTORS.map(|factor| guess * factor), m: [low_end; LANES] };
    let (first, better) = lines.fit(values, &weight, high as f32, most_min);
    let (second, _) = better.fit(values, &weight, high as f32, most_min);
    let (mut best, mut least) = ((guess, low_end), f32::INFINITY);
    for i in 0..LANES {
        for (lines, error) in [(&lines, first[i]), (&better, second[i])] {
            if error < least {
                (best, least) = ((lines.d[i], lines.m[i]), error);
            }
        }
    }
    best
}

/// Lines `d * code + m` side by side. A `d` that is no number has no line.
struct Lines {
    d: [f32; LANES],
    m: [f32; LANES],
}

impl Lines {
    /// The errors of the lines with codes in `0..=high`, and the lines of least squares through
    /// these codes and their values.
    fn fit(
        &self,
        values: &[f32],
        weight: &impl Fn(f32) -> f32,
        high: f32,
        most_min: f32,
    ) -> ([f32; LANES], Self) {
        let inverses = self.d.map(|d| 1.0 / d);
        let mut errors = [0.0; LANES];
        // Of weights, weighted codes, their squares, values, and codes times values.
        let [mut n, mut sum, mut squares] = [[0.0; LANES]; 3];
        let [mut total, mut product] = [[0.0; LANES]; 2];
        for x in values {
            let w = weight(*x);
            for i in 0..LANES {
                let code = whole((x - self.m[i]) * inverses[i], 0.0, high);
                let error = self.d[i] * code + self.m[i] - x;
                errors[i] += w * (error * error);
                n[i] += w;
                sum[i] += w * code;
                squares[i] += w * (code * code);
                total[i] += w * x;
                product[i] += w * (code * x);
            }
        }
        let mut better = Self { d: [f32::NAN; LANES], m: [0.0; LANES] };
        for i in 0..LANES {
            let spread = n[i] * squares[i] - sum[i] * sum[i];
            let d = (n[i] * product[i] - sum[i] * total[i]) / spread;
            if !(spread <= 0.0 || d <= 0.0) {
                better.d[i] = d;
                better.m[i] =
                    ((squares[i] * total[i] - sum[i] * product[i]) / spread).min(most_min);
            }
        }
        (errors, better)
    }
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn q8_0(values: &[f32], block: &mut [u8]) {
    let d = put(block, 0, largest(values).abs() / 127.0);
    for (x, byte) in values.iter().zip(&mut block[2..]) {
        *byte = round(*x, inverse(d), -127, 127) as u8;
    }
}

/// Writes codes of four bits, the low half of the values in the low bits, from byte `at` on.
fn put_halves(block: &mut [u8], at: usize, codes: &[u8; 32]) {
    for j in 0..16 {
        block[at + j] = codes[j] & 15 | (codes[j + 16] & 15) << 4;
    }
}

/// The fifth bits as one word.
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let word = codes.iter().enumerate().map(|(j, code)| u32::from(code >> 4 & 1) << j);
    word.sum::<u32>().to_le_bytes()
}

fn even(ty: QuantType, values: &[f32], block: &mut [u8]) {
    let half = 1 << (ty.code_bits() - 1);
    let d = put(block, 0, even_scale(values, -half, half - 1));
    let code = |j: usize| (round(values[j], inverse(d), -half, half - 1) + half) as u8;
    let codes: [u8; 32] = std::array::from_fn(code);
    if ty == QuantType::Q5_0 {
        block[2..6].copy_from_slice(&fifth_bits(&codes));
    }
    put_halves(block, ty.block_bytes() - 16, &codes);
}

fn with_min(ty: QuantType, values: &[f32], block: &mut [u8]) {
    let high = (1 << ty.code_bits()) - 1;
    let (d, m) = scale_and_min(values, high, f32::INFINITY);
    let (d, m) = (put(block, 0, d), put(block, 2, m));
    let codes: [u8; 32] = std::array::from_fn(|j| round(values[j] - m, inverse(d), 0, high) as u8);
    if ty == QuantType::Q5_1 {
        block[4..8].copy_from_slice(&fifth_bits(&codes));
    }
    put_halves(block, ty.block_bytes() - 16, &codes);
}

/// The code whose value in `table` is nearest to `x`.
fn nearest(table: &[i8; 16], x: f32) -> u8 {
    let mut best = (0, f32::INFINITY);
    for (code, value) in table.iter().enumerate() {
        let distance = (f32::from(*value) - x).abs();
        if distance < best.1 {
            best = (code, distance);
        }
    }
    best.0 as u8
}

fn iq4_nl(values: &[f32], block: &mut [u8]) {
    let most = largest(values);
    let weight = importance(values);
    let (mut best, mut best_gain) = (0.0, 0.0);
    for factor in &FACTORS[..N_FACTORS] {
        let d = most / f32::from(IQ4_NL[0]) * factor;
        let (mut product, mut square) = (0.0, 0.0);
        for x in values {
            let value = f32::from(IQ4_NL[usize::from(nearest(&IQ4_NL, x * inverse(d)))]);
            product += weight(*x) * x * value;
            square += weight(*x) * value * value;
        }
        if square > 0.0 && product * product / square > best_gain {
            (best, best_gain) = (product / square, product * product / square);
        }
    }
    let d = put(block, 0, best);
    let codes: [u8; 32] = std::array::from_fn(|j| nearest(&IQ4_NL, values[j] * inverse(d)));
    put_halves(block, 2, &codes);
}

fn mxfp4(values: &[f32], block: &mut [u8]) {
    let most = largest(values).abs();
    // Of twice the values the largest is 12 = 1.5 * 2^3; the scale is halved in turn. The Open
    // Compute Project's rule (MX specification 1.0, section 6.3) takes the power of two of the
    // largest value; one more step up is tried, because it may clip less.
    let exponent = if most > 0.0 { most.log2().floor() as i32 - 2 + 127 } else { 0 };
    let error = |e: u8| {
        let d = f32::from_bits(power(e));
        let one = |x: &f32| {
            let value = f32::from(MXFP4[usize::from(nearest(&MXFP4, x / d))]);
            (value * d - x).powi(2)
        };
        values.iter().map(one).sum::<f32>()
    };
    let candidates = [0, 1].map(|step| (exponent + step).clamp(0, 254) as u8);
    let e = if error(candidates[1]) < error(candidates[0]) { candidates[1] } else { candidates[0] };
    block[0] = e;
    let d = f32::from_bits(power(e));
    let codes: [u8; 32] = std::array::from_fn(|j| nearest(&MXFP4, values[j] / d));
    put_halves(block, 1, &codes);
}

fn super_min(ty: QuantType, values: &[f32], block: &mut [u8]) {
    let high = (1 << ty.code_bits()) - 1;
    let units: [(f32, f32); 8] = std::array::from_fn(|u| {
        // A smallest value is subtracted, so it is never above zero.
        scale_and_min(&values[32 * u..32 * (u + 1)], high, 0.0)
    });
    let most = |x: fn(&(f32, f32)) -> f32| units.iter().map(x).fold(0.0, f32::max);
    let d = put(block, 0, most(|unit| unit.0) / 63.0);
    let dmin = put(block, 2, most(|unit| -unit.1) / 63.0);
    let scales = units.map(|(s, _)| round(s, inverse(d), 0, 63) as u8);
    let mins = units.map(|(_, m)| round(-m, inverse(dmin), 0, 63) as u8);
    for j in 0..4 {
        block[4 + j] = scales[j] | scales[j + 4] >> 4 << 6;
        block[8 + j] = mins[j] | mins[j + 4] >> 4 << 6;
        block[12 + j] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    let at = ty.block_bytes() - 128;
    for (i, x) in values.iter().enumerate() {
        let (u, l) = (i / 32, i % 32);
        let (s, m) = (d * f32::from(scales[u]), dmin * f32::from(mins[u]));
        let code = round(x + m, inverse(s), 0, high) as u8;
        block[at + u / 2 * 32 + l] |= (code & 15) << (u % 2 * 4);
        if ty == QuantType::Q5K {
            block[16 + l] |= (code >> 4) << u;
        }
    }
}

fn q6_k(values: &[f32], block: &mut [u8]) {
    let scales: [f32; 16] =
        std::array::from_fn(|i| even_scale(&values[16 * i..16 * (i + 1)], -32, 31));
    let d = put(block, 208, largest(&scales) / -128.0);
    for (i, s) in scales.iter().enumerate() {
        block[192 + i] = round(*s, inverse(d), -128, 127) as u8;
    }
    for (i, x) in values.iter().enumerate() {
        let s = d * f32::from(block[192 + i / 16] as i8);
        let code = (round(*x, inverse(s), -32, 31) + 32) as u8;
        let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        block[64 * half + 32 * (quarter % 2) + l] |= (code & 15) << (quarter / 2 * 4);
        block[128 + 32 * half + l] |= (code >> 4) << (2 * quarter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize;
    use crate::rng::SplitMix64;

    /// Root mean square error over that of the values.
    fn error(ty: QuantType, values: &[f32]) -> f64 {
        let mut blocks = vec![0xff; values.len() / ty.block_len() * ty.block_bytes()];
        quantize(ty, values, &mut blocks);
        let mut found = vec![0.0; values.len()];
        dequantize(ty, &blocks, &mut found);
        let square = |x: f32| f64::from(x).powi(2);
        let wrong: f64 = values.iter().zip(&found).map(|(a, b)| square(a - b)).sum();
        (wrong / values.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
    }

    #[test]
    fn normal_numbers_lose_little() {
        let mut rng = SplitMix64::new(3);
        let values: Vec<f32> = (0..64 * 256).map(|_| 0.02 * rng.next_normal()).collect();
        for (ty, most) in [
            (QuantType::Q8_0, 0.0055),
            (QuantType::Q4_0, 0.083),
            (QuantType::Q4_1, 0.0735),
            (QuantType::Q5_0, 0.0415),
            (QuantType::Q5_1, 0.036),
            (QuantType::Iq4Nl, 0.0765),
            (QuantType::Mxfp4, 0.1145),
            (QuantType::Q4K, 0.0745),
            (QuantType::Q5K, 0.0375),
            (QuantType::Q6K, 0.0176),
        ] {
            let found = error(ty, &values);
            assert!(found < most, "{ty}: {found}");
        }
    }

    #[test]
    fn adding_rounds_as_the_library_does() {
        let halves = (-600..=600).map(|i| i as f32 * 0.25);
        let beside = halves.clone().flat_map(|x| [x.next_up(), x.next_down()]);
        let ends = [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::NAN, -0.0];
        for x in halves.chain(beside).chain(ends) {
            for (low, high) in [(-127, 127), (-8, 7), (0, 63)] {
                let wanted = (x.round_ties_even() as i32).clamp(low, high) as f32;
                let found = whole(x, low as f32, high as f32);
                assert_eq!(found.to_bits(), wanted.to_bits(), "{x} in {low}..={high}");
            }
        }
    }

    #[test]
    fn values_of_a_type_stay_as_they_are() {
        // Blocks of one scale, which the search must find again.
        for (ty, values) in [
            (QuantType::Q8_0, (0..32).map(|i| (i * 8 - 121) as f32).chain([]).collect::<Vec<_>>()),
            (QuantType::Q4_0, (0..32).map(|i| 0.5 * (i % 16 - 8) as f32).collect()),
            (QuantType::Q4_1, (0..32).map(|i| 0.5 * (i % 16) as f32 + 3.0).collect()),
            (QuantType::Q5_0, (0..32).map(|i| 0.25 * (i - 16) as f32).collect()),
            (QuantType::Q5_1, (0..32).map(|i| 0.25 * i as f32 - 1.0).collect()),
            (QuantType::Iq4Nl, (0..32).map(|i| 0.5 * f32::from(IQ4_NL[i % 16])).collect()),
            (QuantType::Mxfp4, (0..32).map(|i| 0.5 * f32::from(MXFP4[i % 16])).collect()),
        ] {
            let found = error(ty, &values);
            assert!(found < 0.003, "{ty}: {found}");
        }
    }

    #[test]
    fn zeros_ones_and_outliers_are_finite() {
        for ty in QuantType::ALL {
            let n = ty.block_len();
            let mut outlier = vec![1e-3; n];
            outlier[5] = -1000.0;
            for values in [vec![0.0; n], vec![1.0; n], vec![-2.5; n], vec![1e-30; n], outlier] {
                let mut blocks = vec![0; ty.block_bytes()];
                quantize(ty, &values, &mut blocks);
                let mut found = vec![f32::NAN; n];
                dequantize(ty, &blocks, &mut found);
                let most = largest(&values).abs();
                // 2.5 is half-way between two values of MXFP4.
                let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.21 * most + 1e-6;
                assert!(values.iter().zip(&found).all(is_near), "{ty}: {values:?} {found:?}");
            }
        }
    }
}
