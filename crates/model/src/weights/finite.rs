//! Weights that are NaN or infinite: one of them makes every answer nonsense, and says nothing.
//!
//! What is looked at is what a load reads anyway: scales of blocks, which are put into tiles;
//! vectors; and matrices that are copied to a device. A plain matrix that is used where the file is
//! mapped is not looked at, because that alone would read all of the file.

use longview_core::DType;

/// Values that are looked at together, without a branch between them.
const RUN: usize = 4096;

/// The first of the values in `bytes` that is NaN or infinite. Whole values alone are looked at.
pub(super) fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    match dtype {
        DType::F32 => first::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::F16 => first::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        DType::BF16 => first::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        _ => None,
    }
}

fn first<const N: usize>(bytes: &[u8], is_wrong: impl Fn([u8; N]) -> bool + Copy) -> Option<usize> {
    let (values, _) = bytes.as_chunks::<N>();
    values.chunks(RUN).enumerate().find_map(|(i, run)| {
        let any = run.iter().fold(false, |any, value| any | is_wrong(*value));
        let place = || run.iter().position(|value| is_wrong(*value));
        any.then(place).flatten().map(|at| i * RUN + at)
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn only_nan_and_infinity_are_found() {
        let wrong = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let right = [0.0, -0.0, 1.0, f32::MIN_POSITIVE, -65_504.0];
        for at in [0, RUN - 1, RUN, 2 * RUN + 7] {
            for (value, is_wrong) in
                wrong.map(|x| (x, true)).into_iter().chain(right.map(|x| (x, false)))
            {
                let mut values = vec![0.5; 2 * RUN + 9];
                values[at] = value;
                let found = is_wrong.then_some(at);
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                assert_eq!(first_not_finite(DType::F32, &bytes), found, "{value}");
                let bytes: Vec<u8> =
                    values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
                assert_eq!(first_not_finite(DType::F16, &bytes), found, "{value}");
                let bytes: Vec<u8> =
                    values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
                assert_eq!(first_not_finite(DType::BF16, &bytes), found, "{value}");
            }
        }
        assert_eq!(first_not_finite(DType::F32, &[0xff; 3]), None);
    }
}
