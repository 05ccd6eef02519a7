//! Gathers of rows: recall, and the copy that is the yardstick of memory.

use longview_core::DType;
use longview_ops::{Backend, KvGather, KvGatherParams, KvView, Op, OpResult, View};

use super::harness::{Bench, Case, Cases, Work, boxed};

/// N rows a head out of S into the first N of a buffer: scattered ones, or a run.
pub(super) struct GatherCase {
    n_listed: usize,
    n_rows: usize,
    n_heads: usize,
    head_dim: usize,
    is_scattered: bool,
    /// Whether the rows come from host memory.
    is_recall: bool,
}

const DTYPE: DType = DType::F16;

impl GatherCase {
    /// `bytes` in rows so long that the lists weigh nothing.
    pub fn long_rows(bytes: usize) -> Self {
        let (n_heads, head_dim) = (8, 2048);
        let n_rows = bytes / (n_heads * 2 * head_dim * DTYPE.size());
        let (is_scattered, is_recall) = (false, false);
        Self { n_listed: n_rows, n_rows, n_heads, head_dim, is_scattered, is_recall }
    }

    /// The same from host memory.
    pub fn recalled(self) -> Self {
        Self { is_recall: true, ..self }
    }

    fn bytes(&self) -> usize {
        self.n_heads * self.n_listed * 2 * self.head_dim * DTYPE.size()
    }
}

impl<B: Backend> Case<B> for GatherCase {
    fn title(&self) -> String {
        let Self { n_listed, n_rows, n_heads, head_dim, is_scattered, is_recall } = self;
        let what = if *is_scattered { "of" } else { "in a run of" };
        let place = if *is_recall { " (host)" } else { "" };
        format!("kv_gather {DTYPE} {n_listed} {what} {n_rows}{place} heads {n_heads} x {head_dim}")
    }

    fn work(&self) -> Work {
        if self.is_recall { Work::link(self.bytes()) } else { Work::memory(2 * self.bytes(), 0.0) }
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { n_listed, n_rows, n_heads, head_dim, is_scattered, is_recall } = *self;
        let backend = bench.backend;
        let row = 2 * head_dim;
        let src = if is_recall {
            bench.host_buffer(Op::KvGather, DTYPE, n_heads * n_rows * row)?
        } else {
            bench.buffer(DTYPE, n_heads * n_rows * row)?
        };
        let mut dst = backend.alloc(DTYPE, n_heads * n_listed * row, "slots")?;
        // Other rows in every turn, until no cache holds them.
        let n_lists = bench.streamed_bytes().div_ceil(self.bytes()).min(n_rows / n_listed);
        let mut lists = Vec::new();
        for turn in 0..n_lists {
            let list: Vec<u32> = (0..n_heads)
                .flat_map(|_| {
                    if is_scattered {
                        bench.rng.distinct(n_rows, n_listed)
                    } else {
                        (0..n_listed).map(|i| (turn * n_listed + i) as u32).collect()
                    }
                })
                .collect();
            lists.push(bench.words(&list)?);
        }
        let slots: Vec<u32> = (0..n_heads).flat_map(|_| 0..n_listed as u32).collect();
        let slots = bench.words(&slots)?;
        let counts = bench.words(&vec![n_listed as u32; n_heads])?;
        let p = KvGatherParams {
            n_kv_heads: n_heads as u32,
            head_dim: head_dim as u32,
            list_stride: n_listed as u32,
            dst_head_stride: n_listed as u32,
        };
        let mut turn = 0;
        bench.seconds(&mut || {
            turn = (turn + 1) % lists.len();
            backend.kv_gather(KvGather {
                p,
                src: KvView::new(&src, n_rows),
                src_rows: View::all(&lists[turn]),
                dst_rows: View::all(&slots),
                n_rows: View::all(&counts),
                dst: &mut dst,
            })
        })
    }
}

/// What a step fetches, at worst, a tile of the past, and both from host memory; there also what a
/// layer of Llama-3.1-8B fetches.
pub(super) fn cases<B: Backend>() -> Cases<B> {
    let gather = |n_listed, n_rows, is_scattered, (n_heads, head_dim)| GatherCase {
        n_listed,
        n_rows,
        n_heads,
        head_dim,
        is_scattered,
        is_recall: false,
    };
    let (needle, llama) = ((2, 64), (8, 128));
    boxed([
        gather(1024, 262_144, true, needle),
        gather(16_384, 262_144, true, needle),
        gather(2048, 262_144, false, needle),
        gather(131_072, 262_144, false, needle),
        gather(1024, 262_144, true, needle).recalled(),
        gather(2048, 65_536, true, llama).recalled(),
        gather(2048, 65_536, false, llama).recalled(),
    ])
}
