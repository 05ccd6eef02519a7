//! Sessions of the embedded model: segments, cancelling, stopping, limits, company.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{
    Engine, EngineError, EngineOptions, FinishReason, GenerationParams, Progress, SamplingParams,
    Session, SessionStep,
};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_scheduler::{PolicyOptions, Preset, SpanMode};
use pollster::block_on;

type Cpu = CpuBackend;

fn full() -> PolicyOptions {
    PolicyOptions::new(Preset::Full)
}

fn clusterkv() -> PolicyOptions {
    PolicyOptions::new(Preset::Clusterkv).with_budget(256)
}

fn engine(ctx_size: usize, max_sequences: usize) -> Engine<Cpu> {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    let folder = ModelFolder::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/needle"));
    let options =
        EngineOptions { ctx_size, max_sequences, chunk_size: 64, ..EngineOptions::default() };
    Engine::load(backend, folder.expect("the embedded model"), options, &full()).expect("it loads")
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
