//! Each format on blocks made by hand, with values that are exact in f32.

use super::*;

fn half(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

fn values(ty: QuantType, block: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; block.len() / ty.block_bytes() * ty.block_len()];
    dequantize(ty, block, &mut out);
    out
}

/// Sixteen bytes with `j` in the low and `15 - j` in the high bits of byte `j`.
fn nibbles() -> impl Iterator<Item = u8> {
    (0..16).map(|j| j | (15 - j) << 4)
}

#[test]
fn four_bits_are_halves_of_a_block() {
    let mut block = half(0.5).to_vec();
    block.extend(nibbles());
    let q4_0 = values(QuantType::Q4_0, &block);
    let iq4_nl = values(QuantType::Iq4Nl, &block);
    for j in 0..16 {
        assert_eq!(q4_0[j], 0.5 * (j as f32 - 8.0));
        assert_eq!(q4_0[j + 16], 0.5 * (7.0 - j as f32));
        assert_eq!(iq4_nl[j], 0.5 * f32::from(IQ4_NL[j]));
        assert_eq!(iq4_nl[j + 16], 0.5 * f32::from(IQ4_NL[15 - j]));
    }
    let mut block = [half(0.5), half(-2.0)].concat();
    block.extend(nibbles());
    let q4_1 = values(QuantType::Q4_1, &block);
    assert_eq!(q4_1[..3], [-2.0, -1.5, -1.0]);
    assert_eq!(q4_1[16..19], [5.5, 5.0, 4.5]);
}

#[test]
fn the_fifth_bit_has_a_word_of_its_own() {
    // Values 0, 15, 16 and 31 have it.
    let high = (1_u32 | 1 << 15 | 1 << 16 | 1 << 31).to_le_bytes();
    let mut block = half(2.0).to_vec();
    block.extend(high);
    block.extend(nibbles());
    let q5_0 = values(QuantType::Q5_0, &block);
    assert_eq!(q5_0[..2], [2.0 * (16.0 - 16.0), 2.0 * (1.0 - 16.0)]);
    assert_eq!(q5_0[14..18], [-4.0, 30.0, 30.0, -4.0]);
    assert_eq!(q5_0[31], 2.0 * (16.0 - 16.0));
    let mut block = [half(2.0), half(0.5)].concat();
    block.extend(high);
    block.extend(nibbles());
    let q5_1 = values(QuantType::Q5_1, &block);
    assert_eq!(q5_1[..2], [32.5, 2.5]);
    assert_eq!(q5_1[14..18], [28.5, 62.5, 62.5, 28.5]);
}

#[test]
fn eight_bits_have_a_sign() {
    let mut block = half(0.25).to_vec();
    block.extend((0..32_u8).map(|j| j.wrapping_sub(128)));
    let q8_0 = values(QuantType::Q8_0, &block);
    assert_eq!(q8_0[..2], [-32.0, -31.75]);
    let mut block = half(-1.0).to_vec();
    block.extend([127; 32]);
    assert_eq!(values(QuantType::Q8_0, &block), [-127.0; 32]);
}

#[test]
fn mxfp4_scales_are_powers_of_two() {
    let block = |e: u8| [vec![e], nibbles().collect()].concat();
    let one = values(QuantType::Mxfp4, &block(127));
    assert_eq!(one[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    assert_eq!(one[8..16], [0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]);
    assert_eq!(one[16..18], [-6.0, -4.0]);
    assert_eq!(values(QuantType::Mxfp4, &block(130))[1], 4.0);
    for (e, smallest) in [(0, 2_f32.powi(-128)), (1, 2_f32.powi(-127)), (2, 2_f32.powi(-126))] {
        assert_eq!(values(QuantType::Mxfp4, &block(e))[1], smallest, "e = {e}");
    }
    assert_eq!(values(QuantType::Mxfp4, &block(254))[1], 2_f32.powi(126));
}

/// Twelve bytes with scale `j + 1 + 32 * (j > 3)` and smallest value `2 j + 16 * (j > 3)` of
/// sub-block `j`.
fn scales() -> [u8; 12] {
    let scale = |j: u8| j + 1 + if j > 3 { 32 } else { 0 };
    let min = |j: u8| 2 * j + if j > 3 { 16 } else { 0 };
    let mut bytes = [0; 12];
    for j in 0..4 {
        let i = usize::from(j);
        bytes[i] = scale(j) | scale(j + 4) >> 4 << 6;
        bytes[i + 4] = min(j) | min(j + 4) >> 4 << 6;
        bytes[i + 8] = scale(j + 4) & 15 | (min(j + 4) & 15) << 4;
    }
    bytes
}

#[test]
fn k_blocks_have_eight_scales_of_six_bits() {
    let mut block = [half(0.5), half(0.25)].concat();
    block.extend(scales());
    // Byte 32 c + l: the low bits are of sub-block 2 c, the high ones of 2 c + 1.
    block.extend((0..128_u8).map(|i| (i % 16) | ((i / 32 + 8) << 4)));
    let q4_k = values(QuantType::Q4K, &block);
    let expected = |j: usize, n: usize| {
        let high = usize::from(j > 3);
        0.5 * (j + 1 + 32 * high) as f32 * n as f32 - 0.25 * (2 * j + 16 * high) as f32
    };
    for (i, value) in q4_k.iter().enumerate() {
        let (j, l) = (i / 32, i % 32);
        let n = if j % 2 == 0 { l % 16 } else { j / 2 + 8 };
        assert_eq!(*value, expected(j, n), "value {i}");
    }
    // Bit j of byte l is the fifth bit of value l of sub-block j.
    let high: Vec<u8> = (0..32).map(|l| if l == 3 { 0b1000_0010 } else { 0 }).collect();
    block.splice(16..16, high);
    let q5_k = values(QuantType::Q5K, &block);
    for (i, value) in q5_k.iter().enumerate() {
        let (j, l) = (i / 32, i % 32);
        let n = if j % 2 == 0 { l % 16 } else { j / 2 + 8 };
        let fifth = if l == 3 && (j == 1 || j == 7) { 16 } else { 0 };
        assert_eq!(*value, expected(j, n + fifth), "value {i}");
    }
}

#[test]
fn q6_k_has_four_bits_in_one_place_and_two_in_another() {
    let value = |i: usize| (i * 37 + i / 5) % 64;
    let mut block = vec![0_u8; 210];
    for i in 0..256 {
        let (h, rest) = (i / 128, i % 128);
        let (quarter, l) = (rest / 32, rest % 32);
        let low = (value(i) & 15) as u8;
        let shift = if quarter < 2 { 0 } else { 4 };
        block[64 * h + 32 * (quarter % 2) + l] |= low << shift;
        block[128 + 32 * h + l] |= ((value(i) >> 4) as u8) << (2 * quarter);
    }
    for (i, scale) in block[192..208].iter_mut().enumerate() {
        *scale = (i as i8 - 8) as u8;
    }
    block[208..].copy_from_slice(&half(0.5));
    for (i, found) in values(QuantType::Q6K, &block).iter().enumerate() {
        let scale = (i / 16) as f32 - 8.0;
        assert_eq!(*found, 0.5 * scale * (value(i) as f32 - 32.0), "value {i}");
    }
}

#[test]
#[should_panic(expected = "whole blocks of q4_0")]
fn part_of_a_block_is_a_mistake_of_the_caller() {
    dequantize(QuantType::Q4_0, &[0; 17], &mut []);
}
