//! A selection with its scores in two launches, against the single calls: the same clusters, takes
//! and scores, to the bit.

use longview_core::{DType, SplitMix64, encode_f32};
use longview_ops::{
    Backend, CentroidScoresParams, Listed, Placed, Pooling, ScoreSelect, ScoreSpan,
    SelectClustersParams, SelectSpan, View, ViewMut,
};
use longview_wgpu::{WgpuBackend, WgpuBuffer};
use pollster::block_on;

use crate::common;

const HEADS: usize = 2;
const WIDTH: usize = 24;

fn upload<T: bytemuck::Pod>(backend: &WgpuBackend, dtype: DType, values: &[T]) -> WgpuBuffer {
    let len = size_of_val(values) / dtype.size();
    let mut buffer = backend.alloc(dtype, len, "test").expect("memory");
    backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(values)).expect("a write");
    buffer
}

fn download(backend: &WgpuBackend, buffer: &WgpuBuffer, len: usize) -> Vec<u32> {
    let mut values = vec![0; len];
    let out = bytemuck::cast_slice_mut(&mut values);
    block_on(backend.read(View::part(buffer, 0, len), out)).expect("a read");
    values
}

/// Launches of the three kernels so far, and of all.
fn launches(backend: &WgpuBackend) -> [u64; 4] {
    let all = backend.launches();
    let of = |name: &str| all.get(name).copied().unwrap_or(0);
    [of("logits"), of("pool"), of("select_clusters"), all.values().sum()]
}

#[derive(Clone, Copy, Debug)]
struct Case {
    group: usize,
    /// Clusters of the first head; the second has two thirds of them.
    n: usize,
    /// Entries that are chosen from, where that is a list.
    listed: Option<usize>,
    pooling: Pooling,
    budget: u32,
    by_id: bool,
}

/// Of each head the clusters and takes; and the scores of what each head chose from, where the call
/// says where they are.
#[derive(Debug, PartialEq)]
struct Chosen {
    heads: Vec<Vec<[u32; 2]>>,
    scores: Vec<Vec<u32>>,
}

impl Case {
    fn counts(&self) -> [u32; HEADS] {
        let n = self.listed.unwrap_or(self.n);
        [n, n * 2 / 3].map(|n| n as u32)
    }

    /// By the fused call, or by the single ones.
    fn run(&self, backend: &WgpuBackend, is_fused: bool) -> Chosen {
        let Case { group, n, listed, pooling, budget, by_id } = *self;
        let mut rng = SplitMix64::new(n as u64 + 17);
        let mut normals = |n: usize| (0..n).map(|_| rng.next_normal()).collect::<Vec<f32>>();
        // Strides with room behind the last cluster.
        let (stride, room) = (n + 3, listed.unwrap_or(n) + 2);
        let q = upload(backend, DType::F32, &normals(2 * HEADS * group * WIDTH));
        let marks = encode_f32(DType::F16, &normals(HEADS * stride * WIDTH));
        let centroids = upload(backend, DType::F16, &marks);
        // Tokens of a list have one token each; some clusters have none.
        let size = |i: usize| if by_id { 1 } else { ((i + 3) * 7 % 23) as u32 };
        let sizes: Vec<u32> = (0..HEADS * stride).map(size).collect();
        let sizes = upload(backend, DType::U32, &sizes);
        let counts = upload(backend, DType::U32, &self.counts());
        let budgets = upload(backend, DType::U32, &[budget, budget / 2 + 1]);
        let ids: Vec<u32> = (0..HEADS * room).map(|i| (i * 5 % n.max(1)) as u32).collect();
        let ids = upload(backend, DType::U32, &ids);
        let listed = listed.map(|_| Listed { ids: View::all(&ids), stride: room as u32 });
        let most = room.min(budget as usize).max(1);
        let alloc = |dtype, len| backend.alloc(dtype, len, "result").expect("memory");
        let mut scratch = alloc(DType::F32, HEADS * group * stride.max(room));
        let [mut clusters, mut takes] = [(); 2].map(|()| alloc(DType::U32, HEADS * most));
        let mut n_selected = alloc(DType::U32, HEADS);
        let score_stride = stride.max(room) as u32;
        let call = ScoreSelect {
            p: CentroidScoresParams {
                n_tokens: 2,
                n_q_heads: (HEADS * group) as u32,
                n_kv_heads: HEADS as u32,
                head_dim: WIDTH as u32,
                score_stride,
                scale: 0.2,
                pooling: pooling as u32,
            },
            select: SelectClustersParams {
                n_kv_heads: HEADS as u32,
                score_stride,
                max_selected: most as u32,
                by_id: by_id.into(),
            },
            q: View::all(&q),
            score_spans: &[ScoreSpan {
                q_index: 1,
                centroids: View::all(&centroids),
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                cluster_stride: stride as u32,
                listed,
                placed: Placed::DENSE,
            }],
            select_spans: &[SelectSpan {
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                budgets: View::all(&budgets),
                cluster_stride: stride as u32,
                listed,
            }],
            scratch: ViewMut::all(&mut scratch),
            clusters: ViewMut::all(&mut clusters),
            takes: ViewMut::all(&mut takes),
            n_selected: ViewMut::all(&mut n_selected),
        };
        let before = launches(backend);
        if is_fused { backend.score_select(call) } else { call.unfused(backend) }.expect("a call");
        let after = launches(backend);
        let launched: Vec<u64> = after.iter().zip(before).map(|(n, before)| n - before).collect();
        assert_eq!(launched, [1, u64::from(!is_fused), 1, 2 + u64::from(!is_fused)], "{self:?}");
        let [clusters, takes] =
            [&clusters, &takes].map(|buffer| download(backend, buffer, HEADS * most));
        let n_selected = download(backend, &n_selected, HEADS);
        let head = |h: usize| {
            let at = h * most..h * most + n_selected[h] as usize;
            clusters[at.clone()].iter().zip(&takes[at]).map(|(c, take)| [*c, *take]).collect()
        };
        let scores = download(backend, &scratch, HEADS * score_stride as usize);
        let scores_of = |h: usize| {
            let own = &scores[h * score_stride as usize..][..self.counts()[h] as usize];
            if self.listed.is_some() { Vec::new() } else { own.to_vec() }
        };
        Chosen {
            heads: (0..HEADS).map(head).collect(),
            scores: (0..HEADS).map(scores_of).collect(),
        }
    }
}

fn cases() -> Vec<Case> {
    let plain = Case {
        group: 3,
        n: 1000,
        listed: None,
        pooling: Pooling::SumSoftmax,
        budget: 300,
        by_id: false,
    };
    let mut cases = vec![plain];
    cases.extend([1, 2, 63, 64, 65, 2049].map(|n| Case { n, ..plain }));
    // More query heads than are joined at once.
    cases.extend([1, 8, 9].map(|group| Case { group, n: 130, ..plain }));
    cases.extend(
        [Pooling::MaxSoftmax, Pooling::SizeWeighted].map(|pooling| Case { pooling, ..plain }),
    );
    cases.extend([1, 5000].map(|budget| Case { budget, n: 400, ..plain }));
    let listed = Case { listed: Some(500), by_id: true, n: 2000, ..plain };
    cases.push(listed);
    cases.extend([1, 64, 65].map(|n| Case { listed: Some(n), ..listed }));
    cases.push(Case { by_id: false, group: 9, ..listed });
    cases.push(Case { pooling: Pooling::MaxSoftmax, ..listed });
    cases
}

#[test]
fn a_selection_with_its_scores_is_that_of_the_single_calls() {
    for backend in common::levels() {
        for case in cases() {
            let (fused, single) = (case.run(&backend, true), case.run(&backend, false));
            assert!(single.heads.iter().any(|head| !head.is_empty()), "{case:?}");
            assert!(fused == single, "{}, {case:?}", backend.shader_level());
        }
    }
}
