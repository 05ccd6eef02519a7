//! The CUDA backend from prompt to answer on a machine without a GPU: the launch code, queues,
//! graphs and all kernels, on the emulated device.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda::CudaBackend;
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_engine::{Engine, EngineError, EngineOptions, GenerationParams, Session};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{BudgetOption, PolicyOptions, Preset};
use longview_tests::backends;
use pollster::block_on;

type Emulated = CudaBackend<EmulatedDriver>;

fn emulated(options: EmulatedOptions) -> Arc<Emulated> {
    Arc::new(backends::cuda_emulated(options).expect("the kernels are compiled as C++"))
}

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"))
}

fn full() -> PolicyOptions {
    PolicyOptions::new(Preset::Full)
}

/// Clusters are made in prefill and in decode.
fn clusterkv(budget: usize) -> PolicyOptions {
    let mut options = PolicyOptions::new(Preset::Clusterkv);
    options.budget = Some(BudgetOption::Tokens(budget));
    (options.sinks, options.recent) = (Some(2), Some(4));
    (options.window, options.cluster_segment, options.cluster_tokens) =
        (Some(8), Some(16), Some(4));
    options
}

/// A random model of two layers, 64 wide.
const SMALL: &str = "llama-f32";

const PROMPT: usize = 41;
const ANSWER: usize = 20;

/// Chunks and tiles are small, so that the past is streamed in several tiles.
fn options(kv_dtype: DType) -> EngineOptions {
    EngineOptions {
        ctx_size: PROMPT + ANSWER + 3,
        chunk_size: 16,
        tile_rows: 7,
        kv_dtype,
        simulate_device: true,
        ..EngineOptions::default()
    }
}

fn folder(fixture: &str) -> ModelFolder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
    ModelFolder::open(&path).expect("a sound fixture")
}

fn load<B: Backend>(
    backend: &Arc<B>,
    fixture: &str,
    policy: &PolicyOptions,
    kv_dtype: DType,
) -> Result<(Engine<B>, Session<B>), EngineError> {
    load_with(backend, fixture, policy, options(kv_dtype))
}

fn load_with<B: Backend>(
    backend: &Arc<B>,
    fixture: &str,
    policy: &PolicyOptions,
    options: EngineOptions,
) -> Result<(Engine<B>, Session<B>), EngineError> {
    let engine = Engine::load(Arc::clone(backend), folder(fixture), options, policy)?;
    let session = engine.session(policy)?;
    Ok((engine, session))
}

fn prefill<B: Backend>(engine: &mut Engine<B>, session: &mut Session<B>) {
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 2 + (i * i * 7 + 13 * i) % 300).collect();
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(session, &prompt, &mut go_on)).expect("prefill"));
}

fn generate<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    n: usize,
) -> Result<Vec<u32>, EngineError> {
    let params = GenerationParams { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    block_on(engine.generate(session, &params, &mut go_on)).map(|answer| answer.ids)
}

/// Logits after the prompt, the answer, and how many rows were attended.
fn run<B: Backend>(
    backend: &Arc<B>,
    fixture: &str,
    policy: &PolicyOptions,
    kv_dtype: DType,
) -> (Vec<f32>, Vec<u32>, u64) {
    run_with(backend, fixture, policy, options(kv_dtype))
}

fn run_with<B: Backend>(
    backend: &Arc<B>,
    fixture: &str,
    policy: &PolicyOptions,
    options: EngineOptions,
) -> (Vec<f32>, Vec<u32>, u64) {
    let (mut engine, mut session) = load_with(backend, fixture, policy, options).expect("it loads");
    prefill(&mut engine, &mut session);
    let logits = session.logits().to_vec();
    let answer = generate(&mut engine, &mut session, ANSWER).expect("decode");
    (logits, answer, session.stats().attended_rows)
}

#[test]
fn the_smallest_model_has_two_layers_is_64_wide_and_reads_64_tokens_at_most() {
    let config = folder(SMALL).config;
    assert_eq!((config.n_layers, config.hidden_size), (2, 64));
    assert!(options(DType::F16).ctx_size <= 64);
}

/// The largest difference of two numbers, or one that is none.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

#[test]
fn answers_are_those_of_the_cpu() {
    let (emulated, cpu) = (emulated(EmulatedOptions::default()), cpu());
    // Tensor cores round what goes into a product to the type of the weights.
    for (fixture, kv_dtype, tolerance) in [
        (SMALL, DType::F32, 1e-4),
        (SMALL, DType::F16, 1e-4),
        (SMALL, DType::BF16, 1e-4),
        ("llama-f16", DType::F16, 2e-2),
        ("llama3-gqa", DType::F16, 1e-1),
        ("qwen2-untied", DType::BF16, 1e-1),
        ("qwen3-tied", DType::F16, 1e-1),
        ("glm4-sandwich", DType::F16, 1e-1),
        ("gemma3-old", DType::F32, 1e-3),
    ] {
        for policy in [full(), clusterkv(24), clusterkv(64)] {
            let what = format!("{fixture} {kv_dtype} {}", policy.preset);
            let (logits, answer, attended) = run(&emulated, fixture, &policy, kv_dtype);
            let (expected, tokens, n) = run(&cpu, fixture, &policy, kv_dtype);
            let worst = distance(&logits, &expected);
            assert!(logits.len() == expected.len() && worst <= tolerance, "{what}: {worst}");
            assert_eq!(attended, n, "{what}");
            if tolerance <= 1e-4 {
                assert_eq!(answer, tokens, "{what}");
            }
        }
    }
    let launched = emulated.driver().launched();
    for kernel in ["look_up_rows", "kmeans_update", "select_clusters", "centroid_pool", "gram"] {
        assert!(launched.contains(kernel), "{kernel} never ran");
    }
}

/// A GPU of 2018 has none of what came with compute capability 8.0: rows of bf16 are attended and
/// multiplied by kernels that are compiled for it alone.
#[test]
fn answers_of_an_old_device_are_those_of_the_cpu() {
    let old = emulated(EmulatedOptions { compute_capability: (7, 5), ..Default::default() });
    let cpu = cpu();
    for (fixture, kv_dtype, tolerance) in
        [(SMALL, DType::BF16, 1e-4), ("qwen2-untied", DType::BF16, 1e-1), (SMALL, DType::F16, 1e-4)]
    {
        for policy in [full(), clusterkv(24)] {
            let what = format!("{fixture} {kv_dtype} {}", policy.preset);
            let (logits, _, attended) = run(&old, fixture, &policy, kv_dtype);
            let (expected, _, n) = run(&cpu, fixture, &policy, kv_dtype);
            let worst = distance(&logits, &expected);
            assert!(logits.len() == expected.len() && worst <= tolerance, "{what}: {worst}");
            assert_eq!(attended, n, "{what}");
        }
    }
    assert!(old.driver().n_by_capability() > 0, "nothing that differs ran");
}

/// A device whose memory is the host's, as that of a DGX Spark.
fn unified() -> Arc<Emulated> {
    emulated(EmulatedOptions { unified_memory: true, ..Default::default() })
}

/// Such a device attends rows where they lie: nothing is gathered or cached, and answers are those
/// of the CPU, which does so too.
#[test]
fn a_device_that_shares_the_hosts_memory_copies_no_rows() {
    let (unified, own, cpu) = (unified(), emulated(EmulatedOptions::default()), cpu());
    for (fixture, kv_dtype, tolerance) in
        [(SMALL, DType::F16, 1e-4), (SMALL, DType::Q8, 2e-2), ("llama3-gqa", DType::F16, 1e-1)]
    {
        for policy in [full(), clusterkv(24)] {
            let what = format!("{fixture} {kv_dtype} {}", policy.preset);
            let options = || EngineOptions { simulate_device: false, ..options(kv_dtype) };
            let plan = Engine::plan(&*unified, &folder(fixture), &options(), &policy);
            assert!(plan.expect("a plan").unified, "{what}");
            let (logits, answer, attended) = run_with(&unified, fixture, &policy, options());
            let (expected, tokens, n) = run_with(&cpu, fixture, &policy, options());
            let worst = distance(&logits, &expected);
            assert!(logits.len() == expected.len() && worst <= tolerance, "{what}: {worst}");
            assert_eq!(attended, n, "{what}");
            if tolerance <= 1e-4 {
                assert_eq!(answer, tokens, "{what}");
            }
            run_with(&own, fixture, &policy, options());
        }
    }
    let moves = |backend: &Emulated, kernel| backend.driver().launched().contains(kernel);
    assert!(moves(&own, "look_up_rows"), "memory of its own has a cache of rows");
    for kernel in ["kv_gather", "look_up_rows"] {
        assert!(!moves(&unified, kernel), "{kernel} ran where there is nothing to move");
    }
}

/// The checks of the scheduler that know rows in place, on such a device.
macro_rules! on_unified_memory {
    ($($check:ident),+ $(,)?) => {
        mod unified_memory {
            $(
                #[test]
                fn $check() {
                    longview_tests::suite::policy::$check(&super::unified());
                }
            )+
        }
    };
}

on_unified_memory!(
    a_fork_outlives_its_origin_and_a_lost_device,
    a_sequence_made_again_from_the_host_attends_the_same,
    few_tokens_are_all_attended_where_they_lie,
    forks_share_the_rows_that_neither_writes,
    full_attention_and_dense_layers_attend_to_everything,
    recalled_rows_are_attended_rounded,
    recent_rows_are_attended_as_written_and_others_rounded,
    rows_of_8_bits_survive_a_lost_device,
    the_plan_is_what_is_allocated,
);

/// Those of rows that all lie on a device with memory of its own.
macro_rules! on_own_memory {
    ($($check:ident),+ $(,)?) => {
        mod own_memory {
            use longview_cuda_emulation::EmulatedOptions;

            $(
                #[test]
                fn $check() {
                    let device = super::emulated(EmulatedOptions::default());
                    longview_tests::suite::policy::$check(&device);
                }
            )+
        }
    };
}

on_own_memory!(
    choices_among_rows_on_the_device_are_those_in_place,
    rows_on_the_device_are_attended_where_they_lie,
    rows_on_the_device_are_those_that_would_be_fetched,
    rows_on_the_device_are_waited_for_once_a_step,
);

/// One wait, graphs that were there before, nothing allocated.
#[test]
fn a_token_is_a_graph_and_one_wait() {
    // The first window ends after the tokens that are counted.
    let clusterkv = PolicyOptions { window: Some(16), ..clusterkv(28) };
    for policy in [full(), clusterkv] {
        let backend = emulated(EmulatedOptions::default());
        let (mut engine, mut session) =
            load(&backend, "llama3-gqa", &policy, DType::F16).expect("it loads");
        prefill(&mut engine, &mut session);
        // Every shape was seen twice then.
        generate(&mut engine, &mut session, 9).expect("warm-up");
        let before = backend.counters();
        let n = 4;
        generate(&mut engine, &mut session, n).expect("decode");
        let after = backend.counters();
        let cost = after.device.since(before.device);
        assert_eq!(after.allocations, before.allocations, "{}: allocations", policy.preset);
        assert_eq!(after.graphs, before.graphs, "{}: graphs made", policy.preset);
        assert_eq!(cost.readbacks, n as u64, "{}", policy.preset);
        let n_kernels = cost.dispatches / n as u64;
        // Three layers of 7 to 12 kernels, the embedding, the norm and the product at the end.
        assert!((20..=45).contains(&n_kernels), "{n_kernels} kernels a token");
        // The layers are a graph and the output is another; the choice of the token is too short
        // for one.
        let n_submits = cost.submits / n as u64;
        assert!(n_submits <= 8, "{}: {n_submits} submits a token, {cost:?}", policy.preset);
    }
}

#[test]
fn nothing_depends_on_graphs_or_on_the_order_of_threads() {
    let policy = clusterkv(24);
    let run = |options| run(&emulated(options), "llama3-gqa", &policy, DType::F16);
    let usual = EmulatedOptions::default();
    let expected = run(usual.clone());
    assert_eq!(run(EmulatedOptions { has_graphs: false, ..usual.clone() }), expected);
    assert_eq!(run(EmulatedOptions { backward: true, ..usual }), expected);
}

#[test]
fn a_device_lost_and_opened_again_goes_on_with_the_answer() {
    let policy = clusterkv(24);
    let backend = emulated(EmulatedOptions::default());
    let (mut engine, mut session) =
        load(&backend, "llama3-gqa", &policy, DType::F16).expect("it loads");
    let expected = run(&backend, "llama3-gqa", &policy, DType::F16).1;
    prefill(&mut engine, &mut session);
    let mut answer = generate(&mut engine, &mut session, 5).expect("decode");
    backend.lose_device();
    answer.extend(generate(&mut engine, &mut session, ANSWER - 5).expect("the device is back"));
    assert_eq!(answer, expected);
}

/// Commands that an answer takes on the stream of its steps without graphs: up to the end of the
/// prompt, and all.
fn n_commands(policy: &PolicyOptions) -> [u64; 2] {
    let backend = emulated(EmulatedOptions { has_graphs: false, ..Default::default() });
    let (mut engine, mut session) = load(&backend, SMALL, policy, DType::F16).expect("it loads");
    prefill(&mut engine, &mut session);
    let before = backend.driver().n_given();
    generate(&mut engine, &mut session, ANSWER).expect("decode");
    [before, backend.driver().n_given()]
}

/// Work that is refused when it is handed over was taken for done by everybody. The call says that
/// the device is lost, and the next one computes what was to be computed, not what is left of it.
#[test]
fn work_that_is_refused_changes_no_token() {
    for policy in [full(), clusterkv(24)] {
        let backend = emulated(EmulatedOptions::default());
        let expected = run(&backend, SMALL, &policy, DType::F16).1;
        let [begin, end] = n_commands(&policy);
        for eighth in [1, 4, 6, 7] {
            let backend = emulated(EmulatedOptions {
                refused_command: Some(begin + (end - begin) * eighth / 8),
                has_graphs: false,
                ..Default::default()
            });
            let (mut engine, mut session) =
                load(&backend, SMALL, &policy, DType::F16).expect("it loads");
            prefill(&mut engine, &mut session);
            let mut n_failed = 0;
            while session.n_tokens() < PROMPT + ANSWER {
                let n = PROMPT + ANSWER - session.n_tokens();
                let Err(error) = generate(&mut engine, &mut session, n) else { break };
                assert!(error.to_string().contains("the device was lost"), "{error}");
                n_failed += 1;
            }
            assert_eq!(n_failed, 1, "{} {eighth}", policy.preset);
            assert_eq!(session.tokens()[PROMPT..], expected[..ANSWER - 1], "{}", policy.preset);
        }
    }
}

#[test]
fn too_little_memory_is_said_and_the_device_goes_on() {
    let backend = emulated(EmulatedOptions { memory_bytes: 300 << 10, ..Default::default() });
    let failed = load(&backend, "llama3-gqa", &full(), DType::F16).map(|_| ());
    let message = failed.expect_err("300 KiB are too few").to_string();
    assert!(message.contains("memory"), "{message}");
    assert!(!backend.is_lost());
    let buffer = backend.alloc(DType::F32, 1000, "small").expect("there is room");
    drop(buffer);
}
