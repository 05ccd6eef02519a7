//! Sparse reading of prompts: what it attends, what it says of itself, and who refuses it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda_emulation::EmulatedOptions;
use longview_engine::{Engine, EngineError, EngineOptions, PrefillMode, Session};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, SchedulerError, SessionFileError};
use longview_tests::backends;
use pollster::block_on;

type Cpu = CpuBackend;

/// So small that every block has a larger share.
const ALL: PrefillMode = PrefillMode::Sparse { threshold: f32::MIN_POSITIVE };
/// Only what has the largest share, and what is always attended.
const LEAST: PrefillMode = PrefillMode::Sparse { threshold: 1.0 };
/// Tokens of the prompt: 19 blocks, of which 6 are always attended.
const N: usize = 2432;

fn options(prefill: PrefillMode) -> EngineOptions {
    EngineOptions { ctx_size: 4096, chunk_size: 192, prefill, ..EngineOptions::default() }
}

/// Rows lie on the host, and the past is streamed: a tile has three means and no whole block.
fn on_device(prefill: PrefillMode) -> EngineOptions {
    EngineOptions { simulate_device: true, tile_rows: 96, ..options(prefill) }
}

fn engine_on<B: Backend>(backend: Arc<B>, fixture: &str, options: EngineOptions) -> Engine<B> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
    let folder = ModelFolder::open(&path).expect("a sound model");
    Engine::load(backend, folder, options, &policy(Preset::Full)).expect("it loads")
}

fn engine(options: EngineOptions) -> Engine<Cpu> {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    engine_on(backend, "llama3-gqa", options)
}

fn policy(preset: Preset) -> PolicyOptions {
    PolicyOptions::new(preset)
}

fn ids<B: Backend>(engine: &Engine<B>) -> Vec<u32> {
    let n_vocab = engine.model().config().vocab_size as u32;
    (0..N as u32).map(|i| (i * i * 7 + 31 * i) % n_vocab).collect()
}

fn prefill<B: Backend>(engine: &mut Engine<B>, session: &mut Session<B>, ids: &[u32]) {
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(session, ids, &mut go_on)).expect("prefill"));
}

fn read<B: Backend>(engine: &mut Engine<B>, preset: Preset) -> Session<B> {
    let ids = ids(engine);
    let mut session = engine.session(&policy(preset)).expect("a session");
    prefill(engine, &mut session, &ids);
    session
}

/// The largest difference of two sets of logits.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn with_every_block_attended_sparse_reading_is_exact_reading() {
    for preset in [Preset::Full, Preset::Clusterkv, Preset::Longview] {
        for options in [options, on_device] {
            let exact = read(&mut engine(options(PrefillMode::Exact)), preset);
            let sparse = read(&mut engine(options(ALL)), preset);
            assert_eq!(sparse.sequence().block_counts().density(), 1.0, "{preset}");
            assert!(sparse.sequence().block_counts().all > 1000, "{preset}");
            let apart = apart(exact.logits(), sparse.logits());
            assert!(apart < 1e-3, "{preset}: logits are {apart} apart");
            assert_eq!(exact.sequence().block_counts().all, 0);
            assert_eq!(exact.sequence().was_read(), PrefillMode::Exact);
            assert_eq!(sparse.sequence().was_read(), ALL);
        }
    }
}

#[test]
fn with_every_block_attended_rows_of_eight_bits_are_read_as_by_exact_reading() {
    for options in [options, on_device] {
        let options = |prefill| EngineOptions { kv_dtype: DType::Q8, ..options(prefill) };
        let [exact, sparse] = [PrefillMode::Exact, ALL]
            .map(|prefill| read(&mut engine(options(prefill)), Preset::Full));
        assert_eq!(sparse.sequence().block_counts().density(), 1.0);
        assert!(sparse.sequence().block_counts().all > 1000);
        let apart = apart(exact.logits(), sparse.logits());
        assert!(apart < 1e-3, "logits are {apart} apart");
    }
}

/// What is left out does not depend on where rows lie, nor on what computes.
#[test]
fn the_same_blocks_are_attended_wherever_rows_lie() {
    for preset in [Preset::Full, Preset::Clusterkv, Preset::Longview] {
        let in_place = read(&mut engine(options(LEAST)), preset);
        let streamed = read(&mut engine(on_device(LEAST)), preset);
        let [here, there] = [&in_place, &streamed].map(|session| session.sequence().block_counts());
        assert_eq!(here, there, "{preset}");
        let apart = apart(in_place.logits(), streamed.logits());
        assert!(apart < 1e-3, "{preset}: logits are {apart} apart");
    }
    let eight_bits = EngineOptions { kv_dtype: DType::Q8, ..options(LEAST) };
    let rounded = read(&mut engine(eight_bits), Preset::Full);
    let exact = read(&mut engine(options(PrefillMode::Exact)), Preset::Full);
    let sparse = read(&mut engine(options(LEAST)), Preset::Full);
    let density = rounded.sequence().block_counts().density();
    assert!((0.3..0.7).contains(&density), "{density}");
    // As far from sparse reading of 16 bits as a block more or less makes it, and not farther from
    // exact reading than that is.
    let [own, other] = [&rounded, &sparse].map(|s| self::apart(exact.logits(), s.logits()));
    assert!(own < 1.5 * other, "{own} with 8 bits, {other} with 16");
}

fn is_read_as_on_the_cpu<B: Backend>(backend: Arc<B>) {
    // Two layers: the last one attends in the last chunk alone, of which 256 tokens read sparsely.
    let options = EngineOptions { kv_dtype: DType::F32, chunk_size: 640, ..on_device(LEAST) };
    let cpu = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    for preset in [Preset::Full, Preset::Clusterkv] {
        let expected = read(&mut engine_on(Arc::clone(&cpu), "llama-f32", options.clone()), preset);
        let found =
            read(&mut engine_on(Arc::clone(&backend), "llama-f32", options.clone()), preset);
        let [want, have] = [expected.sequence().block_counts(), found.sequence().block_counts()];
        assert!(want.all > 100 && want.density() < 0.8, "{want:?}");
        // A share that lies at the threshold may fall to either side.
        let apart_by = want.attended.abs_diff(have.attended);
        assert!(want.all == have.all && apart_by * 100 <= want.all, "{want:?} and {have:?}");
        let apart = apart(expected.logits(), found.logits());
        assert!(apart < 1e-2, "{preset}: logits are {apart} apart");
    }
}

#[test]
fn the_emulated_cuda_device_reads_sparsely() {
    let open = || backends::cuda_emulated(EmulatedOptions::default());
    is_read_as_on_the_cpu(Arc::new(open().expect("the kernels are compiled as C++")));
}

#[test]
fn the_gpu_that_there_is_reads_sparsely() {
    let Some(gpu) = backends::wgpu() else { return };
    is_read_as_on_the_cpu(gpu);
}

#[test]
fn blocks_that_are_left_out_are_stood_for_by_their_means() {
    let exact = read(&mut engine(options(PrefillMode::Exact)), Preset::Full);
    let sparse = read(&mut engine(options(LEAST)), Preset::Full);
    let density = sparse.sequence().block_counts().density();
    assert!((0.3..0.7).contains(&density), "{density}");
    let apart = apart(exact.logits(), sparse.logits());
    assert!(apart > 0.0, "nothing was left out");
    // Of the differences between logits: a text that is another has differences as large as these.
    let mut engine = engine(options(PrefillMode::Exact));
    let mut other = engine.session(&policy(Preset::Full)).expect("a session");
    let second_half = ids(&engine).split_off(N / 2);
    prefill(&mut engine, &mut other, &second_half);
    let unlike = self::apart(exact.logits(), other.logits());
    assert!(apart < unlike / 4.0, "logits are {apart} apart, without half of the text {unlike}");
}

/// Chunks end where tiles do. Rows of 8 bits lie beside a ring of rows as they were written, whose
/// size depends on the chunk's: parts are merged in other places, and round otherwise.
#[test]
fn how_a_prompt_is_cut_into_chunks_changes_nothing_that_is_read() {
    let read = |kv_dtype, prefill, chunk_size| {
        let options = EngineOptions { kv_dtype, chunk_size, ..options(prefill) };
        read(&mut engine(options), Preset::Full)
    };
    let [short, long] = [192, 960].map(|chunk_size| read(DType::F16, LEAST, chunk_size));
    assert!(short.logits() == long.logits(), "not to the bit");
    for prefill in [PrefillMode::Exact, LEAST] {
        let [short, long] = [192, 960].map(|chunk_size| read(DType::Q8, prefill, chunk_size));
        let apart = apart(short.logits(), long.logits());
        assert!(apart < 1e-3, "{prefill}: logits are {apart} apart");
    }
}

/// Six blocks are attended by each of their tokens, whatever the threshold.
#[test]
fn what_is_left_of_a_sparse_session_says_how_it_was_read() {
    let mut sparse = read(&mut engine(options(LEAST)), Preset::Full);
    for (n, how) in [(N - 1, LEAST), (6 * 128 + 1, LEAST), (6 * 128, PrefillMode::Exact)] {
        block_on(sparse.truncate(n)).expect("a cut");
        assert_eq!((sparse.n_tokens(), sparse.sequence().was_read()), (n, how));
    }
}

#[test]
fn tokens_that_were_taken_back_leave_no_trace_in_the_means() {
    let mut engine = engine(options(LEAST));
    let ids = ids(&engine);
    let others: Vec<u32> = ids.iter().rev().copied().collect();
    let common = 5 * 192;
    let mut in_two_parts = |detour: &[u32]| {
        let mut session = engine.session(&policy(Preset::Full)).expect("a session");
        prefill(&mut engine, &mut session, &ids[..common]);
        if !detour.is_empty() {
            // Broken off, so that the means of the first part are still there.
            let mut stop = |_| ControlFlow::Break(());
            let done = block_on(engine.prefill_part(&mut session, detour, &mut stop));
            assert!(!done.expect("a part is read") && session.n_tokens() > common);
            block_on(session.truncate(common)).expect("a cut");
        }
        prefill(&mut engine, &mut session, &ids[common..]);
        session
    };
    let (straight, mut with_detour) = (in_two_parts(&[]), in_two_parts(&others));
    assert_eq!(straight.logits(), with_detour.logits());
    block_on(with_detour.truncate(0)).expect("a cut");
    assert_eq!(with_detour.sequence().was_read(), PrefillMode::Exact);
}

#[test]
fn a_session_that_was_read_sparsely_says_so_and_serves_no_request_for_exact() {
    let mut sparse = engine(options(LEAST));
    let mut session = read(&mut sparse, Preset::Longview);
    let mut file = Vec::new();
    block_on(sparse.save(&mut session, b"", &mut file)).expect("it is saved");
    let opened = block_on(sparse.restore(&file, None)).expect("it opens").session;
    assert_eq!(opened.sequence().was_read(), LEAST);
    assert_eq!(opened.logits(), session.logits());
    let refused = block_on(engine(options(PrefillMode::Exact)).restore(&file, None));
    let Err(error) = refused else { panic!("an exact engine took what was read sparsely") };
    let is_told = matches!(
        &error,
        EngineError::Session(SessionFileError::ReadSparsely { how }) if *how == LEAST
    );
    assert!(is_told, "{error:?}");
    assert!(error.to_string().contains("--prefill sparse:1"), "{error}");

    // What was read exactly serves both, and says so until something is read sparsely.
    let mut exact = engine(options(PrefillMode::Exact));
    let mut session = exact.session(&policy(Preset::Full)).expect("a session");
    let ids = ids(&exact);
    prefill(&mut exact, &mut session, &ids[..1000]);
    let mut file = Vec::new();
    block_on(exact.save(&mut session, b"", &mut file)).expect("it is saved");
    let mut opened = block_on(sparse.restore(&file, None)).expect("it opens").session;
    assert_eq!(opened.sequence().was_read(), PrefillMode::Exact);
    prefill(&mut sparse, &mut opened, &ids[1000..]);
    assert_eq!(opened.sequence().was_read(), LEAST);
    let fork = block_on(sparse.fork(&mut opened)).expect("a fork");
    assert_eq!(fork.sequence().was_read(), LEAST);
}

#[test]
fn who_cannot_read_sparsely_says_so_by_name() {
    let mut engine_of = engine(options(LEAST));
    for preset in [Preset::H2o, Preset::Infllm] {
        let Err(refused) = engine_of.session(&policy(preset)) else { panic!("{preset}") };
        let told = refused.to_string();
        assert!(told.contains(preset.name()) && told.contains("--prefill exact"), "{told}");
    }
    let mut session = read(&mut engine_of, Preset::Full);
    let Err(refused) = block_on(engine_of.set_policy(&mut session, &policy(Preset::H2o))) else {
        panic!("h2o needs what was not computed")
    };
    let by_name = EngineError::Scheduler(SchedulerError::SparsePolicy { policy: Preset::H2o });
    assert_eq!(refused.to_string(), by_name.to_string());

    let small = EngineOptions { tile_rows: 31, ..on_device(LEAST) };
    let Err(refused) = engine(small).session(&policy(Preset::Full)) else { panic!("31 rows") };
    assert!(refused.to_string().contains("31 rows"), "{refused}");
}
