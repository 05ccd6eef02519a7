//! Cases of the ops that read quantised weights.

use std::fmt;

use half::f16;
use longview_core::quant::QuantType;
use longview_core::{DType, HostBytes, SplitMix64};

use super::case::OpCase;
use super::data::{exactly, indices, normals, weight};
use super::dense::launch_linear;
use super::plan::{Buffers, Input, Outcome, OutputPlan, Plan, PlannedWeight, Values};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::compare::{Comparison, compare_outcomes};
use crate::desc::{Embed, EmbedParams, LinearParams};
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::Tolerance;
use crate::weight::{Activations, QuantSource};

/// Random blocks whose values are of size `spread`.
pub fn random_blocks(ty: QuantType, n: usize, spread: f32, rng: &mut SplitMix64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..n * ty.block_bytes()).map(|_| rng.below(256) as u8).collect();
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        // Codes and scales of a block are random over their whole range, so the scale of the block
        // is what its values should be over what they would be.
        let d = spread * (0.5 + rng.next_f32());
        let mut put = |at: usize, x: f32| block[at..at + 2].copy_from_slice(&half(x));
        match ty {
            QuantType::Q4_0 => put(0, d / 4.6),
            QuantType::Q5_0 => put(0, -d / 9.2),
            QuantType::Q8_0 => put(0, d / 74.0),
            QuantType::Iq4Nl => put(0, d / 70.0),
            QuantType::Q4_1 | QuantType::Q5_1 => {
                let codes = (1 << ty.code_bits()) as f32;
                put(0, d / (0.29 * codes));
                put(2, -d * 1.7);
            }
            QuantType::Q4K | QuantType::Q5K => {
                let codes = (1 << ty.code_bits()) as f32;
                put(0, d / (32.0 * 0.4 * codes));
                put(2, d / 32.0);
            }
            QuantType::Q6K => put(208, d / (18.0 * 74.0)),
            // A power of two: values are up to 6 times it.
            QuantType::Mxfp4 => block[0] = (127.0 + (d / 3.0).log2()).round() as u8,
        }
    }
    bytes
}

fn source(
    rng: &mut SplitMix64,
    ty: QuantType,
    shape: [u32; 2],
    spread: f32,
    activations: Activations,
) -> PlannedWeight {
    let [n_rows, n_cols] = shape.map(|n| n as usize);
    let blocks = random_blocks(ty, n_rows * n_cols / ty.block_len(), spread, rng);
    let blocks = HostBytes::from_vec(blocks);
    let name = "w".into();
    PlannedWeight::Quantised(QuantSource { name, ty, n_rows, n_cols, blocks, activations })
}

/// Without kernels for blocks of `ty` a backend keeps their values as f16, and rounds nothing else.
fn as_f16(c: &Capabilities, ty: QuantType) -> Option<String> {
    let has_kernels = c.quant_types.contains(&ty);
    (!has_kernels).then(|| "quantised weights become f16 here".to_owned())
}

/// A case of [`Op::Embed`] with a quantised table.
#[derive(Clone, Debug)]
pub struct QuantEmbedCase {
    /// Query tokens.
    pub t: u32,
    /// Entries of the table.
    pub vocab: u32,
    /// Blocks of a row.
    pub blocks: u32,
    /// Of the table.
    pub ty: QuantType,
}

impl QuantEmbedCase {
    pub(super) fn all() -> Vec<Self> {
        let sizes = [(0, 7, 1), (1, 1, 1), (3, 16, 2), (5, 17, 3), (33, 101, 2)];
        let of = |ty| sizes.map(|(t, vocab, blocks)| Self { t, vocab, blocks, ty });
        QuantType::ALL.into_iter().flat_map(of).collect()
    }

    fn width(&self) -> u32 {
        self.blocks * self.ty.block_len() as u32
    }
}

impl fmt::Display for QuantEmbedCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "embed[t={},v={},d={},w={}]", self.t, self.vocab, self.width(), self.ty)
    }
}

impl OpCase for QuantEmbedCase {
    fn op(&self) -> Op {
        Op::Embed
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        as_f16(c, self.ty)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let mut ids = indices(rng, self.t as usize, self.vocab);
        ids.first_mut().into_iter().for_each(|id| *id = self.vocab - 1);
        let table = source(rng, self.ty, [self.vocab, self.width()], 1.0, Activations::Int8);
        Plan {
            inputs: vec![Input::ints("ids", ids)],
            weights: vec![table],
            outputs: vec![OutputPlan::floats("out", (self.t * self.width()) as usize)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.embed(Embed {
            p: EmbedParams { n_tokens: self.t, width: self.width(), scale: 2.0 },
            ids: b.inputs[0].view(),
            table: &b.weights[0],
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::Matmul`] or [`Op::Matvec`] with quantised weights.
#[derive(Clone, Debug)]
pub struct QuantLinearCase {
    /// Which of the two.
    pub op: Op,
    /// Query tokens.
    pub rows: u32,
    /// Blocks of a row of W.
    pub blocks: u32,
    /// Rows of W.
    pub n_out: u32,
    /// Of W.
    pub ty: QuantType,
    /// What is done to x.
    pub activations: Activations,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the product is added to the output.
    pub accumulate: bool,
}

impl QuantLinearCase {
    pub(super) fn all_matmul() -> Vec<Self> {
        let rows = [0, 1, 2, 3, 7, 8, 9, 17, 64, 129].map(|rows| (rows, 2, 37));
        let outs = [1, 15, 16, 17, 31, 33, 257].map(|n_out| (5, 1, n_out));
        Self::of(Op::Matmul, &[&rows[..], &outs, &[(33, 5, 65), (70, 1, 160)]].concat())
    }

    pub(super) fn all_matvec() -> Vec<Self> {
        let rows = [1, 2, 3, 4, 5, 6, 7, 8].map(|rows| (rows, 3, 33));
        let outs = [1, 15, 16, 17, 129, 1031].map(|n_out| (1, 2, n_out));
        Self::of(Op::Matvec, &[&rows[..], &outs, &[(1, 9, 48), (2, 18, 20)]].concat())
    }

    /// Every type with every size, `(rows, blocks, n_out)`; the rest takes turns.
    fn of(op: Op, sizes: &[(u32, u32, u32)]) -> Vec<Self> {
        let mut all = Vec::new();
        for (place, ty) in QuantType::ALL.into_iter().enumerate() {
            for (i, (rows, blocks, n_out)) in sizes.iter().copied().enumerate() {
                let (bias, accumulate) = (i % 2 == 1, i / 2 % 2 == 1);
                let other = [Activations::Int16, Activations::F32][(place + i) % 2];
                for activations in [Activations::Int8, other] {
                    let case = Self { op, rows, blocks, n_out, ty, activations, bias, accumulate };
                    all.push(case);
                }
            }
        }
        all
    }

    fn n_in(&self) -> u32 {
        self.blocks * self.ty.block_len() as u32
    }
}

impl fmt::Display for QuantLinearCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, rows, n_out, ty, .. } = self;
        write!(f, "{op}[t={rows},in={},out={n_out},w={ty}", self.n_in())?;
        f.write_str(match self.activations {
            Activations::Int8 => "",
            Activations::Int16 => ",x=int16",
            Activations::Bf16 => ",x=bf16",
            Activations::F32 => ",x=f32",
        })?;
        f.write_str(if self.bias { ",bias" } else { "" })?;
        f.write_str(if self.accumulate { ",accumulate]" } else { "]" })
    }
}

impl OpCase for QuantLinearCase {
    fn op(&self) -> Op {
        self.op
    }

    /// Weights of f16 are right, too.
    fn dtype(&self) -> DType {
        DType::F16
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        let too_many = self.op == Op::Matvec && self.rows as usize > c.matvec_max_rows;
        too_many.then(|| format!("matvec takes up to {} rows", c.matvec_max_rows))
    }

    fn elsewhere(&self, c: &Capabilities) -> Option<String> {
        as_f16(c, self.ty).filter(|_| self.activations != Activations::F32)
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let spread = 1.0 / (self.n_in() as f32).sqrt();
        let shape = [self.n_out, self.n_in()];
        let mut weights = vec![source(rng, self.ty, shape, spread, self.activations)];
        if self.bias {
            weights.push(weight(rng, "b", DType::F16, 1, self.n_out, 1.0));
        }
        let len = (self.rows * self.n_out) as usize;
        let mut x = normals(rng, (self.rows * self.n_in()) as usize, 1.0);
        // Units of one number, of zeros, and with an outlier.
        for (i, unit) in x.chunks_mut(32).enumerate() {
            match i % 7 {
                3 => unit.fill(0.5),
                5 => unit.fill(0.0),
                6 => unit[13] *= 50.0,
                _ => (),
            }
        }
        let mut out = OutputPlan::floats("out", len);
        if self.accumulate {
            out = out.holding(Values::Floats(normals(rng, len, 1.0)));
        }
        Plan { inputs: vec![Input::floats("x", x)], weights, outputs: vec![out] }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let (n_rows, n_in, n_out) = (self.rows, self.n_in(), self.n_out);
        let p = LinearParams { n_rows, n_in, n_out, accumulate: self.accumulate.into() };
        launch_linear(self.op, p, backend, b)
    }

    fn judge(&self, plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        // Sums of numbers up to 50 times as large as in other cases.
        compare_outcomes(plan, got, want, &tol.times(4.0))
    }
}
