//! A prompt says the same whether it was read at once, behind a part of it that was read before,
//! from a file, behind an answer that the model itself gave, or in chunks of another length: logits
//! are compared bit for bit. `clusterkv` is excepted by name ([`KEEPS_CLUSTERS`]).

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, GenerationParams, Session};
use longview_model::folder::ModelFolder;
use longview_scheduler::{Policy, PolicyOptions, Preset, PromptLength, SessionFile};
use pollster::block_on;

type Cpu = CpuBackend;

const CONTEXT: usize = 3_072;

/// Rows of a segment of the index, where policies have segments.
const SEGMENT: usize = 512;

/// Tokens of a prompt: four segments and a run, or two runs.
const PROMPT: usize = 2_450;

/// Beginnings of it: in the first segment, where that ends, in a later one, and in the last run.
const BEGINNINGS: [usize; 4] = [300, 16 + SEGMENT + 64, 1_301, 2_420];

/// Those that are tried under a policy: one of them, the next one under the next policy. With
/// `LONGVIEW_ROUNDS` all of them, which takes minutes.
fn beginnings(policy: usize) -> impl Iterator<Item = usize> {
    let all = BEGINNINGS.len();
    let n = if std::env::var_os("LONGVIEW_ROUNDS").is_some() { all } else { 1 };
    BEGINNINGS.into_iter().cycle().skip(policy).take(n)
}

fn engine(chunk_size: usize) -> Engine<Cpu> {
    let backend = Arc::new(Cpu::new(CpuOptions::default()).expect("a processor"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama3-gqa");
    let folder = ModelFolder::open(&path).expect("a sound fixture");
    let options = EngineOptions { ctx_size: CONTEXT, chunk_size, ..EngineOptions::default() };
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::Full)).expect("it loads")
}

/// Policies under which a known beginning may change bits. Where clusters alone are chosen, those
/// of a known beginning stay: a prompt that goes on would be clustered as a whole for each question
/// else, which takes longer than reading the question by far.
const KEEPS_CLUSTERS: [Preset; 1] = [Preset::Clusterkv];

/// Those that are held to the same bits: all but [`KEEPS_CLUSTERS`].
fn policies() -> Vec<PolicyOptions> {
    let mut held = all_policies();
    held.retain(|policy| !KEEPS_CLUSTERS.contains(&policy.preset));
    assert!(held.len() + 2 == all_policies().len(), "clusterkv is there twice, and else nothing");
    held
}

/// Everything, and all presets that recall; clusters of whole prompts and of segments.
fn all_policies() -> Vec<PolicyOptions> {
    let of = |preset| PolicyOptions::new(preset).with_budget(256);
    let mut segments = of(Preset::Clusterkv);
    segments.cluster_segment = Some(SEGMENT);
    let mut longview = of(Preset::Longview);
    longview.cluster_segment = Some(SEGMENT);
    let mut all = vec![PolicyOptions::new(Preset::Full), segments, longview];
    let recalls =
        |preset: &Preset| Policy::resolve(&of(*preset), CONTEXT).expect("it").residency.recalls();
    all.extend(Preset::ALL.iter().map(|(preset, _)| *preset).filter(recalls).map(of));
    assert!(all.len() >= 11, "{} presets recall", all.len() - 3);
    all
}

/// Whether a prompt must be read under it.
fn needs_all_queries(policy: &PolicyOptions) -> bool {
    Policy::resolve(policy, CONTEXT).expect("a policy").needs_all_queries()
}

fn prompt(engine: &Engine<Cpu>) -> Vec<u32> {
    let n_vocab = engine.model().config().vocab_size as u32;
    (0..PROMPT as u32).map(|i| 2 + (i * 31 + i * i / 7) % (n_vocab - 2)).collect()
}

fn read(engine: &mut Engine<Cpu>, session: &mut Session<Cpu>, ids: &[u32]) {
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(session, ids, &mut go_on)).expect("a prompt"));
}

fn begun(engine: &mut Engine<Cpu>, policy: &PolicyOptions, ids: &[u32]) -> Session<Cpu> {
    let mut session = engine.session(policy).expect("a session");
    read(engine, &mut session, ids);
    session
}

/// The same with an answer of 40 tokens behind it.
fn answered(engine: &mut Engine<Cpu>, policy: &PolicyOptions, ids: &[u32]) -> Session<Cpu> {
    let most = GenerationParams { max_tokens: Some(40), ignore_eos: true, ..Default::default() };
    let mut chat = begun(engine, policy, ids);
    let mut go_on = |_: &str| ControlFlow::Continue(());
    block_on(engine.generate(&mut chat, &most, &mut go_on)).expect("an answer");
    chat
}

/// What the model says behind the prompt, and behind tokens that follow it through the policy.
fn said(engine: &mut Engine<Cpu>, session: &mut Session<Cpu>) -> Vec<u32> {
    let mut all: Vec<u32> = session.logits().iter().map(|logit| logit.to_bits()).collect();
    assert!(!all.is_empty(), "it says nothing");
    for id in 20..28 {
        block_on(engine.feed(session, &[id])).expect("a token");
        all.extend(session.logits().iter().map(|logit| logit.to_bits()));
    }
    all
}

/// The same of the whole prompt read at once, in chunks of 256. Computed once for all tests.
fn at_once(engine: &mut Engine<Cpu>, policy: &PolicyOptions, ids: &[u32]) -> Vec<u32> {
    static KNOWN: Mutex<Option<HashMap<String, Vec<u32>>>> = Mutex::new(None);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known().get_or_insert_default().get(&policy.text()).cloned();
    found.unwrap_or_else(|| {
        let mut session = begun(engine, policy, ids);
        let said = said(engine, &mut session);
        known().get_or_insert_default().insert(policy.text(), said.clone());
        said
    })
}

#[track_caller]
fn same(policy: &PolicyOptions, got: &[u32], want: &[u32], how: &str) {
    let first = got.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(first, None, "{how}: the first logit that differs under {}", policy.text());
    assert_eq!(got.len(), want.len());
}

#[test]
fn a_known_beginning_changes_no_bit() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    for (i, policy) in policies().into_iter().enumerate() {
        let want = at_once(&mut engine, &policy, &ids);
        for n in beginnings(i) {
            let mut kept = begun(&mut engine, &policy, &ids[..n]);
            // As a server goes on from it: the kept one stays.
            let mut session = block_on(engine.fork(&mut kept)).expect("a fork");
            read(&mut engine, &mut session, &ids[n..]);
            same(&policy, &said(&mut engine, &mut session), &want, &format!("behind {n} tokens"));
            // In more than one part.
            let middle = (n + PROMPT) / 2;
            read(&mut engine, &mut kept, &ids[n..middle]);
            read(&mut engine, &mut kept, &ids[middle..]);
            same(&policy, &said(&mut engine, &mut kept), &want, &format!("in parts from {n} on"));
        }
    }
}

#[test]
fn a_beginning_from_a_file_changes_no_bit() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    for (i, policy) in policies().into_iter().enumerate() {
        let want = at_once(&mut engine, &policy, &ids);
        for n in beginnings(i) {
            let mut kept = begun(&mut engine, &policy, &ids[..n]);
            let mut file = Vec::new();
            block_on(engine.save(&mut kept, b"", &mut file)).expect("memory");
            let opened = block_on(engine.restore(&file.as_slice(), Some(&policy)));
            let mut session = opened.expect("it opens").session;
            read(&mut engine, &mut session, &ids[n..]);
            same(&policy, &said(&mut engine, &mut session), &want, &format!("{n} from a file"));
        }
    }
}

#[test]
fn an_answer_that_becomes_a_part_of_the_prompt_is_read_like_the_rest() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    for policy in policies() {
        let mut chat = answered(&mut engine, &policy, &ids[..1_200]);
        let turn = &ids[1_200..1_500];
        let answered = chat.tokens().to_vec();
        read(&mut engine, &mut chat, turn);
        let whole = chat.tokens().to_vec();
        assert!(whole.starts_with(&answered) && whole.ends_with(turn));
        let mut at_once = begun(&mut engine, &policy, &whole);
        let want = said(&mut engine, &mut at_once);
        same(&policy, &said(&mut engine, &mut chat), &want, "behind an answer");
    }
}

/// A chat that is saved behind its answer, and again behind the next turn: the rows of the answer
/// are other ones then.
#[test]
fn an_answer_in_a_file_is_read_like_the_rest() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    for policy in policies() {
        let mut chat = answered(&mut engine, &policy, &ids[..1_200]);
        let mut file = Vec::new();
        block_on(engine.save(&mut chat, b"", &mut file)).expect("memory");
        for turn in [1_200..1_400, 1_400..1_500] {
            let opened = block_on(engine.restore(&file.as_slice(), Some(&policy)));
            let mut session = opened.expect("it opens").session;
            read(&mut engine, &mut session, &ids[turn]);
            let before = SessionFile::open(&file).expect("a file");
            let mut more = Vec::new();
            let appended = engine.append(&mut session, b"", &before, &mut more);
            assert!(block_on(appended).expect("memory"), "{}", policy.text());
            file.extend(more);
            chat = session;
        }
        let whole = chat.tokens().to_vec();
        assert!(whole.len() > 1_500 && whole.ends_with(&ids[1_200..1_500]), "{}", whole.len());
        let mut at_once = begun(&mut engine, &policy, &whole);
        let want = said(&mut engine, &mut at_once);
        same(&policy, &said(&mut engine, &mut chat), &want, "in a file");
    }
}

#[test]
fn a_prompt_that_parts_from_a_known_one_has_no_bit_of_it() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    let other: Vec<u32> = ids.iter().rev().copied().collect();
    for (i, policy) in policies().into_iter().enumerate() {
        let want = at_once(&mut engine, &policy, &ids);
        for n in beginnings(i) {
            let longer = [&ids[..n], &other[..450]].concat();
            let kept = &mut begun(&mut engine, &policy, &longer);
            let mut session = block_on(engine.fork(kept)).expect("a fork");
            let most = session.sequence().shape().capacity;
            let prompt = PromptLength { len: PROMPT, most };
            let known = session.sequence().known(session.policy(), n, prompt);
            let asked = session.policy();
            let is_cut = asked.needs_sums() || asked.local_window().is_some();
            // The last queries of this prompt are those of its own last tokens.
            let reads_end = asked.needs_last_queries() && known == n.min(PROMPT - 128);
            assert!(known == n || is_cut || reads_end, "{known} of {n} tokens");
            block_on(session.truncate(known)).expect("a cut");
            read(&mut engine, &mut session, &ids[known..]);
            same(&policy, &said(&mut engine, &mut session), &want, &format!("cut to {known}"));
        }
    }
}

#[test]
fn another_policy_goes_on_from_what_one_has_read() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    let policies = policies();
    let others = policies.iter().filter(|policy| !needs_all_queries(policy));
    // Begun under full attention, and with an index of two stages.
    let before = [&policies[0], &policies[1]].into_iter().cycle();
    for (policy, before) in others.zip(before) {
        let want = at_once(&mut engine, policy, &ids);
        let mut session = begun(&mut engine, before, &ids[..1_301]);
        block_on(engine.set_policy(&mut session, policy)).expect("a policy");
        read(&mut engine, &mut session, &ids[1_301..]);
        let how = format!("begun under {}", before.text());
        same(policy, &said(&mut engine, &mut session), &want, &how);
    }
}

#[test]
fn the_length_of_chunks_changes_no_bit() {
    let mut engines = [256, 37, 500].map(engine);
    let ids = prompt(&engines[0]);
    for policy in all_policies() {
        let want = at_once(&mut engines[0], &policy, &ids);
        for engine in &mut engines[1..] {
            let mut session = begun(engine, &policy, &ids);
            same(&policy, &said(engine, &mut session), &want, "other chunks");
        }
    }
}

/// The exception is as wide as its reason: a policy is excepted where its index keeps runs, and
/// nowhere else.
#[test]
fn policies_are_excepted_where_their_clusters_stay() {
    for policy in all_policies() {
        let index = Policy::resolve(&policy, CONTEXT).expect("a policy").index;
        let keeps = index.is_some_and(|index| index.keeps_runs());
        assert_eq!(keeps, KEEPS_CLUSTERS.contains(&policy.preset), "{}", policy.text());
    }
}

/// What holds under the excepted ones: the same known beginning gives the same bits again, also
/// behind a question that was taken back, and from a file.
#[test]
fn the_same_known_beginning_gives_the_same_bits_again() {
    let mut engine = engine(256);
    let ids = prompt(&engine);
    let mut n_tried = 0;
    for policy in all_policies() {
        if !KEEPS_CLUSTERS.contains(&policy.preset) {
            continue;
        }
        for n in BEGINNINGS {
            let mut kept = begun(&mut engine, &policy, &ids[..n]);
            let mut file = Vec::new();
            block_on(engine.save(&mut kept, b"", &mut file)).expect("memory");
            let mut first = block_on(engine.fork(&mut kept)).expect("a fork");
            read(&mut engine, &mut first, &ids[n..]);
            let mut parted = block_on(engine.fork(&mut first)).expect("a fork");
            let want = said(&mut engine, &mut first);
            block_on(parted.cut(n)).expect("a cut");
            let opened = block_on(engine.restore(&file.as_slice(), Some(&policy)));
            let opened = opened.expect("it opens").session;
            for (mut session, how) in [(kept, "again"), (parted, "cut"), (opened, "from a file")] {
                read(&mut engine, &mut session, &ids[n..]);
                let how = format!("{how} behind {n} tokens");
                same(&policy, &said(&mut engine, &mut session), &want, &how);
            }
            n_tried += 1;
        }
    }
    assert_eq!(n_tried, 2 * BEGINNINGS.len());
}
