//! Drafted tokens: whatever is drafted, a session has the tokens and the logits that decoding one
//! by one gives, to the bit, under every policy that can take a token back; the others refuse.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::{DType, LayerId, SplitMix64};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda_emulation::EmulatedOptions;
use longview_engine::{
    Draft, Engine, EngineOptions, FinishReason, GenerationParams, MAX_DRAFTED, SamplingParams,
    Session, SessionStep,
};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::Backend;
use longview_scheduler::{
    HostStoreKind, Policy, PolicyOptions, Preset, RecallMode, SchedulerError, SequenceOptions,
    SpanMode,
};
use longview_tests::backends;
use longview_tests::sim::{Sim, small_shape, token_data};
use longview_tests::suite::answers;
use pollster::block_on;

type Cpu = CpuBackend;

const NEEDLE: &str = "../models/needle";
const GQA: &str = "fixtures/llama3-gqa";

fn cpu() -> Arc<Cpu> {
    Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"))
}

fn load<B: Backend>(backend: Arc<B>, folder: &str, options: EngineOptions) -> Engine<B> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let folder = ModelFolder::open(&path).expect("a sound model");
    let options = EngineOptions { max_drafted: MAX_DRAFTED, ..options };
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::Full)).expect("it loads")
}

fn small(options: EngineOptions) -> Engine<Cpu> {
    load(cpu(), GQA, EngineOptions { ctx_size: 256, chunk_size: 64, ..options })
}

fn read<B: Backend>(engine: &mut Engine<B>, policy: &PolicyOptions, n: usize) -> Session<B> {
    let n_vocab = engine.model().config().vocab_size as u32;
    let ids: Vec<u32> = (0..n as u32).map(|i| (i * i * 7 + 31 * i) % n_vocab).collect();
    let mut session = engine.session(policy).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &ids, &mut go_on)).expect("prefill"));
    session
}

fn step<B: Backend>(engine: &mut Engine<B>, session: &mut Session<B>, ids: &[u32]) {
    let part = SessionStep::new(session, ids, SpanMode::Policy);
    block_on(engine.step(&mut [part])).expect("a step");
}

/// Tokens that nobody chose, so that attention moves about, and the logits behind each when they
/// are decoded one by one.
fn one_by_one<B: Backend>(
    engine: &mut Engine<B>,
    policy: &PolicyOptions,
    (n_read, n): (usize, usize),
) -> (Vec<u32>, Vec<Vec<f32>>) {
    let n_vocab = engine.model().config().vocab_size;
    let mut random = SplitMix64::new(11);
    let ids: Vec<u32> = (0..n).map(|_| random.below(n_vocab) as u32).collect();
    let mut session = read(engine, policy, n_read);
    let mut logits = Vec::new();
    for id in &ids {
        step(engine, &mut session, &[*id]);
        logits.push(session.logits().to_vec());
    }
    (ids, logits)
}

/// What became of drafts.
#[derive(Debug, Default)]
struct Counts {
    steps: u64,
    drafted: u64,
    accepted: u64,
    longest: usize,
}

/// Decodes `ids` with drafts of all lengths of which about one token in five is wrong.
fn with_drafts<B: Backend>(
    engine: &mut Engine<B>,
    policy: &PolicyOptions,
    n_read: usize,
    (ids, want): &(Vec<u32>, Vec<Vec<f32>>),
    what: &str,
) -> Counts {
    let mut session = read(engine, policy, n_read);
    let n_vocab = engine.model().config().vocab_size;
    let mut random = SplitMix64::new(5);
    let mut counts = Counts::default();
    for (i, want) in want.iter().enumerate() {
        let len = 1 + random.below(1 + MAX_DRAFTED);
        let mut part = ids[i..ids.len().min(i + len)].to_vec();
        for id in &mut part[1..] {
            if random.below(5) == 0 {
                *id = random.below(n_vocab) as u32;
            }
        }
        let before = session.timings();
        step(engine, &mut session, &part);
        let after = session.timings();
        let drafted = (after.drafted_tokens - before.drafted_tokens) as usize;
        counts.longest = counts.longest.max(drafted);
        counts.steps += u64::from(after.accepted_tokens == before.accepted_tokens);
        assert_eq!(session.tokens().len(), n_read + i + 1, "{what}");
        let same =
            session.logits().iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits()));
        assert!(same, "{what}: other logits behind token {i} of the answer");
    }
    assert_eq!(session.tokens()[n_read..], *ids, "{what}");
    counts.drafted = session.timings().drafted_tokens;
    counts.accepted = session.timings().accepted_tokens;
    counts
}

fn can_draft<B: Backend>(engine: &mut Engine<B>, policy: &PolicyOptions) -> bool {
    engine.session(policy).expect("a session").check_draft().is_ok()
}

/// Policies that can take a token back, with windows that fill and become clusters meanwhile: each
/// with the small windows of the tests of presets, and with longer ones.
fn policies() -> Vec<PolicyOptions> {
    let mut all = answers::presets(48);
    for policy in answers::presets(64) {
        let mut longer = policy;
        if longer.window.is_some() {
            longer.window = Some(16);
        }
        all.push(longer);
    }
    let set = |preset: Preset, name: &str, value: &str| {
        let mut policy = PolicyOptions::new(preset).with_budget(48);
        (policy.window, policy.recent) = (Some(12), Some(8));
        policy.set(name, value).expect("an option");
        policy
    };
    all.push(set(Preset::Infinigen, "layer-prefetch", "false"));
    all.push(set(Preset::Clusterkv, "residual", "sample:4"));
    all.push(set(Preset::Longview, "residual", "groups"));
    let mut mass = set(Preset::Loki, "budget-mode", "mass");
    mass.set("mass", "0.5").expect("an option");
    all.push(mass);
    all.push(set(Preset::Ktransformers, "attend", "device"));
    all
}

#[test]
fn drafts_change_no_bit_where_rows_lie_in_place_or_apart_or_in_8_bits() {
    let base = EngineOptions::default();
    let apart = EngineOptions { simulate_device: true, ..base };
    let layouts = [
        ("in place", base.clone()),
        ("apart", apart.clone()),
        ("in a plain store", EngineOptions { host_store: HostStoreKind::Plain, ..apart.clone() }),
        ("8 bits in place", EngineOptions { kv_dtype: DType::Q8, ..base }),
        ("8 bits apart", EngineOptions { kv_dtype: DType::Q8, ..apart }),
    ];
    for (layout, options) in layouts {
        let mut engine = small(options);
        let (mut tried, mut longest) = (0, 0);
        for policy in policies() {
            if !can_draft(&mut engine, &policy) {
                continue;
            }
            let what = format!("{} {layout}", answers::name(&policy));
            let want = one_by_one(&mut engine, &policy, (100, 120));
            let counts = with_drafts(&mut engine, &policy, 100, &want, &what);
            assert!(counts.accepted > 20 && counts.drafted > counts.accepted, "{what}: {counts:?}");
            assert_eq!(counts.steps + counts.accepted, 120, "{what}");
            (tried, longest) = (tried + 1, longest.max(counts.longest));
        }
        assert!(tried >= 20 && longest == MAX_DRAFTED, "{layout}: {tried}, {longest}");
    }
}

/// Layers that see a window alone, as the model was trained.
#[test]
fn drafts_change_no_bit_in_layers_with_windows() {
    for simulate_device in [false, true] {
        let options = EngineOptions { ctx_size: 256, chunk_size: 64, ..EngineOptions::default() };
        let options = EngineOptions { simulate_device, ..options };
        let mut engine = load(cpu(), "fixtures/gemma3-windows", options);
        for preset in [Preset::Full, Preset::Clusterkv, Preset::StreamingLlm] {
            let policy = PolicyOptions::new(preset).with_budget(48);
            let want = one_by_one(&mut engine, &policy, (90, 100));
            let what = format!("{preset}, {simulate_device}");
            let counts = with_drafts(&mut engine, &policy, 90, &want, &what);
            assert_eq!(counts.longest, MAX_DRAFTED, "{what}");
        }
    }
}

/// Where everything is attended up to some length, layers are indexed when it is reached: the
/// attention of each token is that of a token alone.
#[test]
fn drafts_change_no_bit_where_attention_to_everything_ends() {
    const FIRST: usize = 200;
    const STEPS: usize = 80;
    let backend = cpu();
    let shape = small_shape(400);
    let options = SequenceOptions { chunk: 64, tile: 64, ..SequenceOptions::default() };
    let given = PolicyOptions::new(Preset::Longview).with_budget(96);
    let policy = Policy { attend_all: 240, ..Policy::resolve(&given, 400).expect("a policy") };
    let begin = || {
        let full = PolicyOptions::new(Preset::Full);
        let mut sim = Sim::new(&backend, shape.clone(), &full, options).expect("memory");
        sim.prefill(3, FIRST);
        block_on(sim.sequence.set_policy(policy.clone())).expect("another policy");
        sim
    };
    let mut plain = begin();
    let want: Vec<_> = (0..STEPS)
        .map(|_| {
            plain.decode(3);
            plain.out.clone()
        })
        .collect();
    let (mut sim, mut random, mut longest) = (begin(), SplitMix64::new(8), 0);
    while sim.n_tokens() < FIRST + STEPS {
        let first = sim.n_tokens();
        let drafted = sim.sequence.most_drafted(random.below(1 + MAX_DRAFTED));
        let right = random.below(1 + drafted);
        longest = longest.max(drafted);
        let data = |layer: LayerId| {
            let token = |i: usize| {
                let seed = if i > right { 4 } else { 3 };
                token_data(&shape, seed, layer, first + i)
            };
            (0..1 + drafted).map(token).collect()
        };
        sim.step_with(1 + drafted, SpanMode::Policy, &data).expect("a step");
        for (layer, out) in sim.out.iter().enumerate() {
            let rows = out.chunks_exact(out.len() / (1 + drafted)).take(1 + right);
            for (i, row) in rows.enumerate().filter(|(i, _)| first + i < FIRST + STEPS) {
                assert_eq!(row, want[first + i - FIRST][layer], "token {}", first + i);
            }
        }
        assert_eq!((sim.n_tokens(), sim.sequence.n_drafted()), (first + 1, drafted));
        (0..right).for_each(|_| sim.sequence.accept_drafted());
        sim.sequence.drop_drafted().expect("a cut");
        assert_eq!((sim.n_tokens(), sim.sequence.n_drafted()), (first + 1 + right, 0));
        let positions = &sim.sequence.layers()[1].positions[0];
        assert_eq!(positions.len(), sim.n_tokens());
    }
    assert_eq!(longest, MAX_DRAFTED);
    let indexed = sim.sequence.layers().iter().all(|layer| layer.n_indexed > 100);
    assert!(indexed, "both layers were indexed on the way");
}

#[test]
fn policies_that_cannot_take_a_token_back_refuse_by_name() {
    let mut engine = small(EngineOptions::default());
    let mut refused = Vec::new();
    for (preset, name) in Preset::ALL {
        let policy = PolicyOptions::new(*preset).with_budget(96);
        let mut session = read(&mut engine, &policy, 60);
        let params = GenerationParams {
            max_tokens: Some(2),
            draft: Draft::Lookup,
            ..GenerationParams::default()
        };
        let mut go_on = |_: &str| ControlFlow::Continue(());
        let before = session.n_tokens();
        if let Err(error) = block_on(engine.generate(&mut session, &params, &mut go_on)) {
            let words = error.to_string();
            assert!(words.contains(&format!("--policy {name} ")), "{words}");
            assert!(words.contains("--draft lookup") && words.contains("--draft off"), "{words}");
            assert_eq!(session.n_tokens(), before, "nothing was generated");
            refused.push(*name);
        }
    }
    let evict = ["snapkv", "pyramidkv", "ada-snapkv", "ada-pyramid", "h2o"];
    assert_eq!(refused, [&["infllm", "infinigen"][..], &evict].concat());

    let refuse = |preset: Preset, name: &str, value: &str| {
        let mut policy = PolicyOptions::new(preset).with_budget(96);
        policy.set(name, value).expect("an option");
        let error = engine.session(&policy).expect("a session").check_draft().expect_err(name);
        error.to_string()
    };
    let words = refuse(Preset::Clusterkv, "attention-bound", "worst-case");
    assert!(words.contains("--policy clusterkv as given counts the bounds"), "{words}");
    let words = refuse(Preset::Lrqk, "lrqk-decode", "adaptive");
    assert!(words.contains("--policy lrqk as given fits its factors"), "{words}");
    let words = refuse(Preset::Ktransformers, "token-step", "2");
    assert!(words.contains("selects for several tokens"), "{words}");
    let words = refuse(Preset::Ktransformers, "layer-step", "2");
    assert!(words.contains("selects for several layers"), "{words}");
    let rounded = small(EngineOptions { kv_dtype: DType::Q8, ..EngineOptions::default() });
    for (preset, option) in
        [(Preset::Ktransformers, ("attend", "host")), (Preset::Clusterkv, ("residual", "sample:4"))]
    {
        let mut policy = PolicyOptions::new(preset).with_budget(96);
        policy.set(option.0, option.1).expect("an option");
        let error = rounded.session(&policy).expect("a session").check_draft().expect_err("q8");
        let start =
            format!("--draft lookup: --policy {preset} as given reads rows of --kv-type q8");
        assert!(error.to_string().starts_with(&start), "{error}");
        assert_eq!(rounded.check_draft(&policy).expect_err("q8").to_string(), error.to_string());
        rounded.session(&PolicyOptions::new(Preset::Full)).expect("one").check_draft().expect("q8");
    }
    let recall = RecallMode::Speculative { gate: 0.5 };
    let mut engine = small(EngineOptions { recall, simulate_device: true, ..Default::default() });
    let policy = PolicyOptions::new(Preset::Clusterkv).with_budget(96);
    let error = read(&mut engine, &policy, 60).check_draft().expect_err("it speculates");
    assert!(error.to_string().contains("--recall speculative"), "{error}");
    let is_named = matches!(
        error,
        longview_engine::EngineError::Scheduler(SchedulerError::CannotDraftSpeculatively)
    );
    assert!(is_named, "{error}");
}

/// The embedded model, which has read a text that it will repeat.
fn needle() -> (Engine<Cpu>, Vec<u32>) {
    let options = EngineOptions { ctx_size: 4096, chunk_size: 256, ..EngineOptions::default() };
    let engine = load(cpu(), NEEDLE, options);
    let text = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    let text = text.repeat(20) + "The pass key is 48213. Remember it. 48213 is the pass key.";
    let tokenizer = engine.tokenizer().expect("a tokenizer");
    let ids = tokenizer.encode(&text, Specials::AsWritten).expect("text");
    (engine, [vec![0], ids].concat())
}

fn generate(
    engine: &mut Engine<Cpu>,
    policy: &PolicyOptions,
    prompt: &[u32],
    params: &GenerationParams,
) -> (Vec<u32>, u64) {
    let mut session = engine.session(policy).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, prompt, &mut go_on)).expect("prefill"));
    let mut go_on = |_: &str| ControlFlow::Continue(());
    let said = block_on(engine.generate(&mut session, params, &mut go_on)).expect("an answer");
    assert_eq!(said.finish_reason, FinishReason::Length);
    assert_eq!(session.n_tokens(), prompt.len() + said.ids.len());
    (said.ids, session.timings().accepted_tokens)
}

/// Greedy, drawn among candidates, drawn among all, and with a penalty, which asks for all logits.
fn samplings() -> [SamplingParams; 4] {
    let greedy = SamplingParams::default();
    let drawn = SamplingParams { temperature: 0.7, seed: 9, ..greedy };
    [
        greedy,
        SamplingParams { top_k: 20, ..drawn },
        drawn,
        SamplingParams { repeat_penalty: 1.05, ..drawn },
    ]
}

#[test]
fn generated_tokens_are_those_without_drafts_greedy_or_drawn() {
    let (mut engine, prompt) = needle();
    let n = std::env::var("LONGVIEW_DRAFT_TOKENS").ok().map(|n| n.parse().expect("a number"));
    let n: usize = n.unwrap_or(160);
    let mut most = 0;
    for policy in answers::presets(128) {
        if !can_draft(&mut engine, &policy) {
            continue;
        }
        for sampling in samplings() {
            let params = GenerationParams {
                max_tokens: Some(n),
                sampling,
                ignore_eos: true,
                ..GenerationParams::default()
            };
            let (want, none) = generate(&mut engine, &policy, &prompt, &params);
            let lookup = GenerationParams { draft: Draft::Lookup, ..params };
            let (got, accepted) = generate(&mut engine, &policy, &prompt, &lookup);
            let what = format!("{}, {sampling:?}", answers::name(&policy));
            assert_eq!(got, want, "{what}");
            assert_eq!(none, 0, "{what}");
            most = most.max(accepted);
        }
    }
    assert!(most > n as u64 / 2, "no answer copied much: {most}");
}

/// What is left of a draft is forgotten by whatever comes next but the drafted token.
#[test]
fn a_session_with_drafted_tokens_goes_on_as_one_without() {
    let mut engine = small(EngineOptions::default());
    for preset in [Preset::Full, Preset::Clusterkv, Preset::StreamingLlm] {
        let mut policy = PolicyOptions::new(preset).with_budget(64);
        if preset == Preset::Clusterkv {
            (policy.window, policy.recent) = (Some(16), Some(16));
        }
        let start = |engine: &mut Engine<Cpu>, draft: &[u32]| {
            let mut session = read(engine, &policy, 100);
            step(engine, &mut session, &[&[5][..], draft].concat());
            assert_eq!(session.tokens().len(), 101);
            assert_eq!(session.sequence().n_drafted(), draft.len());
            session
        };
        let [mut plain, mut drafted] = [&[][..], &[7, 8, 9, 1]].map(|d| start(&mut engine, d));
        let same = |a: &Session<Cpu>, b: &Session<Cpu>, what: &str| {
            assert_eq!(a.tokens(), b.tokens(), "{preset}: {what}");
            assert_eq!(a.logits(), b.logits(), "{preset}: {what}");
            assert!(!a.logits().is_empty(), "{preset}: {what}");
        };
        same(&plain, &drafted, "a step");
        let mut files = [Vec::new(), Vec::new()];
        for (session, file) in [&mut plain, &mut drafted].into_iter().zip(&mut files) {
            block_on(engine.save(session, b"", file)).expect("memory");
        }
        assert_eq!(files[0], files[1], "{preset}: a saved session has no drafts");

        let mut drafted = start(&mut engine, &[7, 8, 9, 1]);
        let mut fork = block_on(engine.fork(&mut drafted)).expect("a fork");
        for session in [&mut plain, &mut drafted, &mut fork] {
            step(&mut engine, session, &[3]);
        }
        same(&plain, &drafted, "a fork's origin");
        same(&plain, &fork, "a fork");

        let mut drafted = start(&mut engine, &[3, 8]);
        let mut go_on = |_| ControlFlow::Continue(());
        for session in [&mut plain, &mut drafted] {
            block_on(session.truncate(101)).expect("a cut");
            assert!(block_on(engine.prefill(session, &[4, 5, 6], &mut go_on)).expect("prefill"));
        }
        same(&plain, &drafted, "a prompt behind");
        let full = PolicyOptions::new(Preset::Full);
        step(&mut engine, &mut drafted, &[1, 2, 3]);
        step(&mut engine, &mut plain, &[1]);
        if preset != Preset::StreamingLlm {
            for session in [&mut plain, &mut drafted] {
                block_on(engine.set_policy(session, &full)).expect("another policy");
                step(&mut engine, session, &[2]);
            }
            same(&plain, &drafted, "another policy");
        }
    }
}

/// A cancelled step leaves the tokens before it, and none of its draft.
#[test]
fn a_cancelled_draft_is_undone() {
    let mut engine = small(EngineOptions::default());
    let policy = PolicyOptions::new(Preset::Full);
    let (mut plain, mut drafted) = (read(&mut engine, &policy, 80), read(&mut engine, &policy, 80));
    drafted.cancel_token().cancel();
    let part = SessionStep::new(&mut drafted, &[1, 2, 3, 4], SpanMode::Policy);
    block_on(engine.step(&mut [part])).expect_err("it was cancelled");
    assert_eq!((drafted.tokens().len(), drafted.sequence().n_drafted()), (80, 0));
    drafted.cancel_token().reset();
    for session in [&mut plain, &mut drafted] {
        step(&mut engine, session, &[1]);
    }
    assert_eq!(plain.logits(), drafted.logits());
}

/// A draft goes into steps with other sessions, as far as there is room.
#[test]
fn drafts_of_several_sessions_share_a_step() {
    let options = EngineOptions { max_sequences: 3, ..EngineOptions::default() };
    let mut engine = small(options);
    let policies = [PolicyOptions::new(Preset::Full), {
        let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(64);
        (policy.window, policy.recent) = (Some(16), Some(16));
        policy
    }];
    let [a, b] = policies.each_ref().map(|policy| one_by_one(&mut engine, policy, (90, 60)));
    let [mut first, mut second] = policies.each_ref().map(|policy| read(&mut engine, policy, 90));
    for i in 0..60 {
        let part = |ids: &[u32], n: usize| ids[i..ids.len().min(i + n)].to_vec();
        let (x, y) = (part(&a.0, 1 + i % 5), part(&b.0, 1 + i % 7));
        let mut batch = [
            SessionStep::new(&mut first, &x, SpanMode::Policy),
            SessionStep::new(&mut second, &y, SpanMode::Policy),
        ];
        block_on(engine.step(&mut batch)).expect("a step");
        assert_eq!(first.logits(), a.1[i], "token {i} of the first");
        assert_eq!(second.logits(), b.1[i], "token {i} of the second");
    }
    let accepted = [&first, &second].map(|session| session.timings().accepted_tokens);
    assert!(accepted.iter().all(|n| *n > 10), "{accepted:?}");
}

/// On a device that is lost in the middle drafts are lost too, and computed again.
#[test]
fn drafts_are_the_same_on_the_emulated_cuda_device() {
    let open = || backends::cuda_emulated(EmulatedOptions::default());
    let emulated = Arc::new(open().expect("the kernels are compiled as C++"));
    let options = EngineOptions {
        ctx_size: 96,
        chunk_size: 16,
        tile_rows: 7,
        kv_dtype: DType::F32,
        ..EngineOptions::default()
    };
    let mut engine = load(emulated, "fixtures/llama-f32", options);
    for preset in [Preset::Full, Preset::Clusterkv, Preset::StreamingLlm] {
        let mut policy = PolicyOptions::new(preset).with_budget(28);
        if preset == Preset::Clusterkv {
            (policy.window, policy.recent) = (Some(8), Some(8));
        }
        let want = one_by_one(&mut engine, &policy, (41, 24));
        let counts = with_drafts(&mut engine, &policy, 41, &want, preset.name());
        assert!(counts.accepted > 4, "{preset}: {counts:?}");
    }
}

#[test]
fn drafts_are_the_same_on_a_gpu() {
    let Some(gpu) = backends::wgpu() else { return };
    for folder in [GQA, NEEDLE] {
        let options = EngineOptions { ctx_size: 256, chunk_size: 64, ..EngineOptions::default() };
        let mut engine = load(Arc::clone(&gpu), folder, options);
        for preset in [Preset::Full, Preset::Clusterkv, Preset::StreamingLlm, Preset::Longview] {
            let mut policy = PolicyOptions::new(preset).with_budget(64);
            if matches!(preset, Preset::Clusterkv | Preset::Longview) {
                (policy.window, policy.recent) = (Some(16), Some(16));
            }
            let want = one_by_one(&mut engine, &policy, (100, 40));
            let what = format!("{preset}, {folder}");
            let counts = with_drafts(&mut engine, &policy, 100, &want, &what);
            assert!(counts.accepted > 8, "{what}: {counts:?}");
        }
    }
}
