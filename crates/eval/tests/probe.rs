//! Probes with the embedded model: what is compared with what, whose numbers they are, and who may
//! be probed beside whom.

use std::path::Path;
use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda::CudaBackend;
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_engine::{Engine, EngineOptions};
use longview_eval::EvalError;
use longview_eval::coverage::Coverage;
use longview_eval::policies::{Candidate, PolicySpec, candidates, title};
use longview_eval::probe::{self, ProbeText};
use longview_eval::record::{Perplexity, Probe, Record};
use longview_model::folder::ModelFolder;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

const LENGTH: usize = 640;

fn policies(texts: &[&str], budgets: &[usize]) -> Vec<Candidate> {
    let specs: Vec<PolicySpec> = texts.iter().map(|t| PolicySpec::parse(t).unwrap()).collect();
    candidates(&specs, budgets).unwrap()
}

/// Probes `steps` tokens; `sink` may fail.
fn run(policies: &[Candidate], steps: usize, sink: &mut probe::Sink<'_>) -> Result<(), EvalError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
    let folder = ModelFolder::open(&path).unwrap();
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let options = EngineOptions { ctx_size: LENGTH + steps + 1, ..EngineOptions::default() };
    let first = PolicyOptions::new(Preset::StreamingLlm);
    let mut engine = Engine::load(backend, folder, options, &first).unwrap();
    let ids: Vec<u32> = (0..(LENGTH + steps + 1) as u32).map(|i| 300 + i * i % 1009).collect();
    let text = ProbeText { name: "numbers", ids: &ids, length: LENGTH, stride: 1 };
    block_on(probe::probe(&mut engine, &text, policies, sink))
}

fn probed(policies: &[Candidate], steps: usize) -> Vec<Record> {
    let mut all = Vec::new();
    run(policies, steps, &mut |record| {
        all.push(record);
        Ok(())
    })
    .unwrap();
    all
}

fn perplexities(records: &[Record]) -> Vec<&Perplexity> {
    let all = records.iter();
    all.filter_map(|record| if let Record::Perplexity(x) = record { Some(x) } else { None })
        .collect()
}

fn probes<'a>(records: &'a [Record], policy: &str) -> Vec<&'a Probe> {
    let of = |record: &'a Record| match record {
        Record::Probe(x) if title(&x.policy) == policy => Some(x),
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

#[test]
fn policies_that_need_a_prefill_of_their_own_are_probed_beside_others() {
    let all = policies(&["infllm", "full", "h2o", "clusterkv"], &[128]);
    let together = probed(&all, 4);
    let names: Vec<String> = perplexities(&together).iter().map(|p| title(&p.policy)).collect();
    assert_eq!(names, ["full", "clusterkv", "infllm", "h2o"]);
    for policy in &all {
        let alone = probed(std::slice::from_ref(policy), 4);
        let wanted = perplexities(&alone)[0];
        let found = perplexities(&together).into_iter().find(|p| p.policy == policy.label);
        assert_eq!(found, Some(wanted), "who else is probed changes nothing");
        let name = title(&policy.label);
        assert_eq!(probes(&together, &name), probes(&alone, &name));
    }
    let spectra = together.iter().filter(|record| matches!(record, Record::Spectrum(_))).count();
    assert_eq!(spectra, 5 * 2 * 2, "once for each layer, KV head and side");
}

#[test]
fn certificates_are_of_one_policy() {
    let all = policies(&["clusterkv:certify=true", "quest:certify=true"], &[96, 512]);
    let together = probed(&all, 6);
    let certified = |records: &[Record], policy: &Candidate| {
        let found = records.iter().find_map(|record| match record {
            Record::Probe(x) if x.policy == policy.label => x.certified,
            _ => None,
        });
        found.expect("the policy certifies")
    };
    for policy in &all {
        let alone = certified(&probed(std::slice::from_ref(policy), 6), policy);
        let name = format!("{} at {}", title(&policy.label), policy.label.budget);
        assert_eq!(certified(&together, policy), alone, "{name}");
    }
}

/// Of so few tokens a sampled bound reads all that were not chosen, so that it is the truth.
#[test]
fn each_probed_step_has_its_bound_beside_what_was_left_out() {
    let texts = ["clusterkv:certify=sampled", "longview:certify=sampled", "clusterkv:certify=true"];
    let all = policies(&[&texts[..], &["quest"]].concat(), &[128]);
    let records = probed(&all, 5);
    let [clusters, ours, worst, none] = [
        "clusterkv:certify=sampled",
        "longview:certify=sampled",
        "clusterkv:certify=true",
        "quest",
    ]
    .map(|name| {
        let of = probes(&records, name);
        assert!(!of.is_empty(), "{name}");
        let mut coverage = Coverage::default();
        of.iter().for_each(|probe| coverage.add(probe));
        (of.iter().map(|probe| probe.mass_steps.len()).sum::<usize>(), coverage)
    });
    for (n, sampled) in [clusters, ours] {
        assert_eq!((sampled.n_cases(), sampled.n_held()), (n, n));
        let near = sampled.tightness().expect("more than 1 % was left out");
        assert!(sampled.n_large() > 10 && (near - 1.0).abs() < 1e-3, "{near}");
    }
    let (n, worst) = worst;
    assert_eq!((worst.n_cases(), worst.n_held()), (n, n), "a bound that is certain");
    assert!(worst.tightness() > Some(1.1), "{:?}", worst.tightness());
    assert_eq!(none.1.n_cases(), 0, "nobody asked for bounds");
}

#[test]
fn what_policies_are_compared_with_is_the_budget_and_not_what_they_attended() {
    // In the first step the queries of layer 0 are the same under every policy.
    let names = ["loki", "infinigen:ahead=false"];
    let all = probed(&policies(&names, &[256]), 1);
    let [ranked, threshold] = names.map(|name| {
        let all = probes(&all, name);
        all.into_iter().filter(|p| p.layer == 0).collect::<Vec<_>>()
    });
    assert!(!ranked.is_empty() && ranked.len() == threshold.len());
    for (a, b) in ranked.iter().zip(&threshold) {
        assert_eq!(a.attended, 256.0, "loki attends as many as it may");
        assert!(b.attended < 250.0, "a threshold leaves budget: {}", b.attended);
        assert!((a.mass_best - b.mass_best).abs() < 1e-6, "{} {}", a.mass_best, b.mass_best);
        assert!((a.recall_group - b.recall_group).abs() < 1e-6);
        assert!(b.recall <= b.attended / 256.0, "{} of {}", b.recall, b.attended);
    }
}

#[test]
fn a_choice_that_stays_on_the_device_is_refused_and_one_that_the_host_sees_is_probed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-f32");
    let driver = EmulatedDriver::new(EmulatedOptions::default()).unwrap();
    let backend = Arc::new(CudaBackend::on(driver).unwrap());
    let small = "clusterkv:sinks=2:recent=4:window=8:cluster-segment=16:cluster-tokens=4";
    let policies = policies(&[small], &[24]);
    let ids: Vec<u32> = (0..45u32).map(|i| 2 + (i * i * 7 + 13 * i) % 300).collect();
    let probed = |device_cache: bool| {
        let options = EngineOptions {
            ctx_size: 64,
            chunk_size: 16,
            tile_rows: 7,
            device_cache,
            ..EngineOptions::default()
        };
        let folder = ModelFolder::open(&path).unwrap();
        let first = PolicyOptions::new(Preset::StreamingLlm);
        let mut engine = Engine::load(Arc::clone(&backend), folder, options, &first).unwrap();
        let text = ProbeText { name: "numbers", ids: &ids, length: 41, stride: 1 };
        let mut all = Vec::new();
        let mut keep = |record| {
            all.push(record);
            Ok(())
        };
        block_on(probe::probe(&mut engine, &text, &policies, &mut keep)).map(|()| all)
    };
    let refused = probed(true).unwrap_err();
    assert!(matches!(refused, EvalError::DeviceResolves { .. }), "{refused}");
    let all = probed(false).unwrap();
    let all = probes(&all, &title(&policies[0].label));
    assert!(!all.is_empty() && all.iter().all(|p| p.attended == 24.0), "what was recalled counts");
}

#[test]
fn records_come_as_they_are_made_and_an_error_of_the_sink_ends_the_probing() {
    let mut kept = 0;
    let full = run(&policies(&["full", "clusterkv"], &[128]), 2, &mut |record| {
        kept += usize::from(matches!(record, Record::Perplexity(_)));
        match kept {
            0 => Ok(()),
            _ => Err(EvalError::content(Path::new("probes.jsonl"), "the disk is full")),
        }
    });
    assert!(full.unwrap_err().to_string().contains("the disk is full"));
    assert_eq!(kept, 1, "nothing is computed for nobody");
}
