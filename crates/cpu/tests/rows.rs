//! A row's result does not depend on the rows that are computed with it: every op on rows of
//! activations, at several numbers of rows, bit for bit. Products with quantised weights have a
//! test of their own (`quantised`).

use longview_core::{DType, HostBytes, SplitMix64, encode_f32, kv8};
use longview_cpu::{CpuBackend, CpuBuffer, CpuOptions, CpuWeight, Isa};
use longview_ops::*;

/// Of which the first rows are computed alone.
const ROWS: usize = 512;
const SOME: [usize; 4] = [1, 3, 8, 64];
/// Odd on purpose: tails of vectors.
const WIDTH: usize = 83;
const HEAD: usize = 24;

fn backends() -> impl Iterator<Item = CpuBackend> {
    let found = Isa::ALL.iter().copied().filter(|isa| isa.is_available());
    found.map(|isa| CpuBackend::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap())
}

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let rng = &mut SplitMix64::new(seed);
    (0..n).map(|_| rng.next_normal()).collect()
}

fn buffer(b: &CpuBackend, values: &[f32]) -> CpuBuffer {
    let mut buffer = b.alloc(DType::F32, values.len(), "test").unwrap();
    b.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(values)).unwrap();
    buffer
}

fn weight(b: &CpuBackend, dtype: DType, n_rows: usize, n_cols: usize) -> CpuWeight {
    weight_that(b, Activations::default(), dtype, n_rows, n_cols)
}

fn weight_that(
    b: &CpuBackend,
    activations: Activations,
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
) -> CpuWeight {
    let bytes = HostBytes::from_vec(encode_f32(dtype, &numbers(n_rows * n_cols, 3)));
    let name = "w".into();
    b.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes, activations }).unwrap()
}

/// The words that `fill` puts into a buffer of `n`.
fn words(b: &CpuBackend, dtype: DType, n: usize, fill: impl FnOnce(&mut CpuBuffer)) -> Vec<u32> {
    let mut out = b.alloc(dtype, n, "out").unwrap();
    fill(&mut out);
    let mut bytes = vec![0; 4 * n];
    pollster::block_on(b.read(View::all(&out), &mut bytes)).unwrap();
    bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
}

/// Compares the first rows alone with the same among all.
#[track_caller]
fn check(b: &CpuBackend, op: &str, of_rows: impl Fn(usize) -> Vec<u32>) {
    let all = of_rows(ROWS);
    let width = all.len() / ROWS;
    assert!(all.iter().any(|word| *word != 0), "{op} on {}", b.isa());
    for rows in SOME {
        assert_eq!(of_rows(rows), all[..rows * width], "{op} on {}: {rows} rows", b.isa());
    }
}

#[test]
fn norms_and_gates_and_rotations() {
    for b in backends() {
        let (x, up) = (numbers(ROWS * WIDTH, 1), numbers(ROWS * WIDTH, 2));
        let norm = weight(&b, DType::BF16, 1, WIDTH);
        check(&b, "rms_norm", |rows| {
            let x = buffer(&b, &x[..rows * WIDTH]);
            let [n_rows, width] = [rows, WIDTH].map(|n| n as u32);
            let p = RmsNormParams { n_rows, width, eps: 1e-6, accumulate: 0 };
            words(&b, DType::F32, rows * WIDTH, |out| {
                let out = ViewMut::all(out);
                b.rms_norm(RmsNorm { p, x: View::all(&x), weight: &norm, out }).unwrap();
            })
        });
        let gated = |rows: usize, is_gelu: bool| {
            let n = rows * WIDTH;
            let (gate, up) = (buffer(&b, &x[..n]), buffer(&b, &up[..n]));
            let (gate, up) = (View::all(&gate), View::all(&up));
            words(&b, DType::F32, n, |out| {
                let (out, n) = (ViewMut::all(out), n as u32);
                if is_gelu {
                    b.gelu_mul(GeluMul { p: GeluMulParams { n }, gate, up, out }).unwrap();
                } else {
                    b.silu_mul(SiluMul { p: SiluMulParams { n }, gate, up, out }).unwrap();
                }
            })
        };
        check(&b, "silu_mul", |rows| gated(rows, false));
        check(&b, "gelu_mul", |rows| gated(rows, true));
        let heads = numbers(ROWS * 3 * HEAD, 4);
        check(&b, "rope", |rows| {
            let (x, table) = (&heads[..rows * 3 * HEAD], &up[..rows * 20]);
            let (x, table) = (buffer(&b, x), buffer(&b, table));
            let [n_tokens, n_heads, head_dim] = [rows, 3, HEAD].map(|n| n as u32);
            let p = RopeParams { n_tokens, n_heads, head_dim, rotary_dim: 20 };
            words(&b, DType::F32, rows * 3 * HEAD, |out| {
                let (x, table, out) = (View::all(&x), View::all(&table), ViewMut::all(out));
                b.rope(Rope { p, x, table, out }).unwrap();
            })
        });
    }
}

#[test]
fn look_ups_and_choices() {
    for b in backends() {
        let x = numbers(ROWS * WIDTH, 1);
        let [n_ids, width] = [90, WIDTH];
        let table = weight(&b, DType::F16, n_ids, width);
        check(&b, "embed", |rows| {
            let tokens: Vec<u32> = (0..rows).map(|i| (i * 7 % n_ids) as u32).collect();
            let mut ids = b.alloc(DType::U32, rows, "ids").unwrap();
            b.write(ViewMut::all(&mut ids), bytemuck::cast_slice(&tokens)).unwrap();
            let [n_tokens, width] = [rows, width].map(|n| n as u32);
            let p = EmbedParams { n_tokens, width, scale: 1.3 };
            words(&b, DType::F32, rows * WIDTH, |out| {
                let (ids, out) = (View::all(&ids), ViewMut::all(out));
                b.embed(Embed { p, ids, table: &table, out }).unwrap();
            })
        });
        check(&b, "argmax", |rows| {
            let x = buffer(&b, &x[..rows * WIDTH]);
            let [n_rows, width] = [rows, WIDTH].map(|n| n as u32);
            words(&b, DType::U32, rows, |out| {
                let (x, out) = (View::all(&x), ViewMut::all(out));
                b.argmax(Argmax { p: ArgmaxParams { n_rows, width }, x, out }).unwrap();
            })
        });
        check(&b, "top_k", |rows| {
            let x = buffer(&b, &x[..rows * WIDTH]);
            let [n_rows, width, k] = [rows, WIDTH, 9].map(|n| n as u32);
            let mut ids = b.alloc(DType::U32, rows * 9, "ids").unwrap();
            words(&b, DType::F32, rows * 9, |values| {
                let (x, values, ids) =
                    (View::all(&x), ViewMut::all(values), ViewMut::all(&mut ids));
                b.top_k(TopK { p: TopKParams { n_rows, width, k }, x, values, ids }).unwrap();
            })
        });
    }
}

/// Rows that lie before those of the chunk: several parts of keys.
const PAST: usize = 1100;

/// Queries of a chunk behind [`PAST`] rows, as many as there are rows.
fn attended(b: &CpuBackend, q: &[f32], kv: &CpuBuffer, rows: usize, window: u32) -> Vec<u32> {
    let (heads, kv_heads) = (4, 2);
    let q = buffer(b, &q[..rows * heads * HEAD]);
    let mut lse = b.alloc(DType::F32, rows * heads, "lse").unwrap();
    let [n_tokens, n_q_heads, n_kv_heads, head_dim] =
        [rows, heads, kv_heads, HEAD].map(|n| n as u32);
    let scale = 0.2;
    let p = AttendParams { n_tokens, n_q_heads, n_kv_heads, head_dim, scale, accumulate: 0 };
    let spans = [ChunkSpan {
        q_start: 0,
        q_len: n_tokens,
        kv: KvView::new(kv, PAST + ROWS),
        row_start: 0,
        n_rows: (PAST + rows) as u32,
        diagonal: PAST as i32,
        window,
        order: None,
    }];
    words(b, DType::F32, rows * heads * HEAD, |out| {
        let (q, out, lse) = (View::all(&q), ViewMut::all(out), ViewMut::all(&mut lse));
        b.attend_chunk(AttendChunk { p, q, spans: &spans, out, lse }).unwrap();
    })
}

/// KV rows of any type that is attended.
fn kv_rows(b: &CpuBackend, dtype: DType) -> CpuBuffer {
    let n = 2 * (PAST + ROWS);
    let values = numbers(n * 2 * HEAD, 6);
    let row = dtype.kv_row_len(HEAD);
    let mut kv = b.alloc(dtype, n * row, "kv").unwrap();
    let mut bytes = vec![0; n * row * dtype.size()];
    for (values, bytes) in values.chunks(2 * HEAD).zip(bytes.chunks_mut(row * dtype.size())) {
        if dtype == DType::Q8 {
            kv8::encode(&values[..HEAD], &values[HEAD..], bytes);
        } else {
            bytes.copy_from_slice(&encode_f32(dtype, values));
        }
    }
    b.write(ViewMut::all(&mut kv), &bytes).unwrap();
    kv
}

#[test]
fn attention_of_a_chunk() {
    for b in backends() {
        let q = numbers(ROWS * 4 * HEAD, 5);
        for dtype in [DType::F32, DType::F16, DType::Q8] {
            let kv = kv_rows(&b, dtype);
            for window in [ChunkSpan::<CpuBackend>::ALL, 300] {
                let of_rows = |rows| attended(&b, &q, &kv, rows, window);
                let all = of_rows(ROWS);
                let width = all.len() / ROWS;
                // Two query heads share a KV head: 4 tokens are 8 rows, the most that are few, and
                // 32 tokens are the most that share the parts among items.
                for rows in [1, 2, 3, 4, 5, 8, 32, 33, 64, 200] {
                    let name = format!("{dtype:?}, window {window}: {rows} rows on {}", b.isa());
                    assert_eq!(of_rows(rows), all[..rows * width], "{name}");
                }
            }
        }
    }
}

/// A product of the first rows of x with a plain matrix of `WIDTH` rows.
fn product(b: &CpuBackend, weight: &CpuWeight, x: &[f32], n_in: usize, rows: usize) -> Vec<u32> {
    let x = buffer(b, &x[..rows * n_in]);
    let [n_rows, n_in, n_out] = [rows, n_in, WIDTH].map(|n| n as u32);
    let p = LinearParams { n_rows, n_in, n_out, accumulate: 0 };
    words(b, DType::F32, rows * WIDTH, |out| {
        let (x, out) = (View::all(&x), ViewMut::all(out));
        b.matmul(Linear { p, x, weight, bias: None, out }).unwrap();
    })
}

#[test]
fn products_with_plain_weights() {
    for b in backends() {
        // One slice of a row, with a tail; and two slices, also of pairs.
        for n_in in [300, 1030, 2070] {
            let x = numbers(ROWS * n_in, 7);
            let kinds = [
                (DType::F32, Activations::F32),
                (DType::F16, Activations::F32),
                (DType::BF16, Activations::F32),
                (DType::BF16, Activations::Bf16),
            ];
            for (dtype, kind) in kinds {
                let weight = weight_that(&b, kind, dtype, WIDTH, n_in);
                let of_rows = |rows| product(&b, &weight, &x, n_in, rows);
                let all = of_rows(ROWS);
                // 9 are the first that are multiplied with widened weights, 48 those with panels
                // where rows are long.
                for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 47, 48, 64, 100] {
                    let isa = b.isa();
                    let name = format!("{dtype:?}, {kind:?} of {n_in} on {isa}: {rows} rows");
                    assert_eq!(of_rows(rows), all[..rows * WIDTH], "{name}");
                }
            }
        }
    }
}
