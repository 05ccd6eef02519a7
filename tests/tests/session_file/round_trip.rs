//! A sequence that was saved and opened goes on to the bit as if it had not been.

use longview_core::DType;
use longview_scheduler::{Policy, PolicyOptions, Preset, SchedulerError, SequenceOptions};
use longview_tests::sim::Sim;
use longview_tests::suite::answers;

use super::support::{Cpu, content, cpu, layouts, open, prefilled, save, shape};

/// A third of the prompt.
const BUDGET: usize = 28;
const PROMPT: usize = 90;
/// Steps after the file was opened: windows of 4 tokens fill, become clusters, and fill again.
const LATER: usize = 18;

fn set(preset: Preset, settings: &[(&str, &str)]) -> PolicyOptions {
    let mut options = PolicyOptions::new(preset).with_budget(BUDGET);
    let small = [("window", "4"), ("block-size", "4"), ("cluster-tokens", "4"), ("recent", "8")];
    for (name, value) in small.iter().chain(settings) {
        if preset.info().options.contains(name) {
            options.set(name, value).expect("a value");
        }
    }
    options
}

/// Every preset, and what else a layer may keep from step to step.
pub fn policies() -> Vec<PolicyOptions> {
    let mut all = answers::presets(BUDGET);
    all.extend([
        set(Preset::Clusterkv, &[("residual", "means")]),
        set(Preset::Clusterkv, &[("two-stage", "2"), ("rank", "4")]),
        set(Preset::Longview, &[("rank", "4")]),
        set(Preset::Clusterkv, &[("cluster-segment", "24"), ("budget-mode", "mass")]),
        set(Preset::Lrqk, &[("lrqk-decode", "adaptive"), ("rank", "4")]),
        set(Preset::Loki, &[("rank-tolerance", "0.2")]),
        set(Preset::Quest, &[("token-step", "3"), ("layer-step", "2")]),
        set(Preset::Infllm, &[("importance", "last")]),
        set(Preset::Infllm, &[("recent", "16"), ("window", "8"), ("budget", "64")]),
        set(Preset::Ktransformers, &[("preselect", "12"), ("attend", "host")]),
        set(Preset::H2o, &[("heavy-ratio", "0.7")]),
    ]);
    all
}

/// Steps both and compares attention to the bit.
pub fn go_on_alike(one: &mut Sim<Cpu>, other: &mut Sim<Cpu>, steps: usize, what: &str) {
    for step in 0..steps {
        one.decode(2);
        other.decode(2);
        let bits = |out: &[Vec<f32>]| -> Vec<Vec<u32>> {
            out.iter().map(|layer| layer.iter().map(|x| x.to_bits()).collect()).collect()
        };
        assert!(bits(&one.out) == bits(&other.out), "{what}: step {step} differs");
    }
}

fn check(policy: &PolicyOptions, dtype: DType, saved: (&str, SequenceOptions), before: usize) {
    let (place, options) = saved;
    let what = format!("{}, {dtype}, {place}, {before} steps before", policy.text());
    let mut sim = match prefilled(shape(dtype), policy, options, PROMPT) {
        Ok(sim) => sim,
        Err(error) => panic!("{what}: {error}"),
    };
    (0..before).for_each(|_| sim.decode(2));
    let file = save(&mut sim, policy);
    assert_eq!(save(&mut sim, policy), file, "{what}: saving changes nothing");
    let backend = cpu();
    let (sequence, found) = open(&file, &backend, shape(dtype), None, options)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(found, content(PROMPT + before), "{what}");
    assert_eq!(sequence.policy(), sim.sequence.policy(), "{what}");
    let clusterings = sequence.stats().clusterings;
    assert_eq!(clusterings, 0, "{what}: nothing is clustered to open a file");
    let mut twin = sim.twin(&backend, sequence, options).expect("a twin");
    assert_eq!(save(&mut twin, policy), file, "{what}: what is opened is what was saved");
    go_on_alike(&mut sim, &mut twin, LATER, &what);
    if dtype == DType::F32 {
        twin.check_rows();
    }
}

#[test]
fn every_policy_goes_on_to_the_bit() {
    for policy in policies() {
        for layout in layouts() {
            // Windows of 4 are handed over every fourth step, and count 4 steps later.
            for before in [0, 5, 7] {
                check(&policy, DType::F32, layout, before);
            }
        }
    }
}

#[test]
fn rows_of_halves_go_on_to_the_bit() {
    for policy in policies() {
        check(&policy, DType::F16, layouts()[0], 6);
        check(&policy, DType::F16, layouts()[1], 6);
    }
    check(&set(Preset::Clusterkv, &[]), DType::BF16, layouts()[1], 6);
}

/// Where rows lie is not the file's business.
#[test]
fn a_file_is_opened_in_another_place() {
    for policy in policies() {
        // What was chosen for several steps stays on a device that resolves; the host's order of a
        // sum over heads is not the device's.
        if policy.token_step.is_some() || policy.attend.is_some() {
            continue;
        }
        let [(_, in_place), (_, device), (_, resolving)] = layouts();
        let mut sim = prefilled(shape(DType::F32), &policy, in_place, PROMPT).expect("a prompt");
        (0..6).for_each(|_| sim.decode(2));
        let file = save(&mut sim, &policy);
        for options in [device, resolving] {
            let backend = cpu();
            let (sequence, _) =
                open(&file, &backend, shape(DType::F32), None, options).expect("a session");
            let mut twin = sim.twin(&backend, sequence, options).expect("a twin");
            assert_eq!(save(&mut twin, &policy), file, "{}", policy.text());
            twin.decode(2);
        }
    }
}

/// A longer context has room for the same session, and one that just holds it too.
#[test]
fn a_file_is_opened_in_another_context() {
    for policy in policies() {
        let options = layouts()[1].1;
        let mut sim = prefilled(shape(DType::F32), &policy, options, PROMPT).expect("a prompt");
        (0..6).for_each(|_| sim.decode(2));
        let file = save(&mut sim, &policy);
        for capacity in [PROMPT + 6 + LATER, 400] {
            let mut shape = shape(DType::F32);
            shape.capacity = capacity;
            let backend = cpu();
            let (sequence, _) = open(&file, &backend, shape, None, options).expect("a session");
            let mut twin = sim.twin(&backend, sequence, options).expect("a twin");
            let mut again = prefilled(super::support::shape(DType::F32), &policy, options, PROMPT)
                .expect("a prompt");
            (0..6).for_each(|_| again.decode(2));
            go_on_alike(&mut again, &mut twin, LATER, &format!("{} {capacity}", policy.text()));
        }
        let mut short = shape(DType::F32);
        short.capacity = PROMPT + 5;
        let error = open(&file, &cpu(), short, None, options).map(drop).unwrap_err().to_string();
        assert!(error.contains("has 96 tokens and the context holds 95"), "{error}");
        assert!(error.contains("--ctx-size 160, as it was saved, or at least 97"), "{error}");
    }
}

/// Opening under another policy is what changing the policy is.
#[test]
fn another_policy_is_one_that_follows() {
    let options = layouts()[1].1;
    let long = [("recent", "64"), ("window", "4"), ("block-size", "4"), ("budget", "96")];
    for first in [
        PolicyOptions::new(Preset::Full),
        set(Preset::Clusterkv, &[]),
        set(Preset::H2o, &[]),
        set(Preset::Infllm, &long),
    ] {
        for policy in policies() {
            let mut sim = prefilled(shape(DType::F32), &first, options, PROMPT).expect("a prompt");
            (0..5).for_each(|_| sim.decode(2));
            let file = save(&mut sim, &first);
            let resolved = Policy::resolve(&policy, 160).expect("a policy of the list");
            // The same policy keeps the index that is there, which would be made anew.
            let changed = if resolved.text() == sim.sequence.policy().text() {
                Ok(())
            } else {
                pollster::block_on(sim.sequence.set_policy(resolved))
            };
            let backend = cpu();
            let opened = open(&file, &backend, shape(DType::F32), Some(&policy), options);
            let what = format!("{} after {}", policy.text(), first.text());
            match (changed, opened) {
                (Ok(()), Ok((sequence, _))) => {
                    let mut twin = sim.twin(&backend, sequence, options).expect("a twin");
                    go_on_alike(&mut sim, &mut twin, 6, &what);
                }
                (Err(changed), Err(opened)) => {
                    assert!(
                        matches!(opened, SchedulerError::NoStatistics { .. }),
                        "{what}: {opened}"
                    );
                    assert_eq!(changed.to_string(), opened.to_string(), "{what}");
                }
                (changed, opened) => {
                    panic!("{what}: {:?} and {:?}", changed.err(), opened.map(drop).err())
                }
            }
        }
    }
}

/// A question is taken back from a session that was opened as from one that was not.
#[test]
fn what_was_opened_can_be_cut_back_and_read_on() {
    for policy in policies() {
        let options = layouts()[1].1;
        let mut sim = prefilled(shape(DType::F32), &policy, options, PROMPT).expect("a prompt");
        let file = save(&mut sim, &policy);
        let backend = cpu();
        let (sequence, _) =
            open(&file, &backend, shape(DType::F32), None, options).expect("a session");
        let mut twin = sim.twin(&backend, sequence, options).expect("a twin");
        let what = policy.text();
        go_on_alike(&mut sim, &mut twin, 13, &what);
        for sim in [&mut sim, &mut twin] {
            pollster::block_on(sim.sequence.truncate(PROMPT)).expect("a cut");
        }
        go_on_alike(&mut sim, &mut twin, 5, &what);
        if matches!(policy.preset, Preset::H2o) {
            // Attention that decoded tokens gave is not that of a prompt.
            continue;
        }
        for sim in [&mut sim, &mut twin] {
            sim.prefill(3, 20);
        }
        go_on_alike(&mut sim, &mut twin, 5, &what);
    }
}
