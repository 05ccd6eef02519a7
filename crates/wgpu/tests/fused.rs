//! The fused calls against the reference, which makes the single calls: at every level, for all
//! types, row counts, biases and rotations; and the shapes that one launch cannot do.

use longview_core::{DType, HostBytes, SplitMix64, decode_f32, encode_f32};
use longview_ops::*;
use pollster::block_on;

use crate::common;

/// Sizes of a call: tokens, width of x, q heads, KV heads, head width, turning elements.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n_rows: u32,
    width: u32,
    heads: [u32; 2],
    head_dim: u32,
    rotary_dim: u32,
    inner: u32,
    weights: DType,
    activations: Activations,
    biased: bool,
    head_norms: bool,
}

const PLAIN: Shape = Shape {
    n_rows: 1,
    width: 64,
    heads: [4, 2],
    head_dim: 16,
    rotary_dim: 16,
    inner: 96,
    weights: DType::BF16,
    activations: Activations::F32,
    biased: false,
    head_norms: false,
};

/// Data that is the same on every backend, in the order in which it is asked for.
struct Maker<'a, B: Backend> {
    backend: &'a B,
    activations: Activations,
    rng: SplitMix64,
}

impl<B: Backend> Maker<'_, B> {
    fn values(&mut self, len: u32) -> Vec<f32> {
        (0..len).map(|_| self.rng.next_normal()).collect()
    }

    fn floats(&mut self, len: u32) -> B::Buffer {
        let bytes = encode_f32(DType::F32, &self.values(len));
        let mut buffer = self.backend.alloc(DType::F32, len as usize, "test").unwrap();
        self.backend.write(ViewMut::all(&mut buffer), &bytes).unwrap();
        buffer
    }

    fn room(&self, len: u32) -> B::Buffer {
        self.backend.alloc(DType::F32, len as usize, "test").unwrap()
    }

    fn weight(&mut self, dtype: DType, n_rows: u32, n_cols: u32) -> B::Weight {
        let bytes = HostBytes::from_vec(encode_f32(dtype, &self.values(n_rows * n_cols)));
        let (n_rows, n_cols) = (n_rows as usize, n_cols as usize);
        let (name, activations) = ("test".to_owned(), self.activations);
        let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
        self.backend.load_weight(source).unwrap()
    }

    fn read(&self, buffer: &B::Buffer) -> Vec<f32> {
        let mut bytes = vec![0; buffer.len() * 4];
        block_on(self.backend.read(View::all(buffer), &mut bytes)).unwrap();
        decode_f32(DType::F32, &bytes)
    }
}

fn norm(s: Shape) -> RmsNormParams {
    RmsNormParams { n_rows: s.n_rows, width: s.width, eps: 1e-5, accumulate: 0 }
}

/// A weight and its bias.
type Layer<B> = (<B as Storage>::Weight, Option<<B as Storage>::Weight>);

fn layer<B: Backend>(make: &mut Maker<'_, B>, s: Shape, n_out: u32) -> Layer<B> {
    let weight = make.weight(s.weights, n_out, s.width);
    (weight, s.biased.then(|| make.weight(s.weights, 1, n_out)))
}

fn to<'a, B: Backend>(layer: &'a Layer<B>, n_out: u32, out: &'a mut B::Buffer) -> LinearOut<'a, B> {
    LinearOut { weight: &layer.0, bias: layer.1.as_ref(), n_out, out: ViewMut::all(out) }
}

/// q, k and v.
fn project<B: Backend>(backend: &B, s: Shape) -> Vec<Vec<f32>> {
    let activations = s.activations;
    let mut make = Maker { backend, activations, rng: SplitMix64::new(7) };
    let widths = [s.heads[0], s.heads[1], s.heads[1]].map(|heads| heads * s.head_dim);
    let x = make.floats(s.n_rows * s.width);
    let norm_weight = make.weight(DType::F32, 1, s.width);
    let layers = widths.map(|n_out| layer(&mut make, s, n_out));
    let table = make.floats(s.n_rows * s.rotary_dim);
    let norms = [(); 2].map(|()| s.head_norms.then(|| make.weight(s.weights, 1, s.head_dim)));
    let [mut q, mut k, mut v] = widths.map(|n_out| make.room(s.n_rows * n_out));
    let [mut q_out, mut k_out, _] = widths.map(|n_out| make.room(s.n_rows * n_out));
    let mut scratch = make.room(s.n_rows * s.width);
    let mut head_scratch = make.room(s.n_rows * widths[0]);
    backend
        .project(Project {
            p: norm(s),
            x: View::all(&x),
            norm: &norm_weight,
            scratch: ViewMut::all(&mut scratch),
            layers: [
                to(&layers[0], widths[0], &mut q),
                to(&layers[1], widths[1], &mut k),
                to(&layers[2], widths[2], &mut v),
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
        })
        .unwrap();
    [&q_out, &k_out, &v].map(|buffer| make.read(buffer)).to_vec()
}

fn gated<B: Backend>(backend: &B, s: Shape) -> Vec<Vec<f32>> {
    let activations = s.activations;
    let mut make = Maker { backend, activations, rng: SplitMix64::new(9) };
    let x = make.floats(s.n_rows * s.width);
    let norm_weight = make.weight(s.weights, 1, s.width);
    let layers = [(); 2].map(|()| layer(&mut make, s, s.inner));
    let [mut gate, mut up, mut out] = [(); 3].map(|()| make.room(s.n_rows * s.inner));
    let mut scratch = make.room(s.n_rows * s.width);
    let mut run = |activation: Activation| {
        backend
            .norm_gated(NormGated {
                p: norm(s),
                x: View::all(&x),
                norm: &norm_weight,
                scratch: ViewMut::all(&mut scratch),
                activation,
                gate: to(&layers[0], s.inner, &mut gate),
                up: to(&layers[1], s.inner, &mut up),
                out: ViewMut::all(&mut out),
            })
            .unwrap();
        make.read(&out)
    };
    vec![run(Activation::Silu), run(Activation::GeluTanh)]
}

/// Normalised mean square error, as the parity run counts it.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let wrong: f64 = got.iter().zip(want).map(|(a, b)| square(f64::from(a - b))).sum();
    wrong / want.iter().map(|x| square(f64::from(*x))).sum::<f64>()
}

fn shapes() -> Vec<Shape> {
    let mut shapes = vec![];
    for weights in [DType::F32, DType::F16, DType::BF16] {
        for n_rows in [1, 2, 3, 5, 8] {
            shapes.push(Shape { n_rows, weights, biased: n_rows % 2 == 1, ..PLAIN });
        }
    }
    // With x rounded to bf16.
    let activations = Activations::Bf16;
    for n_rows in [1, 2, 3, 5, 8] {
        shapes.push(Shape { n_rows, activations, ..PLAIN });
    }
    shapes.extend([
        Shape { width: 36, inner: 7, biased: true, activations, ..PLAIN },
        Shape { width: 1028, n_rows: 8, inner: 513, activations, ..PLAIN },
        Shape { width: 30, activations, ..PLAIN },
        // A part of each head turns; nothing does.
        Shape { head_dim: 24, rotary_dim: 8, ..PLAIN },
        Shape { rotary_dim: 0, ..PLAIN },
        // Rows that are no whole units of halves, and many of them.
        Shape { width: 36, inner: 7, biased: true, ..PLAIN },
        Shape { width: 1028, n_rows: 8, inner: 513, ..PLAIN },
        // Single calls: norms of heads, odd widths, more rows than a launch takes.
        Shape { head_norms: true, ..PLAIN },
        Shape { width: 30, ..PLAIN },
        Shape { head_dim: 18, rotary_dim: 18, ..PLAIN },
        Shape { n_rows: 9, ..PLAIN },
    ]);
    shapes
}

#[test]
fn fused_calls_give_what_the_single_calls_give() {
    let reference = ReferenceBackend::new();
    for backend in common::levels() {
        for shape in shapes() {
            let pairs = [
                (project(&backend, shape), project(&reference, shape)),
                (gated(&backend, shape), gated(&reference, shape)),
            ];
            for (got, want) in pairs.iter().flat_map(|(got, want)| got.iter().zip(want)) {
                let error = error(got, want);
                // A number between two of bf16 may go to the other one where its norm is off by an
                // ulp. Without rounding the error would be 1.3e-6.
                let is_rounding = shape.activations.rounds_to_bf16(shape.weights);
                let most = if is_rounding { 8e-7 } else { 1e-7 };
                assert!(error <= most, "{}, {shape:?}: NMSE {error:e}", backend.shader_level());
            }
        }
    }
}

#[test]
fn a_call_of_few_rows_is_one_dispatch() {
    for backend in common::levels() {
        for n_rows in [1, 8] {
            let before = backend.counters().device.dispatches;
            project(&backend, Shape { n_rows, ..PLAIN });
            // One call for each activation.
            gated(&backend, Shape { n_rows, ..PLAIN });
            assert_eq!(
                backend.counters().device.dispatches - before,
                3,
                "{}",
                backend.shader_level()
            );
        }
    }
}
