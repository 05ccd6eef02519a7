//! The values of blocks. Every format is a scale, for some a smallest value, and whole numbers.
//! What they mean is what ggml computes, so products and sums are in f32 and in its order.

use half::f16;

use super::codes::scale_and_min;
use super::types::QuantType;

/// Values of IQ4_NL by the four bits that are stored.
pub(super) const IQ4_NL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of MXFP4; its scale is halved in turn.
pub(super) const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The values of `blocks`, which are of type `ty`.
///
/// # Panics
/// If `blocks` are not whole blocks, or `out` is not as long as their values.
pub fn dequantize(ty: QuantType, blocks: &[u8], out: &mut [f32]) {
    let n_blocks = blocks.len() / ty.block_bytes();
    assert_eq!(blocks.len(), n_blocks * ty.block_bytes(), "whole blocks of {}", ty.name());
    assert_eq!(out.len(), n_blocks * ty.block_len(), "the values of {}", ty.name());
    match ty {
        QuantType::Q4_0 => each(blocks, out, q4_0),
        QuantType::Q4_1 => each(blocks, out, q4_1),
        QuantType::Q5_0 => each(blocks, out, q5_0),
        QuantType::Q5_1 => each(blocks, out, q5_1),
        QuantType::Q8_0 => each(blocks, out, q8_0),
        QuantType::Q4K => each(blocks, out, q4_k),
        QuantType::Q5K => each(blocks, out, q5_k),
        QuantType::Q6K => each(blocks, out, q6_k),
        QuantType::Iq4Nl => each(blocks, out, iq4_nl),
        QuantType::Mxfp4 => each(blocks, out, mxfp4),
    }
}

/// Calls `one` with each block of `N` bytes and the `M` values that it stands for.
fn each<const N: usize, const M: usize>(
    blocks: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; N], &mut [f32; M]),
) {
    let (blocks, _) = blocks.as_chunks();
    let (out, _) = out.as_chunks_mut();
    for (block, out) in blocks.iter().zip(out) {
        one(block, out);
    }
}

/// The f16 at byte `at`.
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Four bits each: the low ones are the first half of the values, the high ones the second.
fn halves(bits: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    for (j, byte) in bits.iter().enumerate() {
        out[j] = value(byte & 15);
        out[j + 16] = value(byte >> 4);
    }
}

/// As [`halves`], with the fifth bit of value `j` in bit `j` of four more bytes.
fn halves_of_five(high: &[u8], bits: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    for (j, byte) in bits.iter().enumerate() {
        let fifth = |j: usize| ((high >> j & 1) << 4) as u8;
        out[j] = value(byte & 15 | fifth(j));
        out[j + 16] = value(byte >> 4 | fifth(j + 16));
    }
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    halves(&block[2..], out, |n| d * (f32::from(n) - 8.0));
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    halves(&block[4..], out, |n| d * f32::from(n) + m);
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    halves_of_five(&block[2..6], &block[6..], out, |n| d * (f32::from(n) - 16.0));
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    halves_of_five(&block[4..8], &block[8..], out, |n| d * f32::from(n) + m);
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(*byte as i8);
    }
}

fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    halves(&block[2..], out, |n| d * f32::from(IQ4_NL[usize::from(n)]));
}

/// The bits of a power of two, halved: 2^(e - 128). The two smallest are subnormal.
pub(super) fn power(e: u8) -> u32 {
    match u32::from(e) {
        e @ 0..2 => 0x0020_0000 << e,
        e => (e - 1) << 23,
    }
}

fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = f32::from_bits(power(block[0]));
    halves(&block[1..], out, |n| d * f32::from(MXFP4[usize::from(n)]));
}

/// Eight sub-blocks of 32. `value` makes a whole number of the sub-block, the place in it and the
/// byte that the place has in the pair of sub-blocks.
fn k_block(
    block: &[u8],
    bits: &[u8],
    out: &mut [f32; 256],
    value: impl Fn(usize, usize, u8) -> u8,
) {
    let (d, min) = (scale(block, 0), scale(block, 2));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_and_min(&block[4..16], j);
        let (s, m) = (d * f32::from(s), min * f32::from(m));
        let pair = &bits[j / 2 * 32..][..32];
        for (l, (out, byte)) in out.iter_mut().zip(pair).enumerate() {
            *out = s * f32::from(value(j, l, *byte)) - m;
        }
    }
}

/// The low bits for even sub-blocks, the high ones for odd.
fn nibble(j: usize, byte: u8) -> u8 {
    if j.is_multiple_of(2) { byte & 15 } else { byte >> 4 }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    k_block(block, &block[16..], out, |j, _, byte| nibble(j, byte));
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let high = &block[16..48];
    k_block(block, &block[48..], out, |j, l, byte| nibble(j, byte) | (high[l] >> j & 1) << 4);
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    let d = scale(block, 208);
    for (i, out) in out.iter_mut().enumerate() {
        // Half of the block, quarter of the half, place in the quarter.
        let (h, quarter, l) = (i / 128, i % 128 / 32, i % 32);
        let byte = low[64 * h + 32 * (quarter % 2) + l];
        let four = if quarter < 2 { byte & 15 } else { byte >> 4 };
        let two = high[32 * h + l] >> (2 * quarter) & 3;
        let value = i32::from(four | two << 4) - 32;
        *out = d * f32::from(scales[i / 16] as i8) * value as f32;
    }
}

#[cfg(test)]
mod tests;
