//! Products with quantised weights: the same bits whatever computes them.

use longview_core::quant::{QuantType, dequantize};
use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_cpu::{CpuBackend, CpuBuffer, CpuOptions, CpuWeight, Isa};
use longview_ops::corpus::random_blocks;
use longview_ops::*;

const N_OUT: usize = 83;

const KINDS: [Activations; 3] = [Activations::Int8, Activations::Int16, Activations::F32];

fn backend(isa: Isa, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa: Some(isa) }).unwrap()
}

fn blocks(ty: QuantType, n_in: usize) -> Vec<u8> {
    random_blocks(ty, N_OUT * n_in / ty.block_len(), 0.1, &mut SplitMix64::new(11))
}

fn quantised(b: &CpuBackend, ty: QuantType, n_cols: usize, activations: Activations) -> CpuWeight {
    let blocks = HostBytes::from_vec(blocks(ty, n_cols));
    let (name, n_rows) = ("w".into(), N_OUT);
    b.load_quantised(QuantSource { name, ty, n_rows, n_cols, blocks, activations }).unwrap()
}

/// Activations of `rows` rows; the first rows of more are the same.
fn activations(rows: usize, n_in: usize) -> Vec<f32> {
    let rng = &mut SplitMix64::new(12);
    (0..rows * n_in).map(|_| rng.next_normal()).collect()
}

fn product(b: &CpuBackend, weight: &CpuWeight, x: &[f32], n_in: usize) -> Vec<u32> {
    let n_rows = x.len() / n_in;
    let mut input = b.alloc(DType::F32, x.len(), "x").unwrap();
    b.write(ViewMut::all(&mut input), bytemuck::cast_slice(x)).unwrap();
    let mut out = b.alloc(DType::F32, n_rows * N_OUT, "out").unwrap();
    let [rows, n_in, n_out] = [n_rows, n_in, N_OUT].map(|n| n as u32);
    let p = LinearParams { n_rows: rows, n_in, n_out, accumulate: 0 };
    let (x, bias, view) = (View::all(&input), None, ViewMut::all(&mut out));
    b.matmul(Linear { p, x, weight, bias, out: view }).unwrap();
    let mut bytes = vec![0; 4 * n_rows * N_OUT];
    pollster::block_on(b.read(View::all(&out), &mut bytes)).unwrap();
    bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn a_row_has_the_same_bits_whatever_rows_are_computed_with_it() {
    for ty in QuantType::ALL {
        let n_in = 2 * ty.block_len();
        let x = activations(512, n_in);
        for b in Isa::ALL.iter().filter(|isa| isa.is_available()).map(|isa| backend(*isa, 2)) {
            for kind in KINDS {
                let weight = quantised(&b, ty, n_in, kind);
                let all = product(&b, &weight, &x, n_in);
                for rows in [1, 3, 8, 64] {
                    let some = product(&b, &weight, &x[..rows * n_in], n_in);
                    assert_eq!(some, all[..rows * N_OUT], "{ty}, {}, {rows} rows", b.isa());
                }
            }
        }
    }
}

#[test]
fn vector_instructions_agree_bit_for_bit() {
    // Portable code has no FMA: two roundings where the others have one.
    let with_fma = [Isa::Avx2, Isa::Avx512, Isa::Neon];
    let found: Vec<Isa> = with_fma.into_iter().filter(|isa| isa.is_available()).collect();
    for ty in QuantType::ALL {
        let n_in = 3 * ty.block_len();
        let x = activations(9, n_in);
        for kind in [Activations::Int8, Activations::Int16] {
            let results = found.iter().map(|isa| {
                let b = backend(*isa, 1);
                product(&b, &quantised(&b, ty, n_in, kind), &x, n_in)
            });
            let results: Vec<_> = results.collect();
            assert!(results.windows(2).all(|two| two[0] == two[1]), "{ty}, {kind:?}, {found:?}");
        }
    }
}

#[test]
fn activations_as_they_are_give_what_plain_weights_give() {
    let b = backend(Isa::best(), 2);
    for ty in QuantType::ALL {
        let n_in = 2 * ty.block_len();
        let mut values = vec![0.0; N_OUT * n_in];
        dequantize(ty, &blocks(ty, n_in), &mut values);
        let (name, dtype) = ("w".into(), DType::F32);
        let bytes = HostBytes::from_vec(encode_f32(dtype, &values));
        let x = activations(8, n_in);
        let (n_rows, n_cols, activations) = (N_OUT, n_in, Activations::F32);
        let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
        let plain = b.load_weight(source).unwrap();
        let weight = quantised(&b, ty, n_in, Activations::F32);
        // The same numbers, added in another order.
        let pairs = product(&b, &weight, &x, n_in).into_iter().zip(product(&b, &plain, &x, n_in));
        for (found, wanted) in pairs.map(|(a, b)| (f32::from_bits(a), f32::from_bits(b))) {
            let off = (found - wanted).abs();
            assert!(off <= 1e-5 * (1.0 + wanted.abs()), "{ty}: {found}, not {wanted}");
        }
    }
}

#[test]
fn what_is_no_number_reaches_every_output_of_its_row() {
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        let b = backend(isa, 1);
        for ty in QuantType::ALL {
            let n_in = ty.block_len();
            for kind in [Activations::Int8, Activations::Int16] {
                let weight = quantised(&b, ty, n_in, kind);
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = activations(2, n_in);
                    x[n_in + 7] = bad;
                    let out = product(&b, &weight, &x, n_in);
                    let is_nan = |bits: &u32| f32::from_bits(*bits).is_nan();
                    assert!(out[N_OUT..].iter().all(is_nan), "{ty}, {isa}, {kind:?}, {bad}");
                    assert!(!out[..N_OUT].iter().any(is_nan), "{ty}, {isa}, {kind:?}, {bad}");
                }
            }
        }
    }
}

/// How far outputs are from those of activations as they are, as a share of these.
fn share_off(b: &CpuBackend, ty: QuantType, kind: Activations) -> f64 {
    let n_in = 8 * ty.block_len();
    let x = activations(4, n_in);
    let of = |kind| product(b, &quantised(b, ty, n_in, kind), &x, n_in);
    let pairs = of(kind).into_iter().zip(of(Activations::F32));
    let pairs = pairs.map(|(a, b)| (f64::from(f32::from_bits(a)), f64::from(f32::from_bits(b))));
    let (off, all) = pairs.fold((0.0, 0.0), |(o, n), (a, b)| (o + (a - b).powi(2), n + b * b));
    (off / all).sqrt()
}

#[test]
fn sixteen_bits_are_a_hundred_times_as_exact_as_eight() {
    let b = backend(Isa::best(), 1);
    for ty in QuantType::ALL {
        let [eight, sixteen] =
            [Activations::Int8, Activations::Int16].map(|kind| share_off(&b, ty, kind));
        assert!((1e-3..2e-2).contains(&eight), "{ty}: {eight}");
        assert!(sixteen < eight / 100.0, "{ty}: {sixteen} of {eight}");
    }
}

#[test]
fn a_wrong_shape_names_the_tensor_and_the_type() {
    let b = backend(Isa::best(), 1);
    let load = |n_cols: usize, len: usize| {
        let blocks = HostBytes::from_vec(vec![0; len]);
        let (name, ty, activations) = ("blk.0.x".into(), QuantType::Q4K, Activations::Int8);
        let source = QuantSource { name, ty, n_rows: 2, n_cols, blocks, activations };
        b.load_quantised(source).err().unwrap().to_string()
    };
    assert_eq!(
        load(896, 1008),
        "weight blk.0.x: rows of 896 elements are no whole q4_k blocks of 256"
    );
    assert_eq!(load(256, 287), "weight blk.0.x: 287 bytes for 2 x 256 elements of q4_k");
}

/// The outputs of a group of three layers, one of them plain, and of its single calls.
fn grouped(b: &CpuBackend, n_rows: usize, types: [QuantType; 2]) -> [Vec<u8>; 2] {
    const N_IN: usize = 512;
    let plain = {
        let rng = &mut SplitMix64::new(13);
        let values: Vec<f32> = (0..N_OUT * N_IN).map(|_| 0.05 * rng.next_normal()).collect();
        let (name, dtype) = ("w".into(), DType::F16);
        let bytes = HostBytes::from_vec(encode_f32(dtype, &values));
        let (n_rows, n_cols, activations) = (N_OUT, N_IN, Activations::F32);
        b.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes, activations }).unwrap()
    };
    let one = quantised(b, types[0], N_IN, Activations::Int8);
    let other = quantised(b, types[1], N_IN, Activations::Int16);
    let values = activations(n_rows, N_IN);
    let mut x = b.alloc(DType::F32, values.len(), "x").unwrap();
    b.write(ViewMut::all(&mut x), bytemuck::cast_slice(&values)).unwrap();
    [true, false].map(|is_group| {
        let mut outs = [(); 3].map(|()| b.alloc(DType::F32, n_rows * N_OUT, "out").unwrap());
        {
            let weights = [&one, &plain, &other];
            let mut layers: Vec<_> = weights
                .into_iter()
                .zip(&mut outs)
                .map(|(weight, out)| {
                    let out = ViewMut::all(out);
                    LinearOut { weight, bias: None, n_out: N_OUT as u32, out }
                })
                .collect();
            let (x, layers) = (View::all(&x), &mut layers[..]);
            let d = LinearGroup { n_rows: n_rows as u32, n_in: N_IN as u32, x, layers };
            if is_group { b.linear_group(d).unwrap() } else { d.unfused(b).unwrap() }
        }
        let read = |out: &CpuBuffer| {
            let mut bytes = vec![0; 4 * n_rows * N_OUT];
            pollster::block_on(b.read(View::all(out), &mut bytes)).unwrap();
            bytes
        };
        outs.iter().flat_map(read).collect()
    })
}

#[test]
fn a_group_of_layers_gives_what_single_layers_give() {
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        let b = backend(isa, 2);
        for n_rows in [1, 3, 8, 9] {
            for types in [[QuantType::Q4K, QuantType::Q6K], [QuantType::Q8_0, QuantType::Q8_0]] {
                let [group, single] = grouped(&b, n_rows, types);
                assert!(group.iter().any(|byte| *byte != 0));
                assert_eq!(group, single, "{types:?} on {isa}, {n_rows} rows");
            }
        }
    }
}
