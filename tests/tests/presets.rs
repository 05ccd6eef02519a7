//! Every preset from prompt to answer, through the engine: on the embedded model with rows in
//! place, in separate buffers and on a GPU; on a small random model on the emulated CUDA device.
//! And what policies make of a question that they know at the end of the prompt.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::{DType, SplitMix64};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda_emulation::EmulatedOptions;
use longview_engine::{Engine, EngineError, EngineOptions, GenerationParams};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::{Backend, Op};
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::backends;
use longview_tests::suite::answers::{self, Answer, Prompt};
use pollster::block_on;

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"))
}

fn load<B: Backend>(backend: Arc<B>, folder: &str, options: EngineOptions) -> Engine<B> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let folder = ModelFolder::open(&path).expect("a sound model");
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::Full)).expect("it loads")
}

/// The embedded model.
fn needle<B: Backend>(backend: Arc<B>, ctx_size: usize, simulate_device: bool) -> Engine<B> {
    let options = EngineOptions { ctx_size, simulate_device, tile_rows: 256, ..Default::default() };
    load(backend, "../models/needle", EngineOptions { chunk_size: 256, ..options })
}

fn ids<B: Backend>(engine: &Engine<B>, text: &str) -> Vec<u32> {
    let tokenizer = engine.tokenizer().expect("a tokenizer");
    tokenizer.encode(text, Specials::AsWritten).expect("text")
}

/// About 600 tokens with a fact in the middle, and the question about it.
fn prompt<B: Backend>(engine: &Engine<B>) -> Prompt {
    let filler = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    let text = filler.repeat(12)
        + "The pass key is 48213. Remember it. 48213 is the pass key. "
        + &filler.repeat(16);
    let document = [vec![0], ids(engine, &text)].concat();
    let question = ids(engine, " What is the pass key? The pass key is");
    Prompt { document, question, n_answer: 16 }
}

/// A fifth of the prompt.
const BUDGET: usize = 128;

fn ask<B: Backend>(engine: &mut Engine<B>, policy: &PolicyOptions, prompt: &Prompt) -> Answer {
    let answer = answers::ask(engine, policy, prompt);
    answer.unwrap_or_else(|e| panic!("{}: {e}", answers::name(policy)))
}

#[test]
fn answers_do_not_depend_on_where_rows_lie() {
    let (mut in_place, mut separate) = (needle(cpu(), 640, false), needle(cpu(), 640, true));
    let prompt = prompt(&in_place);
    for policy in answers::presets(BUDGET) {
        let (a, b) = (ask(&mut in_place, &policy, &prompt), ask(&mut separate, &policy, &prompt));
        assert_eq!(a.ids, b.ids, "{}", answers::name(&policy));
        assert_eq!(a.attended, b.attended, "{}", answers::name(&policy));
        assert_eq!(a.evictions, b.evictions, "{}", answers::name(&policy));
    }
}

/// One prefill serves all but H2O and InfLLM, which need their own.
#[test]
fn a_gpu_attends_as_much_as_the_cpu() {
    let Some(gpu) = backends::wgpu() else { return };
    let (mut gpu, mut cpu) = (needle(gpu, 640, false), needle(cpu(), 640, false));
    let (prompt, full) = (prompt(&cpu), PolicyOptions::new(Preset::Full));
    let mut session = gpu.session(&full).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(gpu.prefill(&mut session, &prompt.document, &mut go_on)).expect("prefill"));
    for policy in answers::presets(BUDGET) {
        let got = match policy.preset {
            Preset::H2o | Preset::Infllm => ask(&mut gpu, &policy, &prompt),
            _ => {
                session.reset_stats();
                block_on(session.set_policy(&policy)).expect("one prefill serves all others");
                let got = answers::answer(&mut gpu, &mut session, &policy, &prompt);
                block_on(session.truncate(prompt.document.len())).expect("a cut");
                got.unwrap_or_else(|e| panic!("{}: {e}", answers::name(&policy)))
            }
        };
        let want = ask(&mut cpu, &policy, &prompt);
        answers::assert_as_much(&policy, &got, &want, "on a GPU");
    }
}

/// A random model of two layers, 64 wide, and at most 64 tokens: emulated kernels take their time.
fn small<B: Backend>(backend: Arc<B>) -> Engine<B> {
    let options = EngineOptions {
        ctx_size: 64,
        chunk_size: 16,
        tile_rows: 7,
        kv_dtype: DType::F32,
        simulate_device: true,
        ..EngineOptions::default()
    };
    load(backend, "fixtures/llama-f32", options)
}

fn small_prompt() -> Prompt {
    let document = (0..41u32).map(|i| 2 + (i * i * 7 + 13 * i) % 300).collect();
    Prompt { document, question: Vec::new(), n_answer: 20 }
}

#[expect(clippy::print_stderr, reason = "a preset that did not run says so")]
fn not_run(error: &EngineError, name: &str) {
    eprintln!("NOT RUN on cuda-emulated: {name}: {error}");
}

/// What the emulated device can do it does as the CPU; what lacks a kernel says so.
#[test]
fn presets_answer_on_the_emulated_cuda_device_as_on_the_cpu() {
    let open = || backends::cuda_emulated(EmulatedOptions::default());
    let emulated = Arc::new(open().expect("the kernels are compiled as C++"));
    let missing = emulated.capabilities().missing_ops.iter().map(|(op, _)| *op);
    let missing: Vec<Op> = missing.collect();
    let (mut emulated, mut cpu, prompt) = (small(emulated), small(cpu()), small_prompt());
    let (mut left_out, mut expected) = (Vec::new(), Vec::new());
    for policy in answers::presets(28) {
        let name = answers::name(&policy);
        if answers::further_ops(&policy).iter().any(|op| missing.contains(op)) {
            expected.push(name.clone());
        }
        let got = match answers::ask(&mut emulated, &policy, &prompt) {
            Ok(answer) => answer,
            Err(error) => {
                let op = answers::missing_op(&error).unwrap_or_else(|| panic!("{name}: {error}"));
                assert!(missing.contains(&op), "{name}: {error}");
                not_run(&error, &name);
                left_out.push(name);
                continue;
            }
        };
        let want = ask(&mut cpu, &policy, &prompt);
        answers::assert_as_much(&policy, &got, &want, "on the emulated CUDA device");
        let apart = got.logits.iter().zip(&want.logits).map(|(a, b)| (a - b).abs());
        let worst = apart.fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst });
        assert!(got.logits.len() == want.logits.len() && worst <= 1e-4, "{name}: {worst}");
    }
    assert_eq!(left_out, expected, "what lacks a kernel, and nothing else, is left out");
}

/// A document of about 1,000 tokens with one fact, the question about it behind, and the answer.
struct Exam {
    prompt: String,
    answer: String,
}

impl Exam {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let mut draw = |words: &str| {
            let words: Vec<&str> = words.split_whitespace().collect();
            words[rng.below(words.len())].to_owned()
        };
        let mut sentence = || {
            let who = draw("miller baker gardener teacher sailor doctor tailor clerk porter");
            let act = draw("carried mended painted borrowed cleaned lifted polished sold moved");
            let what = draw("basket lantern ladder kettle blanket bucket ribbon bottle cushion");
            let place = draw("kitchen meadow orchard bakery library stable cellar market valley");
            let time = draw("spring summer autumn winter evening afternoon breakfast supper rain");
            format!(" The {who} {act} a {what} near the {place} after the {time}.")
        };
        let filler: Vec<String> = (0..60).map(|_| sentence()).collect();
        let name = draw("amber brisk calm dusty early fierce golden hollow ivory jolly kind lunar");
        let noun = draw("anvil candle dragon eagle feather guitar hammer island jacket marble");
        let key = format!("{name}-{noun}");
        let mut digits =
            |n: usize| -> String { (0..n).map(|_| draw("1 2 3 4 5 6 7 8 9")).collect() };
        let (fact, question, answer) = match seed % 3 {
            0 => {
                let v = digits(5);
                let fact = format!(" The pass key is {v}. Remember it. {v} is the pass key.");
                (fact, " What is the pass key? The pass key is".to_owned(), v)
            }
            1 => {
                let v = digits(7);
                let fact = format!(" One of the special magic numbers for {key} is: {v}.");
                let what = format!("special magic number for {key} mentioned in the provided text");
                (fact, format!(" What is the {what}? The {what} is"), v)
            }
            _ => {
                let v = digits(5);
                let what = "phone number of Anna";
                let fact = format!(" The {what} is {v}.");
                (fact, format!(" What is the {what}? The {what} is"), v)
            }
        };
        let at = 5 + (seed as usize * 7) % 50;
        let prompt = filler[..at].concat() + &fact + &filler[at..].concat() + &question;
        Self { prompt, answer: format!(" {answer}") }
    }
}

/// How many of the exams a policy answers, each read with its question in one prompt.
fn right_answers(engine: &mut Engine<CpuBackend>, policy: &PolicyOptions, n: u64) -> usize {
    let mut one = |seed: u64| {
        let exam = Exam::new(seed);
        let prompt = [vec![0], ids(engine, &exam.prompt)].concat();
        assert!((900..1300).contains(&prompt.len()), "{} tokens", prompt.len());
        let mut session = engine.session(policy).expect("a session");
        let mut go_on = |_| ControlFlow::Continue(());
        assert!(block_on(engine.prefill(&mut session, &prompt, &mut go_on)).expect("prefill"));
        let n = ids(engine, &exam.answer).len();
        let params = GenerationParams { max_tokens: Some(n), ..Default::default() };
        let mut go_on = |_: &str| ControlFlow::Continue(());
        let answer = block_on(engine.generate(&mut session, &params, &mut go_on)).expect("answer");
        usize::from(answer.text == exam.answer)
    };
    (0..n).map(&mut one).sum()
}

/// SnapKV as this model wants it: the last token of a question alone looks at the fact, and at its
/// first digit, so one query counts and its mass spreads over the digits.
const LAST_QUERY: &[(&str, &str)] = &[("observe", "1"), ("pool", "max"), ("pool-kernel", "15")];

/// Full attention answers all of these; a quarter of the tokens is enough where the question says
/// which.
#[test]
fn a_question_in_the_prompt_says_what_is_kept_and_recalled() {
    let mut engine = needle(cpu(), 1400, false);
    let n = 6;
    let full = right_answers(&mut engine, &PolicyOptions::new(Preset::Full), n);
    assert_eq!(full, n as usize, "full attention answers");
    for (preset, settings) in [
        (Preset::Snapkv, LAST_QUERY),
        (Preset::AdaSnapkv, LAST_QUERY),
        (Preset::Clusterkv, &[]),
        (Preset::Longview, &[]),
        (Preset::Quest, &[]),
        (Preset::Loki, &[]),
        (Preset::Infinigen, &[]),
        (Preset::Lrqk, &[]),
    ] {
        let mut policy = PolicyOptions::new(preset).with_budget(256);
        for (name, value) in settings {
            policy.set(name, value).unwrap_or_else(|e| panic!("{preset} --{name}: {e}"));
        }
        let right = right_answers(&mut engine, &policy, n);
        assert!(right + 1 >= full, "{preset} answers {right}, full attention {full}");
    }
}
