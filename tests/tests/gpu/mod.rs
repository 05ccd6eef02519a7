//! The whole runtime on a device with memory of its own, through the WGSL backend: what a token
//! costs in dispatches, waits and bytes, what a lost device costs, what prefill keeps on the
//! device, and whether it chooses what the CPU chooses.

#![expect(clippy::print_stdout, reason = "tests say what they counted")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longview_engine::{
    Engine, EngineError, EngineOptions, GenerationParams, KvResidency, Sampler, SamplingParams,
    Session, SessionStep,
};
use longview_model::folder::ModelFolder;
use longview_scheduler::{LayerMode, PolicyOptions, Preset, SpanMode};
use longview_tests::backends;
use longview_wgpu::WgpuBackend;
use pollster::block_on;

mod memory;
mod presets;
mod selection;

type Gpu = WgpuBackend;

fn clusterkv(budget: usize) -> PolicyOptions {
    let mut options = PolicyOptions::new(Preset::Clusterkv).with_budget(budget);
    (options.window, options.recent) = (Some(32), Some(16));
    options
}

fn engine(backend: Arc<Gpu>, ctx_size: usize, policy: &PolicyOptions) -> Engine<Gpu> {
    engine_with(backend, ctx_size, policy, KvResidency::Host)
}

fn engine_with(
    backend: Arc<Gpu>,
    ctx_size: usize,
    policy: &PolicyOptions,
    kv_residency: KvResidency,
) -> Engine<Gpu> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama3-gqa");
    let folder = ModelFolder::open(&path).expect("a sound fixture");
    let (chunk_size, tile_rows) = (64, 64);
    let options =
        EngineOptions { ctx_size, chunk_size, tile_rows, kv_residency, ..Default::default() };
    Engine::load(backend, folder, options, policy).expect("it loads")
}

fn prefill(engine: &mut Engine<Gpu>, session: &mut Session<Gpu>, n: usize) {
    let n_vocab = engine.model().config().vocab_size as u32;
    let ids: Vec<u32> = (0..n as u32).map(|i| (i * 31 + 7) % n_vocab).collect();
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(session, &ids, &mut go_on)).expect("prefill"));
}

fn generate(
    engine: &mut Engine<Gpu>,
    session: &mut Session<Gpu>,
    n: usize,
) -> Result<Vec<u32>, EngineError> {
    let params =
        GenerationParams { max_tokens: Some(n), ignore_eos: true, ..GenerationParams::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    block_on(engine.generate(session, &params, &mut go_on)).map(|generation| generation.ids)
}

/// A dispatch is the first-order cost of a decoded token on a GPU, a wait for the device the
/// second. With a budget that holds everything, every recalled row is a hit after the first steps.
#[test]
fn a_token_takes_few_dispatches_and_the_allowed_waits() {
    let Some(gpu) = backends::wgpu() else { return };
    for (policy, recalls) in [(PolicyOptions::new(Preset::Full), false), (clusterkv(256), true)] {
        let mut engine = engine(Arc::clone(&gpu), 512, &policy);
        let mut session = engine.session(&policy).expect("a session");
        prefill(&mut engine, &mut session, 150);
        generate(&mut engine, &mut session, 8).expect("warm-up");

        let (before, misses, steps) = (gpu.counters(), session.stats().misses, 12);
        generate(&mut engine, &mut session, steps).expect("decode");
        let after = gpu.counters();
        let cost = after.device.since(before.device);
        assert_eq!(session.stats().misses, misses, "nothing was fetched");
        let n_layers = engine.model().config().n_layers as u64;
        let modes = session.sequence().layers().iter().map(|layer| layer.mode());
        let n_recalled = modes.filter(|mode| *mode == LayerMode::Recall).count() as u64;
        assert_eq!(n_recalled > 0, recalls);

        // Embedding, final norm, output projection, argmax; then at most 10 a layer.
        let steps = steps as u64;
        let per_layer = (cost.dispatches as f64 / steps as f64 - 4.0) / n_layers as f64;
        println!("{}: {per_layer:.1} dispatches a layer, {cost:?}", session.policy().preset);
        assert!(per_layer <= 10.0, "{per_layer} dispatches a layer");
        // One selection for each recalled layer, and one read at the end with the token.
        assert_eq!(cost.readbacks, steps * (n_recalled + 1));
        assert_eq!(after.allocations, before.allocations, "device buffers made after warm-up");
    }
}

/// Where all rows lie on the device it lists what it chose itself: no layer waits, with the default
/// policy neither, and nothing is fetched.
#[test]
fn a_token_waits_once_where_all_rows_lie_on_the_device() {
    let Some(gpu) = backends::wgpu() else { return };
    let mut longview = PolicyOptions::new(Preset::Longview).with_budget(64);
    (longview.window, longview.recent, longview.rank) = (Some(32), Some(16), Some(8));
    for (policy, most) in [(clusterkv(64), 9.0), (longview, 22.0)] {
        let device = KvResidency::Device;
        let mut engine = engine_with(Arc::clone(&gpu), 512, &policy, device);
        let mut session = engine.session(&policy).expect("a session");
        assert!(session.sequence().has_resident_rows());
        prefill(&mut engine, &mut session, 150);
        generate(&mut engine, &mut session, 4).expect("warm-up");
        let (before, steps) = (gpu.counters(), 12);
        generate(&mut engine, &mut session, steps).expect("decode");
        let after = gpu.counters();
        let cost = after.device.since(before.device);
        let n_layers = engine.model().config().n_layers as u64;
        let per_layer = (cost.dispatches as f64 / steps as f64 - 4.0) / n_layers as f64;
        println!("{}: {per_layer:.1} dispatches a layer, {cost:?}", session.policy().preset);
        assert!(per_layer <= most, "{per_layer} dispatches a layer");
        assert_eq!(cost.readbacks, steps as u64, "{cost:?}");
        assert_eq!(after.allocations, before.allocations, "device buffers made after warm-up");
        let stats = session.stats();
        assert_eq!((stats.hits, stats.misses, stats.fetched_bytes), (0, 0, 0));
        assert!(stats.attended_rows > 0);
    }
}

/// A prompt whose rows stay on the device is read without carrying its past there again: rows come
/// once more where clusters have put them into another order.
#[test]
fn a_prompt_is_read_where_its_rows_lie() {
    let Some(gpu) = backends::wgpu() else { return };
    // Everything is recalled, so both answer alike.
    let mut policy = clusterkv(1024);
    policy.cluster_segment = Some(64);
    let run = |kv_residency| {
        let mut engine = engine_with(Arc::clone(&gpu), 1024, &policy, kv_residency);
        let mut session = engine.session(&policy).expect("a session");
        let before = gpu.counters();
        prefill(&mut engine, &mut session, 960);
        let cost = gpu.counters().device.since(before.device);
        (generate(&mut engine, &mut session, 16).expect("decode"), cost.bytes_up)
    };
    let ((streamed, many), (resident, few)) = (run(KvResidency::Host), run(KvResidency::Device));
    println!("{few} bytes to the device, {many} streamed");
    assert_eq!(resident, streamed);
    assert!(2 * few < many, "{few} of {many} bytes");
}

/// Candidates come with the one read of a step, and are those of the whole vocabulary.
#[test]
fn a_drawn_token_costs_one_read_of_its_candidates() {
    let Some(gpu) = backends::wgpu() else { return };
    let policy = PolicyOptions::new(Preset::Full);
    let mut engine = engine(Arc::clone(&gpu), 512, &policy);
    let (steps, top_k) = (20, 8);
    let sampling = SamplingParams { temperature: 1.0, top_k, ..SamplingParams::default() };
    let mut run = |by_device: bool| {
        let mut session = engine.session(&policy).expect("a session");
        let mut sampler = Sampler::new(sampling, 2048).expect("sound parameters");
        prefill(&mut engine, &mut session, 150);
        let before = gpu.counters();
        for _ in 0..steps {
            let ids = [sampler.next_token(&session).expect("numbers")];
            let part = SessionStep::new(&mut session, &ids, SpanMode::Policy);
            let part = if by_device { part.for_sampler(&sampler) } else { part };
            block_on(engine.step(&mut [part])).expect("a step");
        }
        (session.tokens().to_vec(), gpu.counters().device.since(before.device))
    };
    let ((all, all_cost), (few, few_cost)) = (run(false), run(true));
    assert_eq!(few, all);
    assert_eq!((all_cost.readbacks, few_cost.readbacks), (steps, steps));
    assert_eq!(few_cost.dispatches, all_cost.dispatches + steps);
    // Numbers and ids are two parts of the read, each with up to 8 bytes around it.
    let (logits, few) = (4 * engine.model().config().vocab_size as u64, 8 * top_k as u64 + 16);
    let saved = all_cost.bytes_down - few_cost.bytes_down;
    assert!(saved >= steps * (logits - few), "{saved} bytes saved in {steps} steps");
}

/// Between calls a lost device is not even noticed; in the middle of a step the call says so, and
/// the next one goes on.
#[test]
fn a_device_lost_twenty_times_changes_no_token() {
    let Some(gpu) = backends::wgpu() else { return };
    let policy = clusterkv(96);
    let start = |backend| {
        let mut engine = engine(backend, 512, &policy);
        let mut session = engine.session(&policy).expect("a session");
        prefill(&mut engine, &mut session, 200);
        (engine, session)
    };
    let (mut engine, mut session) = start(gpu);
    generate(&mut engine, &mut session, 101).expect("decode");
    let expected = session.tokens().to_vec();

    let (mut engine, mut session) = start(backends::wgpu().expect("it was there a moment ago"));
    let mut errors = 0;
    for loss in 0..20 {
        let backend = Arc::clone(engine.backend());
        let vandal = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(700 * loss));
            backend.destroy_device();
        });
        match generate(&mut engine, &mut session, 3) {
            Ok(_) => {}
            Err(error) => {
                assert!(error.to_string().contains("the device was lost"), "{error}");
                errors += 1;
            }
        }
        vandal.join().expect("destroying does not panic");
    }
    println!("{errors} of 20 calls noticed the loss");
    assert!(errors > 0, "no loss hit the middle of a step");
    let left = expected.len() + 1 - session.n_tokens();
    generate(&mut engine, &mut session, left).expect("decode");
    assert_eq!(session.tokens(), expected);
}

/// A question can be taken back although the device is gone; the next call cuts and goes on.
#[test]
fn a_session_is_cut_back_on_a_lost_device() {
    let Some(gpu) = backends::wgpu() else { return };
    let policy = clusterkv(96);
    let answer = |backend: Arc<Gpu>, is_lost: bool| {
        let mut engine = engine(backend, 512, &policy);
        let mut session = engine.session(&policy).expect("a session");
        prefill(&mut engine, &mut session, 200);
        generate(&mut engine, &mut session, 40).expect("decode");
        if is_lost {
            engine.backend().destroy_device();
        }
        block_on(session.truncate(180)).expect("it needs no device");
        assert_eq!(session.tokens().len(), 180);
        block_on(engine.feed(&mut session, &[5])).expect("the device is opened again");
        generate(&mut engine, &mut session, 30).expect("decode")
    };
    let expected = answer(gpu, false);
    assert_eq!(answer(backends::wgpu().expect("it was there a moment ago"), true), expected);
}
