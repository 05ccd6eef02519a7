//! Attention to recalled rows where they are: in host memory, by the host.
//!
//! While the device attends to the first and the last rows, the host attends to the chosen ones;
//! then both are merged by log-sum-exp (KTransformers' CPU attention). Only the query comes from
//! the device and only the result goes there, so that no row is ever moved and the device keeps no
//! cache. KV heads are divided among threads; each is attended by one, row after row, so the result
//! is the same for any number of them.

use std::ops::Range;

use longview_core::{HeadId, decode_f32_into};
use longview_ops::{Backend, OpResult};
#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;

use super::host_result::{HostResult, take_row};
use super::selector::Selector;
use crate::error::SchedulerError;
use crate::index::HeadIndex;
use crate::layout::{KvShape, LayerTensors, SelectionId};
use crate::store::LayerRows;

/// Buffers of one token's attention on the host.
pub(crate) struct HostAttention<B: Backend> {
    /// `[Hq, Dh]`, scaled by nothing.
    pub q: Vec<f32>,
    result: HostResult<B>,
    /// One for each KV head.
    scratch: Vec<Scratch>,
    /// The selection that waits to be attended.
    pub waiting: Option<SelectionId>,
    /// `None` where the thread that asks does all.
    #[cfg(not(target_arch = "wasm32"))]
    pool: Option<rayon::ThreadPool>,
}

/// Rows of one KV head on their way.
struct Scratch {
    bytes: Vec<u8>,
    row: Vec<f32>,
}

/// One KV head's queries and what they attended so far.
struct Head<'a> {
    /// `[G, Dh]`.
    q: &'a [f32],
    /// `[G, Dh]`: the mean so far.
    out: &'a mut [f32],
    /// `[G]`: the running logarithm of the sum.
    lse: &'a mut [f32],
    scratch: &'a mut Scratch,
}

/// What all heads of a layer attend.
pub(crate) struct HostSelection<'a, B: Backend> {
    pub rows: LayerRows<'a, B>,
    pub heads: &'a [HeadIndex],
    pub selector: &'a Selector<B>,
    pub selection: SelectionId,
}

/// As many threads as were asked for, or as the machine runs at once: more than KV heads would have
/// nothing to do.
#[cfg(not(target_arch = "wasm32"))]
fn n_threads(shape: &KvShape, asked: Option<usize>) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.unwrap_or_else(available).min(shape.n_kv_heads)
}

impl<B: Backend> HostAttention<B> {
    /// Buffers and threads for attention of `shape` on `threads` threads, or on as many as make
    /// sense; a browser has one.
    pub fn new(
        backend: &B,
        shape: &KvShape,
        threads: Option<usize>,
    ) -> Result<Self, SchedulerError> {
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        #[cfg(target_arch = "wasm32")]
        let _ = threads;
        let scratch = |_| Scratch { bytes: Vec::new(), row: vec![0.0; 2 * d] };
        Ok(Self {
            q: vec![0.0; hq * d],
            result: HostResult::new(backend, shape, "attention of the host")?,
            scratch: (0..shape.n_kv_heads).map(scratch).collect(),
            waiting: None,
            #[cfg(not(target_arch = "wasm32"))]
            pool: pool(n_threads(shape, threads))?,
        })
    }

    /// Attends to the rows of all heads.
    fn attend(&mut self, chosen: &HostSelection<'_, B>) {
        self.result.clear();
        let group = chosen.rows.shape.n_q_heads / chosen.rows.shape.n_kv_heads;
        let width = group * chosen.rows.shape.head_dim;
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(pool) = &self.pool {
            let heads = (
                self.q.par_chunks(width),
                self.result.out.par_chunks_mut(width),
                self.result.lse.par_chunks_mut(group),
                &mut self.scratch,
            );
            let heads = heads.into_par_iter().enumerate();
            return pool.install(|| {
                heads.for_each(|(h, (q, out, lse, scratch))| {
                    Head { q, out, lse, scratch }.take(chosen, HeadId::new(h));
                });
            });
        }
        let queries = self.q.chunks(width).zip(self.result.out.chunks_mut(width));
        let rows = self.result.lse.chunks_mut(group).zip(&mut self.scratch);
        for (h, ((q, out), (lse, scratch))) in queries.zip(rows).enumerate() {
            Head { q, out, lse, scratch }.take(chosen, HeadId::new(h));
        }
    }
}

impl<B: Backend> HostAttention<B> {
    /// Attends to what was selected and merges the result with the device's attention of the step's
    /// token `index`, by log-sum-exp.
    pub fn merge(
        &mut self,
        backend: &B,
        chosen: &HostSelection<'_, B>,
        index: usize,
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        self.attend(chosen);
        self.result.merge(backend, chosen.rows.shape, index, t, lse)
    }
}

/// Threads beside the one that asks; `None` where one is enough.
#[cfg(not(target_arch = "wasm32"))]
fn pool(threads: usize) -> Result<Option<rayon::ThreadPool>, SchedulerError> {
    if threads <= 1 {
        return Ok(None);
    }
    let name = |i: usize| format!("host attention {i}");
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
    built.map(Some).map_err(|e| SchedulerError::HostThreads { threads, reason: e.to_string() })
}

impl Head<'_> {
    /// Takes in what was chosen for KV head `head`.
    fn take<B: Backend>(mut self, chosen: &HostSelection<'_, B>, head: HeadId) {
        let starts = &chosen.heads[head].starts;
        for (cluster, take) in chosen.selector.selected(chosen.selection, head) {
            let start = starts[cluster] as usize;
            self.take_run(chosen, head, start..start + take);
        }
    }

    /// Takes rows of KV head `head` in.
    fn take_run<B: Backend>(
        &mut self,
        chosen: &HostSelection<'_, B>,
        head: HeadId,
        rows: Range<usize>,
    ) {
        let shape = chosen.rows.shape;
        let (d, row_bytes) = (shape.head_dim, shape.row_bytes());
        let Scratch { bytes, row } = &mut *self.scratch;
        bytes.resize(rows.len() * row_bytes, 0);
        chosen.rows.store.read_rows(chosen.rows.layer, head, rows, bytes);
        for bytes in bytes.chunks_exact(row_bytes) {
            decode_f32_into(shape.kv_dtype, bytes, row);
            let (key, value) = row.split_at(d);
            let queries = self.q.chunks_exact(d).zip(self.out.chunks_exact_mut(d));
            for ((q, out), lse) in queries.zip(self.lse.iter_mut()) {
                let score = shape.scale * dot(q, key);
                take_row(score, value, out, lse);
            }
        }
    }
}

/// Several sums at once, so that they need not wait for each other.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a8.zip(b8) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use longview_core::{DType, SplitMix64};

    use longview_ops::{View, ViewMut};

    use super::*;
    use crate::layout::SelectionId;
    use crate::recall::testing::*;
    use crate::store::HostStore;

    #[test]
    fn a_dot_product_takes_every_element() {
        for n in [0, 1, 7, 8, 9, 20] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let want: f32 = a.iter().map(|x| x * x).sum();
            assert_eq!(super::dot(&a, &a), want);
        }
    }

    /// What `threads` attend of `choice`.
    fn attended(
        shape: &KvShape,
        rows: &[HeadRows],
        choice: &[Vec<[u32; 2]>],
        q: &[f32],
        threads: Option<usize>,
    ) -> HostAttention<Device> {
        let device = Device::new();
        let (index, store) = (index_of(&device, shape, rows), store_of(shape, rows));
        let selector = chosen(&device, shape, &policy(20), choice);
        let store: &dyn HostStore<Device> = &store;
        let rows = LayerRows { shape, store, layer: LAYER };
        let selection =
            HostSelection { rows, heads: index.heads(), selector: &selector, selection: SELECTION };
        let mut host = HostAttention::new(&device, shape, threads).unwrap();
        host.q.copy_from_slice(q);
        host.attend(&selection);
        // What was attended before does not count.
        host.attend(&selection);
        host
    }

    /// Rows that a head chose: the closest tokens of each cluster.
    fn rows_of(rows: &HeadRows, choice: &[[u32; 2]]) -> Vec<usize> {
        let taken = |[c, take]: &[u32; 2]| rows.tokens(*c as usize).take(*take as usize);
        choice.iter().flat_map(taken).collect()
    }

    #[test]
    fn it_equals_a_softmax_over_the_chosen_rows_on_any_number_of_threads() {
        let mut rng = SplitMix64::new(3);
        let choice = [vec![[2, 4], [0, 2]], vec![[1, 6], [3, 1], [0, 1]]];
        for kv_dtype in [DType::F32, DType::F16, DType::BF16] {
            let shape = KvShape { kv_dtype, ..shape() };
            let mut rows =
                [HeadRows::random(&mut rng, &[3, 5, 4]), HeadRows::random(&mut rng, &[1, 6, 3, 2])];
            for row in rows.iter_mut().flat_map(|rows| rows.keys.iter_mut().chain(&mut rows.values))
            {
                *row = stored(kv_dtype, *row);
            }
            let q = normals(&mut rng, 16);
            let one = attended(&shape, &rows, &choice, &q, Some(1));
            for h in 0..4 {
                let (head, own) = (h / 2, h * WIDTH..(h + 1) * WIDTH);
                let taken = rows_of(&rows[head], &choice[head]);
                let all = taken.iter().map(|i| (&rows[head].keys[*i], &rows[head].values[*i], 1.0));
                let (mean, sum) = attention(&q[own.clone()], shape.scale, all);
                assert_near(&one.result.out[own], &mean);
                assert_near(&one.result.lse[h..h + 1], &[sum]);
            }
            for threads in [None, Some(2), Some(3), Some(7)] {
                let more = attended(&shape, &rows, &choice, &q, threads);
                assert_eq!(
                    (&more.result.out, &more.result.lse),
                    (&one.result.out, &one.result.lse),
                    "{threads:?} threads"
                );
            }
        }
    }

    #[test]
    fn large_and_small_scores_neither_overflow_nor_vanish() {
        let key = |x: f32| [x, 0.0, 0.0, 0.0];
        let mut rows =
            HeadRows::of_equal_keys(&[(1, key(-2000.0)), (1, key(2000.0)), (2, key(0.0))]);
        rows.values = vec![[1.0; 4], [2.0; 4], [3.0; 4], [4.0; 4]];
        let choice = [vec![[0, 1], [1, 1], [2, 2]], vec![[2, 1], [0, 1]]];
        let q = [[1.0, 0.0, 0.0, 0.0]; 4].concat();
        let host = attended(&shape(), &[rows.clone(), rows], &choice, &q, None);
        assert_eq!(host.result.out, [[2.0; 8], [3.0; 8]].concat());
        assert_eq!(host.result.lse, [1000.0, 1000.0, 0.0, 0.0]);
    }

    #[test]
    fn a_head_that_chose_nothing_has_no_mass() {
        let rows = [1, 2].map(|seed| HeadRows::random(&mut SplitMix64::new(seed), &[4]));
        let host = attended(&shape(), &rows, &[vec![], vec![[0, 1]]], &[1.0; 16], Some(2));
        assert_eq!(
            (&host.result.out[..8], &host.result.lse[..2]),
            (&[0.0; 8][..], &[f32::NEG_INFINITY; 2][..])
        );
        assert_eq!(host.result.out[8..12], rows[1].values[0]);
        assert!(host.result.lse[2..].iter().all(|lse| lse.is_finite()));
    }

    /// The device has attended a row of mass 10 in each query head of the second token.
    #[test]
    fn a_merge_is_attention_to_the_rows_of_both() {
        let (device, shape) = (Device::new(), shape());
        // Masses 2 and 3 for a query of (1, 0, 0, 0) under the scale of 1/2.
        let key = |n: f32| [2.0 * n.ln(), 0.0, 0.0, 0.0];
        let mut rows = HeadRows::of_equal_keys(&[(2, key(2.0)), (3, key(3.0))]);
        rows.values[0] = [1.0, 0.0, 0.0, 0.0];
        rows.values[2] = [0.0, 1.0, 0.0, 0.0];
        let rows = [rows.clone(), rows];
        let (index, store) = (index_of(&device, &shape, &rows), store_of(&shape, &rows));
        let choice = [vec![[0, 1], [1, 1]], vec![[1, 3]]];
        let selector = chosen(&device, &shape, &policy(20), &choice);
        let store: &dyn HostStore<Device> = &store;
        let layer_rows = LayerRows { shape: &shape, store, layer: LAYER };
        let selection = HostSelection {
            rows: layer_rows,
            heads: index.heads(),
            selector: &selector,
            selection: SELECTION,
        };
        let mut host = HostAttention::new(&device, &shape, None).unwrap();
        host.q.copy_from_slice(&[[1.0, 0.0, 0.0, 0.0]; 4].concat());
        let queries = two_tokens(&device, &host.q);
        // Two elements before the step's output belong to others.
        let held = [[0.0, 0.0, 1.0, 0.0]; 4].concat();
        let mut out = upload(&device, &[&[8.0; 18][..], &held].concat());
        let mut lse = upload(&device, &[&[6.0; 4][..], &[10f32.ln(); 4]].concat());
        let mut t = LayerTensors {
            q: View::all(&queries),
            k: View::part(&queries, 0, 16),
            v: View::part(&queries, 0, 16),
            out: ViewMut::part(&mut out, 2, 32),
        };
        host.merge(&device, &selection, 1, &mut t, &mut lse).unwrap();
        let (out, lse) = (floats(&device, View::all(&out)), floats(&device, View::all(&lse)));
        let head0 = [2.0 / 15.0, 3.0 / 15.0, 10.0 / 15.0, 0.0];
        let head1 = [0.0, 3.0 / 19.0, 10.0 / 19.0, 0.0];
        assert_near(&out[18..], &[head0, head0, head1, head1].concat());
        assert_near(&lse[4..], &[15f64.ln(), 15f64.ln(), 19f64.ln(), 19f64.ln()]);
        assert_eq!((&out[..18], &lse[..4]), (&[8.0; 18][..], &[6.0; 4][..]), "the other token");
    }

    #[test]
    fn a_selection_of_another_layer_is_not_attended() {
        let (device, shape) = (Device::new(), shape());
        let rows = [1, 2].map(|seed| HeadRows::random(&mut SplitMix64::new(seed), &[4]));
        let (index, store) = (index_of(&device, &shape, &rows), store_of(&shape, &rows));
        let selector = chosen(&device, &shape, &policy(20), &[vec![[0, 2]], vec![[0, 1]]]);
        let store: &dyn HostStore<Device> = &store;
        let rows = LayerRows { shape: &shape, store, layer: LAYER };
        let mut host = HostAttention::new(&device, &shape, Some(1)).unwrap();
        let selection = SelectionId(2);
        host.attend(&HostSelection { rows, heads: index.heads(), selector: &selector, selection });
        assert_eq!(host.result.lse, [f32::NEG_INFINITY; 4]);
    }
}
