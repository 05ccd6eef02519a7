//! Whether a device chooses what the CPU chooses.

use std::ops::ControlFlow;
use std::sync::Arc;

use longview_core::{DType, SplitMix64, encode_f32};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, Session};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::{
    Backend, CentroidScoresParams, Placed, ScoreSelect, ScoreSpan, SelectClustersParams,
    SelectSpan, View, ViewMut,
};
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use crate::backends::Probe;
use crate::files;

const CLUSTERS: usize = 3000;
const HEADS: usize = 2;
const GROUP: usize = 3;
const WIDTH: usize = 64;
const BUDGET: u32 = 512;
const STRIDE: usize = 640;

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"))
}

/// Queries, centroids and sizes of one selection.
struct Case {
    q: Vec<f32>,
    centroids: Vec<u8>,
    sizes: Vec<u32>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let mut normal = |n: usize| (0..n).map(|_| rng.next_normal()).collect::<Vec<_>>();
        let q = normal(HEADS * GROUP * WIDTH);
        let centroids = encode_f32(DType::F16, &normal(HEADS * CLUSTERS * WIDTH));
        let sizes = (0..HEADS * CLUSTERS).map(|_| 1 + rng.below(24) as u32).collect();
        Self { q, centroids, sizes }
    }

    /// Clusters and takes of each head, and the scores that chose them where the backend leaves
    /// them in the order of the heads.
    fn choose<B: Backend>(&self, backend: &B) -> Vec<Vec<(u32, u32)>> {
        let make = |dtype, bytes: &[u8]| {
            let mut buffer = backend.alloc(dtype, bytes.len() / dtype.size(), "case").unwrap();
            backend.write(ViewMut::all(&mut buffer), bytes).unwrap();
            buffer
        };
        let words = |values: &[u32]| make(DType::U32, bytemuck::cast_slice(values));
        let (q, centroids) =
            (make(DType::F32, bytemuck::cast_slice(&self.q)), make(DType::F16, &self.centroids));
        let (sizes, counts) = (words(&self.sizes), words(&[CLUSTERS as u32; HEADS]));
        let budgets = words(&[BUDGET; HEADS]);
        let alloc = |dtype, n| backend.alloc(dtype, n, "result").unwrap();
        let mut scratch = alloc(DType::F32, HEADS * GROUP * CLUSTERS);
        let mut clusters = alloc(DType::U32, HEADS * STRIDE);
        let mut takes = alloc(DType::U32, HEADS * STRIDE);
        let mut n_selected = alloc(DType::U32, HEADS);
        backend
            .score_select(ScoreSelect {
                p: CentroidScoresParams {
                    n_tokens: 1,
                    n_q_heads: (HEADS * GROUP) as u32,
                    n_kv_heads: HEADS as u32,
                    head_dim: WIDTH as u32,
                    score_stride: CLUSTERS as u32,
                    scale: 0.125,
                    pooling: 0,
                },
                select: SelectClustersParams {
                    n_kv_heads: HEADS as u32,
                    score_stride: CLUSTERS as u32,
                    max_selected: STRIDE as u32,
                    by_id: 0,
                },
                q: View::all(&q),
                score_spans: &[ScoreSpan {
                    q_index: 0,
                    centroids: View::all(&centroids),
                    sizes: View::all(&sizes),
                    n_clusters: View::all(&counts),
                    cluster_stride: CLUSTERS as u32,
                    listed: None,
                    placed: Placed::DENSE,
                }],
                select_spans: &[SelectSpan {
                    sizes: View::all(&sizes),
                    n_clusters: View::all(&counts),
                    budgets: View::all(&budgets),
                    cluster_stride: CLUSTERS as u32,
                    listed: None,
                }],
                scratch: ViewMut::all(&mut scratch),
                clusters: ViewMut::all(&mut clusters),
                takes: ViewMut::all(&mut takes),
                n_selected: ViewMut::all(&mut n_selected),
            })
            .expect("a selection");
        let read = |buffer: &B::Buffer, n: usize| {
            let mut values = vec![0u32; n];
            let bytes = bytemuck::cast_slice_mut(&mut values);
            block_on(backend.read(View::all(buffer), bytes)).unwrap();
            values
        };
        let (clusters, takes) = (read(&clusters, HEADS * STRIDE), read(&takes, HEADS * STRIDE));
        let n = read(&n_selected, HEADS);
        let head = |h: usize| {
            let places = h * STRIDE..h * STRIDE + n[h] as usize;
            clusters[places.clone()].iter().copied().zip(takes[places].iter().copied()).collect()
        };
        (0..HEADS).map(head).collect()
    }

    /// The summed softmax mass of a head's clusters, in f64.
    fn scores(&self, head: usize) -> Vec<f64> {
        let centroids = longview_core::decode_f32(DType::F16, &self.centroids);
        let centroids = &centroids[head * CLUSTERS * WIDTH..(head + 1) * CLUSTERS * WIDTH];
        let mut sum = vec![0.0; CLUSTERS];
        for q in self.q[head * GROUP * WIDTH..(head + 1) * GROUP * WIDTH].chunks_exact(WIDTH) {
            let dot = |c: &[f32]| {
                c.iter().zip(q).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.125
            };
            let logits: Vec<f64> = centroids.chunks_exact(WIDTH).map(dot).collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mass: f64 = logits.iter().map(|l| (l - top).exp()).sum();
            sum.iter_mut().zip(&logits).for_each(|(s, l)| *s += (l - top).exp() / mass);
        }
        sum
    }
}

/// The same queries and index give the same lists in the same order, but for clusters whose scores
/// are the same to rounding: those are counted.
pub fn the_same_index_gives_the_same_lists<B: Backend>(device: &Arc<B>) {
    let (cpu, mut ties, mut compared) = (cpu(), 0, 0);
    for seed in 0..8 {
        let case = Case::new(seed);
        for (head, (on_device, on_cpu)) in
            case.choose(&**device).iter().zip(case.choose(&*cpu)).enumerate()
        {
            let scores = case.scores(head);
            assert!(on_cpu.len() > 20, "{} clusters", on_cpu.len());
            compared += on_cpu.len();
            for (a, b) in on_device.iter().zip(&on_cpu).filter(|(a, b)| a != b) {
                ties += 1;
                let (x, y) = (scores[a.0 as usize], scores[b.0 as usize]);
                assert!((x - y).abs() <= 2e-6 * x.max(y), "seed {seed}: {a:?} and {b:?}");
            }
        }
    }
    assert!(ties * 50 <= compared, "{ties} ties among {compared} places");
}

/// A document of numbered lines, and the beginning of an answer.
fn prompt(folder: &ModelFolder) -> (Vec<u32>, Vec<u32>) {
    let mut rng = SplitMix64::new(5);
    let line = |i: u64| format!("line {i}: the register holds {:04}.\n", rng.below(10_000));
    let document: String = (0..60).map(line).collect();
    let tokenizer = folder.tokenizer.as_ref().expect("the embedded model has a tokenizer");
    let encode = |text: &str| tokenizer.encode(text, Specials::AsWritten).expect("plain text");
    (encode(&document), encode("What does the register of line 31 hold? line 31: the register"))
}

/// A session that has read the document.
fn start<B: Backend>(
    backend: Arc<B>,
    policy: &PolicyOptions,
    document: &[u32],
    (folder, kv_dtype, chunk_size): (ModelFolder, DType, usize),
) -> (Engine<B>, Session<B>) {
    let options = EngineOptions {
        ctx_size: 2048,
        kv_dtype,
        chunk_size,
        simulate_device: true,
        ..EngineOptions::default()
    };
    let mut engine = Engine::load(backend, folder, options, policy).expect("it loads");
    let mut session = engine.session(policy).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, document, &mut go_on)).expect("prefill"));
    (engine, session)
}

fn largest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("logits").0 as u32
}

/// Clusters are made on each device from its own keys, which differ by rounding. What is recalled
/// is the same all the same, and so are the tokens. (A device that resolves what it has chosen
/// keeps the choice to itself: there the tokens speak.)
pub fn end_to_end_recalls_the_same_tokens<B: Probe>(device: &Arc<B>) {
    recalls_the_same_tokens(device, DType::F16);
}

/// The same with rows of 8 bits, in the host store and in the device cache.
pub fn end_to_end_recalls_the_same_rows_of_8_bits<B: Probe>(device: &Arc<B>) {
    recalls_the_same_tokens(device, DType::Q8);
}

fn recalls_the_same_tokens<B: Probe>(device: &Arc<B>, kv_dtype: DType) {
    let open = || ModelFolder::open(&files::needle()).expect("the embedded model");
    let (document, question) = prompt(&open());
    assert!(document.len() > 800, "{} tokens", document.len());
    let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(192);
    (policy.window, policy.recent) = (Some(32), Some(16));
    let device = Arc::clone(device);
    // Products of many rows may round them; and of 8 bits are the rows before a chunk, which must
    // be the same ones on both sides.
    let few = device.capabilities().matvec_max_rows;
    let chunk = if B::ROUNDS_ACTIVATIONS { few } else { 256 };
    let stored = || (open(), kv_dtype, chunk);
    let (mut on_device, mut device_session) = start(device, &policy, &document, stored());
    let (mut on_cpu, mut cpu_session) = start(cpu(), &policy, &document, stored());
    let (mut shared, mut all, mut answer) = (0.0, 0, 0);
    let mut next = question.into_iter();
    for step in 0..40 {
        let id = next.next().unwrap_or_else(|| {
            answer += 1;
            let id = largest(cpu_session.logits());
            assert_eq!(largest(device_session.logits()), id, "token of step {step}");
            id
        });
        block_on(on_device.feed(&mut device_session, &[id])).expect("a step");
        block_on(on_cpu.feed(&mut cpu_session, &[id])).expect("a step");
        let (device, cpu) = (device_session.sequence(), cpu_session.sequence());
        if device.uses_device_cache() {
            continue;
        }
        for layer in cpu.shape().layers() {
            for head in cpu.shape().heads() {
                let mut a: Vec<u32> = device.last_recalled(layer, head).collect();
                let b: Vec<u32> = cpu.last_recalled(layer, head).collect();
                if b.is_empty() {
                    continue;
                }
                let both = b.iter().filter(|token| a.contains(token)).count();
                a.extend(b.iter().filter(|token| !a.contains(token)).copied().collect::<Vec<_>>());
                shared += both as f64 / a.len() as f64;
                all += 1;
            }
        }
    }
    let mean = shared / f64::from(all);
    assert!(answer >= 16, "{answer} tokens were generated");
    assert!(all == 0 || mean >= 0.98, "mean Jaccard {mean} over {all} selections");
}
