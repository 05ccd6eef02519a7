//! Sessions of the embedded model: segments, cancelling, stopping, limits, company.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longview_core::{DType, SplitMix64};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{
    Engine, EngineError, EngineOptions, FinishReason, GenerationParams, Progress, Sampler,
    SamplingParams, Session, SessionStep,
};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::{Backend, TopK, TopKParams, View, ViewMut};
use longview_scheduler::{
    HostBytesMut, HostStoreKind, PolicyOptions, Preset, RecallMode, SpanMode,
};
use pollster::block_on;

type Cpu = CpuBackend;

fn full() -> PolicyOptions {
    PolicyOptions::new(Preset::Full)
}

fn clusterkv() -> PolicyOptions {
    PolicyOptions::new(Preset::Clusterkv).with_budget(256)
}

fn engine(ctx_size: usize, max_sequences: usize) -> Engine<Cpu> {
    let options = EngineOptions { ctx_size, max_sequences, ..EngineOptions::default() };
    load(options).expect("it loads")
}

/// With keys and values in separate device buffers.
fn device_engine(max_sequences: usize, recall: RecallMode) -> Engine<Cpu> {
    let options = EngineOptions { ctx_size: 2048, max_sequences, recall, ..on_device() };
    load(options).expect("it loads")
}

fn on_device() -> EngineOptions {
    EngineOptions { simulate_device: true, ..EngineOptions::default() }
}

fn load(options: EngineOptions) -> Result<Engine<Cpu>, EngineError> {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    let folder = ModelFolder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/needle"));
    let options = EngineOptions { chunk_size: 64, ..options };
    Engine::load(backend, folder.expect("the embedded model"), options, &full())
}

fn ids(engine: &Engine<Cpu>, text: &str) -> Vec<u32> {
    let tokenizer = engine.tokenizer().expect("a tokenizer");
    let mut ids = vec![0];
    ids.extend(tokenizer.encode(text, Specials::AsWritten).expect("text"));
    ids
}

fn document(engine: &Engine<Cpu>) -> Vec<u32> {
    let filler = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    ids(
        engine,
        &(filler.repeat(20)
            + "The pass key is 48213. Remember it. 48213 is the pass key. "
            + &filler.repeat(20)),
    )
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn prefill(engine: &mut Engine<Cpu>, session: &mut Session<Cpu>, ids: &[u32]) {
    assert!(block_on(engine.prefill(session, ids, &mut go_on)).expect("prefill"));
}

fn generate(
    engine: &mut Engine<Cpu>,
    session: &mut Session<Cpu>,
    params: &GenerationParams,
) -> (Vec<u32>, String, FinishReason) {
    let mut streamed = String::new();
    let mut on_text = |text: &str| {
        streamed.push_str(text);
        ControlFlow::Continue(())
    };
    let answer = block_on(engine.generate(session, params, &mut on_text)).expect("an answer");
    assert_eq!(streamed, answer.text, "what was streamed is the text");
    (answer.ids, answer.text, answer.finish_reason)
}

fn most(n: usize) -> GenerationParams {
    GenerationParams { max_tokens: Some(n), ..GenerationParams::default() }
}

fn near(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty(), "no logits");
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "logits differ by {worst}");
}

const QUESTION: &str = " What is the pass key? The pass key is";

#[test]
fn a_fact_is_found_in_the_document() {
    let mut engine = engine(2048, 1);
    for policy in [full(), clusterkv()] {
        let mut session = engine.session(&policy).unwrap();
        let document = document(&engine);
        prefill(&mut engine, &mut session, &document);
        let question = &ids(&engine, QUESTION)[1..];
        block_on(engine.feed(&mut session, question)).unwrap();
        let (_, text, _) = generate(&mut engine, &mut session, &most(6));
        assert!(text.starts_with(" 48213"), "{}: '{text}'", policy.preset);
    }
}

#[test]
fn a_prompt_in_segments_after_answers_equals_one_prompt() {
    let mut engine = engine(2048, 1);
    let document = document(&engine);
    let mut session = engine.session(&full()).unwrap();
    prefill(&mut engine, &mut session, &document[..300]);
    let (answer, _, _) = generate(&mut engine, &mut session, &most(7));
    // The last generated token is owed: it goes first in the next segment.
    prefill(&mut engine, &mut session, &document[300..400]);
    let mut whole = engine.session(&full()).unwrap();
    let all: Vec<u32> =
        document[..300].iter().chain(&answer).chain(&document[300..400]).copied().collect();
    prefill(&mut engine, &mut whole, &all);
    assert_eq!(session.tokens(), whole.tokens());
    near(session.logits(), whole.logits(), 2e-2);
}

#[test]
fn tokens_fed_one_by_one_equal_a_prefill_under_full_attention() {
    let mut engine = engine(1024, 1);
    let document = document(&engine);
    let (mut one, mut two) = (engine.session(&full()).unwrap(), engine.session(&full()).unwrap());
    prefill(&mut engine, &mut one, &document[..240]);
    prefill(&mut engine, &mut two, &document[..200]);
    block_on(engine.feed(&mut two, &document[200..240])).unwrap();
    near(one.logits(), two.logits(), 2e-2);
}

#[test]
fn a_prefill_that_is_broken_off_keeps_its_chunks_and_goes_on_as_if_nothing_had_happened() {
    let mut engine = engine(2048, 1);
    let document = document(&engine);
    for policy in [full(), clusterkv()] {
        let mut whole = engine.session(&policy).unwrap();
        prefill(&mut engine, &mut whole, &document);
        let mut session = engine.session(&policy).unwrap();
        let mut stop = |p: Progress| {
            if p.done >= 192 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(!block_on(engine.prefill(&mut session, &document, &mut stop)).unwrap());
        assert_eq!(session.tokens(), &document[..192]);
        prefill(&mut engine, &mut session, &document[192..]);
        near(session.logits(), whole.logits(), 2e-2);
    }
}

#[test]
fn cancelling_in_the_middle_of_a_step_undoes_the_step_alone() {
    let mut engine = engine(2048, 1);
    let document = document(&engine);
    for policy in [full(), clusterkv()] {
        let mut session = engine.session(&policy).unwrap();
        let token = session.cancel_token();
        let mut cancel_after_two = |p: Progress| {
            if p.done >= 128 {
                token.cancel();
            }
            ControlFlow::Continue(())
        };
        assert!(!block_on(engine.prefill(&mut session, &document, &mut cancel_after_two)).unwrap());
        assert_eq!(session.tokens(), &document[..128]);
        session.cancel_token().reset();
        prefill(&mut engine, &mut session, &document[128..]);
        let mut whole = engine.session(&policy).unwrap();
        prefill(&mut engine, &mut whole, &document);
        near(session.logits(), whole.logits(), 2e-2);
        session.cancel_token().cancel();
        let (ids, _, reason) = generate(&mut engine, &mut session, &most(10));
        // The first token needs no step; the second does.
        assert_eq!((ids.len(), reason), (1, FinishReason::Cancelled));
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_numbers_and_nothing_is_computed() {
    let mut engine = engine(100, 1);
    let mut session = engine.session(&full()).unwrap();
    let document = document(&engine);
    prefill(&mut engine, &mut session, &document[..30]);
    let error = block_on(engine.prefill(&mut session, &document[..71], &mut go_on)).unwrap_err();
    assert!(matches!(error, EngineError::PromptTooLong { prompt: 71, used: 30, context: 100 }));
    assert!(
        error.to_string().contains("71 tokens and 30 are in use, but the context holds 100"),
        "{error}"
    );
    assert_eq!(session.tokens().len(), 30);
    prefill(&mut engine, &mut session, &document[..70]);
    let empty = block_on(engine.prefill(&mut session, &[], &mut go_on)).unwrap_err();
    assert!(matches!(empty, EngineError::EmptyPrompt));
}

#[test]
fn generation_ends_for_the_reason_it_says() {
    let mut engine = engine(1400, 1);
    let mut document = document(&engine);
    document.extend(&ids(&engine, QUESTION)[1..]);
    let mut session = engine.session(&full()).unwrap();
    prefill(&mut engine, &mut session, &document);
    let n = session.n_tokens();
    let mut ask = |params: &GenerationParams| {
        block_on(session.truncate(n - 1)).unwrap();
        prefill(&mut engine, &mut session, &document[n - 1..]);
        generate(&mut engine, &mut session, params)
    };
    let (tokens, text, reason) = ask(&most(6));
    assert_eq!((tokens.len(), reason), (6, FinishReason::Length));
    assert!(text.starts_with(" 48213"), "{text}");
    // "21" spans two tokens of single digits.
    let stop = GenerationParams { stop: vec!["21".into()], ..most(20) };
    let (_, text, reason) = ask(&stop);
    assert_eq!((text.as_str(), reason), (" 48", FinishReason::Stop("21".into())));
    let (none, _, reason) = ask(&most(0));
    assert_eq!((none.len(), reason), (0, FinishReason::Length));
    let endless = GenerationParams { ignore_eos: true, ..GenerationParams::default() };
    let (tokens, _, reason) = ask(&endless);
    assert_eq!(reason, FinishReason::ContextFull);
    assert_eq!(
        n + tokens.len(),
        1400 + 1,
        "the context is used to the last token, one more is known"
    );
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let mut engine = engine(2048, 1);
    let document = document(&engine);
    let mut draw = |seed| {
        let mut session = engine.session(&clusterkv()).unwrap();
        prefill(&mut engine, &mut session, &document);
        let sampling =
            SamplingParams { temperature: 1.0, top_k: 50, seed, ..SamplingParams::default() };
        generate(&mut engine, &mut session, &GenerationParams { sampling, ..most(40) }).0
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

/// Draws among the most likely tokens.
fn sampling(top_k: usize, temperature: f32, top_p: f32, min_p: f32) -> SamplingParams {
    SamplingParams { temperature, top_k, top_p, min_p, seed: 5, ..SamplingParams::default() }
}

/// The k largest logits and their tokens, from the device.
fn candidates(backend: &Cpu, logits: &[f32], k: usize) -> (Vec<f32>, Vec<u32>) {
    let alloc = |dtype, len| backend.alloc(dtype, len, "test").expect("memory");
    let mut x = alloc(DType::F32, logits.len());
    backend.write(ViewMut::all(&mut x), bytemuck::cast_slice(logits)).expect("a copy");
    let (mut top, mut top_ids) = (alloc(DType::F32, k), alloc(DType::U32, k));
    let p = TopKParams { n_rows: 1, width: logits.len() as u32, k: k as u32 };
    let (x, values) = (View::all(&x), ViewMut::all(&mut top));
    backend.top_k(TopK { p, x, values, ids: ViewMut::all(&mut top_ids) }).expect("k is in range");
    let (mut values, mut ids) = (vec![0.0f32; k], vec![0u32; k]);
    block_on(backend.read(View::all(&top), bytemuck::cast_slice_mut(&mut values))).expect("a copy");
    block_on(backend.read(View::all(&top_ids), bytemuck::cast_slice_mut(&mut ids)))
        .expect("a copy");
    (values, ids)
}

#[test]
fn a_sampler_draws_the_same_from_candidates_as_from_all_logits() {
    let backend = Cpu::new(CpuOptions::default()).expect("a processor");
    let mut rng = SplitMix64::new(3);
    for params in [
        sampling(1, 1.0, 1.0, 0.0),
        sampling(40, 0.8, 1.0, 0.0),
        sampling(40, 1.7, 0.9, 0.0),
        sampling(256, 1.2, 0.95, 0.05),
        sampling(7, 0.3, 1.0, 0.2),
    ] {
        let mut of_all = Sampler::new(params, 3000).expect("sound parameters");
        let mut of_few = Sampler::new(params, 3000).expect("sound parameters");
        for round in 0..300 {
            // Every other time with many equals, zeros of both signs, and less than k numbers.
            let logit = |_| match (round % 3, rng.below(9)) {
                (0, _) => 3.0 * rng.next_normal(),
                (1, n) => [0.0, -0.0, 0.25, -1.0][n % 4],
                (_, 0) if rng.below(30) == 0 => 1.0,
                _ => f32::NEG_INFINITY,
            };
            let logits: Vec<f32> = (0..3000).map(logit).chain([0.5]).collect();
            let (values, ids) = candidates(&backend, &logits, params.top_k);
            let expected = of_all.sample(&logits, &[]).expect("numbers");
            assert_eq!(of_few.sample_candidates(&values, &ids).expect("numbers"), expected);
        }
    }
}

#[test]
fn candidates_show_what_is_not_a_number() {
    let backend = Cpu::new(CpuOptions::default()).expect("a processor");
    let mut sampler = Sampler::new(sampling(2, 1.0, 1.0, 0.0), 1000).expect("sound parameters");
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        let mut logits = vec![1e30f32; 1000];
        logits[777] = bad;
        let (values, ids) = candidates(&backend, &logits, 2);
        let error = sampler.sample_candidates(&values, &ids).unwrap_err();
        assert!(matches!(error, EngineError::NonFinite { token: 777, .. }), "{error}");
    }
}

/// Whether [`Unreadable`] is.
static IS_UNREADABLE: AtomicBool = AtomicBool::new(false);

/// Host memory whose rows may turn into what is no number.
struct Unreadable(Vec<u8>);

impl HostBytesMut for Unreadable {
    fn read(&self, at: usize, out: &mut [u8]) {
        self.0.read(at, out);
        if IS_UNREADABLE.load(Ordering::SeqCst) {
            // All bits set are no number in any floating-point format.
            out.fill(0xff);
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        HostBytesMut::write(&mut self.0, at, bytes);
    }

    fn fork(&self, _: &[std::ops::Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        None
    }
}

/// The device reads the best token's index alone.
#[test]
fn a_greedy_step_that_computes_no_numbers_is_an_error() {
    let open = |len| Some(Box::new(Unreadable(vec![0; len])) as Box<dyn HostBytesMut>);
    let options = EngineOptions { host_store: HostStoreKind::Elsewhere(open), ..on_device() };
    let mut engine = load(EngineOptions { ctx_size: 2048, ..options }).expect("it loads");
    let document = document(&engine);
    let mut session = engine.session(&clusterkv()).unwrap();
    prefill(&mut engine, &mut session, &document);
    let mut greedy = Sampler::new(SamplingParams::default(), 2048).expect("sound parameters");
    let mut step = |engine: &mut Engine<Cpu>, session: &mut Session<Cpu>, token: u32| {
        let ids = [token];
        let step = SessionStep::new(session, &ids, SpanMode::Policy).for_sampler(&greedy);
        block_on(engine.step(&mut [step])).expect("a step");
        greedy.next_token(session)
    };
    let token = step(&mut engine, &mut session, 5).expect("numbers");
    IS_UNREADABLE.store(true, Ordering::SeqCst);
    let failed = step(&mut engine, &mut session, token);
    IS_UNREADABLE.store(false, Ordering::SeqCst);
    assert!(matches!(failed, Err(EngineError::NonFinite { .. })), "{failed:?}");
    let mut file = Vec::new();
    block_on(engine.save(&mut session, b"", &mut file)).expect("memory");
    let opened = block_on(engine.restore(&file.as_slice(), None)).expect("it opens").session;
    let failed = greedy.next_token(&opened);
    assert!(matches!(failed, Err(EngineError::NonFinite { .. })), "{failed:?}");
}

#[test]
fn generation_from_candidates_equals_sampling_from_all_logits() {
    let params = sampling(40, 0.8, 0.95, 0.0);
    let always_again = RecallMode::Speculative { gate: 2.0 };
    for mut engine in [engine(2048, 1), device_engine(1, always_again)] {
        let document = document(&engine);
        let mut start = || {
            let mut session = engine.session(&clusterkv()).unwrap();
            prefill(&mut engine, &mut session, &document);
            session
        };
        let (mut session, mut other) = (start(), start());
        let params = GenerationParams { sampling: params, ignore_eos: true, ..most(60) };
        let (answer, _, _) = generate(&mut engine, &mut session, &params);
        assert!(session.logits().is_empty(), "no step kept its logits");

        let mut sampler = Sampler::new(params.sampling, 2048).expect("sound parameters");
        let mut expected = Vec::new();
        for _ in 0..60 {
            let id = sampler.sample(other.logits(), other.tokens()).expect("numbers");
            expected.push(id);
            let ids = [id];
            let part = SessionStep::new(&mut other, &ids, SpanMode::Policy);
            block_on(engine.step(&mut [part])).unwrap();
        }
        assert_eq!(answer, expected);
    }
}

#[test]
fn each_session_of_a_step_gets_what_its_sampler_needs() {
    let mut engine = engine(1024, 3);
    let document = document(&engine);
    let params =
        [sampling(0, 1.0, 0.9, 0.0), sampling(9, 1.0, 1.0, 0.0), sampling(0, 0.0, 1.0, 0.0)];
    let make = |engine: &mut Engine<Cpu>| {
        let samplers = params.map(|p| Sampler::new(p, 2048).expect("sound parameters"));
        let sessions = [200, 90, 300].map(|n| {
            let mut session = engine.session(&full()).unwrap();
            prefill(engine, &mut session, &document[..n]);
            session
        });
        (samplers, sessions)
    };
    let (mut samplers, mut sessions) = make(&mut engine);
    let (mut other_samplers, mut others) = make(&mut engine);
    for _ in 0..10 {
        let ids = [0, 1, 2].map(|i| [samplers[i].next_token(&sessions[i]).expect("numbers")]);
        let expected = [0, 1, 2]
            .map(|i| [other_samplers[i].sample(others[i].logits(), &[]).expect("numbers")]);
        assert_eq!(ids, expected);
        let parts = sessions.iter_mut().zip(&ids).zip(&samplers);
        let mut batch: Vec<_> = parts
            .map(|((s, ids), p)| SessionStep::new(s, ids, SpanMode::Policy).for_sampler(p))
            .collect();
        block_on(engine.step(&mut batch)).unwrap();
        let parts = others.iter_mut().zip(&ids);
        let mut batch: Vec<_> =
            parts.map(|(s, ids)| SessionStep::new(s, ids, SpanMode::Policy)).collect();
        block_on(engine.step(&mut batch)).unwrap();
    }
}

#[test]
fn sessions_of_unequal_length_step_together() {
    let mut engine = engine(2048, 3);
    let document = document(&engine);
    let policies = [clusterkv(), full(), PolicyOptions::new(Preset::StreamingLlm).with_budget(128)];
    let lengths = [700, 90, 300];
    let make = |engine: &mut Engine<Cpu>| {
        let sessions = policies.iter().zip(lengths).map(|(policy, n)| {
            let mut session = engine.session(policy).unwrap();
            prefill(engine, &mut session, &document[..n]);
            session
        });
        sessions.collect::<Vec<_>>()
    };
    let (mut alone, mut together) = (make(&mut engine), make(&mut engine));
    for i in 0..5usize {
        let ids: Vec<[u32; 1]> = lengths.iter().map(|n| [document[n + i]]).collect();
        for (session, id) in alone.iter_mut().zip(&ids) {
            block_on(engine.step(&mut [SessionStep::new(session, id, SpanMode::Policy)])).unwrap();
        }
        let mut batch: Vec<_> = together
            .iter_mut()
            .zip(&ids)
            .map(|(session, id)| SessionStep::new(session, id, SpanMode::Policy))
            .collect();
        block_on(engine.step(&mut batch)).unwrap();
        for (a, b) in alone.iter().zip(&together) {
            near(a.logits(), b.logits(), 1e-3);
        }
    }
}

#[test]
fn memory_is_planned_and_refused_before_loading() {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/needle");
    let options = EngineOptions { ctx_size: 1 << 29, ..EngineOptions::default() };
    let loaded = Engine::load(backend, ModelFolder::open(&path).unwrap(), options, &full());
    let message = loaded.err().expect("half a billion tokens do not fit").to_string();
    assert!(
        message.starts_with("not enough memory") && message.contains("--ctx-size"),
        "{message}"
    );
}

/// Logits of the question and tokens of the answer, in full precision, with the session.
fn question_and_answer(engine: &mut Engine<Cpu>) -> (Vec<Vec<f32>>, Vec<u32>, Session<Cpu>) {
    let mut session = engine.session(&clusterkv()).unwrap();
    let document = document(engine);
    prefill(engine, &mut session, &document);
    let question = ids(engine, QUESTION);
    let mut logits = Vec::new();
    for id in &question[1..] {
        block_on(engine.feed(&mut session, &[*id])).unwrap();
        logits.push(session.logits().to_vec());
    }
    let params = GenerationParams { ignore_eos: true, ..most(40) };
    let (answer, text, _) = generate(engine, &mut session, &params);
    assert!(text.starts_with(" 48213"), "{text}");
    (logits, answer, session)
}

#[test]
fn speculation_that_is_always_repeated_equals_exact_recall_to_the_bit() {
    let (logits, answer, session) = question_and_answer(&mut device_engine(1, RecallMode::Exact));
    assert_eq!(session.stats().speculated_steps, 0);
    let mut engine = device_engine(1, RecallMode::Speculative { gate: 2.0 });
    let (again, again_answer, session) = question_and_answer(&mut engine);
    assert!(logits == again, "other logits");
    assert_eq!(answer, again_answer);
    let stats = session.stats();
    assert!(stats.speculated_steps > 40, "{stats:?}");
    assert_eq!(stats.repeated_steps, stats.speculated_steps);
}

#[test]
fn speculation_waits_for_the_device_once_a_token() {
    for gate in [-1.0, 2.0] {
        let mut engine = device_engine(1, RecallMode::Speculative { gate });
        // Every layer that chooses waits, and the logits are one more read.
        let exact = engine.model().config().n_layers as u64 + 1;
        let reads_of_step = if gate > 1.0 { 1 + exact } else { 1 };
        let mut session = engine.session(&clusterkv()).unwrap();
        let document = document(&engine);
        prefill(&mut engine, &mut session, &document);
        for (i, id) in document.iter().take(30).enumerate() {
            let (reads, before) = (engine.backend().readbacks(), session.stats().clone());
            let ids = [*id];
            let part = SessionStep::new(&mut session, &ids, SpanMode::Policy);
            block_on(engine.step(&mut [part])).unwrap();
            let reads = engine.backend().readbacks() - reads;
            if session.stats().speculated_steps > before.speculated_steps {
                assert_eq!(reads, reads_of_step, "gate {gate}, step {i}");
            } else {
                assert_eq!((i, reads), (0, exact), "gate {gate}");
            }
        }
        let repeated = if gate > 1.0 { 29 } else { 0 };
        let stats = session.stats();
        assert_eq!((stats.steps, stats.repeated_steps), (30, repeated), "{stats:?}");
        assert_eq!(session.tokens().len(), document.len() + 30);
    }
}

#[test]
fn a_session_that_is_repeated_leaves_its_company_alone() {
    let mut engine = device_engine(2, RecallMode::Speculative { gate: 2.0 });
    let document = document(&engine);
    let make = |engine: &mut Engine<Cpu>| {
        [(clusterkv(), 700), (full(), 90)].map(|(policy, n)| {
            let mut session = engine.session(&policy).unwrap();
            prefill(engine, &mut session, &document[..n]);
            session
        })
    };
    let (mut alone, mut together) = (make(&mut engine), make(&mut engine));
    for i in 0..5 {
        let ids = [[document[700 + i]], [document[90 + i]]];
        for (session, id) in alone.iter_mut().zip(&ids) {
            block_on(engine.step(&mut [SessionStep::new(session, id, SpanMode::Policy)])).unwrap();
        }
        let [a, b] = &mut together;
        let mut batch = [
            SessionStep::new(a, &ids[0], SpanMode::Policy),
            SessionStep::new(b, &ids[1], SpanMode::Policy),
        ];
        block_on(engine.step(&mut batch)).unwrap();
        for (a, b) in alone.iter().zip(&together) {
            near(a.logits(), b.logits(), 1e-3);
            assert_eq!(a.tokens(), b.tokens());
        }
    }
    let repeated = together.each_ref().map(|session| session.stats().repeated_steps);
    assert_eq!(repeated, [4, 0]);
}

#[test]
fn a_speculative_step_that_is_cancelled_undoes_its_token() {
    let mut engine = device_engine(1, RecallMode::Speculative { gate: 2.0 });
    let document = document(&engine);
    let mut session = engine.session(&clusterkv()).unwrap();
    prefill(&mut engine, &mut session, &document);
    block_on(engine.feed(&mut session, &document[..3])).unwrap();
    session.cancel_token().cancel();
    assert!(block_on(engine.feed(&mut session, &document[3..4])).is_err());
    session.cancel_token().reset();
    assert_eq!(session.tokens().len(), document.len() + 3);
    block_on(engine.feed(&mut session, &document[3..6])).unwrap();
    let mut exact = device_engine(1, RecallMode::Exact);
    let mut other = exact.session(&clusterkv()).unwrap();
    prefill(&mut exact, &mut other, &document);
    block_on(exact.feed(&mut other, &document[..6])).unwrap();
    assert!(session.logits() == other.logits(), "other logits");
}

#[test]
fn speculation_where_nothing_is_fetched_is_refused_before_loading() {
    let recall = RecallMode::Speculative { gate: RecallMode::DEFAULT_GATE };
    let in_place = load(EngineOptions { recall, ..EngineOptions::default() });
    let message = in_place.err().expect("rows are attended in place").to_string();
    assert!(
        message.contains("use --recall exact, or a device with memory of its own"),
        "{message}"
    );
    let recall = RecallMode::Speculative { gate: f32::NAN };
    let message = load(EngineOptions { recall, ..on_device() }).err().expect("no number");
    assert!(message.to_string().starts_with("--recall-gate NaN"), "{message}");
}
