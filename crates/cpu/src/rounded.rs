//! Rows of activations as products with plain weights take them: as they are, or rounded to bf16.

use half::bf16;
use longview_core::DType;

use crate::kernels::matvec::{pack_rows, packed_len, side};
use crate::kernels::pairs::{RoundFloats, RoundToPairs, row_len};
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Team};

/// How a product takes its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// f32, as they are.
    AsTheyAre,
    /// f32 with the values of bf16, where no instruction multiplies bf16.
    Floats,
    /// bf16.
    Pairs,
}

impl Form {
    /// For a weight of `dtype` whose products round, or do not.
    pub(crate) fn of(is_rounded: bool, dtype: DType, isa: SupportedIsa) -> Self {
        match (is_rounded, dtype) {
            (false, _) => Self::AsTheyAre,
            (true, DType::BF16) if isa.has_pairs() => Self::Pairs,
            (true, _) => Self::Floats,
        }
    }
}

/// Rows of activations.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    Floats(&'a [f32]),
    /// `[n, row_len(k)]`.
    Pairs(&'a [bf16]),
}

impl Form {
    /// Floats of scratch that [`few`] needs.
    pub(crate) fn few_len(self, n_rows: usize, k: usize) -> usize {
        match self {
            Self::AsTheyAre if n_rows == 1 => 0,
            Self::AsTheyAre | Self::Floats => packed_len(n_rows, k),
            Self::Pairs => n_rows * row_len(k) / 2,
        }
    }

    /// Floats of scratch that [`many`] needs.
    pub(crate) fn many_len(self, n_rows: usize, k: usize) -> usize {
        match self {
            Self::AsTheyAre => 0,
            Self::Floats => n_rows * k,
            Self::Pairs => n_rows * row_len(k) / 2,
        }
    }
}

/// Rows for a product that streams its weights: the f32 ones as [`pack_rows`] makes them.
pub(crate) fn few<'a>(
    isa: SupportedIsa,
    form: Form,
    x: &'a [f32],
    k: usize,
    scratch: &'a mut [f32],
) -> Rows<'a> {
    let n_rows = x.len() / k;
    let side = side(isa.tile_rows() * isa.tile_cols() / isa.lanes());
    match form {
        Form::AsTheyAre if n_rows == 1 => Rows::Floats(x),
        Form::AsTheyAre => {
            pack_rows(x, k, side, scratch);
            Rows::Floats(scratch)
        }
        Form::Floats => {
            if n_rows == 1 {
                scratch.copy_from_slice(x);
            } else {
                pack_rows(x, k, side, scratch);
            }
            isa.run(RoundFloats { x: scratch });
            Rows::Floats(scratch)
        }
        Form::Pairs => {
            let pairs: &mut [bf16] = bytemuck::cast_slice_mut(scratch);
            for (x, to) in x.chunks_exact(k).zip(pairs.chunks_exact_mut(row_len(k))) {
                isa.run(RoundToPairs { x, to });
            }
            Rows::Pairs(pairs)
        }
    }
}

/// Rows for a product that multiplies a block of weights with all of them; the f32 ones lie as they
/// did.
pub(crate) fn many<'a>(
    team: &mut Team,
    form: Form,
    x: &'a [f32],
    k: usize,
    scratch: &'a mut [f32],
) -> Rows<'a> {
    let (isa, cost) = (team.isa(), Cost::bytes(x.len() * 8));
    match form {
        Form::AsTheyAre => Rows::Floats(x),
        Form::Floats => {
            team.for_chunks(&mut *scratch, k, cost, |_, r, to| {
                to.copy_from_slice(&x[r * k..(r + 1) * k]);
                isa.run(RoundFloats { x: to });
            });
            Rows::Floats(scratch)
        }
        Form::Pairs => {
            let pairs: &mut [bf16] = bytemuck::cast_slice_mut(scratch);
            team.for_chunks(&mut *pairs, row_len(k), cost, |_, r, to| {
                isa.run(RoundToPairs { x: &x[r * k..(r + 1) * k], to });
            });
            Rows::Pairs(pairs)
        }
    }
}

#[cfg(test)]
mod tests {
    use longview_core::{HostBytes, SplitMix64, encode_f32};
    use longview_ops::{Activations, WeightSource};

    use super::*;
    use crate::isa::Isa;
    use crate::problem::Problem;
    use crate::queue::Queue;
    use crate::scratch::Scratch;
    use crate::weight::CpuWeight;

    const N_OUT: usize = 37;
    const ROWS: usize = 20;

    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let rng = &mut SplitMix64::new(seed);
        (0..n).map(|_| rng.next_normal()).collect()
    }

    /// A product of the first rows of x, as the ops make it.
    fn product(isa: SupportedIsa, n_rows: usize, k: usize) -> Vec<f32> {
        let mut queue = Queue { team: Team::alone(isa), shared: Scratch::default() };
        let bytes = HostBytes::from_vec(encode_f32(DType::BF16, &numbers(N_OUT * k, 1)));
        let (name, dtype, activations) = ("w".into(), DType::BF16, Activations::Bf16);
        let (n_rows_of_w, n_cols) = (N_OUT, k);
        let source = WeightSource { name, dtype, n_rows: n_rows_of_w, n_cols, bytes, activations };
        let weight = CpuWeight::load(source).unwrap();
        let x = &numbers(ROWS * k, 2)[..n_rows * k];
        let mut out = vec![0.0; n_rows * N_OUT];
        let p = Problem { x, n_in: k, n_out: N_OUT, bias: None, add: false };
        if n_rows > 8 {
            crate::ops::matmul::plain(&mut queue, &p, &weight, &mut out);
        } else {
            crate::ops::matvec::stream(&mut queue, &p, &weight, &mut out);
        }
        out
    }

    /// The portable kernel, which no backend runs, stands in for the instruction where there is
    /// none.
    #[test]
    fn pairs_give_what_rounded_floats_give_and_a_row_has_the_same_bits() {
        for k in [5, 32, 300, 2070] {
            let portable = SupportedIsa::choose(Some(Isa::Portable)).unwrap();
            let best = SupportedIsa::choose(None).unwrap();
            let floats = product(best.without_pairs(), ROWS, k);
            for isa in [portable.with_pairs(), best] {
                let all = product(isa, ROWS, k);
                for (pair, float) in all.iter().zip(&floats) {
                    assert!((pair - float).abs() < 1e-5 * k as f32, "{k}: {pair}, {float}");
                }
                for n_rows in [1, 2, 3, 4, 7, 8, 9, 13] {
                    let some = product(isa, n_rows, k);
                    assert_eq!(some, all[..n_rows * N_OUT], "{k}, {n_rows} rows");
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_even_and_keeps_what_is_no_number() {
        let bits = [
            0x3f80_8000u32, // Ties: down to even,
            0x3f81_8000,    // up to even.
            0x3f80_8001,
            0x0000_8001, // A denormal.
            0x7f80_0000,
            0xff80_0000,
            0x7f7f_ffff, // Beyond the largest.
        ];
        let rounded = [0x3f80u16, 0x3f82, 0x3f81, 1, 0x7f80, 0xff80, 0x7f80];
        for isa in Isa::ALL.iter().filter(|isa| isa.is_available()) {
            let isa = SupportedIsa::choose(Some(*isa)).unwrap();
            let x: Vec<f32> = bits.map(f32::from_bits).into_iter().chain([f32::NAN]).collect();
            let mut pairs = vec![bf16::ONE; row_len(x.len())];
            isa.run(RoundToPairs { x: &x, to: &mut pairs });
            assert_eq!(pairs[..7].iter().map(|x| x.to_bits()).collect::<Vec<_>>(), rounded);
            assert!(pairs[7].is_nan() && pairs[8..].iter().all(|x| x.to_bits() == 0));
            let mut floats = x.clone();
            isa.run(RoundFloats { x: &mut floats });
            let wide = rounded.map(|bits| u32::from(bits) << 16);
            assert_eq!(floats[..7].iter().map(|x| x.to_bits()).collect::<Vec<_>>(), wide);
            assert!(floats[7].is_nan());
        }
    }
}
