//! KV rows of 8 bits ([`DType::Q8`](crate::DType::Q8)).
//!
//! A row of head width Dh is `Dh` codes of the key, `Dh` codes of the value, then scales of f16:
//! one for every [`KEY_BLOCK`] numbers of the key and one for the value, and zeros up to a multiple
//! of four bytes. A number is its code, in -127..=127, times its scale.
//!
//! Keys have scales of their own for 32 numbers because a few channels of a key are much larger
//! than the others and would take all codes. Perplexity of SmolLM2-135M-Instruct over 6,144 tokens
//! of a book, with all rows of 8 bits: one scale a row for keys and values +0.105 %, for values
//! alone +0.004 %, 32 numbers a scale for both +0.013 %.

use half::f16;

use crate::nearest::nearest;

/// Numbers of a key that share a scale.
pub const KEY_BLOCK: usize = 32;
/// The largest code.
const MOST: f32 = 127.0;

/// Scales of a key.
#[inline]
pub const fn n_key_scales(head_dim: usize) -> usize {
    head_dim.div_ceil(KEY_BLOCK)
}

/// Bytes of a row.
#[inline]
pub const fn row_bytes(head_dim: usize) -> usize {
    (2 * head_dim + 2 * n_key_scales(head_dim) + 2).next_multiple_of(4)
}

/// Rounds a key and a value of Dh numbers each to a row. What is not finite makes its scale
/// not-a-number, so that it shows.
///
/// # Panics
/// If the lengths are not those of one row.
#[inline]
pub fn encode(key: &[f32], value: &[f32], row: &mut [u8]) {
    let head_dim = key.len();
    assert_eq!((value.len(), row.len()), (head_dim, row_bytes(head_dim)), "a row of {head_dim}");
    let (codes, scales) = row.split_at_mut(2 * head_dim);
    let (keys, values) = codes.split_at_mut(head_dim);
    scales.fill(0);
    let (key_scales, rest) = scales.split_at_mut(2 * n_key_scales(head_dim));
    let blocks = key.chunks(KEY_BLOCK).zip(keys.chunks_mut(KEY_BLOCK));
    for ((numbers, codes), scale) in blocks.zip(key_scales.chunks_exact_mut(2)) {
        encode_block(numbers, codes, scale);
    }
    encode_block(value, values, &mut rest[..2]);
}

#[inline(always)]
fn encode_block(numbers: &[f32], codes: &mut [u8], scale: &mut [u8]) {
    // By bits, where not-a-number and infinity are the largest of all.
    let largest = numbers.iter().fold(0, |most, x| x.abs().to_bits().cast_signed().max(most));
    let rounded = match f32::from_bits(largest.cast_unsigned()) {
        largest if largest.is_finite() => f16::from_f32(largest / MOST),
        _ => f16::NAN,
    };
    scale.copy_from_slice(&rounded.to_le_bytes());
    let step = rounded.to_f32();
    let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
    for (x, code) in numbers.iter().zip(codes) {
        *code = nearest((x * inverse).clamp(-MOST, MOST)) as i32 as i8 as u8;
    }
}

/// Widens a row to its key and its value, one after the other.
///
/// # Panics
/// If the lengths are not those of one row.
pub fn decode(row: &[u8], numbers: &mut [f32]) {
    let head_dim = numbers.len() / 2;
    assert_eq!((numbers.len(), row.len()), (2 * head_dim, row_bytes(head_dim)), "a row");
    let (codes, scales) = row.split_at(2 * head_dim);
    let mut scales = scales.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32());
    let (key, value) = numbers.split_at_mut(head_dim);
    let blocks = key.chunks_mut(KEY_BLOCK).chain(std::iter::once(value));
    let mut left = codes;
    for block in blocks {
        let scale = scales.next().unwrap_or(f32::NAN);
        let codes;
        (codes, left) = left.split_at(block.len());
        block.iter_mut().zip(codes).for_each(|(x, code)| *x = f32::from(*code as i8) * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix64;

    fn encoded(key: &[f32], value: &[f32]) -> Vec<u8> {
        let mut row = vec![0xAA; row_bytes(key.len())];
        encode(key, value, &mut row);
        row
    }

    fn decoded(row: &[u8], head_dim: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; 2 * head_dim];
        decode(row, &mut numbers);
        numbers
    }

    #[test]
    fn a_row_is_little_more_than_half_of_one_of_16_bits() {
        assert_eq!([20, 32, 64, 80, 128, 256].map(row_bytes), [44, 68, 136, 168, 268, 532]);
        assert!((1..300).all(|d| row_bytes(d).is_multiple_of(4) && row_bytes(d) > 2 * d));
    }

    /// Every byte: codes of the key, of the value, two scales and one, and the filling.
    #[test]
    fn codes_come_first_and_scales_after_them() {
        let mut key = vec![0.0; 40];
        (key[0], key[1], key[32], key[39]) = (127.0, -1.0, -254.0, 2.0);
        let mut value = vec![0.0; 40];
        (value[0], value[39]) = (0.5 * 127.0, -0.5);
        let row = encoded(&key, &value);
        let mut want = vec![0u8; 88];
        (want[0], want[1], want[32], want[39]) = (127, 0xFF, 0x81, 1);
        (want[40], want[79]) = (127, 0xFF);
        want[80..82].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        want[82..84].copy_from_slice(&f16::from_f32(2.0).to_le_bytes());
        want[84..86].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        assert_eq!(row, want);
        assert_eq!(decoded(&row, 40), [key, value].concat());
    }

    #[test]
    fn a_number_is_off_by_at_most_half_a_step_of_its_block() {
        let mut rng = SplitMix64::new(5);
        for head_dim in [1, 2, 7, 20, 31, 32, 33, 64, 80, 128, 257] {
            let mut draw =
                |by: f32| -> Vec<f32> { (0..head_dim).map(|_| rng.next_normal() * by).collect() };
            let (key, value) = (draw(3.0), draw(0.01));
            let got = decoded(&encoded(&key, &value), head_dim);
            let blocks = key.chunks(KEY_BLOCK).chain(std::iter::once(&value[..]));
            let mut at = 0;
            for block in blocks {
                let most = block.iter().fold(0f32, |m, x| m.max(x.abs()));
                // Half a step, and what a scale of f16 is off by.
                let allowed = most / MOST * 0.5 * 1.001 + most * 5e-4 + 1e-7;
                for x in block {
                    assert!((got[at] - x).abs() <= allowed, "{head_dim}: {x} became {}", got[at]);
                    at += 1;
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_not_finite_shows() {
        assert_eq!(decoded(&encoded(&[0.0; 4], &[-0.0; 4]), 4), [0.0; 8]);
        // Too small for a scale of f16.
        assert_eq!(decoded(&encoded(&[1e-9; 4], &[0.0; 4]), 4), [0.0; 8]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38] {
            let mut key = vec![1.0; 40];
            key[33] = bad;
            let got = decoded(&encoded(&key, &[2.0; 40]), 40);
            assert!(got[..32].iter().all(|x| (x - 1.0).abs() < 1e-3), "{bad}: another block");
            assert!(got[32..40].iter().all(|x| !x.is_finite()), "{bad}: {:?}", &got[32..40]);
            assert!(got[40..].iter().all(|x| (x - 2.0).abs() < 2e-3), "{bad}: the value");
        }
    }

    /// Rows are saved, opened and saved again; a row that was decoded keeps its codes.
    #[test]
    fn a_row_that_was_rounded_is_not_rounded_again() {
        let mut rng = SplitMix64::new(9);
        for _ in 0..200 {
            let mut draw = || -> Vec<f32> { (0..64).map(|_| rng.next_normal()).collect() };
            let row = encoded(&draw(), &draw());
            let numbers = decoded(&row, 64);
            let again = encoded(&numbers[..64], &numbers[64..]);
            assert_eq!(decoded(&again, 64), numbers);
        }
    }
}
