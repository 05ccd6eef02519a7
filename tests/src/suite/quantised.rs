//! Products with quantised weights where the corpus does not look: whether a row has the same bits
//! whatever rows are computed with it, whether layers in a group give what single calls give, and
//! what becomes of activations that are no numbers.
//!
//! A check returns why it cannot run here, if it cannot.

use std::sync::Arc;

use longview_core::quant::QuantType;
use longview_core::{DType, HostBytes, SplitMix64, decode_f32, encode_f32};
use longview_ops::corpus::random_blocks;
use longview_ops::fused_case::FusedCase;
use longview_ops::{
    Activation, Activations, Backend, DeviceBuffer, Linear, LinearGroup, LinearOut, LinearParams,
    QuantSource, View, ViewMut, WeightSource,
};
use pollster::block_on;

use super::faults::NotRun;

/// Some rows of W that fill no tile.
const N_OUT: usize = 83;

const NO_KERNELS: NotRun = Some("it keeps quantised weights as f16");

fn has_kernels<B: Backend>(backend: &B) -> bool {
    !backend.capabilities().quant_types.is_empty()
}

fn weight<B: Backend>(
    backend: &B,
    ty: QuantType,
    n_cols: usize,
    activations: Activations,
) -> B::Weight {
    let rng = &mut SplitMix64::new(11);
    let blocks = random_blocks(ty, N_OUT * n_cols / ty.block_len(), 0.1, rng);
    let (name, blocks) = ("w".into(), HostBytes::from_vec(blocks));
    let source = QuantSource { name, ty, n_rows: N_OUT, n_cols, blocks, activations };
    backend.load_quantised(source).expect("memory")
}

/// Activations of `rows` rows; the first rows of more are the same.
fn activations(rows: usize, n_in: usize) -> Vec<f32> {
    let rng = &mut SplitMix64::new(12);
    (0..rows * n_in).map(|_| rng.next_normal()).collect()
}

fn holding<B: Backend>(backend: &B, values: &[f32]) -> B::Buffer {
    let mut buffer = backend.alloc(DType::F32, values.len(), "rows").expect("memory");
    let bytes = encode_f32(DType::F32, values);
    backend.write(ViewMut::all(&mut buffer), &bytes).expect("a copy");
    buffer
}

fn read<B: Backend>(backend: &B, buffer: &B::Buffer) -> Vec<f32> {
    let mut bytes = vec![0; 4 * buffer.len()];
    block_on(backend.read(View::all(buffer), &mut bytes)).expect("a copy");
    decode_f32(DType::F32, &bytes)
}

/// The product of rows, by the op that the number of rows asks for.
fn product<B: Backend>(backend: &B, weight: &B::Weight, x: &[f32], n_in: usize) -> Vec<f32> {
    let n_rows = x.len() / n_in;
    let input = holding(backend, x);
    let mut out = holding(backend, &vec![f32::NAN; n_rows * N_OUT]);
    let [rows, n_in, n_out] = [n_rows, n_in, N_OUT].map(|n| n as u32);
    let p = LinearParams { n_rows: rows, n_in, n_out, accumulate: 0 };
    let d = Linear { p, x: View::all(&input), weight, bias: None, out: ViewMut::all(&mut out) };
    let is_vector = n_rows <= backend.capabilities().matvec_max_rows;
    if is_vector { backend.matvec(d) } else { backend.matmul(d) }.expect("a product");
    read(backend, &out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The numbers of rows of each of `counts` give the same bits for the rows that they share.
pub fn assert_rows_are_alike<B: Backend>(backend: &B, counts: &[usize]) {
    let most = counts.iter().copied().max().unwrap_or(0);
    for ty in QuantType::ALL {
        let n_in = 5 * ty.block_len();
        let x = activations(most, n_in);
        for kind in [Activations::Int8, Activations::Int16, Activations::F32] {
            let weight = weight(backend, ty, n_in, kind);
            let all = bits(&product(backend, &weight, &x, n_in));
            for rows in counts.iter().copied() {
                let some = bits(&product(backend, &weight, &x[..rows * n_in], n_in));
                let name = backend.name();
                assert!(some == all[..rows * N_OUT], "{name}: {ty}, {kind:?}, {rows} rows");
            }
        }
    }
}

/// What decodes single tokens gives the bits that it gives for several sequences.
pub fn a_quantised_row_depends_on_no_other_row<B: Backend>(backend: &Arc<B>) -> NotRun {
    if !has_kernels(&**backend) {
        return NO_KERNELS;
    }
    assert_rows_are_alike(&**backend, &[1, 2, 3, 8]);
    assert_rows_are_alike(&**backend, &[9, 64, 130]);
    None
}

/// The outputs of a group of three layers, and of its single calls.
fn grouped<B: Backend>(backend: &B, n_rows: usize, weights: [&B::Weight; 3]) -> [Vec<u32>; 2] {
    const N_IN: usize = 512;
    let x = holding(backend, &activations(n_rows, N_IN));
    [true, false].map(|is_group| {
        let mut outs = [(); 3].map(|()| holding(backend, &vec![f32::NAN; n_rows * N_OUT]));
        {
            let layer = |(weight, out)| {
                let out = ViewMut::all(out);
                LinearOut { weight, bias: None, n_out: N_OUT as u32, out }
            };
            let mut layers: Vec<_> = weights.into_iter().zip(&mut outs).map(layer).collect();
            let (x, layers) = (View::all(&x), &mut layers[..]);
            let d = LinearGroup { n_rows: n_rows as u32, n_in: N_IN as u32, x, layers };
            if is_group { backend.linear_group(d) } else { d.unfused(backend) }.expect("products");
        }
        outs.iter().flat_map(|out| bits(&read(backend, out))).collect()
    })
}

/// Layers that share rounded activations, and groups in which one layer rounds otherwise or not.
pub fn a_group_of_quantised_layers_gives_what_single_layers_give<B: Backend>(
    backend: &Arc<B>,
) -> NotRun {
    let backend = &**backend;
    if !has_kernels(backend) {
        return NO_KERNELS;
    }
    let types = [QuantType::Q4K, QuantType::Q6K];
    let [q4, q6] = types.map(|ty| weight(backend, ty, 512, Activations::Int8));
    let [wide4, wide6] = types.map(|ty| weight(backend, ty, 512, Activations::Int16));
    let as_they_are = weight(backend, QuantType::Q8_0, 512, Activations::F32);
    let plain = {
        let values: Vec<f32> = activations(N_OUT, 512).iter().map(|x| 0.05 * x).collect();
        let bytes = HostBytes::from_vec(encode_f32(DType::F16, &values));
        let (name, dtype, activations) = ("w".into(), DType::F16, Activations::F32);
        let (n_rows, n_cols) = (N_OUT, 512);
        let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
        backend.load_weight(source).expect("memory")
    };
    for n_rows in [1, 3, 9, 70] {
        let groups = [
            [&q4, &q6, &q4],
            [&wide6, &wide4, &wide4],
            [&q4, &q6, &wide4],
            [&q4, &q6, &as_they_are],
            [&q4, &q6, &plain],
        ];
        for weights in groups {
            let [group, single] = grouped(backend, n_rows, weights);
            assert!(group.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{n_rows} rows");
            assert!(group == single, "{}: {n_rows} rows", backend.name());
        }
    }
    None
}

/// What a layer does to a row in one call is right; on CUDA, where one launch has norm, rounding
/// and products, to the bit what single calls give.
pub fn fused_calls_of_a_quantised_row_are_right<B: Backend>(backend: &Arc<B>) -> NotRun {
    let backend = &**backend;
    if !has_kernels(backend) {
        return NO_KERNELS;
    }
    let is_exact = backend.name().starts_with("cuda");
    for case in FusedCase::quantised() {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let name = backend.name();
            let error = block_on(case.error_of(backend, activation)).expect("a call");
            let is_right = [error.project, error.gated].iter().all(|error| *error <= case.most());
            assert!(is_right, "{name}: {case:?}: {error:?}");
            let made = |case: FusedCase| {
                let mut made = block_on(case.project(backend)).expect("q, k and v");
                made.push(block_on(case.gated(backend, activation)).expect("a gated product"));
                made.iter().map(|out| bits(out)).collect::<Vec<_>>()
            };
            if is_exact {
                let single = made(FusedCase { is_single: true, ..case });
                assert!(made(case) == single, "{name}: {case:?}: other bits than single calls");
            }
        }
    }
    None
}

/// Infinity and not-a-number reach every output of their row, and no other.
pub fn what_is_no_number_stays_in_its_row<B: Backend>(backend: &Arc<B>) -> NotRun {
    let backend = &**backend;
    if !has_kernels(backend) {
        return NO_KERNELS;
    }
    for ty in QuantType::ALL {
        let n_in = ty.block_len();
        let [eight, sixteen] =
            [Activations::Int8, Activations::Int16].map(|kind| weight(backend, ty, n_in, kind));
        for (n_rows, bad, weight) in [
            (2, f32::NAN, &eight),
            (3, f32::INFINITY, &eight),
            (9, f32::NEG_INFINITY, &eight),
            (2, f32::INFINITY, &sixteen),
            (9, f32::NAN, &sixteen),
        ] {
            let mut x = activations(n_rows, n_in);
            x[n_in + 7] = bad;
            let out = product(backend, weight, &x, n_in);
            for (row, out) in out.chunks(N_OUT).enumerate() {
                let is_bad = |x: &f32| x.is_nan() == (row == 1);
                assert!(out.iter().all(is_bad), "{}: {ty}, {bad}, row {row}", backend.name());
            }
        }
    }
    None
}
