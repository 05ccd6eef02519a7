//! One step that calls every op, for tests that watch something else than the results.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_cpu::{CpuBackend, CpuBuffer, CpuWeight};
use longview_ops::*;

const T: usize = 24;
const HQ: usize = 4;
const HKV: usize = 2;
const DH: usize = 64;
const D: usize = HQ * DH;
const ROWS: usize = 4096;
const C: usize = 300;
const TOP: u32 = 40;

/// Buffers and weights for [`Rig::step`].
pub struct Rig {
    x: CpuBuffer,
    y: CpuBuffer,
    kv: CpuBuffer,
    host: CpuBuffer,
    ids: CpuBuffer,
    list: CpuBuffer,
    counts: CpuBuffer,
    table: CpuBuffer,
    lse: CpuBuffer,
    other_lse: CpuBuffer,
    points: CpuBuffer,
    centroids: CpuBuffer,
    half_centroids: CpuBuffer,
    labels: CpuBuffer,
    point_scores: CpuBuffer,
    sizes: CpuBuffer,
    radius: CpuBuffer,
    cluster_scores: CpuBuffer,
    clusters: CpuBuffer,
    takes: CpuBuffer,
    two: CpuBuffer,
    n_clusters: CpuBuffer,
    budgets: CpuBuffer,
    gram: CpuBuffer,
    last_query: CpuBuffer,
    cosines: CpuBuffer,
    top_values: CpuBuffer,
    top_ids: CpuBuffer,
    square: CpuWeight,
    norm: CpuWeight,
}

fn floats(b: &CpuBackend, dtype: DType, n: usize, rng: &mut SplitMix64) -> CpuBuffer {
    let values: Vec<f32> = (0..n).map(|_| rng.next_normal()).collect();
    let mut buffer = b.alloc(dtype, n, "test").unwrap();
    b.write(ViewMut::all(&mut buffer), &encode_f32(dtype, &values)).unwrap();
    buffer
}

fn words(b: &CpuBackend, words: &[u32]) -> CpuBuffer {
    let mut buffer = b.alloc(DType::U32, words.len(), "test").unwrap();
    b.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(words)).unwrap();
    buffer
}

fn weight(b: &CpuBackend, n_rows: usize, n_cols: usize, rng: &mut SplitMix64) -> CpuWeight {
    let values: Vec<f32> = (0..n_rows * n_cols).map(|_| 0.1 * rng.next_normal()).collect();
    let bytes = HostBytes::from_vec(encode_f32(DType::BF16, &values));
    let (name, dtype, activations) = ("test".into(), DType::BF16, Activations::Bf16);
    b.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes, activations }).unwrap()
}

impl Rig {
    pub fn new(b: &CpuBackend) -> Self {
        let rng = &mut SplitMix64::new(5);
        let lists: Vec<u32> = (0..HKV).flat_map(|_| rng.distinct(ROWS, 1024)).collect();
        let labels: Vec<u32> = (0..HKV * ROWS).map(|_| rng.below(C) as u32).collect();
        Self {
            x: floats(b, DType::F32, T * D, rng),
            y: floats(b, DType::F32, T * D, rng),
            kv: floats(b, DType::F16, HKV * ROWS * 2 * DH, rng),
            host: floats(b, DType::F16, HKV * ROWS * 2 * DH, rng),
            ids: words(b, &(0..T as u32).collect::<Vec<_>>()),
            list: words(b, &lists),
            counts: words(b, &[1024, 1000]),
            table: floats(b, DType::F32, T * DH, rng),
            lse: floats(b, DType::F32, T * HQ, rng),
            other_lse: floats(b, DType::F32, T * HQ, rng),
            points: floats(b, DType::F32, HKV * ROWS * DH, rng),
            centroids: floats(b, DType::F32, HKV * C * DH, rng),
            half_centroids: floats(b, DType::BF16, HKV * C * DH, rng),
            labels: words(b, &labels),
            point_scores: floats(b, DType::F32, HKV * ROWS, rng),
            sizes: words(b, &vec![13; HKV * C]),
            radius: floats(b, DType::F32, HKV * C, rng),
            cluster_scores: floats(b, DType::F32, HKV * C, rng),
            clusters: words(b, &vec![0; HKV * C]),
            takes: words(b, &vec![0; HKV * C]),
            two: words(b, &[0, 0]),
            n_clusters: words(b, &[C as u32 - 7, C as u32]),
            budgets: words(b, &[200, 280]),
            gram: floats(b, DType::F32, HKV * DH * DH, rng),
            last_query: floats(b, DType::F32, D, rng),
            cosines: floats(b, DType::F32, HKV, rng),
            top_values: floats(b, DType::F32, T * TOP as usize, rng),
            top_ids: words(b, &vec![0; T * TOP as usize]),
            square: weight(b, D, D, rng),
            norm: weight(b, 1, D, rng),
        }
    }

    /// The activations, as bytes: a digest of what the steps did.
    #[allow(dead_code, reason = "not every test that includes this file compares results")]
    pub fn bytes(&self, b: &CpuBackend) -> Vec<u8> {
        let mut bytes = Vec::new();
        let floats = [&self.x, &self.y, &self.lse, &self.cluster_scores, &self.gram];
        for buffer in
            floats.into_iter().chain([&self.labels, &self.cosines, &self.top_values, &self.top_ids])
        {
            let mut part = vec![0; buffer.size_bytes() as usize];
            pollster::block_on(b.read(View::all(buffer), &mut part)).unwrap();
            bytes.extend(part);
        }
        bytes
    }

    /// Every op once; with few and with many rows where that makes a difference.
    pub fn step(&mut self, b: &CpuBackend) {
        self.dense(b).unwrap();
        for (q_len, n_rows) in [(T, 600), (1, ROWS)] {
            self.attention(b, q_len, n_rows).unwrap();
        }
        self.moves(b).unwrap();
        self.clustering(b).unwrap();
        self.selection(b).unwrap();
    }

    fn dense(&mut self, b: &CpuBackend) -> OpResult<()> {
        let (n_tokens, width) = (T as u32, D as u32);
        let (ids, x) = (View::all(&self.ids), ViewMut::all(&mut self.x));
        let p = EmbedParams { n_tokens, width, scale: 1.0 };
        b.embed(Embed { p, ids, table: &self.square, out: x })?;
        let p = RmsNormParams { n_rows: n_tokens, width, eps: 1e-5, accumulate: 0 };
        let (x, out) = (View::all(&self.x), ViewMut::all(&mut self.y));
        b.rms_norm(RmsNorm { p, x, weight: &self.norm, out })?;
        for rows in [T, 8, 1] {
            let p = LinearParams { n_rows: rows as u32, n_in: width, n_out: width, accumulate: 1 };
            let x = View::part(&self.y, 0, rows * D);
            let out = ViewMut::part(&mut self.x, 0, rows * D);
            let d = Linear { p, x, weight: &self.square, bias: Some(&self.norm), out };
            if rows > 8 { b.matmul(d)? } else { b.matvec(d)? }
        }
        let (n_heads, dh) = (HQ as u32, DH as u32);
        let p = RopeParams { n_tokens, n_heads, head_dim: dh, rotary_dim: dh };
        let (x, out) = (View::all(&self.x), ViewMut::all(&mut self.y));
        b.rope(Rope { p, x, table: View::all(&self.table), out })?;
        let (gate, out) = (View::all(&self.y), ViewMut::all(&mut self.x));
        b.silu_mul(SiluMul { p: SiluMulParams { n: (T * D) as u32 }, gate, up: gate, out })?;
        let p = ArgmaxParams { n_rows: n_tokens, width };
        b.argmax(Argmax { p, x: View::all(&self.x), out: ViewMut::all(&mut self.ids) })?;
        let p = TopKParams { n_rows: n_tokens, width, k: TOP };
        let (values, ids) = (ViewMut::all(&mut self.top_values), ViewMut::all(&mut self.top_ids));
        b.top_k(TopK { p, x: View::all(&self.x), values, ids })?;
        let p = GramParams { n_tokens, n_heads, group: 2, head_dim: dh };
        b.gram(Gram { p, x: View::all(&self.x), out: ViewMut::all(&mut self.gram) })
    }

    fn attention(&mut self, b: &CpuBackend, q_len: usize, n_rows: usize) -> OpResult<()> {
        let p = AttendParams {
            n_tokens: T as u32,
            n_q_heads: HQ as u32,
            n_kv_heads: HKV as u32,
            head_dim: DH as u32,
            scale: 0.125,
            accumulate: 0,
        };
        let kv = KvView::new(&self.kv, ROWS);
        let (q_len, n_rows) = (q_len as u32, n_rows as u32);
        let diagonal = (n_rows - q_len) as i32;
        b.attend_chunk(AttendChunk {
            p,
            q: View::all(&self.x),
            spans: &[ChunkSpan {
                q_start: 0,
                q_len,
                kv,
                row_start: 0,
                n_rows,
                diagonal,
                window: ChunkSpan::<CpuBackend>::ALL,
                order: None,
            }],
            out: ViewMut::all(&mut self.y),
            lse: ViewMut::all(&mut self.lse),
        })?;
        let (rows, counts) = (View::all(&self.list), View::all(&self.counts));
        b.attend_list(AttendList {
            p: AttendParams { accumulate: 1, ..p },
            q: View::all(&self.x),
            spans: &[ListSpan {
                q_index: 0,
                kv,
                rows,
                n_rows: counts,
                weights: None,
                list_stride: 1024,
            }],
            out: ViewMut::all(&mut self.y),
            lse: ViewMut::all(&mut self.lse),
        })?;
        b.lse_merge(LseMerge {
            p: LseMergeParams { n_rows: (T * HQ) as u32, head_dim: DH as u32 },
            other_out: View::all(&self.x),
            other_lse: View::all(&self.other_lse),
            out: ViewMut::all(&mut self.y),
            lse: ViewMut::all(&mut self.lse),
        })
    }

    fn moves(&mut self, b: &CpuBackend) -> OpResult<()> {
        let (n_kv_heads, head_dim) = (HKV as u32, DH as u32);
        let dst_head_stride = ROWS as u32;
        let n = T * HKV * DH;
        b.kv_scatter(KvScatter {
            p: KvScatterParams { n_tokens: T as u32, n_kv_heads, head_dim, dst_head_stride },
            k: View::part(&self.x, 0, n),
            v: View::part(&self.y, 0, n),
            rows: View::all(&self.ids),
            dst: &mut self.host,
        })?;
        b.kv_gather(KvGather {
            p: KvGatherParams { n_kv_heads, head_dim, list_stride: 1024, dst_head_stride },
            src: KvView::new(&self.host, ROWS),
            src_rows: View::all(&self.list),
            dst_rows: View::all(&self.list),
            n_rows: View::all(&self.counts),
            dst: &mut self.kv,
        })
    }

    fn clustering(&mut self, b: &CpuBackend) -> OpResult<()> {
        let p = KmeansParams {
            n_kv_heads: HKV as u32,
            n_points: ROWS as u32,
            n_clusters: C as u32,
            head_dim: DH as u32,
            distance: 0,
        };
        b.kmeans_assign(KmeansAssign {
            p,
            points: View::all(&self.points),
            centroids: View::all(&self.centroids),
            labels: ViewMut::all(&mut self.labels),
            scores: ViewMut::all(&mut self.point_scores),
            n_changed: ViewMut::all(&mut self.two),
        })?;
        b.kmeans_update(KmeansUpdate {
            p,
            points: View::all(&self.points),
            labels: View::all(&self.labels),
            centroids: ViewMut::all(&mut self.centroids),
            counts: ViewMut::all(&mut self.sizes),
        })?;
        b.cluster_stats(ClusterStats {
            p,
            points: View::all(&self.points),
            labels: View::all(&self.labels),
            centroids: View::all(&self.centroids),
            closeness: ViewMut::all(&mut self.point_scores),
            radius: ViewMut::all(&mut self.radius),
        })
    }

    fn selection(&mut self, b: &CpuBackend) -> OpResult<()> {
        let (n_kv_heads, stride) = (HKV as u32, C as u32);
        let p = CentroidScoresParams {
            n_tokens: T as u32,
            n_q_heads: HQ as u32,
            n_kv_heads,
            head_dim: DH as u32,
            score_stride: stride,
            scale: 0.125,
            pooling: 0,
        };
        b.centroid_scores(CentroidScores {
            p,
            q: View::all(&self.x),
            spans: &[ScoreSpan {
                q_index: 3,
                centroids: View::all(&self.half_centroids),
                sizes: View::all(&self.sizes),
                n_clusters: View::all(&self.n_clusters),
                cluster_stride: stride,
                listed: None,
                placed: Placed::DENSE,
            }],
            scores: ViewMut::all(&mut self.cluster_scores),
        })?;
        b.query_gate(QueryGate {
            p: QueryGateParams {
                n_tokens: T as u32,
                n_q_heads: HQ as u32,
                n_kv_heads,
                head_dim: DH as u32,
                q_index: 3,
            },
            q: View::all(&self.x),
            last: ViewMut::all(&mut self.last_query),
            cosines: ViewMut::all(&mut self.cosines),
        })?;
        b.select_clusters(SelectClusters {
            p: SelectClustersParams {
                n_kv_heads,
                score_stride: stride,
                max_selected: stride,
                by_id: 0,
            },
            scores: View::all(&self.cluster_scores),
            spans: &[SelectSpan {
                sizes: View::all(&self.sizes),
                n_clusters: View::all(&self.n_clusters),
                budgets: View::all(&self.budgets),
                cluster_stride: stride,
                listed: None,
            }],
            clusters: ViewMut::all(&mut self.clusters),
            takes: ViewMut::all(&mut self.takes),
            n_selected: ViewMut::all(&mut self.two),
        })
    }
}
