//! A file that is appended to holds what a file that is written as a whole would hold, and at no
//! moment less than before.

use longview_core::DType;
use longview_scheduler::{HostRows, KvShape, PolicyOptions, Preset, SessionFile};
use longview_tests::sim::Sim;

use super::round_trip::{go_on_alike, policies};
use super::support::{Cpu, append, content, cpu, layouts, open, prefilled, save, shape};

const PROMPT: usize = 90;

fn reopened(sim: &Sim<Cpu>, file: &[u8], shape: &KvShape) -> Sim<Cpu> {
    let (backend, options) = (cpu(), layouts()[0].1);
    let (sequence, found) = open(&file, &backend, shape.clone(), None, options).expect("a session");
    assert_eq!(found, content(sim.n_tokens()));
    sim.twin(&backend, sequence, options).expect("a twin")
}

/// A prompt, and the file that it was saved in.
struct Saved {
    sim: Sim<Cpu>,
    shape: KvShape,
    file: Vec<u8>,
    what: String,
}

fn saved(policy: &PolicyOptions, host_rows: HostRows) -> Saved {
    let shape = KvShape { host_rows, ..shape(DType::F16) };
    let what = format!("{} {host_rows:?}", policy.text());
    let Ok(mut sim) = prefilled(shape.clone(), policy, layouts()[0].1, PROMPT) else {
        panic!("{what}")
    };
    let file = save(&mut sim, policy);
    Saved { sim, shape, file, what }
}

#[test]
fn what_was_appended_goes_on_to_the_bit() {
    for policy in policies() {
        for host_rows in [HostRows::Plain, HostRows::EightBits] {
            let Saved { mut sim, shape, mut file, what } = saved(&policy, host_rows);
            // Windows of 4 become clusters on the way, so that rows change their places.
            for steps in [1, 9, 4] {
                let before = file.clone();
                (0..steps).for_each(|_| sim.decode(2));
                assert!(append(&mut sim, &policy, &mut file), "{what}");
                assert!(file.starts_with(&before), "{what}: what was there stays");
                SessionFile::open(&file).and_then(|file| file.verify(2)).expect("a whole file");
                let mut twin = reopened(&sim, &file, &shape);
                assert!(save(&mut twin, &policy) == save(&mut sim, &policy), "{what}");
            }
            let mut twin = reopened(&sim, &file, &shape);
            go_on_alike(&mut sim, &mut twin, 6, &what);
        }
    }
}

/// The end of a prompt is clustered anew when it goes on, which moves its rows: the file has them
/// in the order of tokens.
#[test]
fn a_prompt_that_goes_on_is_appended() {
    for policy in policies() {
        for host_rows in [HostRows::Plain, HostRows::EightBits] {
            let Saved { mut sim, shape, mut file, what } = saved(&policy, host_rows);
            for n in [20, 3] {
                sim.prefill(2, n);
                assert!(append(&mut sim, &policy, &mut file), "{what}");
                let mut twin = reopened(&sim, &file, &shape);
                assert!(save(&mut twin, &policy) == save(&mut sim, &policy), "{what}");
            }
            let mut twin = reopened(&sim, &file, &shape);
            go_on_alike(&mut sim, &mut twin, 6, &what);
        }
    }
}

fn clusters() -> PolicyOptions {
    let mut options = PolicyOptions::new(Preset::Clusterkv).with_budget(28);
    for (name, value) in [("window", "4"), ("cluster-tokens", "4"), ("recent", "8")] {
        options.set(name, value).expect("a value");
    }
    options
}

/// A few steps cost a few rows, not the document.
#[test]
fn an_append_costs_what_is_appended() {
    let policy = clusters();
    let mut long = shape(DType::F16);
    long.capacity = 4000;
    let mut sim = prefilled(long, &policy, layouts()[0].1, 3000).expect("a prompt");
    let whole = save(&mut sim, &policy);
    let mut file = whole.clone();
    sim.decode(2);
    assert!(append(&mut sim, &policy, &mut file));
    let row = 2 * sim.sequence.shape().head_dim * 2 * sim.sequence.shape().n_kv_heads;
    let added = file.len() - whole.len();
    // Rows that wait for the next window, statistics of three layers, a directory.
    assert!(whole.len() > 3 * 3000 * row && added < whole.len() / 4, "{added} of {}", whole.len());
    // Nothing new is little more than a directory.
    let before = file.len();
    assert!(append(&mut sim, &policy, &mut file));
    let entries = 80 * 600;
    assert!(file.len() - before < entries, "{} bytes for nothing", file.len() - before);
    // A prompt that goes on costs its rows, the order of all, and the clusters that are made anew.
    let before = file.len();
    sim.prefill(2, 40);
    assert!(append(&mut sim, &policy, &mut file));
    let added = file.len() - before;
    assert!(added < whole.len() / 2, "{added} of {}", whole.len());
}

/// Whenever an append ends: the file is as before, or as it should be.
#[test]
fn an_append_that_ends_anywhere_leaves_the_session_before() {
    let policy = clusters();
    let mut sim = prefilled(shape(DType::F16), &policy, layouts()[0].1, PROMPT).expect("a prompt");
    let before = save(&mut sim, &policy);
    let n_before = sim.n_tokens();
    let mut file = before.clone();
    (0..9).for_each(|_| sim.decode(2));
    assert!(append(&mut sim, &policy, &mut file));
    for len in before.len()..file.len() {
        let cut = file[..len].to_vec();
        let opened = SessionFile::open(&cut).expect("the session before");
        assert_eq!(opened.header().n_tokens, n_before);
        assert_eq!(opened.n_torn_bytes(), (len - before.len()) as u64);
        opened.verify(2).expect("all of it");
    }
    // The next append overwrites what the last one left.
    let mut cut = file[..file.len() - 7].to_vec();
    assert!(append(&mut sim, &policy, &mut cut));
    assert!(cut == file);
}

/// A question that was taken back, and another one.
#[test]
fn an_append_follows_a_cut() {
    let policy = clusters();
    let shape = shape(DType::F16);
    let mut sim = prefilled(shape.clone(), &policy, layouts()[0].1, PROMPT).expect("a prompt");
    let mut file = save(&mut sim, &policy);
    (0..9).for_each(|_| sim.decode(2));
    assert!(append(&mut sim, &policy, &mut file));
    pollster::block_on(sim.sequence.truncate(PROMPT + 2)).expect("a cut");
    (0..5).for_each(|_| sim.decode(2));
    assert!(append(&mut sim, &policy, &mut file));
    let mut twin = reopened(&sim, &file, &shape);
    assert!(save(&mut twin, &policy) == save(&mut sim, &policy));
    go_on_alike(&mut sim, &mut twin, 6, "after a cut");
}

#[test]
fn what_is_not_appended_is_said_before_anything_is_written() {
    let policy = clusters();
    let mut sim = prefilled(shape(DType::F16), &policy, layouts()[0].1, PROMPT).expect("a prompt");
    let mut file = save(&mut sim, &policy);
    let mut other =
        prefilled(shape(DType::F32), &policy, layouts()[0].1, PROMPT).expect("a prompt");
    assert!(!append(&mut other, &policy, &mut file), "rows of another type");
    pollster::block_on(sim.sequence.truncate(10)).expect("a cut");
    assert!(!append(&mut sim, &policy, &mut file), "little of the file would be used");
    assert_eq!(SessionFile::open(&file).expect("a session").header().n_tokens, PROMPT);
}

/// Other settings of a policy are another index over the same rows, as far as they lie where they
/// did.
#[test]
fn another_policy_is_appended_where_rows_stay() {
    let (first, shape) = (PolicyOptions::new(Preset::Full), shape(DType::F16));
    let mut sim = prefilled(shape.clone(), &first, layouts()[0].1, PROMPT).expect("a prompt");
    let mut file = save(&mut sim, &first);
    let mut quest = PolicyOptions::new(Preset::Quest).with_budget(28);
    for (name, value) in [("window", "4"), ("block-size", "4"), ("recent", "8")] {
        quest.set(name, value).expect("a value");
    }
    let resolved = longview_scheduler::Policy::resolve(&quest, shape.capacity).expect("a policy");
    pollster::block_on(sim.sequence.set_policy(resolved)).expect("blocks");
    let before = file.len();
    assert!(append(&mut sim, &quest, &mut file));
    assert!(file.len() - before < before, "rows of blocks are in token order");
    let mut twin = reopened(&sim, &file, &shape);
    go_on_alike(&mut sim, &mut twin, 6, "quest");
}
