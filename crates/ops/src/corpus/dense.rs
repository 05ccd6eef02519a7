//! Cases of the dense ops.

use std::fmt;

use longview_core::{DType, SplitMix64};

use super::case::{OpCase, lacks};
use super::data::{EDGES, FLOATS, HEAD_DIMS, exactly, indices, normals, weight};
use super::plan::{Buffers, Input, Outcome, OutputPlan, Plan, PlannedWeight, Values};
use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::compare::{Comparison, compare_outcomes};
use crate::desc::{
    Argmax, ArgmaxParams, Embed, EmbedParams, GeluMul, GeluMulParams, Gram, GramParams, Linear,
    LinearParams, RmsNorm, RmsNormParams, Rope, RopeParams, SiluMul, SiluMulParams,
};
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::Tolerance;
use crate::weight::Activations;

/// A case of [`Op::Embed`].
#[derive(Clone, Debug)]
pub struct EmbedCase {
    /// Query tokens.
    pub t: u32,
    /// Entries of the table.
    pub vocab: u32,
    /// Width of a row.
    pub width: u32,
    /// Of the table.
    pub dtype: DType,
    /// Multiplies the rows.
    pub scale: f32,
}

impl EmbedCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for dtype in FLOATS {
            let mut scaled =
                |t, vocab, width, scale| all.push(Self { t, vocab, width, dtype, scale });
            scaled(3, 11, 67, 25.298_22);
            scaled(2, 1000, 640, 25.298_22);
            let mut add = |t, vocab, width| scaled(t, vocab, width, 1.0);
            EDGES.iter().for_each(|t| add(*t, 101, 67));
            EDGES.iter().for_each(|width| add(5, 11, *width));
            [(0, 7, 33), (3, 1, 9), (2, 1000, 896)].iter().for_each(|(t, v, d)| add(*t, *v, *d));
        }
        all
    }
}

impl fmt::Display for EmbedCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, vocab, width, dtype, scale } = self;
        let scale = if *scale == 1.0 { String::new() } else { format!(",scale={scale}") };
        write!(f, "embed[t={t},v={vocab},d={width},w={dtype}{scale}]")
    }
}

impl OpCase for EmbedCase {
    fn op(&self) -> Op {
        Op::Embed
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.weight_dtypes, self.dtype, "weights")
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let mut ids = indices(rng, self.t as usize, self.vocab);
        ids.first_mut().into_iter().for_each(|id| *id = self.vocab - 1);
        ids.last_mut().into_iter().for_each(|id| *id = 0);
        Plan {
            inputs: vec![Input::ints("ids", ids)],
            weights: vec![weight(rng, "table", self.dtype, self.vocab, self.width, 1.0)],
            outputs: vec![OutputPlan::floats("out", (self.t * self.width) as usize)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.embed(Embed {
            p: EmbedParams { n_tokens: self.t, width: self.width, scale: self.scale },
            ids: b.inputs[0].view(),
            table: &b.weights[0],
            out: out.view_mut(),
        })
    }
}

/// What the rows of an [`RmsNormCase`] hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Standard normal numbers.
    Normal,
    /// Outliers of 1e4, as residual streams have.
    Large,
    /// 1e-4: epsilon counts.
    Tiny,
    /// Nothing but zeros.
    Zero,
    /// One not-a-number in the first row.
    Nan,
}

/// A case of [`Op::RmsNorm`].
#[derive(Clone, Debug)]
pub struct RmsNormCase {
    /// Rows of the input.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// Of the weight.
    pub dtype: DType,
    /// What the rows hold.
    pub kind: NormKind,
    /// Whether the rows are added to the output.
    pub accumulate: bool,
}

impl RmsNormCase {
    pub(super) fn all() -> Vec<Self> {
        use NormKind::{Large, Nan, Normal, Tiny, Zero};
        let mut all = Vec::new();
        for dtype in FLOATS {
            let mut put = |rows, width, kind, accumulate| {
                all.push(Self { rows, width, dtype, kind, accumulate });
            };
            let mut add = |rows, width, kind| put(rows, width, kind, false);
            EDGES.iter().for_each(|rows| add(*rows, 67, Normal));
            EDGES.iter().for_each(|width| add(3, *width, Normal));
            [(0, 64), (1, 896), (2, 4096), (5, 1031)]
                .into_iter()
                .for_each(|(rows, width)| add(rows, width, Normal));
            [Large, Tiny, Zero, Nan].into_iter().for_each(|kind| add(3, 129, kind));
            EDGES.iter().for_each(|width| put(3, *width, Normal, true));
            [(0, 64), (1, 896), (2, 4096), (5, 1031)]
                .into_iter()
                .for_each(|(rows, width)| put(rows, width, Normal, true));
            [Large, Nan].into_iter().for_each(|kind| put(3, 129, kind, true));
        }
        all
    }
}

impl fmt::Display for RmsNormCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, width, dtype, kind, .. } = self;
        write!(f, "rms_norm[rows={rows},width={width},w={dtype},{kind:?}")?;
        f.write_str(if self.accumulate { ",accumulate]" } else { "]" })
    }
}

impl OpCase for RmsNormCase {
    fn op(&self) -> Op {
        Op::RmsNorm
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        lacks(&c.weight_dtypes, self.dtype, "weights")
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let len = (self.rows * self.width) as usize;
        let spread = match self.kind {
            NormKind::Tiny => 1e-4,
            NormKind::Zero => 0.0,
            _ => 1.0,
        };
        let mut x = normals(rng, len, spread);
        match self.kind {
            NormKind::Large => x.iter_mut().step_by(17).for_each(|v| *v *= 1e4),
            NormKind::Nan => x[self.width as usize / 2] = f32::NAN,
            _ => (),
        }
        let mut out = OutputPlan::floats("out", len).or_nan(self.kind == NormKind::Nan);
        if self.accumulate {
            out = out.holding(Values::Floats(normals(rng, len, 1.0)));
        }
        Plan {
            inputs: vec![Input::floats("x", x)],
            weights: vec![weight(rng, "weight", self.dtype, 1, self.width, 1.0)],
            outputs: vec![out],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.rms_norm(RmsNorm {
            p: RmsNormParams {
                n_rows: self.rows,
                width: self.width,
                eps: 1e-6,
                accumulate: self.accumulate.into(),
            },
            x: b.inputs[0].view(),
            weight: &b.weights[0],
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::Matmul`] or [`Op::Matvec`].
#[derive(Clone, Debug)]
pub struct LinearCase {
    /// Which of the two.
    pub op: Op,
    /// Query tokens.
    pub rows: u32,
    /// Columns of W.
    pub n_in: u32,
    /// Rows of W.
    pub n_out: u32,
    /// Of W and the bias.
    pub dtype: DType,
    /// What is done to x.
    pub activations: Activations,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the product is added to the output.
    pub accumulate: bool,
}

impl LinearCase {
    pub(super) fn all_matmul() -> Vec<Self> {
        let mut all = Vec::new();
        for dtype in FLOATS {
            let mut add = adder(Op::Matmul, dtype, &mut all);
            EDGES.iter().for_each(|rows| add(*rows, 67, 37));
            EDGES.iter().for_each(|n_in| add(13, *n_in, 37));
            EDGES.iter().for_each(|n_out| add(13, 67, *n_out));
            let mixed = [(130, 129, 131), (257, 300, 65), (33, 1031, 17), (64, 64, 64), (1, 1, 1)];
            mixed.iter().for_each(|(t, i, o)| (0..4).for_each(|_| add(*t, *i, *o)));
            (0..4).for_each(|_| add(0, 33, 9));
            // Large tiles for every multiprocessor of a small device.
            add(513, 17, 400);
        }
        all
    }

    pub(super) fn all_matvec() -> Vec<Self> {
        let mut all = Vec::new();
        for dtype in FLOATS {
            let mut add = adder(Op::Matvec, dtype, &mut all);
            EDGES.iter().for_each(|n_in| add(1, *n_in, 37));
            EDGES.iter().for_each(|n_out| add(1, 67, *n_out));
            (1..=8).for_each(|rows| add(rows, 129, 65));
            (1..=8).for_each(|rows| add(rows, 67, 33));
            let mixed = [(1, 896, 1031), (1, 4864, 129), (2, 1031, 257), (3, 127, 300), (1, 1, 1)];
            mixed.iter().for_each(|(t, i, o)| (0..4).for_each(|_| add(*t, *i, *o)));
            (0..4).for_each(|_| add(0, 33, 9));
        }
        all
    }
}

/// Adds cases whose bias and accumulation take turns. With weights of BF16 there are more: two of
/// three round x, and one must not.
fn adder(op: Op, dtype: DType, all: &mut Vec<LinearCase>) -> impl FnMut(u32, u32, u32) {
    let mut turn = 0;
    move |rows, n_in, n_out| {
        let (bias, accumulate) = (turn % 2 == 1, turn / 2 % 2 == 1);
        let mut put = |activations| {
            all.push(LinearCase { op, rows, n_in, n_out, dtype, activations, bias, accumulate });
        };
        put(Activations::default());
        if dtype == DType::BF16 {
            put(if turn % 3 == 2 { Activations::F32 } else { Activations::Bf16 });
        }
        turn += 1;
    }
}

impl fmt::Display for LinearCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, rows, n_in, n_out, dtype, .. } = self;
        write!(f, "{op}[t={rows},in={n_in},out={n_out},w={dtype}")?;
        f.write_str(match self.activations {
            Activations::Bf16 => ",x=bf16",
            Activations::F32 => ",x=f32",
            Activations::Int16 | Activations::Int8 => "",
        })?;
        f.write_str(if self.bias { ",bias" } else { "" })?;
        f.write_str(if self.accumulate { ",accumulate]" } else { "]" })
    }
}

impl OpCase for LinearCase {
    fn op(&self) -> Op {
        self.op
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn excused(&self, c: &Capabilities) -> Option<String> {
        let too_many = self.op == Op::Matvec && self.rows as usize > c.matvec_max_rows;
        let rows = too_many.then(|| format!("matvec takes up to {} rows", c.matvec_max_rows));
        rows.or_else(|| lacks(&c.weight_dtypes, self.dtype, "weights"))
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let spread = 1.0 / (self.n_in as f32).sqrt();
        let mut weights = vec![weight(rng, "w", self.dtype, self.n_out, self.n_in, spread)];
        if let [PlannedWeight::Plain(source)] = weights.as_mut_slice() {
            source.activations = self.activations;
        }
        if self.bias {
            weights.push(weight(rng, "b", self.dtype, 1, self.n_out, 1.0));
        }
        let len = (self.rows * self.n_out) as usize;
        let x = normals(rng, (self.rows * self.n_in) as usize, 1.0);
        let mut out = OutputPlan::floats("out", len);
        if self.accumulate {
            out = out.holding(Values::Floats(normals(rng, len, 1.0)));
        }
        Plan { inputs: vec![Input::floats("x", x)], weights, outputs: vec![out] }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let Self { rows: n_rows, n_in, n_out, .. } = *self;
        let p = LinearParams { n_rows, n_in, n_out, accumulate: self.accumulate.into() };
        launch_linear(self.op, p, backend, b)
    }

    fn judge(&self, plan: &Plan, got: &Outcome, want: &Outcome, tol: &Tolerance) -> Comparison {
        let says = matches!(self.activations, Activations::Bf16 | Activations::F32);
        let is_said = self.dtype == DType::BF16 && says;
        compare_outcomes(plan, got, want, if is_said { &Tolerance::SAID_ROUNDING } else { tol })
    }
}

/// Calls a linear layer on the buffers of a plan: x, the weight and, if there is one, the bias.
pub(super) fn launch_linear<B: Backend>(
    op: Op,
    p: LinearParams,
    backend: &B,
    b: &mut Buffers<B>,
) -> OpResult<()> {
    let [out] = exactly(&mut b.outputs);
    let d = Linear {
        p,
        x: b.inputs[0].view(),
        weight: &b.weights[0],
        bias: b.weights.get(1),
        out: out.view_mut(),
    };
    if op == Op::Matvec { backend.matvec(d) } else { backend.matmul(d) }
}

/// A case of [`Op::Rope`].
#[derive(Clone, Debug)]
pub struct RopeCase {
    /// Query tokens.
    pub t: u32,
    /// Heads that are rotated.
    pub heads: u32,
    /// Width of a head.
    pub dh: u32,
    /// Elements of a head that rotate.
    pub rotary: u32,
}

impl RopeCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |t, heads, dh, rotary| all.push(Self { t, heads, dh, rotary });
        EDGES.iter().for_each(|t| add(*t, 2, 20, 20));
        for dh in HEAD_DIMS {
            [1, 2, 7, 14].into_iter().for_each(|heads| add(5, heads, dh, dh));
            [0, 2, dh / 2, dh - 2].into_iter().for_each(|rotary| add(3, 3, dh, rotary));
        }
        [(0, 2, 64, 64), (1, 1, 2, 2), (2, 0, 20, 20), (130, 9, 128, 128)]
            .into_iter()
            .for_each(|(t, heads, dh, rotary)| add(t, heads, dh, rotary));
        all
    }
}

impl fmt::Display for RopeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, heads, dh, rotary } = self;
        write!(f, "rope[t={t},heads={heads},dh={dh},rotary={rotary}]")
    }
}

impl OpCase for RopeCase {
    fn op(&self) -> Op {
        Op::Rope
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let len = (self.t * self.heads * self.dh) as usize;
        let half = self.rotary / 2;
        let mut table = Vec::new();
        for _ in 0..self.t {
            let position = rng.below(1_000_000) as f64;
            let angle = |i: u32| position * 1e4f64.powf(-f64::from(i) / f64::from(half));
            table.extend((0..half).map(|i| angle(i).cos() as f32));
            table.extend((0..half).map(|i| angle(i).sin() as f32));
        }
        let x = Input::floats("x", normals(rng, len, 1.0));
        Plan {
            inputs: vec![x, Input::floats("table", table)],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", len)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        let Self { t: n_tokens, heads: n_heads, dh: head_dim, rotary: rotary_dim } = *self;
        backend.rope(Rope {
            p: RopeParams { n_tokens, n_heads, head_dim, rotary_dim },
            x: b.inputs[0].view(),
            table: b.inputs[1].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::SiluMul`].
#[derive(Clone, Debug)]
pub struct SiluMulCase {
    /// Elements.
    pub n: u32,
    /// Standard deviation of the gate; 100 reaches where `exp` overflows.
    pub spread: u32,
}

impl SiluMulCase {
    pub(super) fn all() -> Vec<Self> {
        let sizes = EDGES.into_iter().chain([0, 1000, 4097, 9728]);
        sizes.flat_map(|n| [1, 100].map(|spread| Self { n, spread })).collect()
    }
}

impl fmt::Display for SiluMulCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "silu_mul[n={},spread={}]", self.n, self.spread)
    }
}

impl OpCase for SiluMulCase {
    fn op(&self) -> Op {
        Op::SiluMul
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let n = self.n as usize;
        let gate = Input::floats("gate", normals(rng, n, self.spread as f32));
        Plan {
            inputs: vec![gate, Input::floats("up", normals(rng, n, 1.0))],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", n)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.silu_mul(SiluMul {
            p: SiluMulParams { n: self.n },
            gate: b.inputs[0].view(),
            up: b.inputs[1].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::GeluMul`].
#[derive(Clone, Debug)]
pub struct GeluMulCase {
    /// Elements.
    pub n: u32,
    /// Standard deviation of the gate; 100 reaches where `exp` overflows.
    pub spread: u32,
}

impl GeluMulCase {
    pub(super) fn all() -> Vec<Self> {
        let sizes = EDGES.into_iter().chain([0, 1000, 4097, 9728]);
        sizes.flat_map(|n| [1, 100].map(|spread| Self { n, spread })).collect()
    }
}

impl fmt::Display for GeluMulCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gelu_mul[n={},spread={}]", self.n, self.spread)
    }
}

impl OpCase for GeluMulCase {
    fn op(&self) -> Op {
        Op::GeluMul
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let n = self.n as usize;
        let mut gate = normals(rng, n, self.spread as f32);
        // Where the cube of the gate is more than f32 holds.
        if let (100, [first, .., last]) = (self.spread, gate.as_mut_slice()) {
            (*first, *last) = (-1e20, 1e20);
        }
        Plan {
            inputs: vec![Input::floats("gate", gate), Input::floats("up", normals(rng, n, 1.0))],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", n)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.gelu_mul(GeluMul {
            p: GeluMulParams { n: self.n },
            gate: b.inputs[0].view(),
            up: b.inputs[1].view(),
            out: out.view_mut(),
        })
    }
}

/// What the rows of an [`ArgmaxCase`] hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgmaxKind {
    /// Normal numbers.
    Normal,
    /// Small whole numbers: many equal maxima.
    Ties,
    /// One value everywhere.
    Equal,
    /// Some not-a-numbers and infinities.
    Nan,
    /// Nothing but minus infinity.
    NegInfinite,
}

/// A case of [`Op::Argmax`].
#[derive(Clone, Debug)]
pub struct ArgmaxCase {
    /// Rows of the input.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// What they hold.
    pub kind: ArgmaxKind,
}

impl ArgmaxCase {
    pub(super) fn all() -> Vec<Self> {
        use ArgmaxKind::{Equal, Nan, NegInfinite, Normal, Ties};
        let mut all = Vec::new();
        let mut add = |rows, width, kind| all.push(Self { rows, width, kind });
        for kind in [Normal, Ties, Equal, Nan, NegInfinite] {
            EDGES.iter().for_each(|width| add(3, *width, kind));
            [1000, 4099].into_iter().for_each(|width| add(2, width, kind));
        }
        EDGES.iter().for_each(|rows| add(*rows, 17, Normal));
        [(0, 9), (1, 151_936)].into_iter().for_each(|(rows, width)| add(rows, width, Normal));
        all
    }

    fn element(&self, rng: &mut SplitMix64) -> f32 {
        match self.kind {
            ArgmaxKind::Normal => rng.next_normal(),
            ArgmaxKind::Ties => rng.below(4) as f32 - 2.0,
            ArgmaxKind::Equal => -1.5,
            ArgmaxKind::NegInfinite => f32::NEG_INFINITY,
            ArgmaxKind::Nan => match rng.below(20) {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => f32::NEG_INFINITY,
                _ => rng.next_normal(),
            },
        }
    }
}

impl fmt::Display for ArgmaxCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "argmax[rows={},v={},{:?}]", self.rows, self.width, self.kind)
    }
}

impl OpCase for ArgmaxCase {
    fn op(&self) -> Op {
        Op::Argmax
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let x = (0..self.rows * self.width).map(|_| self.element(rng)).collect();
        Plan {
            inputs: vec![Input::floats("x", x)],
            weights: Vec::new(),
            outputs: vec![OutputPlan::ints("out", self.rows as usize)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        backend.argmax(Argmax {
            p: ArgmaxParams { n_rows: self.rows, width: self.width },
            x: b.inputs[0].view(),
            out: out.view_mut(),
        })
    }
}

/// A case of [`Op::Gram`].
#[derive(Clone, Debug)]
pub struct GramCase {
    /// Query tokens.
    pub t: u32,
    /// Heads of x.
    pub heads: u32,
    /// Heads summed into one matrix.
    pub group: u32,
    /// Width of a head.
    pub dh: u32,
}

impl GramCase {
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |t, heads, group, dh| all.push(Self { t, heads, group, dh });
        EDGES.iter().for_each(|t| add(*t, 2, 1, 20));
        EDGES.iter().take(19).for_each(|dh| add(3, 2, 2, *dh));
        for dh in HEAD_DIMS {
            [(1, 1), (4, 1), (6, 3), (8, 8)]
                .into_iter()
                .for_each(|(heads, group)| add(17, heads, group, dh));
        }
        [(0, 4, 2, 20), (5, 0, 1, 8)]
            .into_iter()
            .for_each(|(t, heads, group, dh)| add(t, heads, group, dh));
        all
    }
}

impl fmt::Display for GramCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { t, heads, group, dh } = self;
        write!(f, "gram[t={t},heads={heads},group={group},dh={dh}]")
    }
}

impl OpCase for GramCase {
    fn op(&self) -> Op {
        Op::Gram
    }

    fn draw(&self, rng: &mut SplitMix64) -> Plan {
        let x = normals(rng, (self.t * self.heads * self.dh) as usize, 1.0);
        let len = (self.heads / self.group * self.dh * self.dh) as usize;
        let before = Values::Floats(normals(rng, len, 10.0));
        Plan {
            inputs: vec![Input::floats("x", x)],
            weights: Vec::new(),
            outputs: vec![OutputPlan::floats("out", len).holding(before)],
        }
    }

    fn launch<B: Backend>(&self, backend: &B, b: &mut Buffers<B>) -> OpResult<()> {
        let [out] = exactly(&mut b.outputs);
        let Self { t: n_tokens, heads: n_heads, group, dh: head_dim } = *self;
        backend.gram(Gram {
            p: GramParams { n_tokens, n_heads, group, head_dim },
            x: b.inputs[0].view(),
            out: out.view_mut(),
        })
    }
}
