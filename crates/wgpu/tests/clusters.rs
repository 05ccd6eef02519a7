//! Clustering and selection on a device: against a brute-force oracle, on planted clusters, and the
//! corpus once more with views at whole vectors, where it has none.

use longview_core::{DType, SplitMix64};
use longview_ops::corpus::cases_of;
use longview_ops::{
    Backend, Distance, KmeansAssign, KmeansParams, KmeansUpdate, Op, OpResult, SelectClusters,
    SelectClustersParams, SelectSpan, View, ViewMut,
};
use longview_wgpu::{WgpuBackend, WgpuBuffer};
use pollster::block_on;

use crate::common;

fn upload<T: bytemuck::Pod>(backend: &WgpuBackend, dtype: DType, values: &[T]) -> WgpuBuffer {
    let mut buffer = backend.alloc(dtype, values.len(), "test").expect("memory");
    backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(values)).expect("a write");
    buffer
}

fn download<T: bytemuck::Pod>(backend: &WgpuBackend, buffer: &WgpuBuffer, len: usize) -> Vec<T> {
    let mut values = vec![T::zeroed(); len];
    let out = bytemuck::cast_slice_mut(&mut values);
    block_on(backend.read(View::part(buffer, 0, len), out)).expect("a read");
    values
}

/// What to select from: `heads` times as many scores and sizes, and a budget each.
struct Choice {
    scores: Vec<f32>,
    sizes: Vec<u32>,
    budgets: Vec<u32>,
}

impl Choice {
    fn n(&self) -> usize {
        self.scores.len() / self.budgets.len()
    }

    /// `n` clusters with few or many different scores, the extremes among them.
    fn draw(rng: &mut SplitMix64, n: usize, budgets: &[u32]) -> Self {
        let len = n * budgets.len();
        let kinds = [1, 3, 50, 1 << 30];
        let n_kinds = kinds[rng.below(kinds.len())];
        let odd = [f32::NAN, -f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40];
        let score = |rng: &mut SplitMix64| match rng.below(20) {
            0 => odd[rng.below(odd.len())],
            _ => rng.below(n_kinds) as f32 / 7.0 - 3.0,
        };
        Self {
            scores: (0..len).map(|_| score(rng)).collect(),
            sizes: (0..len).map(|_| rng.below(40).saturating_sub(5) as u32).collect(),
            budgets: budgets.to_vec(),
        }
    }

    /// (cluster, tokens) of a head, by sorting everything.
    fn oracle(&self, head: usize) -> Vec<(u32, u32)> {
        let n = self.n();
        let (scores, sizes) = (&self.scores[head * n..][..n], &self.sizes[head * n..][..n]);
        let mut order: Vec<usize> = (0..n).filter(|c| sizes[*c] > 0).collect();
        order.sort_by(|a, b| {
            let (x, y) = (scores[*a], scores[*b]);
            let rank = y.partial_cmp(&x).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
            rank.then(a.cmp(b))
        });
        let mut left = self.budgets[head];
        let mut picked = Vec::new();
        for c in order {
            if left == 0 {
                break;
            }
            let take = sizes[c].min(left);
            picked.push((c as u32, take));
            left -= take;
        }
        picked
    }

    fn select(&self, backend: &WgpuBackend) -> OpResult<Vec<Vec<(u32, u32)>>> {
        let (heads, n) = (self.budgets.len(), self.n());
        let most = self.budgets.iter().max().map_or(0, |b| n.min(*b as usize));
        let scores = upload(backend, DType::F32, &self.scores);
        let sizes = upload(backend, DType::U32, &self.sizes);
        let n_clusters = upload(backend, DType::U32, &vec![n as u32; heads]);
        let budgets = upload(backend, DType::U32, &self.budgets);
        let mut clusters = backend.alloc(DType::U32, heads * most, "clusters")?;
        let mut takes = backend.alloc(DType::U32, heads * most, "takes")?;
        let mut n_selected = backend.alloc(DType::U32, heads, "counts")?;
        backend.select_clusters(SelectClusters {
            p: SelectClustersParams {
                n_kv_heads: heads as u32,
                score_stride: n as u32,
                max_selected: most as u32,
                by_id: 0,
            },
            scores: View::all(&scores),
            spans: &[SelectSpan {
                sizes: View::all(&sizes),
                n_clusters: View::all(&n_clusters),
                budgets: View::all(&budgets),
                cluster_stride: n as u32,
                listed: None,
            }],
            clusters: ViewMut::all(&mut clusters),
            takes: ViewMut::all(&mut takes),
            n_selected: ViewMut::all(&mut n_selected),
        })?;
        let clusters = download::<u32>(backend, &clusters, heads * most);
        let takes = download::<u32>(backend, &takes, heads * most);
        let counts = download::<u32>(backend, &n_selected, heads);
        let head = |h: usize| {
            let range = h * most..h * most + counts[h] as usize;
            clusters[range.clone()].iter().copied().zip(takes[range].iter().copied()).collect()
        };
        Ok((0..heads).map(head).collect())
    }

    fn check(&self, backend: &WgpuBackend) {
        let found = self.select(backend).expect("a selection");
        for (head, found) in found.iter().enumerate() {
            let want = self.oracle(head);
            let first = found.iter().zip(&want).position(|(a, b)| a != b);
            let (n, budget, level) = (self.n(), self.budgets[head], backend.shader_level());
            assert!(
                *found == want,
                "{n} clusters, budget {budget}, level {level}: {} selected, expected {}; {:?}",
                found.len(),
                want.len(),
                first.map(|i| (i, found[i], want[i]))
            );
        }
    }
}

#[test]
fn selections_agree_with_a_full_sort() {
    for backend in common::levels() {
        let mut rng = SplitMix64::new(7);
        for n in [1, 2, 17, 255, 256, 511, 512, 513, 1000, 2048, 5000, 20_000] {
            for budgets in [[0, 1, 2], [7, 300, 4096], [17 * n as u32, 60_000, u32::MAX]] {
                for _ in 0..if n < 3000 { 4 } else { 1 } {
                    Choice::draw(&mut rng, n, &budgets).check(&backend);
                }
            }
        }
    }
}

#[test]
fn a_head_may_have_more_than_65536_clusters() {
    for backend in common::levels() {
        let mut rng = SplitMix64::new(8);
        for budget in [1024, 500_000, u32::MAX] {
            Choice::draw(&mut rng, 70_001, &[budget]).check(&backend);
        }
    }
}

/// The parts of k-means on a device.
struct Means {
    p: KmeansParams,
    points: WgpuBuffer,
    centroids: WgpuBuffer,
    labels: WgpuBuffer,
    scores: WgpuBuffer,
    n_changed: WgpuBuffer,
    counts: WgpuBuffer,
}

impl Means {
    fn new(backend: &WgpuBackend, p: KmeansParams, points: &[f32], centroids: &[f32]) -> Self {
        let (n, c) = (p.n_kv_heads * p.n_points, p.n_kv_heads * p.n_clusters);
        let alloc = |dtype, len: u32| backend.alloc(dtype, len as usize, "k-means").expect("room");
        Self {
            p,
            points: upload(backend, DType::F32, points),
            centroids: upload(backend, DType::F32, centroids),
            labels: upload(backend, DType::U32, &vec![u32::MAX; n as usize]),
            scores: alloc(DType::F32, n),
            n_changed: alloc(DType::U32, p.n_kv_heads),
            counts: alloc(DType::U32, c),
        }
    }

    fn assign(&mut self, backend: &WgpuBackend) -> Vec<u32> {
        let done = backend.kmeans_assign(KmeansAssign {
            p: self.p,
            points: View::all(&self.points),
            centroids: View::all(&self.centroids),
            labels: ViewMut::all(&mut self.labels),
            scores: ViewMut::all(&mut self.scores),
            n_changed: ViewMut::all(&mut self.n_changed),
        });
        done.expect("labels");
        download(backend, &self.n_changed, self.p.n_kv_heads as usize)
    }

    fn update(&mut self, backend: &WgpuBackend) {
        let done = backend.kmeans_update(KmeansUpdate {
            p: self.p,
            points: View::all(&self.points),
            labels: View::all(&self.labels),
            centroids: ViewMut::all(&mut self.centroids),
            counts: ViewMut::all(&mut self.counts),
        });
        done.expect("means");
    }

    fn labels(&self, backend: &WgpuBackend) -> Vec<u32> {
        download(backend, &self.labels, (self.p.n_kv_heads * self.p.n_points) as usize)
    }
}

#[test]
fn planted_clusters_are_found() {
    let p = KmeansParams {
        n_kv_heads: 2,
        n_points: 1501,
        n_clusters: 150,
        head_dim: 64,
        distance: Distance::L2 as u32,
    };
    let (n, c, width) = (p.n_points as usize, p.n_clusters as usize, p.head_dim as usize);
    for backend in common::levels() {
        let mut rng = SplitMix64::new(3);
        let mut points = Vec::new();
        let mut starts = Vec::new();
        for _ in 0..p.n_kv_heads {
            let centres: Vec<f32> = (0..c * width).map(|_| 4.0 * rng.next_normal()).collect();
            let first = points.len();
            for i in 0..n {
                let centre = &centres[i % c * width..][..width];
                points.extend(centre.iter().map(|x| x + 0.1 * rng.next_normal()));
            }
            // One member of each cluster begins it.
            starts.extend_from_slice(&points[first..first + c * width]);
        }
        let mut means = Means::new(&backend, p, &points, &starts);
        assert_eq!(means.assign(&backend), [p.n_points; 2], "all labels are new");
        means.update(&backend);
        assert_eq!(means.assign(&backend), [0, 0], "found at once");
        for (i, label) in means.labels(&backend).into_iter().enumerate() {
            assert_eq!(label as usize, i % n % c, "point {i}");
        }
        let counts = download::<u32>(&backend, &means.counts, 2 * c);
        assert!(counts.iter().all(|count| [10, 11].contains(count)), "{counts:?}");
        let centroids = download::<f32>(&backend, &means.centroids, c * width);
        let members: Vec<&[f32]> = points[..n * width].chunks(c * width).collect();
        let mean = |k: usize| members.iter().map(|m| m[k]).sum::<f32>() / members.len() as f32;
        for (k, x) in centroids[..width].iter().enumerate() {
            assert!((x - mean(k)).abs() < 1e-5, "channel {k} of cluster 0");
        }
    }
}

#[test]
fn means_do_not_depend_on_who_came_first() {
    let p =
        KmeansParams { n_kv_heads: 2, n_points: 5000, n_clusters: 70, head_dim: 64, distance: 0 };
    for backend in common::levels() {
        let mut rng = SplitMix64::new(5);
        let points: Vec<f32> = (0..2 * 5000 * 64).map(|_| rng.next_normal()).collect();
        let run = || {
            let mut means = Means::new(&backend, p, &points, &points[..2 * 70 * 64]);
            for _ in 0..3 {
                means.assign(&backend);
                means.update(&backend);
            }
            download::<u32>(&backend, &means.centroids, 2 * 70 * 64)
        };
        assert!(run() == run());
    }
}

#[test]
fn what_is_not_a_number_gets_a_label_that_exists() {
    let p = KmeansParams { n_kv_heads: 1, n_points: 300, n_clusters: 7, head_dim: 20, distance: 0 };
    for backend in common::levels() {
        let mut points = vec![1.0; 300 * 20];
        points[5 * 20 + 3] = f32::NAN;
        points[299 * 20..].fill(f32::NAN);
        points[7 * 20] = f32::INFINITY;
        let mut means = Means::new(&backend, p, &points, &vec![0.5; 7 * 20]);
        means.assign(&backend);
        let labels = means.labels(&backend);
        assert!(labels.iter().all(|label| *label < 7), "{labels:?}");
        let scores = download::<f32>(&backend, &means.scores, 300);
        assert!(scores[5].is_nan() && scores[299].is_nan() && scores[4].is_finite());
        // A broken member spoils its own cluster alone.
        means.update(&backend);
        let counts = download::<u32>(&backend, &means.counts, 7);
        assert_eq!(counts.iter().sum::<u32>(), 300);
    }
}

#[test]
fn nothing_is_allocated_after_the_first_selection() {
    for backend in common::levels() {
        let case = cases_of(Op::CentroidScores).pop().expect("a case");
        let mut buffers = case.plan().upload(&backend).expect("memory");
        case.launch(&backend, &mut buffers).expect("scores");
        let before = backend.allocations();
        case.launch(&backend, &mut buffers).expect("scores");
        assert_eq!(backend.allocations(), before);
    }
}

#[test]
fn views_at_whole_vectors_give_the_same() {
    let ops = [
        Op::KmeansAssign,
        Op::KmeansUpdate,
        Op::ClusterStats,
        Op::CentroidScores,
        Op::SelectClusters,
    ];
    for op in ops {
        let cases = common::with_views_at(64, cases_of(op));
        common::check_in_turns(&format!("{op} at whole vectors"), cases);
    }
}
