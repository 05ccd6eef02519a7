//! Prompts that are begun in a session that is still on its way.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longview_core::{DType, RangeSource};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{
    BegunChunk, CancelToken, ComingSession, Engine, EngineError, EngineOptions, GenerationParams,
    Session,
};
use longview_model::folder::ModelFolder;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

type Cpu = CpuBackend;

/// Tokens of a document and of the question behind it.
const DOCUMENT: usize = 300;
const QUESTION: usize = 40;
/// Bytes at the end of a file, with its directory, and at its beginning.
const END: u64 = 16 << 10;
const BEGIN: u64 = 4 << 10;

/// A file that comes as it is read: what lies further behind it than `ahead` is not there.
struct Link<'a> {
    file: &'a [u8],
    come: AtomicU64,
    ahead: u64,
}

impl RangeSource for Link<'_> {
    fn size(&self) -> u64 {
        self.file.len() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        let end = at + out.len() as u64;
        if end <= self.size().saturating_sub(END) {
            self.come.fetch_max(end + self.ahead, Ordering::Relaxed);
        }
        self.file.read_at(at, out)
    }

    fn is_here(&self, at: u64, len: u64) -> bool {
        at + len <= self.come.load(Ordering::Relaxed).max(BEGIN)
    }

    fn shared(&self) -> Option<&(dyn RangeSource + Sync)> {
        Some(self)
    }
}

fn engine(options: EngineOptions) -> Engine<Cpu> {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama3-gqa");
    let folder = ModelFolder::open(&folder).expect("a sound fixture");
    let options = EngineOptions { ctx_size: 512, chunk_size: 64, ..options };
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::Full)).expect("it loads")
}

/// A document and a question about it.
fn prompt(engine: &Engine<Cpu>) -> Vec<u32> {
    let n_vocab = engine.model().config().vocab_size as u32;
    (0..(DOCUMENT + QUESTION) as u32).map(|i| (i * 31 + i * i / 7) % n_vocab).collect()
}

fn read(engine: &mut Engine<Cpu>, session: &mut Session<Cpu>, ids: &[u32]) {
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(session, ids, &mut go_on)).expect("prefill"));
}

/// A file with the document.
fn saved(engine: &mut Engine<Cpu>, policy: &PolicyOptions) -> Vec<u8> {
    let mut session = engine.session(policy).expect("a session");
    let ids = prompt(engine);
    read(engine, &mut session, &ids[..DOCUMENT]);
    let mut file = Vec::new();
    block_on(engine.save(&mut session, b"", &mut file)).expect("memory");
    file
}

/// What the model says behind the whole prompt, and the answer.
fn answer(engine: &mut Engine<Cpu>, session: &mut Session<Cpu>) -> (Vec<u32>, Vec<u32>) {
    let rest = prompt(engine).split_off(session.tokens().len());
    read(engine, session, &rest);
    let logits = session.logits().iter().map(|x| x.to_bits()).collect();
    let params = GenerationParams { max_tokens: Some(24), ignore_eos: true, ..Default::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    let answer = block_on(engine.generate(session, &params, &mut go_on)).expect("an answer");
    (logits, answer.ids)
}

/// A session that came, and what was begun in it.
type Came = (Session<Cpu>, Option<BegunChunk>);
/// Why none came, and how many layers were there in each turn.
type Failed = Box<(EngineError, Vec<usize>)>;

/// The session of a file that comes layer by layer.
fn come(engine: &mut Engine<Cpu>, file: &[u8], most: usize) -> Result<Came, Failed> {
    let files = engine.session_files().expect("a fingerprint");
    let link = Link { file, come: AtomicU64::new(0), ahead: 0 };
    let prompt = prompt(engine);
    let (mut turns, mut come_before) = (Vec::new(), 0);
    let mut compute = |mut coming: ComingSession<Cpu>| {
        let come = link.come.load(Ordering::Relaxed);
        // Later layers lie behind: not a byte of them was read.
        assert!(come > come_before && come < link.size() - END, "{come} of {}", link.size());
        come_before = come;
        block_on(engine.begin_chunk(&mut coming, most)).expect("it is computed");
        assert_eq!(link.come.load(Ordering::Relaxed), come);
        turns.push(coming.n_layers());
        Some(coming)
    };
    let never = CancelToken::default();
    let restored = files.restore_beside(&link, None, &never, (&prompt, &mut compute));
    match block_on(restored) {
        Ok((restored, begun)) => Ok((restored.session, begun)),
        Err(error) => Err(Box::new((error, turns))),
    }
}

fn policies() -> Vec<PolicyOptions> {
    let small = |preset| {
        let mut policy = PolicyOptions::new(preset).with_budget(96);
        (policy.window, policy.recent) = (Some(16), Some(16));
        policy
    };
    vec![
        PolicyOptions::new(Preset::Full),
        small(Preset::Clusterkv),
        small(Preset::Longview),
        small(Preset::Quest),
    ]
}

#[test]
fn a_question_is_computed_layer_by_layer_while_its_document_comes() {
    for kv_dtype in [DType::F16, DType::F32] {
        let mut engine = engine(EngineOptions { kv_dtype, ..Default::default() });
        let n_layers = engine.model().config().n_layers;
        for policy in policies() {
            let name = format!("{kv_dtype} {}", policy.text());
            let file = saved(&mut engine, &policy);
            let mut here = block_on(engine.restore(&file, None)).expect("a session").session;
            let want = answer(&mut engine, &mut here);
            for most in [64, 10] {
                let (mut session, begun) = come(&mut engine, &file, most).expect("it comes");
                let chunk = begun.expect("it was begun");
                assert_eq!(chunk.n_layers(), n_layers - 1, "{name}");
                assert_eq!(chunk.n_tokens(), most.min(QUESTION - 1), "{name}");
                assert_eq!(session.tokens().len(), DOCUMENT, "{name}");
                let n_tokens = chunk.n_tokens();
                block_on(engine.end_chunk(&mut session, chunk)).expect("it ends");
                assert_eq!(session.tokens(), &prompt(&engine)[..DOCUMENT + n_tokens], "{name}");
                // Others that begin so have the document alone.
                let mut alone = block_on(engine.fork(&mut session)).expect("memory");
                block_on(alone.truncate(DOCUMENT)).expect("the device");
                assert_eq!(answer(&mut engine, &mut session), want, "{name}, {most}");
                assert_eq!(answer(&mut engine, &mut alone), want, "{name}, {most}");
            }
        }
    }
}

/// Layers that are there are read by several threads; nothing is computed before the last of them.
#[test]
fn layers_may_come_several_at_once() {
    let mut engine = engine(EngineOptions::default());
    for policy in policies() {
        let file = saved(&mut engine, &policy);
        let mut here = block_on(engine.restore(&file, None)).expect("a session").session;
        let want = answer(&mut engine, &mut here);
        for part in [2, 3, 8] {
            let ahead = file.len() as u64 / part;
            let link = Link { file: &file, come: AtomicU64::new(0), ahead };
            let prompt = prompt(&engine);
            let files = engine.session_files().expect("a fingerprint");
            let mut turns = Vec::new();
            let mut compute = |mut coming: ComingSession<Cpu>| {
                block_on(engine.begin_chunk(&mut coming, 64)).expect("it is computed");
                turns.push(coming.n_layers());
                Some(coming)
            };
            let never = CancelToken::default();
            let restored = files.restore_beside(&link, None, &never, (&prompt, &mut compute));
            let (restored, begun) = block_on(restored).expect("it comes");
            let mut session = restored.session;
            // The others are there with the first one, or each is waited for.
            let waited: &[usize] = if part == 8 { &[1, 2] } else { &[] };
            assert_eq!(turns, waited, "{ahead} bytes ahead");
            if let Some(chunk) = begun {
                block_on(engine.end_chunk(&mut session, chunk)).expect("it ends");
            }
            assert_eq!(answer(&mut engine, &mut session), want, "{}, {ahead}", policy.text());
        }
    }
}

#[test]
fn what_was_begun_is_undone_where_it_cannot_end() {
    let mut engine = engine(EngineOptions::default());
    for policy in policies() {
        let file = saved(&mut engine, &policy);
        let mut here = block_on(engine.restore(&file, None)).expect("a session").session;
        let want = answer(&mut engine, &mut here);
        let (mut session, begun) = come(&mut engine, &file, 64).expect("it comes");
        let cancel = CancelToken::default();
        session.cancel_with(cancel.clone());
        cancel.cancel();
        let ended = block_on(engine.end_chunk(&mut session, begun.expect("it was begun")));
        assert!(matches!(ended, Err(EngineError::Cancelled)));
        assert_eq!(session.tokens().len(), DOCUMENT);
        session.cancel_with(CancelToken::default());
        assert_eq!(answer(&mut engine, &mut session), want, "{}", policy.text());
    }
}

#[test]
fn a_last_layer_that_is_damaged_gives_no_session() {
    let mut engine = engine(EngineOptions::default());
    let policy = PolicyOptions::new(Preset::Full);
    let mut file = saved(&mut engine, &policy);
    let mut here = block_on(engine.restore(&file, None)).expect("a session").session;
    let want = answer(&mut engine, &mut here);
    let right = file.clone();
    let at = file.len() - END as usize - 100;
    file[at] ^= 1;
    let Err(failed) = come(&mut engine, &file, 64) else { panic!("it was given out") };
    let (error, turns) = *failed;
    let said = error.to_string();
    let last = engine.model().config().n_layers - 1;
    assert!(said.contains(&format!("layer {last}")), "{said}");
    assert_eq!(turns.last(), Some(&last), "all others were computed before");
    // Nothing of it is left in the engine.
    let mut again = block_on(engine.restore(&right, None)).expect("a session").session;
    assert_eq!(answer(&mut engine, &mut again), want);
}

#[test]
fn nothing_is_begun_where_the_prompt_goes_another_way() {
    let mut engine = engine(EngineOptions::default());
    let file = saved(&mut engine, &PolicyOptions::new(Preset::Full));
    let files = engine.session_files().expect("a fingerprint");
    let whole = prompt(&engine);
    let mut other = whole.clone();
    other[DOCUMENT - 1] ^= 1;
    // Another text, the document alone, and one token behind it, which has a step of its own.
    for ids in [&other[..], &whole[..DOCUMENT], &whole[..DOCUMENT + 1]] {
        let link = Link { file: &file, come: AtomicU64::new(0), ahead: 0 };
        let mut compute =
            |_| -> Option<ComingSession<Cpu>> { panic!("there is nothing to compute") };
        let never = CancelToken::default();
        let restored = files.restore_beside(&link, None, &never, (ids, &mut compute));
        let (restored, begun) = block_on(restored).expect("a session");
        assert!(begun.is_none() && restored.session.tokens().len() == DOCUMENT);
    }
    // And where nobody computes, it ends.
    let link = Link { file: &file, come: AtomicU64::new(0), ahead: 0 };
    let (never, mut compute) = (CancelToken::default(), |_: ComingSession<Cpu>| None);
    let ended = block_on(files.restore_beside(&link, None, &never, (&whole, &mut compute)));
    assert!(matches!(ended, Err(EngineError::Cancelled)));
}
