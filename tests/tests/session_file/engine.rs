//! Sessions of the embedded model: on the CPU and on a GPU, and with another model, tokenizer, rope
//! or type of rows.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::DType;
use longview_engine::{
    Engine, EngineError, EngineOptions, GenerationParams, RopeOverride, Session,
};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, SessionFileError};
use longview_tests::backends;
use longview_tests::suite::answers;
use pollster::block_on;

use super::support::cpu;

const CONTEXT: usize = 640;

fn load<B: Backend>(backend: Arc<B>, folder: &str, options: EngineOptions) -> Engine<B> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let folder = ModelFolder::open(&path).expect("a sound model");
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::Full)).expect("it loads")
}

fn options() -> EngineOptions {
    EngineOptions { ctx_size: CONTEXT, chunk_size: 256, tile_rows: 256, ..Default::default() }
}

fn needle<B: Backend>(backend: Arc<B>, options: EngineOptions) -> Engine<B> {
    load(backend, "../models/needle", options)
}

fn ids<B: Backend>(engine: &Engine<B>, text: &str) -> Vec<u32> {
    let tokenizer = engine.tokenizer().expect("a tokenizer");
    tokenizer.encode(text, Specials::AsWritten).expect("text")
}

/// A session that has read about 600 tokens with a fact in the middle.
fn read<B: Backend>(engine: &mut Engine<B>, policy: &PolicyOptions) -> Session<B> {
    let filler = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    let text = filler.repeat(12)
        + "The pass key is 48213. Remember it. 48213 is the pass key. "
        + &filler.repeat(14);
    let mut session = engine.session(policy).expect("a session");
    let document = [vec![0], ids(engine, &text)].concat();
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &document, &mut go_on)).expect("prefill"));
    session
}

fn save<B: Backend>(engine: &mut Engine<B>, session: &mut Session<B>) -> Vec<u8> {
    let mut file = Vec::new();
    block_on(engine.save(session, b"noted", &mut file)).expect("memory");
    file
}

fn open<B: Backend>(
    engine: &mut Engine<B>,
    file: &[u8],
    policy: Option<&PolicyOptions>,
) -> Result<Session<B>, EngineError> {
    let restored = block_on(engine.restore(&file, policy))?;
    assert_eq!(restored.note, b"noted");
    Ok(restored.session)
}

/// The logits behind the question, through the policy, and the answer.
fn ask<B: Backend>(engine: &mut Engine<B>, session: &mut Session<B>) -> (Vec<f32>, Vec<u32>) {
    let question = ids(engine, " What is the pass key? The pass key is");
    block_on(engine.feed(session, &question)).expect("a question");
    let logits = session.logits().to_vec();
    let params = GenerationParams { max_tokens: Some(12), ..Default::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    let answer = block_on(engine.generate(session, &params, &mut go_on)).expect("an answer");
    (logits, answer.ids)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn answers_of_an_opened_session_are_those_of_the_saved_one() {
    for simulate_device in [false, true] {
        let mut engine = needle(cpu(), EngineOptions { simulate_device, ..options() });
        for policy in answers::presets(128) {
            let name = answers::name(&policy);
            let mut session = read(&mut engine, &policy);
            let file = save(&mut engine, &mut session);
            let mut opened = open(&mut engine, &file, None).expect("a session");
            assert_eq!(opened.tokens(), session.tokens(), "{name}");
            assert_eq!(bits(opened.logits()), bits(session.logits()), "{name}");
            assert_eq!(opened.policy(), session.policy(), "{name}");
            assert_eq!(save(&mut engine, &mut opened), file, "{name}");
            let (want, answer) = ask(&mut engine, &mut session);
            let (got, opened) = ask(&mut engine, &mut opened);
            assert_eq!((bits(&got), opened), (bits(&want), answer), "{name}");
        }
    }
}

/// An answer that was broken off goes on where it was, with the token that is owed.
#[test]
fn a_session_is_saved_in_the_middle_of_an_answer() {
    let mut engine = needle(cpu(), options());
    let policy = PolicyOptions::new(Preset::Clusterkv).with_budget(128);
    let mut session = read(&mut engine, &policy);
    let params =
        |n: usize| GenerationParams { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    let begun = block_on(engine.generate(&mut session, &params(3), &mut go_on));
    assert_eq!(begun.expect("an answer").ids.len(), 3);
    let file = save(&mut engine, &mut session);
    let mut opened = open(&mut engine, &file, Some(&policy)).expect("a session");
    assert_eq!(opened.n_tokens(), session.n_tokens());
    assert_eq!(opened.n_tokens(), opened.tokens().len() + 1, "the last token is owed");
    let mut rest = |session: &mut Session<_>| {
        let mut go_on = |_: &str| ControlFlow::Continue(());
        block_on(engine.generate(session, &params(20), &mut go_on)).expect("an answer").ids
    };
    assert_eq!(rest(&mut opened), rest(&mut session));
}

#[test]
fn a_session_moves_to_a_gpu_and_back() {
    let Some(gpu) = backends::wgpu() else { return };
    let (mut gpu, mut cpu) = (needle(gpu, options()), needle(cpu(), options()));
    for policy in [
        PolicyOptions::new(Preset::Clusterkv).with_budget(128),
        PolicyOptions::new(Preset::Full),
        PolicyOptions::new(Preset::Snapkv).with_budget(256),
    ] {
        let name = answers::name(&policy);
        let mut session = read(&mut cpu, &policy);
        let file = save(&mut cpu, &mut session);
        let mut there = open(&mut gpu, &file, None).expect("a session");
        assert_eq!(save(&mut gpu, &mut there), file, "{name}: nothing changes on the way");
        let back = save(&mut gpu, &mut there);
        let mut again = open(&mut cpu, &back, None).expect("a session");
        let (want, answer) = ask(&mut cpu, &mut session);
        let (got, returned) = ask(&mut cpu, &mut again);
        assert_eq!((bits(&got), &returned), (bits(&want), &answer), "{name}");
        assert_eq!(ask(&mut gpu, &mut there).1, answer, "{name}");
        let mut read_there = read(&mut gpu, &policy);
        let file = save(&mut gpu, &mut read_there);
        let mut here = open(&mut cpu, &file, None).expect("a session");
        let wanted = ask(&mut gpu, &mut read_there).1;
        assert_eq!(ask(&mut cpu, &mut here).1, wanted, "{name}: read on the GPU");
    }
}

#[test]
fn the_same_model_has_the_same_fingerprint_wherever_it_is() {
    let one = needle(cpu(), options());
    let mut other = options();
    (other.simulate_device, other.ctx_size) = (true, 100);
    let other = needle(cpu(), other);
    assert_eq!(one.fingerprint().expect("weights"), other.fingerprint().expect("weights"));
    // Of these very files, on every machine.
    assert_eq!(one.fingerprint().expect("weights").to_string(), "297ac0aa12d235f5");
}

#[test]
fn what_a_session_was_not_made_with_is_refused_by_name() {
    let mut engine = needle(cpu(), options());
    let mut session = read(&mut engine, &PolicyOptions::new(Preset::Full));
    let file = save(&mut engine, &mut session);
    let refusal = |folder: &str, options: EngineOptions| {
        let mut engine = load(cpu(), folder, options);
        match open(&mut engine, &file, None).map(drop) {
            Err(EngineError::Session(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let parts = |error: SessionFileError| match error {
        SessionFileError::Wrong(all) => all.iter().map(|d| d.part).collect::<Vec<_>>(),
        other => panic!("{other}"),
    };
    let rope = Some(RopeOverride::Linear { factor: 2.0 });
    let linear = refusal("../models/needle", EngineOptions { rope, ..options() });
    let text = linear.to_string();
    assert!(
        text.contains("the session has theta 10,000,000,000, 64 of a head, no scaling,"),
        "{text}"
    );
    assert!(text.contains("this run theta 10,000,000,000, 64 of a head, linear 2;"), "{text}");
    assert_eq!(parts(linear), ["positions"]);
    let wide = EngineOptions { kv_dtype: DType::F32, ..options() };
    assert_eq!(parts(refusal("../models/needle", wide)), ["type of keys and values"]);
    let other = refusal("fixtures/llama-f32", EngineOptions { ctx_size: 64, ..options() });
    assert!(other.to_string().contains("Qwen2ForCausalLM, 5 layers, width 256"), "{other}");
    let all = ["model", "weights", "vocabulary", "positions", "dimensions"];
    assert_eq!(parts(other), all);
    let short = refusal("../models/needle", EngineOptions { ctx_size: 99, ..options() });
    assert!(matches!(short, SessionFileError::TooLong { capacity: 99, saved: CONTEXT, .. }));
}

/// A disk that is full after some bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => {
                self.0 = left;
                Ok(bytes.len())
            }
            None => Err(std::io::Error::other("no space left")),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_leaves_the_session_as_it_was() {
    let mut engine = needle(cpu(), options());
    let policy = PolicyOptions::new(Preset::Quest).with_budget(128);
    let mut session = read(&mut engine, &policy);
    let file = save(&mut engine, &mut session);
    for room in [0, 1000, file.len() - 20] {
        let result = block_on(engine.save(&mut session, b"noted", &mut Full(room)));
        let Err(EngineError::Session(error)) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("cannot be written (no space left)"), "{error}");
    }
    assert_eq!(save(&mut engine, &mut session), file);
}
