//! Cases of [`Backend::project`] and [`Backend::norm_gated`], each several ops in one call, which
//! the corpus of single ops does not have.

use longview_core::quant::QuantType;
use longview_core::{DType, HostBytes, SplitMix64, decode_f32, encode_f32};

use crate::backend::Backend;
use crate::buffer::{DeviceBuffer, View, ViewMut};
use crate::corpus::random_blocks;
use crate::desc::{Activation, LinearOut, NormGated, Project, RmsNormParams, RopeParams};
use crate::error::OpResult;
use crate::reference::ReferenceBackend;
use crate::weight::{Activations, QuantSource, WeightSource};

/// Sizes and types of a call. Its numbers follow from them.
#[derive(Clone, Copy, Debug)]
pub struct FusedCase {
    /// Tokens.
    pub n_rows: u32,
    /// Columns of x.
    pub width: u32,
    /// Query heads and KV heads.
    pub heads: [u32; 2],
    /// Columns of a head.
    pub head_dim: u32,
    /// Columns of a head that rotate.
    pub rotary_dim: u32,
    /// Columns of gate and up.
    pub inner: u32,
    /// How matrices and biases are stored; norms of gated products, too.
    pub weights: DType,
    /// Formats of the matrices of q, k and v; of gate and up the first two. None: as `weights`.
    pub quantised: Option<[QuantType; 3]>,
    /// What products round.
    pub activations: Activations,
    /// Whether layers have a bias.
    pub is_biased: bool,
    /// Whether the heads of q and k are normed.
    pub has_head_norms: bool,
    /// Whether the single calls are made that a fused call stands for.
    pub is_single: bool,
}

impl FusedCase {
    /// A small layer that decodes one token.
    pub const DECODE: Self = Self {
        n_rows: 1,
        width: 64,
        heads: [4, 2],
        head_dim: 16,
        rotary_dim: 16,
        inner: 96,
        weights: DType::BF16,
        quantised: None,
        activations: Activations::F32,
        is_biased: false,
        has_head_norms: false,
        is_single: false,
    };

    /// All types, numbers of rows, biases and rotations; the shapes that one launch cannot do.
    pub fn all() -> Vec<Self> {
        let mut cases = vec![];
        for weights in [DType::F32, DType::F16, DType::BF16] {
            for n_rows in [1, 2, 3, 5, 8] {
                let is_biased = n_rows % 2 == 1;
                cases.push(Self { n_rows, weights, is_biased, ..Self::DECODE });
            }
        }
        // With x rounded to bf16.
        let activations = Activations::Bf16;
        for n_rows in [1, 2, 3, 5, 8] {
            cases.push(Self { n_rows, activations, ..Self::DECODE });
        }
        cases.extend([
            Self { width: 36, inner: 7, is_biased: true, activations, ..Self::DECODE },
            Self { width: 1028, n_rows: 8, inner: 513, activations, ..Self::DECODE },
            Self { width: 30, activations, ..Self::DECODE },
            // A part of each head turns; nothing does.
            Self { head_dim: 24, rotary_dim: 8, ..Self::DECODE },
            Self { rotary_dim: 0, ..Self::DECODE },
            // Rows that are no whole units of halves, and many of them.
            Self { width: 36, inner: 7, is_biased: true, ..Self::DECODE },
            Self { width: 1028, n_rows: 8, inner: 513, ..Self::DECODE },
            // Norms of heads, which part of a head turns or not; odd rotations.
            Self { has_head_norms: true, ..Self::DECODE },
            Self { has_head_norms: true, n_rows: 3, head_dim: 24, rotary_dim: 8, ..Self::DECODE },
            Self { head_dim: 18, rotary_dim: 18, ..Self::DECODE },
            // Single calls: wide heads, odd widths, more rows than a launch takes.
            Self { has_head_norms: true, heads: [2, 1], head_dim: 258, ..Self::DECODE },
            Self { width: 30, ..Self::DECODE },
            Self { n_rows: 9, ..Self::DECODE },
        ]);
        cases
    }

    /// Quantised weights: all formats with both roundings of one row, the shapes of tiles and of
    /// rotations, several formats in a call; and what one launch cannot do.
    pub fn quantised() -> Vec<Self> {
        let one = Self {
            width: 512,
            head_dim: 32,
            rotary_dim: 32,
            quantised: Some([QuantType::Q4K; 3]),
            activations: Activations::Int16,
            ..Self::DECODE
        };
        let mut cases = vec![];
        for ty in QuantType::ALL {
            for activations in [Activations::Int8, Activations::Int16] {
                let is_biased = activations == Activations::Int8;
                let quantised = Some([ty; 3]);
                cases.push(Self { quantised, activations, is_biased, ..one });
            }
        }
        let small = Self { quantised: Some([QuantType::Q8_0; 3]), ..one };
        for weights in [DType::F32, DType::F16] {
            cases.push(Self { weights, ..one });
        }
        cases.extend([
            // All of a head turns within a tile, a part of it, or nothing.
            Self { head_dim: 16, rotary_dim: 16, ..one },
            Self { head_dim: 48, rotary_dim: 16, ..one },
            Self { head_dim: 80, rotary_dim: 32, ..one },
            Self { head_dim: 128, rotary_dim: 128, ..one },
            Self { head_dim: 24, rotary_dim: 0, is_biased: true, ..one },
            // Rows that fill no tile; a width that a warp norms, and one of few groups.
            Self { inner: 7, is_biased: true, ..one },
            Self { width: 256, inner: 33, ..small },
            Self { width: 96, inner: 513, ..small },
            Self { width: 2080, ..small },
            // Several formats.
            Self { quantised: Some([QuantType::Q4K, QuantType::Q4K, QuantType::Q6K]), ..one },
            Self { quantised: Some([QuantType::Q5K, QuantType::Q5K, QuantType::Q6K]), ..one },
            Self { quantised: Some([QuantType::Q5K, QuantType::Q8_0, QuantType::Q5K]), ..one },
            Self { quantised: Some([QuantType::Q4_0, QuantType::Q4_1, QuantType::Q8_0]), ..one },
            // Norms of heads, and rotations across tiles.
            Self { has_head_norms: true, ..one },
            Self { has_head_norms: true, head_dim: 48, rotary_dim: 24, weights: DType::F16, ..one },
            Self { head_dim: 24, rotary_dim: 24, ..one },
            Self { head_dim: 32, rotary_dim: 8, ..one },
            // Single calls: no rounding, several rows, wide heads, a row that is too long for
            // shared memory.
            Self { has_head_norms: true, heads: [2, 1], head_dim: 258, ..one },
            Self { activations: Activations::F32, ..one },
            Self { n_rows: 2, is_biased: true, ..one },
            Self { n_rows: 9, ..one },
            Self { width: 18_432, heads: [1, 1], inner: 16, ..small },
        ]);
        cases
    }

    /// q, k and v by [`Backend::project`].
    ///
    /// # Errors
    /// Those of the backend.
    pub async fn project<B: Backend>(&self, backend: &B) -> OpResult<Vec<Vec<f32>>> {
        let s = self;
        let mut make = self.maker(backend, 7);
        let widths = [s.heads[0], s.heads[1], s.heads[1]].map(|heads| heads * s.head_dim);
        let x = make.floats(s.n_rows * s.width)?;
        let norm = make.weight(DType::F32, 1, s.width)?;
        let [q, k, v] = widths;
        let layers = [make.layer(0, q)?, make.layer(1, k)?, make.layer(2, v)?];
        let table = make.floats(s.n_rows * s.rotary_dim)?;
        let mut head_norm = || {
            let norm = s.has_head_norms.then(|| make.weight(s.weights, 1, s.head_dim));
            norm.transpose()
        };
        let norms = [head_norm()?, head_norm()?];
        let room = |len: u32| backend.alloc(DType::F32, len as usize, "fused case");
        let [mut q_made, mut k_made, mut v_made] =
            [room(s.n_rows * q)?, room(s.n_rows * k)?, room(s.n_rows * v)?];
        let [mut q_out, mut k_out] = [room(s.n_rows * q)?, room(s.n_rows * k)?];
        let [mut scratch, mut head_scratch] = [room(s.n_rows * s.width)?, room(s.n_rows * q)?];
        let d = Project {
            p: self.norm_params(),
            x: View::all(&x),
            norm: &norm,
            scratch: ViewMut::all(&mut scratch),
            layers: [
                layers[0].to(q, &mut q_made),
                layers[1].to(k, &mut k_made),
                layers[2].to(v, &mut v_made),
            ],
            rope: RopeParams {
                n_tokens: s.n_rows,
                n_heads: 0,
                head_dim: s.head_dim,
                rotary_dim: s.rotary_dim,
            },
            table: View::all(&table),
            head_norms: norms.each_ref().map(Option::as_ref),
            out: [ViewMut::all(&mut q_out), ViewMut::all(&mut k_out)],
            head_scratch: ViewMut::all(&mut head_scratch),
        };
        if s.is_single { d.unfused(backend) } else { backend.project(d) }?;
        let mut outs = Vec::new();
        for buffer in [&q_out, &k_out, &v_made] {
            outs.push(read(backend, buffer).await?);
        }
        Ok(outs)
    }

    /// The gated product by [`Backend::norm_gated`].
    ///
    /// # Errors
    /// Those of the backend.
    pub async fn gated<B: Backend>(
        &self,
        backend: &B,
        activation: Activation,
    ) -> OpResult<Vec<f32>> {
        let s = self;
        let mut make = self.maker(backend, 9);
        let x = make.floats(s.n_rows * s.width)?;
        let norm = make.weight(s.weights, 1, s.width)?;
        let layers = [make.layer(0, s.inner)?, make.layer(1, s.inner)?];
        let room = |len: u32| backend.alloc(DType::F32, len as usize, "fused case");
        let len = s.n_rows * s.inner;
        let [mut gate, mut up, mut out] = [room(len)?, room(len)?, room(len)?];
        let mut scratch = room(s.n_rows * s.width)?;
        let d = NormGated {
            p: self.norm_params(),
            x: View::all(&x),
            norm: &norm,
            scratch: ViewMut::all(&mut scratch),
            activation,
            gate: layers[0].to(s.inner, &mut gate),
            up: layers[1].to(s.inner, &mut up),
            out: ViewMut::all(&mut out),
        };
        if s.is_single { d.unfused(backend) } else { backend.norm_gated(d) }?;
        read(backend, &out).await
    }

    fn maker<'a, B: Backend>(&self, backend: &'a B, seed: u64) -> Maker<'a, B> {
        Maker { backend, case: *self, rng: SplitMix64::new(seed) }
    }

    fn norm_params(&self) -> RmsNormParams {
        RmsNormParams { n_rows: self.n_rows, width: self.width, eps: 1e-5, accumulate: 0 }
    }

    /// The largest error of either call against the reference: normalised mean square error, as the
    /// parity run counts it, of each result.
    ///
    /// # Errors
    /// Those of the backend.
    pub async fn error_of<B: Backend>(
        &self,
        backend: &B,
        activation: Activation,
    ) -> OpResult<FusedError> {
        let reference = ReferenceBackend::new();
        let (got, want) = (self.project(backend).await?, self.project(&reference).await?);
        let project = got.iter().zip(&want).map(|(got, want)| nmse(got, want)).fold(0.0, max);
        let got = self.gated(backend, activation).await?;
        let gated = nmse(&got, &self.gated(&reference, activation).await?);
        Ok(FusedError { project, gated })
    }

    /// The largest error that is right.
    pub fn most(&self) -> f64 {
        if self.quantised.is_some() && self.activations == Activations::Int8 {
            // A norm that is off by an ulp rounds to the number above or below, one time in many.
            // Without rounding the error would be 2e-5.
            return 2e-6;
        }
        // A number between two of bf16 may go to the other one where its norm is off by an ulp.
        // Without rounding the error would be 1.3e-6.
        if self.activations.rounds_to_bf16(self.weights) { 8e-7 } else { 1e-7 }
    }
}

/// Errors of a case.
#[derive(Clone, Copy, Debug)]
pub struct FusedError {
    /// Of [`Backend::project`].
    pub project: f64,
    /// Of [`Backend::norm_gated`].
    pub gated: f64,
}

/// Runs both calls for a token and for several with two types of weights: what decoding and
/// checking drafts come to. The error names the call and what is wrong.
pub async fn fused_check<B: Backend>(backend: &B) -> Result<(), String> {
    // So wide that every invocation of a workgroup has a part of each sum.
    let one = FusedCase { width: 1028, ..FusedCase::DECODE };
    let several = FusedCase { n_rows: 5, weights: DType::F16, is_biased: true, ..one };
    for case in [one, several] {
        let error = case.error_of(backend, Activation::Silu).await.map_err(|e| e.to_string())?;
        for (call, error) in [("project", error.project), ("norm_gated", error.gated)] {
            // Not-a-number is wrong as well.
            if error.is_nan() || error > case.most() {
                let (rows, weights) = (case.n_rows, case.weights);
                let what = format!("{call} of {rows} rows with weights of {weights}");
                return Err(format!("{what}: NMSE {error:.1e} above {:.1e}", case.most()));
            }
        }
    }
    Ok(())
}

/// The larger one; not-a-number stays.
fn max(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}

fn nmse(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let wrong = got.iter().zip(want).map(|(a, b)| square(f64::from(*a) - f64::from(*b)));
    wrong.sum::<f64>() / want.iter().map(|x| square(f64::from(*x))).sum::<f64>()
}

async fn read<B: Backend>(backend: &B, buffer: &B::Buffer) -> OpResult<Vec<f32>> {
    let mut bytes = vec![0; buffer.len() * 4];
    backend.read(View::all(buffer), &mut bytes).await?;
    Ok(decode_f32(DType::F32, &bytes))
}

/// Data that is the same on every backend, in the order in which it is asked for.
struct Maker<'a, B: Backend> {
    backend: &'a B,
    case: FusedCase,
    rng: SplitMix64,
}

/// A weight and its bias.
struct Layer<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Weight>,
}

impl<B: Backend> Layer<B> {
    fn to<'a>(&'a self, n_out: u32, out: &'a mut B::Buffer) -> LinearOut<'a, B> {
        let Self { weight, bias } = self;
        LinearOut { weight, bias: bias.as_ref(), n_out, out: ViewMut::all(out) }
    }
}

impl<B: Backend> Maker<'_, B> {
    fn values(&mut self, len: u32) -> Vec<f32> {
        (0..len).map(|_| self.rng.next_normal()).collect()
    }

    fn floats(&mut self, len: u32) -> OpResult<B::Buffer> {
        let bytes = encode_f32(DType::F32, &self.values(len));
        let mut buffer = self.backend.alloc(DType::F32, len as usize, "fused case")?;
        self.backend.write(ViewMut::all(&mut buffer), &bytes)?;
        Ok(buffer)
    }

    fn weight(&mut self, dtype: DType, n_rows: u32, n_cols: u32) -> OpResult<B::Weight> {
        let bytes = HostBytes::from_vec(encode_f32(dtype, &self.values(n_rows * n_cols)));
        let (n_rows, n_cols) = (n_rows as usize, n_cols as usize);
        let (name, activations) = ("fused case".to_owned(), self.case.activations);
        self.backend.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes, activations })
    }

    fn layer(&mut self, which: usize, n_out: u32) -> OpResult<Layer<B>> {
        let FusedCase { weights, quantised, width, is_biased, .. } = self.case;
        let weight = match quantised {
            None => self.weight(weights, n_out, width)?,
            Some(types) => self.blocks(types[which], n_out, width)?,
        };
        let bias = if is_biased { Some(self.weight(weights, 1, n_out)?) } else { None };
        Ok(Layer { weight, bias })
    }

    fn blocks(&mut self, ty: QuantType, n_rows: u32, n_cols: u32) -> OpResult<B::Weight> {
        let (n_rows, n_cols) = (n_rows as usize, n_cols as usize);
        let blocks = random_blocks(ty, n_rows * n_cols / ty.block_len(), 0.1, &mut self.rng);
        let (blocks, activations) = (HostBytes::from_vec(blocks), self.case.activations);
        let name = "fused case".to_owned();
        let source = QuantSource { name, ty, n_rows, n_cols, blocks, activations };
        self.backend.load_quantised(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_agrees_with_itself() {
        pollster::block_on(fused_check(&ReferenceBackend::new())).unwrap();
    }

    #[test]
    fn what_is_no_number_is_wrong() {
        assert!(max(0.0, f64::NAN).is_nan() && max(f64::NAN, 1.0).is_nan());
        assert_eq!((max(1.0, 2.0), max(2.0, 1.0)), (2.0, 2.0));
        assert!(nmse(&[f32::NAN, 1.0], &[1.0, 1.0]).is_nan());
        assert_eq!(nmse(&[1.0, 1.0], &[1.0, 2.0]), 0.2);
    }
}
