//! Selection of clusters, resolution in the device cache, the largest logits: rank and bookkeeping.

use longview_core::DType;
use longview_ops::{
    Backend, LookUpRows, LookUpRowsParams, OpResult, SelectClusters, SelectClustersParams,
    SelectSpan, TopK, TopKParams, View, ViewMut,
};

use super::harness::{Bench, Case, Cases, Work, boxed};

const N_KV_HEADS: usize = 2;
const BUDGET: u32 = 1024;
const CLUSTER_TOKENS: u32 = 16;

/// The best clusters up to the budget.
struct SelectCase {
    n_clusters: usize,
}

impl<B: Backend> Case<B> for SelectCase {
    fn title(&self) -> String {
        format!("select_clusters {} clusters, budget {BUDGET}", self.n_clusters)
    }

    fn work(&self) -> Work {
        Work::memory(N_KV_HEADS * self.n_clusters * DType::F32.size(), 0.0)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let n_clusters = self.n_clusters;
        let backend = bench.backend;
        let scores = bench.buffer(DType::F32, N_KV_HEADS * n_clusters)?;
        let sizes = bench.words(&vec![CLUSTER_TOKENS; N_KV_HEADS * n_clusters])?;
        let counts = bench.words(&[n_clusters as u32; N_KV_HEADS])?;
        let budgets = bench.words(&[BUDGET; N_KV_HEADS])?;
        let room = N_KV_HEADS * BUDGET as usize;
        let mut clusters = backend.alloc(DType::U32, room, "clusters")?;
        let mut takes = backend.alloc(DType::U32, room, "takes")?;
        let mut n_selected = backend.alloc(DType::U32, N_KV_HEADS, "n_selected")?;
        let p = SelectClustersParams {
            n_kv_heads: N_KV_HEADS as u32,
            score_stride: n_clusters as u32,
            max_selected: BUDGET,
            by_id: 0,
        };
        bench.seconds(&mut || {
            let spans = &[SelectSpan {
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                budgets: View::all(&budgets),
                cluster_stride: n_clusters as u32,
                listed: None,
            }];
            backend.select_clusters(SelectClusters {
                p,
                scores: View::all(&scores),
                spans,
                clusters: ViewMut::all(&mut clusters),
                takes: ViewMut::all(&mut takes),
                n_selected: ViewMut::all(&mut n_selected),
            })
        })
    }
}

/// A step of the device cache in which half of the rows are hits.
struct ResolveCase {
    n_kv_heads: usize,
    budget: usize,
}

impl ResolveCase {
    /// Clusters that a step selects.
    fn n_selected(&self) -> usize {
        self.budget / CLUSTER_TOKENS as usize
    }

    /// Clusters of a head: half of those of one step are in the next.
    fn n_clusters(&self) -> usize {
        2 * self.n_selected()
    }

    fn params(&self) -> LookUpRowsParams {
        LookUpRowsParams {
            n_kv_heads: self.n_kv_heads as u32,
            max_selected: self.n_selected() as u32,
            cluster_stride: self.n_clusters() as u32,
            list_stride: self.budget as u32,
            move_stride: self.budget as u32,
            n_slots: self.budget as u32,
            first_slot_row: 0,
            cache_steps: 1,
        }
    }

    /// What steps select in turn: a run of clusters that moves on by half of its length.
    fn selection(&self, turn: usize) -> Vec<u32> {
        let (n, all) = (self.n_selected(), self.n_clusters());
        let of_head = (0..n).map(|i| ((turn * n / 2 + i) % all) as u32);
        (0..self.n_kv_heads).flat_map(|_| of_head.clone()).collect()
    }
}

impl<B: Backend> Case<B> for ResolveCase {
    fn title(&self) -> String {
        let Self { n_kv_heads, budget } = self;
        format!("look_up_rows {budget} rows, half hits, {n_kv_heads} heads")
    }

    /// The state once in and once out, what is listed, and what is selected.
    fn work(&self) -> Work {
        let state = LookUpRowsParams::state_len(self.budget);
        let lists = self.budget + self.budget / 2 * 2 + 3 * self.n_selected();
        Work::memory(4 * self.n_kv_heads * (2 * state + lists), 0.0)
    }

    /// With the write of what is listed already, which comes before it in every step.
    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let (backend, p, h) = (bench.backend, self.params(), self.n_kv_heads);
        let starts: Vec<u32> =
            (0..h).flat_map(|_| (0..p.cluster_stride).map(|i| i * CLUSTER_TOKENS)).collect();
        let starts = bench.words(&starts)?;
        let selections: Vec<_> =
            (0..4).map(|turn| bench.words(&self.selection(turn))).collect::<OpResult<_>>()?;
        let takes = bench.words(&vec![CLUSTER_TOKENS; h * self.n_selected()])?;
        let n_selected = bench.words(&vec![p.max_selected; h])?;
        let state = h * LookUpRowsParams::state_len(self.budget);
        let mut state = backend.alloc(DType::U32, state, "state")?;
        let mut rows = backend.alloc(DType::U32, h * self.budget, "rows")?;
        let mut moves = backend.alloc(DType::U32, 2 * h * self.budget, "moves")?;
        let mut counts = backend.alloc(DType::U32, 4 * h, "counts")?;
        let nothing = vec![0; 4 * h];
        let mut turn = 0;
        bench.seconds(&mut || {
            turn = (turn + 1) % selections.len();
            backend.write(ViewMut::part(&mut counts, 0, h), &nothing)?;
            backend.look_up_rows(LookUpRows {
                p,
                starts: View::all(&starts),
                clusters: View::all(&selections[turn]),
                takes: View::all(&takes),
                n_selected: View::all(&n_selected),
                state: ViewMut::all(&mut state),
                rows: ViewMut::all(&mut rows),
                moves: ViewMut::all(&mut moves),
                counts: ViewMut::all(&mut counts),
            })
        })
    }
}

/// The candidates of a sampler.
struct TopKCase {
    n_rows: usize,
    width: usize,
    k: usize,
}

impl<B: Backend> Case<B> for TopKCase {
    fn title(&self) -> String {
        let Self { n_rows, width, k } = self;
        format!("top_k {k} of {n_rows} x {width}")
    }

    fn work(&self) -> Work {
        Work::memory(4 * self.n_rows * self.width, 0.0)
    }

    fn seconds(&self, bench: &mut Bench<'_, B>) -> OpResult<f64> {
        let Self { n_rows, width, k } = *self;
        let backend = bench.backend;
        let x = bench.buffer(DType::F32, n_rows * width)?;
        let mut values = backend.alloc(DType::F32, n_rows * k, "values")?;
        let mut ids = backend.alloc(DType::U32, n_rows * k, "ids")?;
        let p = TopKParams { n_rows: n_rows as u32, width: width as u32, k: k as u32 };
        bench.seconds(&mut || {
            let (values, ids) = (ViewMut::all(&mut values), ViewMut::all(&mut ids));
            backend.top_k(TopK { p, x: View::all(&x), values, ids })
        })
    }
}

/// The index of 32K and of a million tokens, the caches of the embedded model and of Llama-3.1-8B,
/// the vocabularies of both and of Qwen2.5.
pub(super) fn cases<B: Backend>() -> Cases<B> {
    let mut cases = boxed([2048, 65_536].map(|n_clusters| SelectCase { n_clusters }));
    let resolve = |n_kv_heads, budget| ResolveCase { n_kv_heads, budget };
    cases.extend(boxed([resolve(2, 1024), resolve(8, 2048)]));
    let top_k = |n_rows, width, k| TopKCase { n_rows, width, k };
    cases.extend(boxed([
        top_k(1, 2048, 40),
        top_k(1, 128_256, 40),
        top_k(1, 151_936, 40),
        top_k(1, 151_936, 256),
        top_k(8, 151_936, 40),
    ]));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_a_step_selects_was_selected_by_the_one_before() {
        let case = ResolveCase { n_kv_heads: 2, budget: 1024 };
        for turn in 0..4 {
            let (one, next) = (case.selection(turn), case.selection(turn + 1));
            let n = case.n_selected();
            let shared = one[..n].iter().filter(|cluster| next[..n].contains(cluster)).count();
            assert_eq!((one.len(), shared), (2 * n, n / 2), "turn {turn}");
        }
        assert_eq!(case.selection(4), case.selection(0));
    }
}
