//! The runtime below the ops: copies at any place, their order among the ops, the limits, the loss
//! of the device; and what the parity corpus, which aligns nothing, does not reach.

use std::time::Duration;

use longview_core::{DType, HostBytes, SplitMix64, decode_f32, encode_f32};
use longview_ops::corpus::{LinearCase, cases_of};
use longview_ops::parity::{self, ParitySummary};
use longview_ops::*;
use longview_wgpu::{WgpuBackend, WgpuBuffer, WgpuOptions};
use pollster::block_on;

use crate::common;

/// A buffer that holds `bytes`.
fn holding(backend: &WgpuBackend, dtype: DType, bytes: &[u8]) -> WgpuBuffer {
    let mut buffer = backend.alloc(dtype, bytes.len() / dtype.size(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), bytes).unwrap();
    buffer
}

fn floats(backend: &WgpuBackend, values: &[f32]) -> WgpuBuffer {
    holding(backend, DType::F32, &encode_f32(DType::F32, values))
}

fn ints(backend: &WgpuBackend, values: &[u32]) -> WgpuBuffer {
    holding(backend, DType::U32, bytemuck::cast_slice(values))
}

fn bytes_of(backend: &WgpuBackend, buffer: &WgpuBuffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len() * buffer.dtype().size()];
    block_on(backend.read(View::all(buffer), &mut out)).unwrap();
    out
}

fn floats_of(backend: &WgpuBackend, buffer: &WgpuBuffer) -> Vec<f32> {
    decode_f32(buffer.dtype(), &bytes_of(backend, buffer))
}

/// Bytes, each different from its neighbours.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect()
}

#[test]
fn halves_are_written_and_read_at_any_place() {
    let Some(backend) = common::device() else { return };
    for dtype in [DType::F16, DType::BF16] {
        let mut model = pattern(1, 2 * 300);
        let mut buffer = holding(&backend, dtype, &model);
        let lengths = [0, 1, 2, 3, 4, 5, 8, 127, 128, 129, 290];
        for (i, len) in lengths.into_iter().enumerate() {
            for offset in [0, 1, 2, 3, 7, 10] {
                let new = pattern((17 * i + offset) as u8 + 5, 2 * len);
                model[2 * offset..2 * (offset + len)].copy_from_slice(&new);
                backend.write(ViewMut::part(&mut buffer, offset, len), &new).unwrap();
                let mut out = vec![0; 2 * len];
                block_on(backend.read(View::part(&buffer, offset, len), &mut out)).unwrap();
                assert_eq!(out, new, "{len} halves from {offset}");
                assert_eq!(bytes_of(&backend, &buffer), model, "neighbours of {len} at {offset}");
            }
        }
    }
}

#[test]
fn an_odd_buffer_of_halves_ends_where_it_ends() {
    let Some(backend) = common::device() else { return };
    // The last takes more workgroups than a dimension of a grid has.
    for len in [1, 3, 7, 9, 9_000_001] {
        let mut buffer = backend.alloc(DType::F16, len, "odd").unwrap();
        let bytes = pattern(9, 2 * len);
        backend.write(ViewMut::all(&mut buffer), &bytes).unwrap();
        assert!(bytes_of(&backend, &buffer) == bytes, "{len} halves");
    }
}

#[test]
fn writes_and_ops_keep_their_order() {
    let Some(backend) = common::device() else { return };
    // More of both than are recorded before something is submitted, and no read between.
    let n = 700;
    let mut x = backend.alloc(DType::F32, 4, "x").unwrap();
    let mut out = backend.alloc(DType::U32, n, "out").unwrap();
    for i in 0..n {
        let mut values = [0.0f32; 4];
        values[i * 7 % 4] = 1.0;
        backend.write(ViewMut::all(&mut x), bytemuck::cast_slice(&values)).unwrap();
        let p = ArgmaxParams { n_rows: 1, width: 4 };
        let to = ViewMut::part(&mut out, i, 1);
        backend.argmax(Argmax { p, x: View::all(&x), out: to }).unwrap();
        if i % 100 == 50 {
            backend.submit().unwrap();
        }
    }
    let out = bytes_of(&backend, &out);
    let expected: Vec<u32> = (0..n).map(|i| (i * 7 % 4) as u32).collect();
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, u32>(&out), expected);
}

#[test]
fn unaligned_writes_keep_their_order_too() {
    let Some(backend) = common::device() else { return };
    let rows = ints(&backend, &[0]);
    let one = ints(&backend, &[1]);
    let mut src = holding(&backend, DType::F16, &pattern(3, 32));
    let mut got = Vec::new();
    let mut expected = Vec::new();
    let mut model = pattern(3, 32);
    for i in 0..20 {
        let (offset, len) = (i % 5, 1 + i % 7);
        let new = pattern(40 + i as u8, 2 * len);
        model[2 * offset..2 * (offset + len)].copy_from_slice(&new);
        expected.push(model.clone());
        backend.write(ViewMut::part(&mut src, offset, len), &new).unwrap();
        let mut dst = backend.alloc(DType::F16, 16, "dst").unwrap();
        let p = KvGatherParams { n_kv_heads: 1, head_dim: 8, list_stride: 1, dst_head_stride: 1 };
        let list = View::all(&rows);
        let src = KvView::new(&src, 1);
        let n_rows = View::all(&one);
        backend
            .kv_gather(KvGather { p, src, src_rows: list, dst_rows: list, n_rows, dst: &mut dst })
            .unwrap();
        got.push(dst);
    }
    for (dst, expected) in got.iter().zip(expected) {
        assert_eq!(bytes_of(&backend, dst), expected);
    }
}

#[test]
fn several_views_are_read_at_once() {
    let Some(backend) = common::device() else { return };
    let (halves, words) = (pattern(1, 2 * 31), pattern(2, 4 * 70));
    let a = holding(&backend, DType::F16, &halves);
    let b = holding(&backend, DType::U32, &words);
    let before = backend.counters();
    let mut outs = [vec![0; 10], vec![0; 4 * 70], vec![], vec![0; 2], vec![0; 2 * 31], vec![0; 12]];
    let views = [
        View::part(&a, 3, 5),
        View::all(&b),
        View::part(&a, 7, 0),
        View::part(&a, 30, 1),
        View::all(&a),
        View::part(&b, 5, 3),
    ];
    let mut parts: Vec<_> = views.into_iter().zip(outs.iter_mut().map(Vec::as_mut_slice)).collect();
    block_on(backend.read_all(&mut parts)).unwrap();
    assert_eq!(backend.counters().device.since(before.device).readbacks, 1);
    assert_eq!(outs[0], halves[6..16]);
    assert_eq!(outs[1], words);
    assert_eq!(outs[3], halves[60..]);
    assert_eq!(outs[4], halves);
    assert_eq!(outs[5], words[20..32]);
    // Nothing at all, and nothing but empty views.
    block_on(backend.read_all(&mut [])).unwrap();
    block_on(backend.read(View::part(&a, 31, 0), &mut [])).unwrap();
}

#[test]
fn copies_of_the_wrong_size_are_errors() {
    let Some(backend) = common::device() else { return };
    let mut buffer = floats(&backend, &[1.0, 2.0]);
    let mut out = [0; 12];
    for result in [
        backend.write(ViewMut::all(&mut buffer), &[0; 7]),
        backend.write(ViewMut::part(&mut buffer, 1, 2), &[0; 8]),
        block_on(backend.read(View::all(&buffer), &mut out)),
        block_on(backend.read(View::part(&buffer, 0, 3), &mut out)),
        block_on(backend.read(View::part(&buffer, usize::MAX, 3), &mut out)),
    ] {
        assert!(matches!(result, Err(OpError::Copy { .. })), "{result:?}");
    }
    assert_eq!(floats_of(&backend, &buffer), [1.0, 2.0]);
}

#[test]
fn more_than_the_device_has_is_out_of_memory() {
    let Some(backend) = common::device() else { return };
    for len in [1 << 40, usize::MAX / 4, usize::MAX] {
        let result = backend.alloc(DType::F32, len, "far too much");
        assert!(matches!(result, Err(OpError::OutOfMemory { .. })), "{len}: {result:?}");
    }
    assert_eq!(floats_of(&backend, &floats(&backend, &[3.0])), [3.0]);
}

/// Many drivers allow bindings of 2^31 - 4 bytes; this is the same remainder on a small scale.
#[test]
fn weights_fill_bindings_whose_limit_is_no_multiple_of_a_place() {
    let limit = (4 << 20) - 4;
    let Some(backend) = common::device_of_bindings(limit) else { return };
    let (n_rows, n_cols) = (3072, 1024);
    let name = String::from("three bindings of weights");
    backend.expect_weights((4 * n_rows * n_cols) as u64, 1);
    let values: Vec<f32> = (0..n_rows * n_cols).map(|i| (i / n_cols + i % n_cols) as f32).collect();
    let bytes = HostBytes::from_vec(encode_f32(DType::F32, &values));
    let (dtype, activations) = (DType::F32, Activations::F32);
    let source = WeightSource { name, dtype, n_rows, n_cols, bytes, activations };
    let table = backend.load_weight(source).unwrap();
    let picked: Vec<u32> = (0..n_rows as u32).rev().step_by(389).collect();
    let ids = ints(&backend, &picked);
    let mut out = backend.alloc(DType::F32, picked.len() * n_cols, "rows").unwrap();
    let p = EmbedParams { n_tokens: picked.len() as u32, width: n_cols as u32, scale: 1.0 };
    let to = ViewMut::all(&mut out);
    backend.embed(Embed { p, ids: View::all(&ids), table: &table, out: to }).unwrap();
    let row = |id: &u32| &values[*id as usize * n_cols..][..n_cols];
    assert_eq!(floats_of(&backend, &out), picked.iter().map(row).collect::<Vec<_>>().concat());

    // What the device says that it takes, it takes; and no more.
    let most = backend.info().max_buffer_bytes;
    assert_eq!(most, (4 << 20) - 256);
    assert!(backend.alloc(DType::F32, most as usize / 4, "all of a binding").is_ok());
    let over = backend.alloc(DType::F32, most as usize / 4 + 1, "more than a binding");
    assert!(matches!(over, Err(OpError::OutOfMemory { .. })), "{over:?}");
}

#[test]
fn a_lost_device_stays_lost() {
    let Some(backend) = common::device() else { return };
    let mut buffer = floats(&backend, &[1.0; 8]);
    let other = floats(&backend, &[1.0; 8]);
    let background = backend.background();
    backend.destroy_device();
    for queue in [&backend, &background] {
        let mut out = vec![0; 32];
        let p = SiluMulParams { n: 8 };
        let (gate, up) = (View::all(&other), View::all(&other));
        let source = WeightSource {
            name: "w".into(),
            dtype: DType::F32,
            n_rows: 1,
            n_cols: 4,
            bytes: HostBytes::from_vec(vec![0; 16]),
            activations: Activations::F32,
        };
        for result in [
            queue.alloc(DType::F32, 4, "after").map(|_| ()),
            queue.write(ViewMut::all(&mut buffer), &[0; 32]),
            queue.silu_mul(SiluMul { p, gate, up, out: ViewMut::all(&mut buffer) }),
            queue.load_weight(source).map(|_| ()),
            queue.submit(),
            block_on(queue.read(View::all(&other), &mut out)),
        ] {
            assert!(matches!(result, Err(OpError::DeviceLost { .. })), "{result:?}");
        }
    }
    // Another device does not mind.
    if let Some(backend) = common::device() {
        assert_eq!(floats_of(&backend, &floats(&backend, &[3.0])), [3.0]);
    }
}

#[test]
fn rows_are_rounded_as_on_the_host() {
    let Some(backend) = common::device() else { return };
    // Around every boundary: of subnormals, of infinity, ties to even, and bits at random.
    let mut bits: Vec<u32> = Vec::new();
    for edge in [0u32, 0x3300_0000, 0x3380_0000, 0x387f_e000, 0x3880_0000, 0x3f80_0000] {
        bits.extend((0..64).map(|i| (edge + 0x800 * i).wrapping_sub(0x8000) & 0x7fff_ffff));
    }
    for edge in [0x3300_0000u32, 0x3380_0000, 0x33c0_0000, 0x477f_f000, 0x7f7f_8000, 0x7f80_0000] {
        bits.extend((0..9).map(|i| edge + i - 4));
    }
    let mut rng = SplitMix64::new(5);
    bits.extend((0..2000).map(|_| rng.next_u64() as u32));
    // Every half there is, and just beside it.
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let exact = decode_f32(DType::F16, &halves);
    bits.extend(exact.iter().flat_map(|x| [x.to_bits(), x.to_bits() ^ 0x1000]));
    bits.extend(bits.clone().iter().map(|b| b ^ 0x8000_0000));
    let values: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
    let values = &values[..values.len() / 16 * 16];
    let k = floats(&backend, values);
    let n = (values.len() / 8) as u32;
    let rows = ints(&backend, &(0..n).collect::<Vec<_>>());
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut dst = backend.alloc(dtype, 2 * values.len(), "rows").unwrap();
        let p = KvScatterParams { n_tokens: n, n_kv_heads: 1, head_dim: 8, dst_head_stride: n };
        let (k, rows) = (View::all(&k), View::all(&rows));
        backend.kv_scatter(KvScatter { p, k, v: k, rows, dst: &mut dst }).unwrap();
        let expected = encode_f32(dtype, values);
        let row = 8 * dtype.size();
        for (i, got) in bytes_of(&backend, &dst).chunks_exact(2 * row).enumerate() {
            let expected = &expected[i * row..(i + 1) * row];
            let both = (&got[..row], &got[row..]);
            assert_eq!(both, (expected, expected), "{dtype} of {:?}", &values[8 * i..8 * i + 8]);
        }
    }
}

#[test]
fn indices_outside_touch_nothing() {
    let Some(backend) = common::device() else { return };
    let table = WeightSource {
        name: "table".into(),
        dtype: DType::BF16,
        n_rows: 2,
        n_cols: 3,
        bytes: HostBytes::from_vec(encode_f32(DType::BF16, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        activations: Activations::default(),
    };
    let table = backend.load_weight(table).unwrap();
    let ids = ints(&backend, &[1, 2, 0, u32::MAX]);
    let mut out = floats(&backend, &[9.0; 14]);
    let p = EmbedParams { n_tokens: 4, width: 3, scale: 1.0 };
    let view = ViewMut::part(&mut out, 1, 12);
    backend.embed(Embed { p, ids: View::all(&ids), table: &table, out: view }).unwrap();
    let expected = [9.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 9.0];
    assert_eq!(floats_of(&backend, &out), expected);

    // Two heads of two rows; a row 2 of head 0 would be row 0 of head 1.
    let k = floats(&backend, &[1.0, 2.0, 3.0, 4.0]);
    let rows = ints(&backend, &[2, 1]);
    let mut dst = floats(&backend, &[7.0; 8]);
    let p = KvScatterParams { n_tokens: 2, n_kv_heads: 2, head_dim: 1, dst_head_stride: 2 };
    let (k, rows) = (View::all(&k), View::all(&rows));
    backend.kv_scatter(KvScatter { p, k, v: k, rows, dst: &mut dst }).unwrap();
    assert_eq!(floats_of(&backend, &dst), [7.0, 7.0, 3.0, 3.0, 7.0, 7.0, 4.0, 4.0]);

    let src = floats(&backend, &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
    let src_rows = ints(&backend, &[0, 2, 1, 0]);
    let dst_rows = ints(&backend, &[3, 0, 0, 1]);
    let n_rows = ints(&backend, &[9, 1]);
    let p = KvGatherParams { n_kv_heads: 2, head_dim: 1, list_stride: 2, dst_head_stride: 2 };
    let (src_rows, dst_rows) = (View::all(&src_rows), View::all(&dst_rows));
    let (src, n_rows) = (KvView::new(&src, 2), View::all(&n_rows));
    backend.kv_gather(KvGather { p, src, src_rows, dst_rows, n_rows, dst: &mut dst }).unwrap();
    assert_eq!(floats_of(&backend, &dst), [7.0, 7.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0]);
}

#[test]
fn aligned_views_give_the_same() {
    for op in [Op::Matvec, Op::Matmul, Op::KvGather, Op::AttendChunk] {
        common::check_in_turns(&format!("{op}, aligned"), common::with_views_at(0, cases_of(op)));
    }
}

#[test]
fn wide_tiles_give_the_same() {
    // Enough rows and columns for tiles of 128 x 128, and a little more.
    let sizes = [(130, 67, 8200), (257, 68, 5441)];
    let cases = sizes.into_iter().flat_map(|(rows, n_in, n_out)| {
        [DType::F32, DType::F16, DType::BF16].map(|dtype| {
            let (bias, accumulate) = (dtype != DType::F32, dtype == DType::BF16);
            let (op, activations) = (Op::Matmul, Activations::Bf16);
            LinearCase { op, rows, n_in, n_out, dtype, activations, bias, accumulate }.into()
        })
    });
    common::check(common::with_views_at(0, cases.collect()));
}

/// However submits are cut, the order of the work is the same, and so are the results.
#[test]
fn submits_that_are_bounded_by_time_compute_the_same() {
    let bounded = |limit| WgpuOptions { submit_limit: Some(limit), ..WgpuOptions::default() };
    let Some(free) = common::device() else { return };
    let device = |limit| common::device_with(&bounded(limit)).expect("the one above");
    let (long, short) = (device(Duration::from_secs(100)), device(Duration::from_nanos(1)));
    let run = |backend: &WgpuBackend| {
        // Steps that follow each other, no more than a queue gathers. Whoever waited for them once
        // knows how long they take.
        let mut submits = 0;
        let mut row = floats(backend, &[1.0; 64]);
        let up = floats(backend, &[0.75; 64]);
        for _ in 0..2 {
            let before = backend.counters().device;
            for _ in 0..200 {
                let mut out = backend.alloc(DType::F32, 64, "test").unwrap();
                let (gate, up, to) = (View::all(&row), View::all(&up), ViewMut::all(&mut out));
                let p = SiluMulParams { n: 64 };
                backend.silu_mul(SiluMul { p, gate, up, out: to }).unwrap();
                row = out;
            }
            floats_of(backend, &row);
            submits = backend.counters().device.since(before).submits;
        }
        (floats_of(backend, &row), submits)
    };
    let ((values, n_free), (same, n_long), (cut, n_short)) = (run(&free), run(&long), run(&short));
    assert!(values == same && values == cut);
    let sum = ParitySummary::of(&parity::run_parity(&short, Some(Op::RmsNorm)));
    assert!(sum.passed > 0 && sum.failed == 0, "{sum:?}");
    assert_eq!((n_free, n_long, n_short), (1, 1, 200), "the last one with the copy that is read");
}
