//! Attention: chunks of queries over runs of rows, one query over a run, one over a list.

use longview_core::DType;
use longview_ops::{
    AttendChunk, AttendList, AttendParams, Backend, ChunkSpan, KvView, ListSpan, OpResult, View,
    ViewMut,
};

use super::harness::{Bench, Case, Cases, Work, boxed};

/// Query heads, KV heads and their width.
#[derive(Clone, Copy)]
struct Heads {
    n_q: usize,
    n_kv: usize,
    dim: usize,
}

impl Heads {
    fn params(self, n_tokens: usize) -> AttendParams {
        AttendParams {
            n_tokens: n_tokens as u32,
            n_q_heads: self.n_q as u32,
            n_kv_heads: self.n_kv as u32,
            head_dim: self.dim as u32,
            scale: 1.0 / (self.dim as f32).sqrt(),
            accumulate: 0,
        }
    }

    /// Bytes of `n` rows of every KV head.
    fn row_bytes(self, dtype: DType, n: usize) -> usize {
        self.n_kv * n * dtype.kv_row_len(self.dim) * dtype.size()
    }
}

impl std::fmt::Display for Heads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "heads {}/{} x {}", self.n_q, self.n_kv, self.dim)
    }
}

/// T queries at the end of S rows.
struct ChunkCase {
    dtype: DType,
    n_tokens: usize,
    n_rows: usize,
    heads: Heads,
}

impl ChunkCase {
    /// Few queries are bound by the rows that they read.
    fn is_decode(&self) -> bool {
        self.n_tokens <= 4
    }

    fn bytes(&self) -> usize {
        self.heads.row_bytes(self.dtype, self.n_rows)
    }
}

impl<B: Backend> Case<B> for ChunkCase {
    fn title(&self) -> String {
        let Self { dtype, n_tokens, n_rows, heads } = self;
        format!("attend_chunk {dtype} T {n_tokens} S {n_rows} {heads}")
    }

    fn work(&self) -> Work {
        let (t, s) = (self.n_tokens as f64, self.n_rows as f64);
        let pairs = t * s - t * (t - 1.0) / 2.0;
        let flop = 4.0 * pairs * (self.heads.n_q * self.heads.dim) as f64;
        if self.is_decode() {
            Work::memory(self.bytes(), flop)
        } else {
            Work::arithmetic(self.bytes(), flop).with(self.dtype)
        }
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { dtype, n_tokens: t, n_rows: s, heads } = *self;
        let backend = bench.backend;
        let copies = if self.is_decode() { bench.copies(self.bytes()) } else { 1 };
        let rows = bench.rows(dtype, heads.n_kv * s, heads.dim);
        let rows: Vec<_> =
            (0..copies).map(|_| bench.upload(dtype, &rows)).collect::<OpResult<_>>()?;
        let q = bench.buffer(DType::F32, t * heads.n_q * heads.dim)?;
        let mut out = backend.alloc(DType::F32, t * heads.n_q * heads.dim, "out")?;
        let mut lse = backend.alloc(DType::F32, t * heads.n_q, "lse")?;
        let mut turn = 0;
        bench.seconds(&mut || {
            turn = (turn + 1) % copies;
            backend.attend_chunk(AttendChunk {
                p: heads.params(t),
                q: View::all(&q),
                spans: &[ChunkSpan {
                    q_start: 0,
                    q_len: t as u32,
                    kv: KvView::new(&rows[turn], s),
                    row_start: 0,
                    n_rows: s as u32,
                    diagonal: s as i32 - t as i32,
                    window: ChunkSpan::<B>::ALL,
                    order: None,
                }],
                out: ViewMut::all(&mut out),
                lse: ViewMut::all(&mut lse),
            })
        })
    }
}

/// One query over N of S rows of each KV head.
struct ListCase {
    dtype: DType,
    n_listed: usize,
    n_rows: usize,
    heads: Heads,
}

impl ListCase {
    fn bytes(&self) -> usize {
        self.heads.row_bytes(self.dtype, self.n_listed)
    }
}

impl<B: Backend> Case<B> for ListCase {
    fn title(&self) -> String {
        let Self { dtype, n_listed, n_rows, heads } = self;
        format!("attend_list {dtype} {n_listed} of {n_rows} {heads}")
    }

    fn work(&self) -> Work {
        let Heads { n_q, dim, .. } = self.heads;
        Work::memory(self.bytes(), 4.0 * (self.n_listed * n_q * dim) as f64)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { dtype, n_listed: n, n_rows: s, heads } = *self;
        let backend = bench.backend;
        let q = bench.buffer(DType::F32, heads.n_q * heads.dim)?;
        let rows = bench.rows(dtype, heads.n_kv * s, heads.dim);
        let rows = bench.upload(dtype, &rows)?;
        // Several lists in turn: rows come from memory and not from the last call's cache.
        let mut lists = Vec::new();
        for _ in 0..bench.streamed_bytes().div_ceil(self.bytes()) {
            let list: Vec<u32> = (0..heads.n_kv).flat_map(|_| bench.rng.distinct(s, n)).collect();
            lists.push(bench.words(&list)?);
        }
        let counts = bench.words(&vec![n as u32; heads.n_kv])?;
        let mut out = backend.alloc(DType::F32, heads.n_q * heads.dim, "out")?;
        let mut lse = backend.alloc(DType::F32, heads.n_q, "lse")?;
        let kv = KvView::new(&rows, s);
        let mut turn = 0;
        bench.seconds(&mut || {
            turn = (turn + 1) % lists.len();
            backend.attend_list(AttendList {
                p: heads.params(1),
                q: View::all(&q),
                spans: &[ListSpan {
                    q_index: 0,
                    kv,
                    rows: View::all(&lists[turn]),
                    n_rows: View::all(&counts),
                    weights: None,
                    list_stride: n as u32,
                }],
                out: ViewMut::all(&mut out),
                lse: ViewMut::all(&mut lse),
            })
        })
    }
}

/// The embedded model's heads, Qwen's, Llama's, and a width that no vector likes.
pub(super) fn cases<B: Backend>() -> Cases<B> {
    let heads = |n_q, n_kv, dim| Heads { n_q, n_kv, dim };
    let (needle, qwen, llama) = (heads(4, 2, 64), heads(14, 2, 64), heads(32, 8, 128));
    let chunk = |dtype, n_tokens, n_rows, heads| ChunkCase { dtype, n_tokens, n_rows, heads };
    let mut cases = boxed([
        chunk(DType::F32, 512, 16_384, needle),
        chunk(DType::F16, 512, 16_384, needle),
        chunk(DType::BF16, 512, 16_384, needle),
        chunk(DType::F16, 512, 512, needle),
        chunk(DType::F16, 256, 1024, needle),
        chunk(DType::F16, 256, 8192, qwen),
        chunk(DType::F16, 256, 4096, llama),
        chunk(DType::F16, 256, 4096, heads(8, 2, 80)),
        chunk(DType::F16, 256, 1024, heads(4, 2, 128)),
        chunk(DType::F16, 1, 1024, needle),
        chunk(DType::F16, 1, 1024, qwen),
        chunk(DType::F16, 1, 16_384, needle),
        chunk(DType::F16, 1, 16_384, qwen),
        chunk(DType::F16, 1, 4096, heads(32, 8, 64)),
        chunk(DType::F16, 1, 4096, llama),
        chunk(DType::F16, 1, 131_072, llama),
        chunk(DType::Q8, 256, 4096, llama),
        chunk(DType::Q8, 1, 16_384, needle),
        chunk(DType::Q8, 1, 16_384, qwen),
        chunk(DType::Q8, 1, 131_072, llama),
    ]);
    let list = |n_listed, n_rows, heads| ListCase { dtype: DType::F16, n_listed, n_rows, heads };
    let rounded = |n_listed, n_rows, heads| {
        let dtype = DType::Q8;
        ListCase { dtype, n_listed, n_rows, heads }
    };
    cases.extend(boxed([
        list(1024, 32_768, needle),
        list(1024, 262_144, needle),
        list(1024, 65_536, heads(32, 8, 64)),
        list(2048, 65_536, llama),
        list(16_384, 262_144, needle),
        rounded(1024, 262_144, needle),
        rounded(2048, 65_536, llama),
    ]));
    cases
}
