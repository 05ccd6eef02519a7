//! What a user can meet: no graphs, no memory, a model that does not fit, a device that is lost
//! between calls or in the middle of one, a kernel that faults.
//!
//! A check returns why it cannot run here, if it cannot.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longview_core::DType;
use longview_engine::{Engine, EngineError, EngineOptions, GenerationParams, Session};
use longview_model::folder::ModelFolder;
use longview_ops::parity::spot_check;
use longview_ops::{Backend, Op, OpError};
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

use crate::backends::Probe;
use crate::files;

/// Why a check was not run.
pub type NotRun = Option<&'static str>;

/// Tokens that a session generates in these checks.
const N_TOKENS: usize = 24;

const NOTHING_TO_LOSE: NotRun = Some("there is no device that could be lost");

/// One op of each kind of kernel still computes.
fn assert_computes<B: Backend>(backend: &B) {
    let ops = [Op::Matvec, Op::RmsNorm, Op::KvGather, Op::AttendList, Op::SelectClusters];
    block_on(spot_check(backend, &ops)).unwrap_or_else(|e| panic!("{e}"));
}

fn is_out_of_memory<T>(result: Result<T, OpError>, label: &str) -> bool {
    let Err(error) = result else { return false };
    error.to_string().contains(label) && matches!(error, OpError::OutOfMemory { .. })
}

/// The kernels of a token are launched together: where a device makes no graphs of them, which
/// nobody sees but by the time it takes, that is a failure.
pub fn tokens_are_launched_as_graphs<B: Probe>(backend: &Arc<B>) -> NotRun {
    let Some(before) = backend.graphs() else {
        return Some("nothing is made into graphs");
    };
    let (mut engine, mut session) = start(backend);
    generate(&mut engine, &mut session, N_TOKENS).expect("decode");
    let n_before = before.unwrap_or_else(|reason| panic!("no graphs: {reason}"));
    let after = backend.graphs().expect("there were some before");
    let n_after = after.unwrap_or_else(|reason| panic!("no graphs any more: {reason}"));
    assert!(n_after > n_before, "{N_TOKENS} tokens, and no graph was made");
    assert_eq!(backend.fallback(), None);
    None
}

/// Too much at once is refused by name, and everything goes on.
pub fn too_much_memory_is_an_error_that_passes<B: Probe>(backend: &Arc<B>) -> NotRun {
    let available = backend.capabilities().memory_bytes.filter(|_| !is_host(&**backend));
    let bytes = available.map_or(1 << 60, |bytes| 2 * bytes);
    let refused = backend.alloc(DType::F32, (bytes / 4) as usize, "far too much");
    assert!(is_out_of_memory(refused, "far too much"), "{bytes} bytes are no error");
    assert!(!backend.is_lost());
    assert_computes(&**backend);
    None
}

fn is_host<B: Backend>(backend: &B) -> bool {
    backend.capabilities().unified_memory || backend.device_counters().is_none()
}

/// The last byte is given away and comes back.
pub fn memory_that_is_used_up_comes_back<B: Probe>(backend: &Arc<B>) -> NotRun {
    const PIECE: usize = 256 << 20;
    let capabilities = backend.capabilities();
    let Some(available) = capabilities.memory_bytes.filter(|_| capabilities.reads_host_memory)
    else {
        return Some("its memory is not its own");
    };
    if is_host(&**backend) {
        return Some("its memory is the host's");
    }
    let most = 2 + available as usize / PIECE;
    let mut pieces = Vec::new();
    let refused = loop {
        match backend.alloc(DType::F32, PIECE / 4, "a piece") {
            Ok(piece) => pieces.push(piece),
            Err(error) => break error,
        }
        assert!(pieces.len() <= most, "{} pieces of {available} bytes", pieces.len());
    };
    assert!(is_out_of_memory::<()>(Err(refused), "a piece"));
    drop(pieces);
    assert!(!backend.is_lost());
    assert_computes(&**backend);
    None
}

/// What does not fit is refused with numbers before anything is loaded.
pub fn a_model_that_does_not_fit_is_refused<B: Probe>(backend: &Arc<B>) -> NotRun {
    let options = EngineOptions { device_memory: Some(1 << 14), ..options() };
    let before = backend.allocations();
    let refused = Engine::load(Arc::clone(backend), fixture(), options, &policy());
    let message = refused.err().expect("16 KiB are not enough").to_string();
    assert!(message.starts_with("not enough "), "{message}");
    assert!(message.contains("16.0 KiB are available"), "{message}");
    assert_eq!(backend.allocations(), before, "nothing was allocated");
    let (mut engine, mut session) = start(backend);
    generate(&mut engine, &mut session, 2).expect("it fits");
    None
}

/// Between calls a lost device is not even noticed.
pub fn a_device_lost_between_calls_changes_no_token<B: Probe>(backend: &Arc<B>) -> NotRun {
    let expected = undisturbed(backend);
    let (mut engine, mut session) = start(backend);
    while session.n_tokens() < expected.len() {
        if !engine.backend().lose() {
            return NOTHING_TO_LOSE;
        }
        generate(&mut engine, &mut session, 5).expect("the device is opened again");
    }
    assert_eq!(session.tokens()[..expected.len() - 1], expected[..expected.len() - 1]);
    assert_computes(&**engine.backend());
    None
}

/// Another policy may be the first that meets the new device.
pub fn a_policy_is_changed_on_the_device_after_the_lost_one<B: Probe>(backend: &Arc<B>) -> NotRun {
    let all = PolicyOptions::new(Preset::Full);
    let answers = |is_lost: bool| {
        let (mut engine, mut session) = start(backend);
        let mut tokens = Vec::new();
        for options in [&all, &policy()] {
            if is_lost && !engine.backend().lose() {
                return None;
            }
            block_on(engine.set_policy(&mut session, options)).expect("another policy");
            generate(&mut engine, &mut session, 5).expect("the device is opened again");
            tokens.extend_from_slice(session.tokens());
        }
        Some(tokens)
    };
    let expected = answers(false);
    match answers(true) {
        None => NOTHING_TO_LOSE,
        lost => {
            assert_eq!(lost, expected);
            None
        }
    }
}

/// The prompt is computed, and the device is lost before it is indexed: that is made up for.
pub fn a_device_lost_at_the_end_of_a_prefill_leaves_nothing_out<B: Probe>(
    backend: &Arc<B>,
) -> NotRun {
    let expected = undisturbed(backend);
    let (mut engine, _) = start(backend);
    for is_settled in [true, false] {
        let mut session = engine.session(&policy()).expect("a session");
        let lost = Arc::clone(engine.backend());
        let mut has_lost = false;
        let result = block_on(engine.prefill(&mut session, &prompt(&engine), &mut |progress| {
            if progress.done == progress.total {
                has_lost = lost.lose();
            }
            ControlFlow::Continue(())
        }));
        if !has_lost {
            return NOTHING_TO_LOSE;
        }
        let error = result.expect_err("the end of a prefill needs the device");
        assert!(error.to_string().contains("the device was lost"), "{error}");
        if is_settled {
            block_on(engine.settle(&mut session)).expect("the device is opened again");
        }
        finish(&mut engine, &mut session, &expected);
    }
    None
}

/// A change of the policy that fails leaves the one before in force, whatever it was that failed.
pub fn a_policy_that_cannot_be_had_leaves_the_one_before<B: Probe>(backend: &Arc<B>) -> NotRun {
    let all = PolicyOptions::new(Preset::Full);
    let mut expected = undisturbed(backend);
    let (mut engine, mut session) = start(backend);
    let before = session.policy().clone();
    for preset in [Preset::H2o, Preset::Infllm] {
        let options = PolicyOptions::new(preset).with_budget(96);
        let error = block_on(engine.set_policy(&mut session, &options)).expect_err("no statistics");
        assert!(error.to_string().contains("prompt") || error.to_string().contains("queries"));
        assert_eq!(session.policy(), &before);
        generate(&mut engine, &mut session, 3).expect("the policy before is in force");
    }
    assert!(expected.starts_with(session.tokens()), "{:?}", session.tokens());
    // What is indexed anew, because it was given up on the way, is what a change and a change back
    // would have made.
    let (mut other, mut twin) = start(backend);
    generate(&mut other, &mut twin, 3).expect("decode");
    generate(&mut other, &mut twin, 3).expect("decode");
    if engine.backend().lose() {
        block_on(session.set_policy(&all)).expect_err("there is no device");
        assert_eq!(session.policy(), &before);
        for options in [&all, &policy()] {
            block_on(other.set_policy(&mut twin, options)).expect("there and back");
        }
        generate(&mut other, &mut twin, N_TOKENS - 6).expect("decode");
        expected = twin.tokens().to_vec();
    }
    finish(&mut engine, &mut session, &expected);
    None
}

/// A session that begins when the device is lost begins on the next one.
pub fn a_session_begins_on_the_device_after_the_lost_one<B: Probe>(backend: &Arc<B>) -> NotRun {
    let expected = undisturbed(backend);
    let (mut engine, _) = start(backend);
    if !engine.backend().lose() {
        return NOTHING_TO_LOSE;
    }
    block_on(engine.revive()).expect("the device is opened again");
    let mut session = engine.session(&policy()).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    let ids = prompt(&engine);
    block_on(engine.prefill(&mut session, &ids, &mut go_on)).expect("prefill");
    finish(&mut engine, &mut session, &expected);
    None
}

/// In the middle of a call it is an error of that call, and the next one goes on.
pub fn a_device_lost_in_a_call_costs_that_call_alone<B: Probe>(backend: &Arc<B>) -> NotRun {
    let expected = undisturbed(backend);
    let (mut engine, mut session) = start(backend);
    for loss in 0..6 {
        let lost = Arc::clone(engine.backend());
        let vandal = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(300 * loss));
            lost.lose()
        });
        if let Err(error) = generate(&mut engine, &mut session, 2) {
            assert!(error.to_string().contains("the device was lost"), "{error}");
        }
        if !vandal.join().expect("losing a device does not panic") {
            return NOTHING_TO_LOSE;
        }
    }
    finish(&mut engine, &mut session, &expected);
    None
}

/// A kernel that faults ends the context. Where the driver gives the process another one, the next
/// call but one goes on; NVIDIA's does not, and the error says what to do. The program lives on.
pub fn a_kernel_that_faults_costs_the_device_at_most<B: Probe>(backend: &Arc<B>) -> NotRun {
    let expected = undisturbed(backend);
    let (mut engine, mut session) = start(backend);
    generate(&mut engine, &mut session, 10).expect("decode");
    if !engine.backend().fault() {
        return Some("a fault would end the process");
    }
    let error = generate(&mut engine, &mut session, 1).expect_err("the context is broken");
    assert!(error.to_string().contains("the device was lost"), "{error}");
    assert!(engine.backend().is_lost());
    if let Err(error) = generate(&mut engine, &mut session, 1) {
        assert!(error.to_string().contains("start the program again"), "{error}");
        return None;
    }
    finish(&mut engine, &mut session, &expected);
    assert_computes(&**engine.backend());
    None
}

fn options() -> EngineOptions {
    EngineOptions { ctx_size: 512, chunk_size: 64, tile_rows: 64, ..EngineOptions::default() }
}

fn policy() -> PolicyOptions {
    let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(96);
    (policy.window, policy.recent) = (Some(32), Some(16));
    policy
}

fn fixture() -> ModelFolder {
    ModelFolder::open(&files::fixture("llama3-gqa")).expect("a sound fixture")
}

/// A session that has read 120 tokens.
fn start<B: Backend>(backend: &Arc<B>) -> (Engine<B>, Session<B>) {
    let mut engine =
        Engine::load(Arc::clone(backend), fixture(), options(), &policy()).expect("it loads");
    let mut session = engine.session(&policy()).expect("a session");
    let mut go_on = |_| ControlFlow::Continue(());
    let ids = prompt(&engine);
    assert!(block_on(engine.prefill(&mut session, &ids, &mut go_on)).expect("prefill"));
    (engine, session)
}

fn prompt<B: Backend>(engine: &Engine<B>) -> Vec<u32> {
    let n_vocab = engine.model().config().vocab_size as u32;
    (0..120).map(|i| (i * 31 + 7) % n_vocab).collect()
}

fn generate<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    n: usize,
) -> Result<(), EngineError> {
    let params =
        GenerationParams { max_tokens: Some(n), ignore_eos: true, ..GenerationParams::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    block_on(engine.generate(session, &params, &mut go_on)).map(drop)
}

/// The tokens of a session that nothing happens to. A device computes them once in a process: most
/// checks compare with them, and they are the same for all.
fn undisturbed<B: Backend>(backend: &Arc<B>) -> Vec<u32> {
    static KNOWN: Mutex<BTreeMap<String, Vec<u32>>> = Mutex::new(BTreeMap::new());
    let device = format!("{} {}", backend.name(), backend.capabilities().device);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let tokens = known.entry(device).or_insert_with(|| {
        let (mut engine, mut session) = start(backend);
        generate(&mut engine, &mut session, N_TOKENS).expect("decode");
        session.tokens().to_vec()
    });
    tokens.clone()
}

/// Goes on to the end and compares.
fn finish<B: Backend>(engine: &mut Engine<B>, session: &mut Session<B>, expected: &[u32]) {
    let left = expected.len() + 1 - session.n_tokens();
    generate(engine, session, left).expect("the device is opened again");
    assert_eq!(session.tokens(), expected);
}
