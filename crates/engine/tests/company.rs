//! Sessions that share a step: what ends for one of them is no business of the others.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{
    CancelToken, Engine, EngineError, EngineOptions, Sampler, SamplingParams, Session, SessionStep,
};
use longview_model::folder::ModelFolder;
use longview_scheduler::{HostBytesMut, HostStoreKind, PolicyOptions, Preset, SpanMode};
use pollster::block_on;

type Cpu = CpuBackend;

/// Tokens that a session decodes in these tests.
const N_STEPS: usize = 40;

/// With windows so small that several are clustered in [`N_STEPS`] steps.
fn clusterkv() -> PolicyOptions {
    let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(96);
    (policy.window, policy.recent) = (Some(16), Some(16));
    policy
}

fn full() -> PolicyOptions {
    PolicyOptions::new(Preset::Full)
}

fn engine(options: EngineOptions) -> Engine<Cpu> {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama3-gqa");
    let folder = ModelFolder::open(&folder).expect("a sound fixture");
    let options = EngineOptions { chunk_size: 64, max_sequences: 3, ..options };
    Engine::load(backend, folder, options, &full()).expect("it loads")
}

fn small_context(ctx_size: usize) -> Engine<Cpu> {
    engine(EngineOptions { ctx_size, ..EngineOptions::default() })
}

fn prompt(engine: &Engine<Cpu>, n: usize) -> Vec<u32> {
    let n_vocab = engine.model().config().vocab_size as u32;
    (0..n as u32).map(|i| (i * 31 + 7) % n_vocab).collect()
}

/// A session that has read `n` tokens.
fn start(engine: &mut Engine<Cpu>, policy: &PolicyOptions, n: usize) -> Session<Cpu> {
    let mut session = engine.session(policy).expect("a session");
    let ids = prompt(engine, n);
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &ids, &mut go_on)).expect("prefill"));
    session
}

fn greedy(engine: &Engine<Cpu>) -> Sampler {
    let n_vocab = engine.model().config().vocab_size;
    Sampler::new(SamplingParams::default(), n_vocab).expect("sound parameters")
}

/// The tokens of a session that decodes alone.
fn alone(engine: &mut Engine<Cpu>, policy: &PolicyOptions, n: usize) -> Vec<u32> {
    let (mut session, mut sampler) = (start(engine, policy, n), greedy(engine));
    for _ in 0..N_STEPS {
        let id = [sampler.next_token(&session).expect("numbers")];
        let part = SessionStep::new(&mut session, &id, SpanMode::Policy);
        block_on(engine.step(&mut [part])).expect("a step");
    }
    session.tokens().to_vec()
}

#[test]
fn a_session_that_is_cancelled_and_one_that_fails_leave_the_third_alone() {
    let mut engine = small_context(200);
    for policy in [clusterkv(), full()] {
        let expected = alone(&mut engine, &policy, 120);
        let others = alone(&mut engine, &full(), 90);
        let mut going = start(&mut engine, &policy, 120);
        let mut cancelled = start(&mut engine, &full(), 90);
        // Its context is full after ten steps; from then on it fails in every one.
        let mut full_up = start(&mut engine, &full(), 190);
        let mut sampler = greedy(&engine);
        for i in 0..N_STEPS {
            let ids = [&going, &cancelled].map(|s| [sampler.next_token(s).expect("numbers")]);
            // In every third step, in each place of the batch.
            if i % 3 == 1 {
                cancelled.cancel_token().cancel();
            }
            let n_before = [&cancelled, &full_up].map(|s| s.tokens().len());
            let mut batch = [
                SessionStep::new(&mut cancelled, &ids[1], SpanMode::Policy),
                SessionStep::new(&mut going, &ids[0], SpanMode::Policy),
                SessionStep::new(&mut full_up, &[3], SpanMode::Policy),
            ];
            batch.rotate_left(i % 3);
            let is_whole = block_on(engine.step(&mut batch)).is_ok();
            assert_eq!(is_whole, i % 3 != 1 && i < 10, "step {i}");
            assert_eq!(going.tokens().len(), 120 + i + 1, "step {i}");
            assert_eq!(full_up.tokens().len(), n_before[1] + usize::from(i < 10), "step {i}");
            if i % 3 == 1 {
                assert_eq!(cancelled.tokens().len(), n_before[0], "step {i}");
                cancelled.cancel_token().reset();
            }
        }
        assert_eq!(going.tokens(), expected, "{}", policy.preset);
        assert_eq!(cancelled.tokens(), &others[..cancelled.tokens().len()]);
    }
}

#[test]
fn a_token_that_the_model_does_not_have_fails_its_own_session() {
    let mut engine = small_context(200);
    let expected = alone(&mut engine, &clusterkv(), 120);
    let mut going = start(&mut engine, &clusterkv(), 120);
    let mut wrong = start(&mut engine, &full(), 60);
    let (mut sampler, n_vocab) = (greedy(&engine), engine.model().config().vocab_size as u32);
    let beyond = [n_vocab];
    for _ in 0..N_STEPS {
        let id = [sampler.next_token(&going).expect("numbers")];
        let mut batch = [
            SessionStep::new(&mut wrong, &beyond, SpanMode::Policy),
            SessionStep::new(&mut going, &id, SpanMode::Policy),
        ];
        let error = block_on(engine.step(&mut batch)).expect_err("there is no such token");
        assert!(matches!(error, EngineError::Batch(_)), "{error}");
    }
    assert_eq!(going.tokens(), expected);
    assert_eq!(wrong.tokens().len(), 60);
}

/// Memory of a host store that cancels a session when a given number of rows has been written.
struct Tripwire(Vec<u8>);

static WRITES_LEFT: AtomicU32 = AtomicU32::new(u32::MAX);
static VICTIM: Mutex<Option<CancelToken>> = Mutex::new(None);

impl HostBytesMut for Tripwire {
    fn read(&self, at: usize, out: &mut [u8]) {
        self.0.read(at, out);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
        if WRITES_LEFT.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(token) = &*VICTIM.lock().expect("no panic holds it")
        {
            token.cancel();
        }
    }

    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        self.0.fork(used)
    }
}

/// The rows of a prompt's chunk reach the host store layer by layer: that is the middle of a step.
#[test]
fn a_session_that_is_cancelled_between_two_layers_leaves_its_company_alone() {
    let mut engine = engine(EngineOptions {
        ctx_size: 256,
        simulate_device: true,
        host_store: HostStoreKind::Elsewhere(|len| Some(Box::new(Tripwire(vec![0; len])))),
        ..EngineOptions::default()
    });
    let expected = alone(&mut engine, &clusterkv(), 120);
    let mut going = start(&mut engine, &clusterkv(), 120);
    let mut reading = engine.session(&full()).expect("a session");
    let (mut sampler, chunk) = (greedy(&engine), prompt(&engine, 20));
    *VICTIM.lock().expect("no panic holds it") = Some(reading.cancel_token());
    let mut n_cancelled = 0;
    for i in 0..N_STEPS {
        // A chunk writes a run of rows for each layer and head: the later ones are never reached.
        let n_writes = i as u32 % 5 + 1;
        WRITES_LEFT.store(n_writes, Ordering::Relaxed);
        let id = [sampler.next_token(&going).expect("numbers")];
        let mut batch = [
            SessionStep::new(&mut reading, &chunk, SpanMode::Exact { remaining: 9 }),
            SessionStep::new(&mut going, &id, SpanMode::Policy),
        ];
        let result = block_on(engine.step(&mut batch));
        assert_eq!(going.tokens().len(), 120 + i + 1, "step {i}");
        let was_cancelled = matches!(result, Err(EngineError::Cancelled));
        assert_eq!(reading.tokens().is_empty(), was_cancelled, "step {i}: {result:?}");
        n_cancelled += usize::from(was_cancelled);
        reading.cancel_token().reset();
        block_on(reading.truncate(0)).expect("what was read is taken back");
    }
    assert_eq!(going.tokens(), expected);
    assert!(n_cancelled > N_STEPS / 2, "{n_cancelled} steps were cancelled");
}

/// The logits of a session that reads a question.
fn ask(engine: &mut Engine<Cpu>, session: &mut Session<Cpu>, question: &[u32]) -> Vec<f32> {
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(session, question, &mut go_on)).expect("prefill"));
    session.logits().to_vec()
}

/// Questions to one context, side by side in one step, where the context was read once.
#[test]
fn forks_say_what_sessions_of_their_own_would() {
    for kv_dtype in [DType::F16, DType::Q8] {
        let mut engine = engine(EngineOptions { ctx_size: 200, kv_dtype, ..Default::default() });
        for policy in [clusterkv(), full()] {
            let expected = alone(&mut engine, &policy, 120);
            let questions = [[1, 2, 3, 4], [9, 8, 7, 6]];
            let asked = questions.map(|question| {
                let mut own = start(&mut engine, &policy, 120);
                ask(&mut engine, &mut own, &question)
            });
            let mut origin = start(&mut engine, &policy, 120);
            let forks = questions.map(|question| {
                let mut fork = block_on(engine.fork(&mut origin)).expect("a fork");
                assert_eq!(fork.tokens(), origin.tokens());
                assert_eq!(fork.timings().prefill_tokens, 0, "it has read nothing itself");
                let said = ask(&mut engine, &mut fork, &question);
                (fork, said)
            });
            for ((_, said), asked) in forks.iter().zip(&asked) {
                assert!(said == asked, "{} {kv_dtype}", policy.preset);
            }
            let mut sampler = greedy(&engine);
            let mut branch = block_on(engine.fork(&mut origin)).expect("a fork");
            forks[0].0.cancel_token().cancel();
            for _ in 0..N_STEPS {
                let ids = [&origin, &branch].map(|s| [sampler.next_token(s).expect("numbers")]);
                let mut batch = [
                    SessionStep::new(&mut origin, &ids[0], SpanMode::Policy),
                    SessionStep::new(&mut branch, &ids[1], SpanMode::Policy),
                ];
                block_on(engine.step(&mut batch)).expect("a step");
            }
            assert_eq!(origin.tokens(), expected, "{} {kv_dtype}", policy.preset);
            drop(origin);
            assert_eq!(branch.tokens(), expected, "{} {kv_dtype}, the branch", policy.preset);
        }
    }
}

/// What a fork shares can be shared before it, layer by layer.
#[cfg(target_os = "linux")]
#[test]
fn rows_that_are_shared_before_a_fork_say_the_same() {
    for kv_dtype in [DType::F16, DType::Q8] {
        let mut engine = engine(EngineOptions { ctx_size: 1300, kv_dtype, ..Default::default() });
        let mut origin = start(&mut engine, &clusterkv(), 1200);
        let mut n_pieces = 0;
        while block_on(engine.share_piece(&mut origin)).expect("pages") {
            n_pieces += 1;
        }
        assert_eq!(n_pieces, origin.sequence().shape().n_layers, "{kv_dtype}");
        let mut fork = block_on(engine.fork(&mut origin)).expect("a fork");
        assert!(fork.sequence().shared_host_kv_bytes() > 0, "{kv_dtype}");
        let (of_fork, of_origin) = (
            ask(&mut engine, &mut fork, &[1, 2, 3, 4]),
            ask(&mut engine, &mut origin, &[1, 2, 3, 4]),
        );
        assert!(of_fork == of_origin, "{kv_dtype}");
        // Few rows more are copied with the next fork.
        assert!(!block_on(engine.share_piece(&mut origin)).expect("pages"), "{kv_dtype}");
    }
}

#[test]
fn a_prompt_in_chunks_between_the_steps_of_others_says_the_same() {
    let mut engine = small_context(400);
    for policy in [clusterkv(), full()] {
        let expected = alone(&mut engine, &policy, 150);
        let mut other = start(&mut engine, &full(), 60);
        let (mut session, mut sampler) =
            (engine.session(&policy).expect("a session"), greedy(&engine));
        let ids = prompt(&engine, 150);
        for (i, chunk) in ids.chunks(64).enumerate() {
            let mode = SpanMode::Exact { remaining: 150 - 64 * i - chunk.len() };
            let part = SessionStep::new(&mut session, chunk, mode);
            block_on(engine.step(&mut [part])).expect("a chunk");
            let id = [sampler.next_token(&other).expect("numbers")];
            let part = SessionStep::new(&mut other, &id, SpanMode::Policy);
            block_on(engine.step(&mut [part])).expect("a step");
        }
        block_on(engine.finish_prefill(&mut session)).expect("an index");
        for _ in 0..N_STEPS {
            let id = [sampler.next_token(&session).expect("numbers")];
            let part = SessionStep::new(&mut session, &id, SpanMode::Policy);
            block_on(engine.step(&mut [part])).expect("a step");
        }
        assert_eq!(session.tokens(), expected);
    }
}
