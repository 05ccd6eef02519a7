//! Blocks as codes and scales. A value is `d * (code - offset)` or `d * code + m`, or stands in a
//! table of 16; formats differ in where the bits of the codes are, and in what d and m are made of.

use super::types::QuantType;

/// Thirty-two codes of a row in order, four in each word, the first in its lowest byte.
pub(super) type Codes = [u32; 8];

/// A byte of each of the four values in a word.
const ONES: u32 = 0x0101_0101;

/// The codes of values `32 * unit..` of one block. 8 bits are biased by 128, so that all codes are
/// without a sign.
pub(super) fn codes(ty: QuantType, block: &[u8], unit: usize) -> Codes {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| block[at + i]));
    match ty {
        QuantType::Q4_0 | QuantType::Iq4Nl => halves(|i| word(2 + 4 * i)),
        QuantType::Q4_1 => halves(|i| word(4 + 4 * i)),
        QuantType::Mxfp4 => halves(|i| word(1 + 4 * i)),
        QuantType::Q5_0 => with_fifth(halves(|i| word(6 + 4 * i)), word(2)),
        QuantType::Q5_1 => with_fifth(halves(|i| word(8 + 4 * i)), word(4)),
        QuantType::Q8_0 => std::array::from_fn(|i| word(2 + 4 * i) ^ (0x80 * ONES)),
        QuantType::Q4K => quarter(|i| word(16 + 4 * i), unit),
        QuantType::Q5K => {
            let low = quarter(|i| word(48 + 4 * i), unit);
            std::array::from_fn(|i| low[i] | (word(16 + 4 * i) >> unit & ONES) << 4)
        }
        QuantType::Q6K => {
            let (half, quarter) = (unit / 4, unit % 4);
            std::array::from_fn(|i| {
                let low = word(64 * half + 32 * (quarter % 2) + 4 * i) >> (quarter / 2 * 4);
                let high = word(128 + 32 * half + 4 * i) >> (2 * quarter);
                low & (15 * ONES) | (high & (3 * ONES)) << 4
            })
        }
    }
}

/// The low bits of 16 bytes are the first half of the codes, the high ones the second.
fn halves(word: impl Fn(usize) -> u32) -> Codes {
    std::array::from_fn(|i| word(i % 4) >> (i / 4 * 4) & (15 * ONES))
}

/// Bit j of `high` is the fifth bit of code j.
fn with_fifth(codes: Codes, high: u32) -> Codes {
    // Four bits to the lowest bits of four bytes: each shifted copy puts one of them in its place.
    let spread = |four: u32| (four * (1 | 1 << 7 | 1 << 14 | 1 << 21)) & ONES;
    std::array::from_fn(|i| codes[i] | spread(high >> (4 * i) & 15) << 4)
}

/// 32 bytes hold a pair of units: the low bits the even one, the high bits the odd one.
fn quarter(word: impl Fn(usize) -> u32, unit: usize) -> Codes {
    std::array::from_fn(|i| word(unit / 2 * 8 + i) >> (unit % 2 * 4) & (15 * ONES))
}

/// Scale and smallest value of unit `j`, six bits each, of the twelve bytes that hold eight.
pub(super) fn scale_and_min(q: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4)
    }
}
