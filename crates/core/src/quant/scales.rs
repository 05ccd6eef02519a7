//! Scales that are no numbers. One makes every value of its block NaN or infinite, so whoever looks
//! at scales alone has looked at the whole matrix, for a tenth of its bytes.

use super::types::QuantType;

/// Blocks that are looked at together.
const RUN: usize = 64;

/// The first of `blocks` with a scale or a minimum that is NaN or infinite.
pub fn block_without_scale(ty: QuantType, blocks: &[u8]) -> Option<usize> {
    match ty {
        QuantType::Q4_0 | QuantType::Iq4Nl => first::<18>(blocks, |b| is_finite(b, 0)),
        QuantType::Q5_0 => first::<22>(blocks, |b| is_finite(b, 0)),
        QuantType::Q8_0 => first::<34>(blocks, |b| is_finite(b, 0)),
        QuantType::Q4_1 => first::<20>(blocks, |b| is_finite(b, 0) & is_finite(b, 2)),
        QuantType::Q5_1 => first::<24>(blocks, |b| is_finite(b, 0) & is_finite(b, 2)),
        QuantType::Q4K => first::<144>(blocks, |b| is_finite(b, 0) & is_finite(b, 2)),
        QuantType::Q5K => first::<176>(blocks, |b| is_finite(b, 0) & is_finite(b, 2)),
        QuantType::Q6K => first::<210>(blocks, |b| is_finite(b, 208)),
        // An exponent alone, of which this one stands for NaN.
        QuantType::Mxfp4 => first::<17>(blocks, |b| b[0] != 0xff),
    }
}

/// Whether the f16 at `at` is a number: not all bits of its exponent are set.
fn is_finite<const N: usize>(block: &[u8; N], at: usize) -> bool {
    u16::from_le_bytes([block[at], block[at + 1]]) & 0x7c00 != 0x7c00
}

/// The first block of `N` bytes that is not right. Runs are looked at without a branch.
fn first<const N: usize>(blocks: &[u8], is_right: impl Fn(&[u8; N]) -> bool) -> Option<usize> {
    let (blocks, _) = blocks.as_chunks::<N>();
    blocks.chunks(RUN).enumerate().find_map(|(i, run)| {
        let all = run.iter().fold(true, |all, block| all & is_right(block));
        let place = || run.iter().position(|block| !is_right(block));
        (!all).then(place).flatten().map(|at| i * RUN + at)
    })
}

#[cfg(test)]
mod tests {
    use super::super::dequantize;
    use super::*;

    /// Three blocks with scales of 1, or whatever the type has for it.
    fn blocks(ty: QuantType) -> Vec<u8> {
        (0..3 * ty.block_bytes()).map(|i| (i % 0x30) as u8).collect()
    }

    #[test]
    fn a_scale_that_is_no_number_is_found_wherever_values_show_it() {
        for ty in QuantType::ALL {
            let whole = blocks(ty);
            assert_eq!(block_without_scale(ty, &whole), None, "{ty}");
            for at in 0..ty.block_bytes() - 1 {
                // NaN, infinity, and the largest number of f16.
                for bits in [0x7e00_u16, 0xfc00, 0x7bff] {
                    let mut lie = whole.clone();
                    let place = ty.block_bytes() + at;
                    lie[place..place + 2].copy_from_slice(&bits.to_le_bytes());
                    let mut values = vec![0.0; 3 * ty.block_len()];
                    dequantize(ty, &lie, &mut values);
                    let shown = values.iter().position(|value| !value.is_finite());
                    let found = block_without_scale(ty, &lie);
                    assert_eq!(found, shown.map(|i| i / ty.block_len()), "{ty}, byte {at}");
                }
            }
        }
    }

    #[test]
    fn the_exponent_that_stands_for_nan_is_found() {
        let mut lie = blocks(QuantType::Mxfp4);
        lie[2 * 17] = 0xff;
        assert_eq!(block_without_scale(QuantType::Mxfp4, &lie), Some(2));
    }
}
