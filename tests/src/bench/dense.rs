//! Matrix times vector, matrix times matrix, and what a launch costs.

use longview_core::quant::{Order, QuantType, Tiles};
use longview_core::{DType, HostBytes, SplitMix64};
use longview_ops::corpus::random_blocks;
use longview_ops::{
    Activations, Backend, Linear, LinearParams, OpResult, QuantSource, SiluMul, SiluMulParams,
    View, ViewMut,
};

use super::harness::{Bench, Case, Cases, Work, boxed};

/// A linear layer.
pub(super) struct LinearCase {
    is_vector: bool,
    dtype: DType,
    n_rows: usize,
    n_in: usize,
    n_out: usize,
}

impl LinearCase {
    /// Few rows: bound by the bytes of the weight.
    fn matvec(dtype: DType, n_rows: usize, n_in: usize, n_out: usize) -> Self {
        Self { is_vector: true, dtype, n_rows, n_in, n_out }
    }

    /// Many rows.
    pub fn matmul(dtype: DType, n_rows: usize, n_in: usize, n_out: usize) -> Self {
        Self { is_vector: false, dtype, n_rows, n_in, n_out }
    }

    fn weight_bytes(&self) -> usize {
        self.n_in * self.n_out * self.dtype.size()
    }
}

impl<B: Backend> Case<B> for LinearCase {
    fn title(&self) -> String {
        let op = if self.is_vector { "matvec" } else { "matmul" };
        format!("{op} {} {} x {} -> {}", self.dtype, self.n_rows, self.n_in, self.n_out)
    }

    fn work(&self) -> Work {
        let Self { n_rows, n_in, n_out, .. } = *self;
        let flop = 2.0 * (n_rows * n_in * n_out) as f64;
        if self.is_vector {
            return Work::memory(self.weight_bytes(), flop);
        }
        let bytes = self.weight_bytes() + n_rows * (n_in + n_out) * 4;
        Work::arithmetic(bytes, flop).with(self.dtype)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { is_vector, dtype, n_rows, n_in, n_out } = *self;
        let copies = if is_vector { bench.copies(self.weight_bytes()) } else { 1 };
        let weights = bench.weights(dtype, n_out, n_in, copies)?;
        linear_seconds(bench, &weights, is_vector, [n_rows, n_in, n_out])
    }
}

/// Seconds of a linear layer of `[rows, n_in, n_out]`, with `weights` in turns.
fn linear_seconds<B: Backend>(
    bench: &mut Bench<'_, B>,
    weights: &[B::Weight],
    is_vector: bool,
    [n_rows, n_in, n_out]: [usize; 3],
) -> OpResult<f64> {
    let backend = bench.backend;
    let x = bench.buffer(DType::F32, n_rows * n_in)?;
    let mut out = backend.alloc(DType::F32, n_rows * n_out, "out")?;
    let [n_rows, n_in, n_out] = [n_rows, n_in, n_out].map(|n| n as u32);
    let p = LinearParams { n_rows, n_in, n_out, accumulate: 0 };
    let mut turn = 0;
    bench.seconds(&mut || {
        turn = (turn + 1) % weights.len();
        let (x, out) = (View::all(&x), ViewMut::all(&mut out));
        let d = Linear { p, x, weight: &weights[turn], bias: None, out };
        if is_vector { backend.matvec(d) } else { backend.matmul(d) }
    })
}

/// The activation of so few elements that its time is that of a launch.
struct LaunchCase;

const LAUNCH_ELEMENTS: usize = 256;

impl<B: Backend> Case<B> for LaunchCase {
    fn title(&self) -> String {
        format!("silu_mul {LAUNCH_ELEMENTS} (a launch)")
    }

    fn work(&self) -> Work {
        Work::memory(3 * 4 * LAUNCH_ELEMENTS, 0.0)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let backend = bench.backend;
        let gate = bench.buffer(DType::F32, LAUNCH_ELEMENTS)?;
        let up = bench.buffer(DType::F32, LAUNCH_ELEMENTS)?;
        let mut out = backend.alloc(DType::F32, LAUNCH_ELEMENTS, "out")?;
        bench.seconds(&mut || {
            backend.silu_mul(SiluMul {
                p: SiluMulParams { n: LAUNCH_ELEMENTS as u32 },
                gate: View::all(&gate),
                up: View::all(&up),
                out: ViewMut::all(&mut out),
            })
        })
    }
}

/// A linear layer with quantised weights.
struct QuantLinearCase {
    ty: QuantType,
    n_rows: usize,
    n_in: usize,
    n_out: usize,
}

impl QuantLinearCase {
    /// Up to here a product is bound by the bytes of its weights.
    const VECTOR_ROWS: usize = 8;

    fn tiles(&self) -> Tiles {
        Tiles { ty: self.ty, n_rows: self.n_out, n_cols: self.n_in, order: Order::Apart }
    }

    fn weight_bytes(&self) -> usize {
        self.tiles().count() * self.tiles().tile_bytes()
    }
}

impl<B: Backend> Case<B> for QuantLinearCase {
    fn title(&self) -> String {
        let op = if self.n_rows <= Self::VECTOR_ROWS { "matvec" } else { "matmul" };
        format!("{op} {} {} x {} -> {}", self.ty, self.n_rows, self.n_in, self.n_out)
    }

    fn work(&self) -> Work {
        let flop = 2.0 * (self.n_rows * self.n_in * self.n_out) as f64;
        if self.n_rows <= Self::VECTOR_ROWS {
            return Work::memory(self.weight_bytes(), flop);
        }
        Work::arithmetic(self.weight_bytes() + self.n_rows * (self.n_in + self.n_out) * 4, flop)
    }

    fn is_possible(&self, backend: &B) -> bool {
        backend.capabilities().quant_types.contains(&self.ty)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { ty, n_rows, n_in, n_out } = *self;
        let backend = bench.backend;
        let is_vector = n_rows <= Self::VECTOR_ROWS;
        let copies = if is_vector { bench.copies(self.weight_bytes()) } else { 1 };
        let n_blocks = n_in * n_out / ty.block_len();
        let blocks = random_blocks(ty, n_blocks, 0.02, &mut SplitMix64::new(3));
        let blocks = HostBytes::from_vec(blocks);
        let load = |_| {
            let (name, blocks) = ("weight".into(), blocks.clone());
            let (n_rows, n_cols, activations) = (n_out, n_in, Activations::Int8);
            backend.load_quantised(QuantSource { name, ty, n_rows, n_cols, blocks, activations })
        };
        let weights = (0..copies).map(load).collect::<OpResult<Vec<_>>>()?;
        linear_seconds(bench, &weights, is_vector, [n_rows, n_in, n_out])
    }
}

/// Shapes far beyond any cache, of published models, and of the embedded model.
pub(super) fn cases<B: Backend>() -> Cases<B> {
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::BF16);
    let vector = LinearCase::matvec;
    let mut cases = boxed([
        vector(f32, 1, 2048, 8192),
        vector(f16, 1, 2048, 8192),
        vector(bf16, 1, 2048, 8192),
        vector(bf16, 2, 2048, 8192),
        vector(bf16, 4, 2048, 8192),
        vector(bf16, 8, 2048, 8192),
        vector(f16, 4, 2048, 8192),
        vector(f16, 8, 2048, 8192),
        vector(f16, 8, 8192, 2048),
        vector(bf16, 1, 8192, 2048),
        vector(bf16, 1, 4096, 14_336),
        vector(bf16, 1, 896, 4864),
        // From cache, bound by how fast work starts.
        vector(bf16, 1, 256, 512),
        vector(bf16, 1, 256, 2048),
    ]);
    let matrix = LinearCase::matmul;
    cases.extend(boxed([
        matrix(f32, 512, 2048, 2048),
        matrix(f16, 512, 2048, 2048),
        matrix(bf16, 512, 2048, 2048),
        matrix(bf16, 512, 4096, 14_336),
        matrix(bf16, 256, 2048, 8192),
        matrix(bf16, 256, 896, 4864),
        matrix(bf16, 512, 256, 256),
        matrix(bf16, 512, 256, 704),
        matrix(bf16, 512, 704, 256),
        matrix(bf16, 16, 2048, 8192),
    ]));
    cases.extend(boxed([LaunchCase]));
    let quantised = |n_rows, n_in, n_out| {
        boxed(QuantType::ALL.map(|ty| QuantLinearCase { ty, n_rows, n_in, n_out }))
    };
    cases.extend(quantised(1, 2048, 8192));
    cases.extend(quantised(8, 2048, 8192));
    cases.extend(quantised(512, 2048, 2048));
    cases
}
