//! Speed of the CPU backend's heavy ops, with the share of what the machine can do.
//!
//! `cargo run --release -p longview-cpu --example cpu_bench [-- FILTER [THREADS [ISA]]]`. Every
//! figure is the best of several runs: other work on the machine only ever makes a run slower.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::time::{Duration, Instant};

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_cpu::{CpuBackend, CpuBuffer, CpuOptions, CpuWeight, Limits};
use longview_ops::{
    AttendChunk, AttendList, AttendParams, Backend, CentroidScores, CentroidScoresParams,
    ChunkSpan, DeviceBuffer, KmeansAssign, KmeansParams, KvView, Linear, LinearParams, ListSpan,
    ScoreSpan, SelectClusters, SelectClustersParams, SelectSpan, View, ViewMut, WeightSource,
};

/// Operands up to here are meant to stay in cache.
const CACHED: usize = 4 << 20;

/// Operands that come from memory take this much together.
const STREAMED: usize = 256 << 20;

/// What bounds an op.
#[derive(Clone, Copy)]
enum Work {
    Bytes(f64),
    Flop(f64),
}

struct Bench {
    backend: CpuBackend,
    limits: Limits,
    filter: String,
    rng: SplitMix64,
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let filter = args.first().cloned().unwrap_or_default();
    let threads = args.get(1).map_or(Ok(0), |text| text.parse())?;
    let isa = match args.get(2) {
        Some(name) => Some(name.parse().map_err(anyhow::Error::msg)?),
        None => None,
    };
    let backend = CpuBackend::new(CpuOptions { threads, isa })?;
    let limits = backend.measure_limits();
    println!("{}", backend.capabilities().device);
    println!("limits: {:.1} GB/s read, {:.1} GFLOP/s f32 FMA", limits.read_gbps, limits.fma_gflops);
    let mut bench = Bench { backend, limits, filter, rng: SplitMix64::new(1) };
    bench.matvecs()?;
    bench.matmuls()?;
    bench.attend_chunks()?;
    bench.attend_lists()?;
    bench.kmeans()?;
    bench.selection()?;
    Ok(())
}

impl Bench {
    fn skips(&self, name: &str) -> bool {
        !name.contains(&self.filter)
    }

    /// Runs `op` for at least half a second and prints the best time.
    fn report(&self, name: &str, work: Work, mut op: impl FnMut()) {
        op();
        let (start, mut best, mut runs) = (Instant::now(), Duration::MAX, 0);
        while runs < 3 || start.elapsed() < Duration::from_millis(1000) {
            let one = Instant::now();
            op();
            best = best.min(one.elapsed());
            runs += 1;
        }
        let seconds = best.as_secs_f64();
        let (rate, unit, limit) = match work {
            Work::Bytes(n) => (n / seconds / 1e9, "GB/s", self.limits.read_gbps),
            Work::Flop(n) => (n / seconds / 1e9, "GFLOP/s", self.limits.fma_gflops),
        };
        let share = 100.0 * rate / limit;
        println!("{name:<52} {:>10.1} us {rate:>8.1} {unit:<7} {share:>5.0} %", seconds * 1e6);
    }

    fn numbers(&mut self, n: usize) -> Vec<f32> {
        // Normal numbers cost a logarithm each: repeat a block of them.
        let block: Vec<f32> = (0..n.min(65_521)).map(|_| self.rng.next_normal()).collect();
        block.iter().copied().cycle().take(n).collect()
    }

    fn buffer(&mut self, dtype: DType, n: usize) -> anyhow::Result<CpuBuffer> {
        let values = self.numbers(n);
        let mut buffer = self.backend.alloc(dtype, n, "bench")?;
        self.backend.write(ViewMut::all(&mut buffer), &encode_f32(dtype, &values))?;
        Ok(buffer)
    }

    fn words(&self, words: &[u32]) -> anyhow::Result<CpuBuffer> {
        let mut buffer = self.backend.alloc(DType::U32, words.len(), "bench")?;
        self.backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(words))?;
        Ok(buffer)
    }

    fn weight(&mut self, dtype: DType, n_rows: usize, n_cols: usize) -> anyhow::Result<CpuWeight> {
        let values = self.numbers(n_rows * n_cols);
        let bytes = HostBytes::from_vec(encode_f32(dtype, &values));
        let name = "bench".into();
        Ok(self.backend.load_weight(WeightSource { name, dtype, n_rows, n_cols, bytes })?)
    }

    fn linear(
        &mut self,
        name: &str,
        dtype: DType,
        m: usize,
        k: usize,
        n: usize,
    ) -> anyhow::Result<()> {
        let title = format!("{name} {dtype} {m} x {k} -> {n}");
        if self.skips(&title) {
            return Ok(());
        }
        let is_vector = name == "matvec";
        // As many matrices in turn as it takes to find none of them in L3; runs stay short, and
        // some undisturbed.
        let bytes = n * k * dtype.size();
        let copies = if is_vector && bytes > CACHED { STREAMED.div_ceil(bytes) } else { 1 };
        let weights: Vec<_> =
            (0..copies).map(|_| self.weight(dtype, n, k)).collect::<anyhow::Result<_>>()?;
        let x = self.buffer(DType::F32, m * k)?;
        let mut out = self.backend.alloc(DType::F32, m * n, "out")?;
        let p = LinearParams { n_rows: m as u32, n_in: k as u32, n_out: n as u32, accumulate: 0 };
        let work = if is_vector {
            Work::Bytes(bytes as f64)
        } else {
            Work::Flop(2.0 * (m * n * k) as f64)
        };
        let mut turn = 0;
        self.report(&title, work, || {
            turn = (turn + 1) % copies;
            let (x, out) = (View::all(&x), ViewMut::all(&mut out));
            let d = Linear { p, x, weight: &weights[turn], bias: None, out };
            let done = if is_vector { self.backend.matvec(d) } else { self.backend.matmul(d) };
            done.expect("the shapes fit");
        });
        Ok(())
    }

    fn matvecs(&mut self) -> anyhow::Result<()> {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            // Far beyond L3: from memory.
            self.linear("matvec", dtype, 1, 2048, 8192)?;
        }
        self.linear("matvec", DType::BF16, 2, 2048, 8192)?;
        self.linear("matvec", DType::BF16, 4, 2048, 8192)?;
        self.linear("matvec", DType::BF16, 8, 2048, 8192)?;
        self.linear("matvec", DType::BF16, 1, 8192, 2048)?;
        self.linear("matvec", DType::BF16, 1, 896, 4864)?;
        // The embedded model's layers: from cache, bound by how fast a region starts.
        self.linear("matvec", DType::BF16, 1, 256, 512)?;
        self.linear("matvec", DType::BF16, 1, 256, 2048)?;
        Ok(())
    }

    fn matmuls(&mut self) -> anyhow::Result<()> {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            self.linear("matmul", dtype, 512, 2048, 2048)?;
        }
        self.linear("matmul", DType::BF16, 256, 2048, 8192)?;
        self.linear("matmul", DType::BF16, 256, 896, 4864)?;
        self.linear("matmul", DType::BF16, 512, 256, 256)?;
        self.linear("matmul", DType::BF16, 512, 256, 704)?;
        self.linear("matmul", DType::BF16, 512, 704, 256)?;
        self.linear("matmul", DType::BF16, 16, 2048, 8192)?;
        Ok(())
    }

    fn chunk(
        &mut self,
        dtype: DType,
        t: usize,
        s: usize,
        hq: usize,
        hkv: usize,
        dh: usize,
    ) -> anyhow::Result<()> {
        let title = format!("attend_chunk {dtype} T {t} S {s} heads {hq}/{hkv} x {dh}");
        if self.skips(&title) {
            return Ok(());
        }
        let rows = hkv * s * 2 * dh;
        let copies = if t <= 4 && rows * dtype.size() > CACHED {
            STREAMED.div_ceil(rows * dtype.size())
        } else {
            1
        };
        let (q, kv) = (self.buffer(DType::F32, t * hq * dh)?, self.buffer(dtype, copies * rows)?);
        let mut out = self.backend.alloc(DType::F32, t * hq * dh, "out")?;
        let mut lse = self.backend.alloc(DType::F32, t * hq, "lse")?;
        let pairs = (t * s) as f64 - (t * (t - 1)) as f64 / 2.0;
        let work = if t <= 4 {
            Work::Bytes((rows * dtype.size()) as f64)
        } else {
            Work::Flop(4.0 * pairs * (hq * dh) as f64)
        };
        let mut kv = KvView::new(&kv, s);
        self.report(&title, work, || {
            kv.offset = (kv.offset + rows) % (copies * rows);
            let d = AttendChunk {
                p: attend_params(t, hq, hkv, dh),
                q: View::all(&q),
                spans: &[ChunkSpan {
                    q_start: 0,
                    q_len: t as u32,
                    kv,
                    row_start: 0,
                    n_rows: s as u32,
                    diagonal: s as i32 - t as i32,
                }],
                out: ViewMut::all(&mut out),
                lse: ViewMut::all(&mut lse),
            };
            self.backend.attend_chunk(d).expect("the shapes fit");
        });
        Ok(())
    }

    fn attend_chunks(&mut self) -> anyhow::Result<()> {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            self.chunk(dtype, 512, 16_384, 4, 2, 64)?;
        }
        self.chunk(DType::F16, 512, 512, 4, 2, 64)?;
        self.chunk(DType::F16, 256, 1024, 4, 2, 64)?;
        self.chunk(DType::F16, 256, 8192, 14, 2, 64)?;
        self.chunk(DType::F16, 256, 4096, 32, 8, 128)?;
        self.chunk(DType::F16, 256, 4096, 8, 2, 80)?;
        self.chunk(DType::F16, 256, 1024, 4, 2, 128)?;
        self.chunk(DType::F16, 1, 1024, 4, 2, 64)?;
        self.chunk(DType::F16, 1, 1024, 14, 2, 64)?;
        self.chunk(DType::F16, 1, 16_384, 4, 2, 64)?;
        self.chunk(DType::F16, 1, 16_384, 14, 2, 64)?;
        self.chunk(DType::F16, 1, 4096, 32, 8, 64)?;
        self.chunk(DType::F16, 1, 4096, 32, 8, 128)?;
        Ok(())
    }

    fn list(
        &mut self,
        dtype: DType,
        n: usize,
        s: usize,
        hq: usize,
        hkv: usize,
        dh: usize,
    ) -> anyhow::Result<()> {
        let title = format!("attend_list {dtype} {n} of {s} heads {hq}/{hkv} x {dh}");
        if self.skips(&title) {
            return Ok(());
        }
        let (q, kv) = (self.buffer(DType::F32, hq * dh)?, self.buffer(dtype, hkv * s * 2 * dh)?);
        // Several lists in turn, so that rows come from memory and not from the last call's cache.
        let mut lists = Vec::new();
        for _ in 0..STREAMED / (hkv * n * 2 * dh * dtype.size()) {
            let rows: Vec<u32> = (0..hkv).flat_map(|_| self.rng.distinct(s, n)).collect();
            lists.push(self.words(&rows)?);
        }
        let counts = self.words(&vec![n as u32; hkv])?;
        let mut out = self.backend.alloc(DType::F32, hq * dh, "out")?;
        let mut lse = self.backend.alloc(DType::F32, hq, "lse")?;
        let kv = KvView::new(&kv, s);
        let mut turn = 0;
        self.report(&title, Work::Bytes((hkv * n * 2 * dh * dtype.size()) as f64), || {
            turn = (turn + 1) % lists.len();
            let d = AttendList {
                p: attend_params(1, hq, hkv, dh),
                q: View::all(&q),
                spans: &[ListSpan {
                    q_index: 0,
                    kv,
                    rows: View::all(&lists[turn]),
                    n_rows: View::all(&counts),
                    list_stride: n as u32,
                }],
                out: ViewMut::all(&mut out),
                lse: ViewMut::all(&mut lse),
            };
            self.backend.attend_list(d).expect("the shapes fit");
        });
        Ok(())
    }

    fn attend_lists(&mut self) -> anyhow::Result<()> {
        self.list(DType::F16, 1024, 32_768, 4, 2, 64)?;
        self.list(DType::F16, 1024, 262_144, 4, 2, 64)?;
        self.list(DType::F16, 1024, 65_536, 32, 8, 64)?;
        self.list(DType::F16, 16_384, 262_144, 4, 2, 64)?;
        Ok(())
    }

    fn kmeans(&mut self) -> anyhow::Result<()> {
        for (n, c, dh) in [(2048, 400, 64), (32_768, 2048, 64), (32_768, 400, 64), (8192, 512, 128)]
        {
            let title = format!("kmeans_assign {n} points, {c} clusters x {dh}");
            if self.skips(&title) {
                continue;
            }
            let heads = 2;
            let points = self.buffer(DType::F32, heads * n * dh)?;
            let centroids = self.buffer(DType::F32, heads * c * dh)?;
            let mut labels = self.backend.alloc(DType::U32, heads * n, "labels")?;
            let mut scores = self.backend.alloc(DType::F32, heads * n, "scores")?;
            let mut changed = self.backend.alloc(DType::U32, heads, "changed")?;
            let p = KmeansParams {
                n_kv_heads: heads as u32,
                n_points: n as u32,
                n_clusters: c as u32,
                head_dim: dh as u32,
                distance: 0,
            };
            self.report(&title, Work::Flop(2.0 * (heads * n * c * dh) as f64), || {
                let d = KmeansAssign {
                    p,
                    points: View::all(&points),
                    centroids: View::all(&centroids),
                    labels: ViewMut::all(&mut labels),
                    scores: ViewMut::all(&mut scores),
                    n_changed: ViewMut::all(&mut changed),
                };
                self.backend.kmeans_assign(d).expect("the shapes fit");
            });
        }
        Ok(())
    }

    fn selection(&mut self) -> anyhow::Result<()> {
        for c in [2048, 65_536] {
            self.centroid_scores(c)?;
            self.select(c)?;
        }
        Ok(())
    }

    fn centroid_scores(&mut self, c: usize) -> anyhow::Result<()> {
        let (hq, hkv, dh) = (4, 2, 64);
        let title = format!("centroid_scores f16 {c} clusters heads {hq}/{hkv} x {dh}");
        if self.skips(&title) {
            return Ok(());
        }
        let (q, centroids) =
            (self.buffer(DType::F32, hq * dh)?, self.buffer(DType::F16, hkv * c * dh)?);
        let (sizes, counts) = (self.words(&vec![16; hkv * c])?, self.words(&vec![c as u32; hkv])?);
        let mut scores = self.backend.alloc(DType::F32, hkv * c, "scores")?;
        let p = CentroidScoresParams {
            n_tokens: 1,
            n_q_heads: hq as u32,
            n_kv_heads: hkv as u32,
            head_dim: dh as u32,
            score_stride: c as u32,
            scale: 0.125,
            pooling: 0,
        };
        self.report(&title, Work::Bytes(centroids.size_bytes() as f64), || {
            let spans = &[ScoreSpan {
                q_index: 0,
                centroids: View::all(&centroids),
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                cluster_stride: c as u32,
            }];
            let d =
                CentroidScores { p, q: View::all(&q), spans, scores: ViewMut::all(&mut scores) };
            self.backend.centroid_scores(d).expect("the shapes fit");
        });
        Ok(())
    }

    fn select(&mut self, c: usize) -> anyhow::Result<()> {
        let (hkv, budget) = (2, 1024);
        let title = format!("select_clusters {c} clusters, budget {budget}");
        if self.skips(&title) {
            return Ok(());
        }
        let scores = self.buffer(DType::F32, hkv * c)?;
        let (sizes, counts) = (self.words(&vec![16; hkv * c])?, self.words(&vec![c as u32; hkv])?);
        let budgets = self.words(&vec![budget; hkv])?;
        let room = hkv * budget as usize;
        let mut clusters = self.backend.alloc(DType::U32, room, "clusters")?;
        let mut takes = self.backend.alloc(DType::U32, room, "takes")?;
        let mut n_selected = self.backend.alloc(DType::U32, hkv, "n_selected")?;
        let p = SelectClustersParams {
            n_kv_heads: hkv as u32,
            score_stride: c as u32,
            max_selected: budget,
        };
        self.report(&title, Work::Bytes(scores.size_bytes() as f64), || {
            let spans = &[SelectSpan {
                sizes: View::all(&sizes),
                n_clusters: View::all(&counts),
                budgets: View::all(&budgets),
                cluster_stride: c as u32,
            }];
            let d = SelectClusters {
                p,
                scores: View::all(&scores),
                spans,
                clusters: ViewMut::all(&mut clusters),
                takes: ViewMut::all(&mut takes),
                n_selected: ViewMut::all(&mut n_selected),
            };
            self.backend.select_clusters(d).expect("the shapes fit");
        });
        Ok(())
    }
}

fn attend_params(t: usize, hq: usize, hkv: usize, dh: usize) -> AttendParams {
    AttendParams {
        n_tokens: t as u32,
        n_q_heads: hq as u32,
        n_kv_heads: hkv as u32,
        head_dim: dh as u32,
        scale: 1.0 / (dh as f32).sqrt(),
        accumulate: 0,
    }
}
