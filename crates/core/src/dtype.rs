//! Element types of buffers and weights, and the conversions between them and `f32`.

use std::fmt;
use std::str::FromStr;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::kv8;
use crate::nearest::nearest;

/// The type of one element of a buffer or weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision; activations, scores and sums are always this.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper 16 bits of an `f32`.
    BF16,
    /// Unsigned indices: token ids, row ids, counts.
    U32,
    /// A byte of KV rows of 8 bits, whose layout is that of [`crate::kv8`].
    Q8,
    /// A whole number in -127..=127, two's complement: codes of landmarks.
    I8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q8 | DType::I8 => 1,
        }
    }

    /// The lower-case name used on command lines and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::U32 => "u32",
            DType::Q8 => "q8",
            DType::I8 => "i8",
        }
    }

    /// Whether elements are numbers that attention and matmul can read.
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::U32 | DType::Q8 | DType::I8)
    }

    /// Elements of a KV row, a key and a value of `head_dim` numbers each.
    #[inline]
    pub const fn kv_row_len(self, head_dim: usize) -> usize {
        match self {
            DType::Q8 => kv8::row_bytes(head_dim),
            _ => 2 * head_dim,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no data type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown data type '{0}': use f32, f16, bf16 or q8")]
pub struct ParseDTypeError(String);

impl FromStr for DType {
    type Err = ParseDTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(DType::F32),
            "f16" => Ok(DType::F16),
            "bf16" => Ok(DType::BF16),
            "q8" => Ok(DType::Q8),
            other => Err(ParseDTypeError(other.to_owned())),
        }
    }
}

/// Rounds `values` to `dtype` (nearest even) and returns the little-endian bytes. In [`DType::I8`]
/// what is beyond -127..=127 becomes the nearest of these, and not-a-number -128.
///
/// # Panics
/// If `dtype` is [`DType::U32`], which holds no numbers with fractions, or [`DType::Q8`], whose
/// rows [`kv8::encode`] makes.
pub fn encode_f32(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * dtype.size());
    encode_f32_into(dtype, values, &mut bytes);
    bytes
}

/// As [`encode_f32`], appended to `bytes`: allocates only where its capacity does not suffice.
///
/// # Panics
/// As [`encode_f32`].
pub fn encode_f32_into(dtype: DType, values: &[f32], bytes: &mut Vec<u8>) {
    match dtype {
        DType::F32 => values.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
        DType::F16 => encode_halves(values, f16::ZERO, f16::to_le_bytes, bytes),
        DType::BF16 => encode_halves(values, bf16::ZERO, bf16::to_le_bytes, bytes),
        DType::I8 => bytes.extend(values.iter().map(|v| code_of(*v).to_le_bytes()[0])),
        DType::U32 | DType::Q8 => panic!("encode_f32: {dtype} is no floating-point type"),
    }
}

/// Widens little-endian `bytes` of `dtype` to `f32`; the inverse of [`encode_f32`].
///
/// # Panics
/// If `dtype` is [`DType::U32`] or [`DType::Q8`], or `bytes` is no whole number of elements.
pub fn decode_f32(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    assert_eq!(bytes.len() % dtype.size(), 0, "decode_f32: a partial element");
    let mut values = vec![0.0; bytes.len() / dtype.size()];
    decode_f32_into(dtype, bytes, &mut values);
    values
}

/// As [`decode_f32`], into `out`.
///
/// # Panics
/// As [`decode_f32`], and if `out` has another number of elements than `bytes`.
pub fn decode_f32_into(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.size(), "decode_f32: lengths differ");
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        DType::F32 => {
            let quads = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            out.iter_mut().zip(quads).for_each(|(o, b)| *o = f32::from_le_bytes(b));
        }
        DType::F16 => {
            let runs = bytes.chunks(2 * TOGETHER).zip(out.chunks_mut(TOGETHER));
            for (bytes, out) in runs {
                let mut halves = [f16::ZERO; TOGETHER];
                let halves = &mut halves[..out.len()];
                let pairs = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
                halves.iter_mut().zip(pairs).for_each(|(half, b)| *half = f16::from_le_bytes(b));
                halves.convert_to_f32_slice(out);
            }
        }
        DType::BF16 => {
            out.iter_mut().zip(pairs()).for_each(|(o, b)| *o = bf16::from_le_bytes(b).to_f32());
        }
        DType::I8 => {
            out.iter_mut().zip(bytes).for_each(|(o, b)| *o = f32::from(b.cast_signed()));
        }
        DType::U32 | DType::Q8 => panic!("decode_f32: {dtype} is no floating-point type"),
    }
}

/// Numbers that are converted together.
const TOGETHER: usize = 64;

/// Numbers of 16 bits, many at once: one by one, each asks anew what the processor can do.
fn encode_halves<H: Copy>(
    values: &[f32],
    zero: H,
    to_bytes: impl Fn(H) -> [u8; 2],
    bytes: &mut Vec<u8>,
) where
    [H]: HalfFloatSliceExt,
{
    for values in values.chunks(TOGETHER) {
        let (mut halves, mut pairs) = ([zero; TOGETHER], [[0; 2]; TOGETHER]);
        let (halves, pairs) = (&mut halves[..values.len()], &mut pairs[..values.len()]);
        halves.convert_from_f32_slice(values);
        pairs.iter_mut().zip(&*halves).for_each(|(pair, half)| *pair = to_bytes(*half));
        bytes.extend_from_slice(pairs.as_flattened());
    }
}

/// A number as [`DType::I8`] holds it.
fn code_of(x: f32) -> i8 {
    if x.is_nan() { i8::MIN } else { nearest(x.clamp(-127.0, 127.0)) as i32 as i8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest_whole_numbers_that_there_are() {
        let values = [0.5, 1.5, -2.4, -126.6, 300.0, f32::NEG_INFINITY, f32::NAN];
        let bytes = encode_f32(DType::I8, &values);
        let back = decode_f32(DType::I8, &bytes);
        assert_eq!(back, [0.0, 2.0, -2.0, -127.0, 127.0, -127.0, -128.0]);
    }

    /// Runs that are no multiple of what is converted together.
    #[test]
    fn many_numbers_are_converted_as_one() {
        let values: Vec<f32> = (0..150).map(|i| (i as f32 - 70.0) * 1.37e-3).collect();
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
            let all = encode_f32(dtype, &values);
            let single: Vec<u8> = values.iter().flat_map(|x| encode_f32(dtype, &[*x])).collect();
            assert_eq!(all, single, "{dtype}");
            let back: Vec<f32> =
                all.chunks(dtype.size()).flat_map(|bytes| decode_f32(dtype, bytes)).collect();
            assert_eq!(decode_f32(dtype, &all), back, "{dtype}");
        }
    }

    #[test]
    fn every_half_pattern_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            for dtype in [DType::F16, DType::BF16] {
                let wide = decode_f32(dtype, &bits.to_le_bytes());
                if !wide[0].is_nan() {
                    assert_eq!(encode_f32(dtype, &wide), bits.to_le_bytes(), "{dtype} {bits:#x}");
                }
            }
        }
    }

    #[test]
    fn names_parse_back_and_others_say_what_to_use() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8] {
            assert_eq!(dtype.name().parse::<DType>(), Ok(dtype));
        }
        let message = "q4".parse::<DType>().unwrap_err().to_string();
        assert_eq!(message, "unknown data type 'q4': use f32, f16, bf16 or q8");
    }
}
