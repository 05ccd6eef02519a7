//! What a step of several sequences costs on a device, by count, and that each says what it says
//! alone.
//!
//! A step of n sequences computes their tokens together. Waits do not grow with n; what is launched
//! for each of them alone is named here, by kernel, so that a change that adds to it is seen.

#![expect(clippy::print_stdout, reason = "tests say what they counted")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use longview_cuda::CudaBackend;
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_engine::{Engine, EngineOptions, Session, SessionStep};
use longview_model::folder::ModelFolder;
use longview_ops::{Backend, DeviceCounters};
use longview_scheduler::{PolicyOptions, Preset, SpanMode};
use longview_tests::backends;
use longview_tests::bench::random_model::{Dims, RandomFolder};
use longview_wgpu::WgpuBackend;
use pollster::block_on;

/// Layers, none of which is dense where the policy recalls.
const N_LAYERS: usize = 3;
/// Tokens that are decoded before any is counted: shapes are seen, and caches are warm.
const WARM: usize = 4;
/// Tokens that are counted. No window fills meanwhile.
const COUNTED: usize = 4;
/// Sequences of a step.
const SIZES: [usize; 4] = [1, 2, 4, 8];

fn dims() -> Dims {
    Dims {
        name: "narrow",
        has_bias: false,
        n_layers: N_LAYERS,
        hidden: 64,
        n_q_heads: 8,
        n_kv_heads: 2,
        head_dim: 16,
        ffn: 128,
        vocab: 64,
    }
}

/// A name, a preset, and options of it.
type Named = (&'static str, Preset, &'static [(&'static str, &'static str)]);

const POLICIES: [Named; 5] = [
    ("full", Preset::Full, &[]),
    ("clusterkv", Preset::Clusterkv, &[]),
    ("longview", Preset::Longview, &[]),
    // The host waits for queries to draw tokens.
    (
        "clusterkv that draws",
        Preset::Clusterkv,
        &[("residual", "sample:8"), ("attention-bound", "sampled")],
    ),
    // The layer before selects.
    ("infinigen", Preset::Infinigen, &[]),
];

fn policy(preset: Preset, more: &[(&str, &str)]) -> PolicyOptions {
    let mut options = PolicyOptions::new(preset);
    if preset == Preset::Full {
        return options;
    }
    options = options.with_budget(96);
    (options.sinks, options.recent, options.dense_layers) = (Some(4), Some(8), Some(0));
    if matches!(preset, Preset::Clusterkv | Preset::Longview) {
        (options.window, options.cluster_segment, options.cluster_tokens) =
            (Some(64), Some(64), Some(8));
    }
    for (name, value) in more {
        options.set(name, value).expect("an option");
    }
    options
}

/// What is counted of a device.
trait Counted: Backend {
    fn by_kernel(&self) -> BTreeMap<&'static str, u64>;
}

impl Counted for WgpuBackend {
    fn by_kernel(&self) -> BTreeMap<&'static str, u64> {
        self.launches()
    }
}

impl Counted for CudaBackend<EmulatedDriver> {
    fn by_kernel(&self) -> BTreeMap<&'static str, u64> {
        self.driver().launches().into_iter().collect()
    }
}

/// A step of some sequences, in the mean over [`COUNTED`].
struct Cost {
    launches: f64,
    by_kernel: BTreeMap<&'static str, f64>,
    submits: f64,
    waits: f64,
}

/// A sequence's tokens, and the bits of its last logits.
type Said = (Vec<u32>, Vec<u32>);

/// Numbers of a sequence's own, so that no two select alike.
fn prompt(sequence: usize) -> Vec<u32> {
    let own = 3 + 2 * sequence as u32;
    (0..290 + 2 * sequence as u32).map(|i| 2 + (i * i * own + 13 * i + own) % 61).collect()
}

fn engine<B: Counted>(backend: &Arc<B>, policy: &PolicyOptions) -> Engine<B> {
    let made = RandomFolder::new(&dims()).expect("a folder");
    let folder = ModelFolder::open(&made.path).expect("a model");
    let options = EngineOptions {
        ctx_size: 512,
        chunk_size: 64,
        tile_rows: 64,
        // Those that were read, and forks of them.
        max_sequences: 2 * SIZES[SIZES.len() - 1],
        ..EngineOptions::default()
    };
    Engine::load(Arc::clone(backend), folder, options, policy).expect("loaded")
}

fn read<B: Counted>(engine: &mut Engine<B>, policy: &PolicyOptions, sequence: usize) -> Session<B> {
    let mut session = engine.session(policy).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    let is_read = block_on(engine.prefill(&mut session, &prompt(sequence), &mut go_on));
    assert!(is_read.expect("a prompt"));
    session
}

/// One step of all sessions; what each says next is added to its tokens.
fn step<B: Counted>(engine: &mut Engine<B>, sessions: &mut [Session<B>], said: &mut [Vec<u32>]) {
    let ids: Vec<[u32; 1]> = said.iter().map(|said| [said[said.len() - 1]]).collect();
    let steps = sessions.iter_mut().zip(&ids);
    let mut steps: Vec<_> =
        steps.map(|(session, ids)| SessionStep::new(session, ids, SpanMode::Policy)).collect();
    let results = block_on(engine.step_each(&mut steps)).expect("a step");
    assert!(results.iter().all(Result::is_ok));
    drop(steps);
    for (session, said) in sessions.iter_mut().zip(said) {
        said.push(next(session));
    }
}

/// The token of the largest logit.
fn next<B: Counted>(session: &Session<B>) -> u32 {
    let logits = session.logits();
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == most).expect("logits") as u32
}

/// What a step of `n` sequences costs that go on from what was read, and what each of them said.
fn cost<B: Counted>(
    backend: &Arc<B>,
    engine: &mut Engine<B>,
    read: &mut [Session<B>],
    n: usize,
) -> (Cost, Vec<Said>) {
    let forks = read[..n].iter_mut().map(|session| block_on(engine.fork(session)));
    let mut sessions: Vec<_> = forks.collect::<Result<_, _>>().expect("forks");
    let mut said: Vec<Vec<u32>> = (0..n).map(|i| vec![3 + i as u32]).collect();
    (0..WARM).for_each(|_| step(engine, &mut sessions, &mut said));
    let counters = || backend.device_counters().expect("a device counts");
    let (before, launched): (DeviceCounters, _) = (counters(), backend.by_kernel());
    (0..COUNTED).for_each(|_| step(engine, &mut sessions, &mut said));
    let after = counters();
    let mean = |after: u64, before: u64| (after - before) as f64 / COUNTED as f64;
    let by_kernel: BTreeMap<_, _> = backend
        .by_kernel()
        .into_iter()
        .map(|(name, n)| (name, mean(n, launched.get(name).copied().unwrap_or(0))))
        .filter(|(_, n)| *n > 0.0)
        .collect();
    let cost = Cost {
        launches: by_kernel.values().sum(),
        by_kernel,
        submits: mean(after.submits, before.submits),
        waits: mean(after.readbacks, before.readbacks),
    };
    let bits = |session: &Session<B>| session.logits().iter().map(|x| x.to_bits()).collect();
    (cost, said.into_iter().zip(sessions.iter().map(bits)).collect())
}

fn report(device: &str, policy: &str, n: usize, cost: &Cost) {
    let Cost { launches, by_kernel, submits, waits } = cost;
    println!("{device}, {policy}, {n}: {launches} launches, {submits} submits, {waits} waits");
    println!("    {by_kernel:?}");
}

fn check<B: Counted>(device: &str, backend: &Arc<B>) {
    for (name, preset, more) in POLICIES {
        let policy = policy(preset, more);
        let mut engine = engine(backend, &policy);
        let most = SIZES[SIZES.len() - 1];
        let mut read: Vec<_> = (0..most).map(|i| read(&mut engine, &policy, i)).collect();
        let costs = SIZES.map(|n| {
            let (cost, said) = cost(backend, &mut engine, &mut read, n);
            report(device, name, n, &cost);
            (cost, said)
        });
        let [(alone, _), .., (_, all)] = &costs;
        for (cost, said) in &costs {
            let n = said.len();
            assert_eq!(cost.waits, alone.waits, "{device}, {name}: {n} sequences");
            for (i, (own, among_all)) in said.iter().zip(all).enumerate() {
                assert!(own == among_all, "{device}, {name}: sequence {i} of {n}");
            }
        }
    }
}

#[test]
fn a_step_of_several_sequences_on_wgpu_waits_as_often_as_one_of_one() {
    let Some(backend) = backends::wgpu() else { return };
    check("wgpu", &backend);
}

#[test]
fn a_step_of_several_sequences_on_cuda_waits_as_often_as_one_of_one() {
    let backend = backends::cuda_emulated(EmulatedOptions::default());
    check("cuda", &Arc::new(backend.expect("the kernels are compiled as C++")));
}
