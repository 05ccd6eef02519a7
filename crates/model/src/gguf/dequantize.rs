//! Stored values as numbers.

use half::{bf16, f16};
use longview_core::quant;

use super::types::GgmlType;

/// The values of `blocks`, which are of type `ty`.
///
/// # Panics
/// If `blocks` are not whole blocks, or `out` is not as long as their values.
pub fn dequantize(ty: GgmlType, blocks: &[u8], out: &mut [f32]) {
    if let Some(quant) = ty.quant_type() {
        return quant::dequantize(quant, blocks, out);
    }
    let n_blocks = blocks.len() / ty.block_bytes();
    assert_eq!(blocks.len(), n_blocks * ty.block_bytes(), "whole values of {}", ty.name());
    assert_eq!(out.len(), n_blocks, "the values of {}", ty.name());
    match ty {
        GgmlType::F16 => fill(out, blocks, |two| f16::from_le_bytes(two).to_f32()),
        GgmlType::Bf16 => fill(out, blocks, |two| bf16::from_le_bytes(two).to_f32()),
        _ => fill(out, blocks, f32::from_le_bytes),
    }
}

/// Each value from its `N` bytes.
fn fill<const N: usize>(out: &mut [f32], bytes: &[u8], value: impl Fn([u8; N]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_themselves() {
        let values = |ty: GgmlType, bytes: &[u8]| {
            let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes()];
            dequantize(ty, bytes, &mut out);
            out
        };
        let half = |x: f32| f16::from_f32(x).to_le_bytes();
        assert_eq!(values(GgmlType::F32, &1.5_f32.to_le_bytes()), [1.5]);
        assert_eq!(values(GgmlType::F16, &[half(-0.25), half(3.0)].concat()), [-0.25, 3.0]);
        assert_eq!(values(GgmlType::Bf16, &[0x80, 0x3f, 0x40, 0xc0]), [1.0, -3.0]);
    }
}
