//! Attention where the corpus does not go: splits of long runs and lists, their merge, wide heads,
//! large groups, aligned queries; against the reference and against itself cut otherwise.

use std::ops::Range;

use longview_core::{DType, SplitMix64, decode_f32, encode_f32};
use longview_ops::*;
use longview_wgpu::WgpuBackend;
use pollster::block_on;

use crate::common;

/// Queries of some tokens and the KV rows of one sequence.
#[derive(Clone)]
struct Data {
    hq: u32,
    hkv: u32,
    dh: u32,
    dtype: DType,
    n_tokens: u32,
    /// Rows of each KV head.
    stride: u32,
    q: Vec<f32>,
    kv: Vec<f32>,
}

impl Data {
    fn new(heads: [u32; 3], dtype: DType, n_tokens: u32, stride: u32) -> Self {
        let [hq, hkv, dh] = heads;
        let mut rng = SplitMix64::new(u64::from(hq * 1000 + dh) ^ u64::from(stride));
        let mut normals = |n: u32| (0..n).map(|_| rng.next_normal()).collect();
        let q = normals(n_tokens * hq * dh);
        let kv = normals(hkv * stride * 2 * dh);
        Self { hq, hkv, dh, dtype, n_tokens, stride, q, kv }
    }

    fn params(&self, accumulate: bool) -> AttendParams {
        AttendParams {
            n_tokens: self.n_tokens,
            n_q_heads: self.hq,
            n_kv_heads: self.hkv,
            head_dim: self.dh,
            scale: 1.0 / (self.dh as f32).sqrt(),
            accumulate: accumulate.into(),
        }
    }
}

/// [`Data`] on a device, with what attention writes.
struct OnDevice<'a, B: Backend> {
    backend: &'a B,
    data: &'a Data,
    q: B::Buffer,
    kv: B::Buffer,
    out: B::Buffer,
    lse: B::Buffer,
}

fn upload<B: Backend>(backend: &B, dtype: DType, bytes: &[u8]) -> B::Buffer {
    let mut buffer = backend.alloc(dtype, bytes.len() / dtype.size(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), bytes).unwrap();
    buffer
}

fn download<B: Backend>(backend: &B, buffer: &B::Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.len() * 4];
    block_on(backend.read(View::all(buffer), &mut bytes)).unwrap();
    decode_f32(DType::F32, &bytes)
}

impl<'a, B: Backend> OnDevice<'a, B> {
    fn new(backend: &'a B, data: &'a Data) -> Self {
        let heads = (data.n_tokens * data.hq) as usize;
        let empty = |n: usize| upload(backend, DType::F32, &encode_f32(DType::F32, &vec![7.0; n]));
        Self {
            backend,
            data,
            q: upload(backend, DType::F32, &encode_f32(DType::F32, &data.q)),
            kv: upload(backend, data.dtype, &encode_f32(data.dtype, &data.kv)),
            out: empty(heads * data.dh as usize),
            lse: empty(heads),
        }
    }

    /// Token 0 over a list for each head, in memory for `stride` entries.
    fn list(&mut self, lists: &[Vec<u32>], stride: usize, accumulate: bool) {
        self.lists(lists, stride, &[None], accumulate);
    }

    /// The same for as many tokens as there are weights: `weights[i]` is for how many keys each
    /// entry stands for token i.
    fn lists(
        &mut self,
        lists: &[Vec<u32>],
        stride: usize,
        weights: &[Option<Vec<u32>>],
        accumulate: bool,
    ) {
        let mut rows = Vec::new();
        for list in lists {
            rows.extend(list.iter().copied().chain(std::iter::repeat(u32::MAX)).take(stride));
        }
        let counts: Vec<u32> = lists.iter().map(|list| list.len() as u32).collect();
        let rows = upload(self.backend, DType::U32, bytemuck::cast_slice(&rows));
        let counts = upload(self.backend, DType::U32, bytemuck::cast_slice(&counts));
        let of_ints =
            |ints: &Vec<u32>| upload(self.backend, DType::U32, bytemuck::cast_slice(ints));
        let weights: Vec<_> = weights.iter().map(|w| w.as_ref().map(of_ints)).collect();
        let span = |token: usize| ListSpan {
            q_index: token as u32,
            kv: KvView::new(&self.kv, self.data.stride as usize),
            rows: View::all(&rows),
            n_rows: View::all(&counts),
            weights: weights[token].as_ref().map(View::all),
            list_stride: stride as u32,
        };
        let spans: Vec<_> = (0..weights.len()).map(span).collect();
        let attend = AttendList {
            p: self.data.params(accumulate),
            q: View::all(&self.q),
            spans: &spans,
            out: ViewMut::all(&mut self.out),
            lse: ViewMut::all(&mut self.lse),
        };
        self.backend.attend_list(attend).unwrap();
    }

    /// All tokens over a run of rows.
    fn chunk(&mut self, rows: Range<u32>, diagonal: i32, accumulate: bool) {
        let attend = AttendChunk {
            p: self.data.params(accumulate),
            q: View::all(&self.q),
            spans: &[ChunkSpan {
                q_start: 0,
                q_len: self.data.n_tokens,
                kv: KvView::new(&self.kv, self.data.stride as usize),
                row_start: rows.start,
                n_rows: rows.end - rows.start,
                diagonal,
                window: ChunkSpan::<B>::ALL,
                order: None,
            }],
            out: ViewMut::all(&mut self.out),
            lse: ViewMut::all(&mut self.lse),
        };
        self.backend.attend_chunk(attend).unwrap();
    }

    /// `out`, then `lse`.
    fn result(&self) -> Vec<f32> {
        let mut result = download(self.backend, &self.out);
        result.extend(download(self.backend, &self.lse));
        result
    }
}

/// What `work` leaves on the device and what on the reference.
fn with_reference(backend: &WgpuBackend, data: &Data, work: impl Fn(&mut dyn Attend)) {
    let reference = ReferenceBackend::new();
    let mut want = OnDevice::new(&reference, data);
    let mut got = OnDevice::new(backend, data);
    work(&mut want);
    work(&mut got);
    assert_close(&got.result(), &want.result());
}

/// [`OnDevice`] without the type of the device.
trait Attend {
    fn list(&mut self, lists: &[Vec<u32>], stride: usize, accumulate: bool);
    fn lists(
        &mut self,
        lists: &[Vec<u32>],
        stride: usize,
        weights: &[Option<Vec<u32>>],
        accumulate: bool,
    );
    fn chunk(&mut self, run: Range<u32>, diagonal: i32, accumulate: bool);
}

impl<B: Backend> Attend for OnDevice<'_, B> {
    fn list(&mut self, lists: &[Vec<u32>], stride: usize, accumulate: bool) {
        self.list(lists, stride, accumulate);
    }

    fn lists(
        &mut self,
        lists: &[Vec<u32>],
        stride: usize,
        weights: &[Option<Vec<u32>>],
        accumulate: bool,
    ) {
        self.lists(lists, stride, weights, accumulate);
    }

    fn chunk(&mut self, run: Range<u32>, diagonal: i32, accumulate: bool) {
        self.chunk(run, diagonal, accumulate);
    }
}

fn assert_close(got: &[f32], want: &[f32]) {
    let bound = longview_ops::tolerance::tolerance(Op::AttendList, DType::F32);
    assert_eq!(got.len(), want.len());
    for (i, (x, y)) in got.iter().zip(want).enumerate() {
        let close = f64::from((x - y).abs()) <= bound.allows(f64::from(*y));
        assert!(close || x == y, "element {i} of {}: {x}, expected {y}", got.len());
    }
}

/// A list for each KV head: `n` different rows, some fewer for later heads.
fn lists(data: &Data, n: usize) -> Vec<Vec<u32>> {
    let mut rng = SplitMix64::new(n as u64);
    let one = |head: usize| rng.distinct(data.stride as usize, n - head * n / 40);
    (0..data.hkv as usize).map(one).collect()
}

#[test]
fn the_order_of_a_list_does_not_matter() {
    let data = Data::new([4, 2, 64], DType::F16, 1, 1200);
    for backend in common::levels() {
        for n in [60, 128, 1000] {
            let forwards = lists(&data, n);
            let backwards: Vec<Vec<u32>> =
                forwards.iter().map(|list| list.iter().rev().copied().collect()).collect();
            let [mut a, mut b] = [OnDevice::new(&backend, &data), OnDevice::new(&backend, &data)];
            a.list(&forwards, n, false);
            b.list(&backwards, n, false);
            assert_close(&a.result(), &b.result());
        }
    }
}

#[test]
fn a_list_in_splits_is_the_list_in_one() {
    let data = Data::new([6, 2, 40], DType::BF16, 1, 900);
    for backend in common::levels() {
        for n in [1, 64, 100, 128] {
            let lists = lists(&data, n);
            let [mut a, mut b] = [OnDevice::new(&backend, &data), OnDevice::new(&backend, &data)];
            // The host knows only the memory of a list, so a long one is split however few entries
            // are in use.
            a.list(&lists, 128, false);
            b.list(&lists, 900, false);
            assert_close(&a.result(), &b.result());
        }
        let long = lists(&data, 700);
        let [mut a, mut b] = [OnDevice::new(&backend, &data), OnDevice::new(&backend, &data)];
        a.list(&long, 700, false);
        for i in 0..7 {
            let piece = |list: &Vec<u32>| {
                list[(100 * i).min(list.len())..(100 * i + 100).min(list.len())].to_vec()
            };
            b.list(&long.iter().map(piece).collect::<Vec<_>>(), 100, i > 0);
        }
        assert_close(&a.result(), &b.result());
    }
}

#[test]
fn a_list_of_20_000_rows() {
    let cases = [([4, 2, 64], DType::F16), ([12, 12, 32], DType::BF16), ([16, 1, 20], DType::F32)];
    for (i, (heads, dtype)) in cases.into_iter().enumerate() {
        let data = Data::new(heads, dtype, 1, 20_100);
        let lists = lists(&data, 20_000);
        for backend in common::levels_of_case(i) {
            with_reference(&backend, &data, |device| {
                device.list(&lists, 20_000, false);
                device.list(&lists[..], 20_050, true);
            });
        }
    }
}

#[test]
fn entries_of_some_tokens_stand_for_several_keys() {
    // In one piece, in short splits, in long ones.
    let cases = [
        ([6, 2, 40], DType::BF16, 100),
        ([16, 2, 64], DType::F16, 700),
        ([4, 2, 20], DType::F16, 20_000),
    ];
    for (i, (heads, dtype, n)) in cases.into_iter().enumerate() {
        let data = Data::new(heads, dtype, 4, n as u32 + 100);
        let lists = lists(&data, n);
        let mut rng = SplitMix64::new(9);
        let len = n * data.hkv as usize;
        let mut some: Vec<u32> = (0..len).map(|_| rng.below(30) as u32).collect();
        some[n / 3..n / 2].fill(0);
        some[n / 2] = u32::MAX;
        let weights = [Some(some), None, Some(vec![0; len]), Some(vec![1; len])];
        for backend in common::levels_of_case(i) {
            with_reference(&backend, &data, |device| device.lists(&lists, n, &weights, false));
            with_reference(&backend, &data, |device| {
                device.lists(&lists, n, &[None, None, None, None], false);
                device.lists(&lists, n, &weights, true);
            });
        }
    }
}

#[test]
fn one_token_over_a_long_run() {
    let cases = [([14, 2, 64], DType::F16), ([9, 1, 33], DType::F16)];
    for (i, (heads, dtype)) in cases.into_iter().enumerate() {
        let data = Data::new(heads, dtype, 1, 20_000);
        for backend in common::levels_of_case(i) {
            with_reference(&backend, &data, |device| {
                device.chunk(3..19993, i32::MAX, false);
                device.chunk(0..3, i32::MAX, true);
            });
        }
    }
}

#[test]
fn a_chunk_in_tiles_is_the_whole() {
    let cases = [
        // Few tokens: the list kernel. More: tiles of queries, few enough that rows are split.
        ([4, 2, 64], DType::F16, 3, 700),
        ([4, 2, 64], DType::F16, 70, 1500),
        ([3, 1, 80], DType::BF16, 50, 1100),
        ([2, 2, 24], DType::F32, 130, 600),
        ([2, 1, 27], DType::F16, 33, 600),
    ];
    for (i, (heads, dtype, n_tokens, n_rows)) in cases.into_iter().enumerate() {
        let data = Data::new(heads, dtype, n_tokens, n_rows);
        let causal = n_rows as i32 - n_tokens as i32;
        for backend in common::levels_of_case(i) {
            with_reference(&backend, &data, |device| device.chunk(0..n_rows, causal, false));
            let [mut a, mut b] = [OnDevice::new(&backend, &data), OnDevice::new(&backend, &data)];
            a.chunk(0..n_rows, causal, false);
            for first in (0..n_rows).step_by(250) {
                let n = 250.min(n_rows - first);
                b.chunk(first..first + n, causal - first as i32, first > 0);
            }
            assert_close(&a.result(), &b.result());
        }
    }
}

#[test]
fn a_split_run_that_many_queries_do_not_see() {
    // Queries before the run see nothing, those at its begin see the first splits alone.
    let data = Data::new([2, 2, 64], DType::F16, 200, 1000);
    for backend in common::levels() {
        with_reference(&backend, &data, |device| device.chunk(0..1000, -50, false));
        with_reference(&backend, &data, |device| {
            device.chunk(0..10, i32::MAX, false);
            device.chunk(10..1000, -50, true);
        });
    }
}

#[test]
fn heads_of_any_width_and_groups_of_any_size() {
    let cases = [
        ([2, 1, 256], DType::F16),
        ([1, 1, 200], DType::F32),
        ([2, 1, 255], DType::BF16),
        ([2, 1, 1], DType::F16),
        ([27, 1, 16], DType::F32),
    ];
    for (i, (heads, dtype)) in cases.into_iter().enumerate() {
        let data = Data::new(heads, dtype, 40, 330);
        let one = Data {
            n_tokens: 1,
            q: data.q[..(heads[0] * heads[2]) as usize].into(),
            ..data.clone()
        };
        let lists = lists(&one, 300);
        for backend in common::levels_of_case(i) {
            with_reference(&backend, &data, |device| device.chunk(0..330, 290, false));
            with_reference(&backend, &one, |device| device.list(&lists, 320, false));
        }
    }
}

#[test]
fn too_wide_a_head_is_an_error() {
    let data = Data::new([1, 1, 264], DType::F32, 1, 2);
    for backend in common::levels() {
        let mut device = OnDevice::new(&backend, &data);
        let attend = AttendChunk {
            p: data.params(false),
            q: View::all(&device.q),
            spans: &[],
            out: ViewMut::all(&mut device.out),
            lse: ViewMut::all(&mut device.lse),
        };
        let error = backend.attend_chunk(attend).unwrap_err();
        assert!(error.to_string().contains("264"), "{error}");
    }
}

#[test]
fn a_growing_context_allocates_nothing() {
    let data = Data::new([14, 2, 64], DType::F16, 1, 20_000);
    for backend in common::levels() {
        let mut device = OnDevice::new(&backend, &data);
        device.chunk(0..200, i32::MAX, false);
        let before = backend.allocations();
        for n_rows in [250, 1000, 5000, 10_000, 20_000] {
            device.chunk(0..n_rows, i32::MAX, false);
        }
        assert_eq!(backend.allocations(), before);
    }
}
