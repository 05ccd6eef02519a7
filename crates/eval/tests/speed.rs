//! Steps are timed after prefill and after injection, and a report draws them.

use std::path::Path;
use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions};
use longview_eval::policies::{PolicySpec, candidates};
use longview_eval::record::{Record, Speed};
use longview_eval::report::{Chart, Data};
use longview_eval::speed::{self, SpeedTest};
use longview_model::folder::ModelFolder;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

const PREFILLED: usize = 512;
const BUDGET: usize = 128;

fn engine(context: usize) -> Engine<CpuBackend> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
    let folder = ModelFolder::open(&path).expect("the embedded model");
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a backend"));
    let options =
        EngineOptions { ctx_size: context, simulate_device: true, ..EngineOptions::default() };
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::StreamingLlm))
        .expect("an engine")
}

fn measure() -> Vec<Speed> {
    let ids: Vec<u32> = (0..PREFILLED as u32 + 200).map(|i| 300 + i * 7 % 1000).collect();
    let test = SpeedTest { ids: &ids, prefilled: PREFILLED, steps: &[8, 128] };
    let specs = ["full", "clusterkv", "quest"].map(|text| PolicySpec::parse(text).expect(text));
    let policies = candidates(&specs, &[BUDGET]).expect("budgets");
    let mut all = Vec::new();
    let mut keep = |speed| all.push(speed);
    let mut near = engine(test.room(PREFILLED));
    block_on(speed::after_prefill(&mut near, &test, PREFILLED, &policies, &mut keep))
        .expect("prefilled contexts");
    let far = 4 * PREFILLED;
    let mut engine = engine(test.room(far));
    let rows = block_on(speed::rows_of(&mut engine, &ids[..PREFILLED])).expect("rows of the text");
    block_on(speed::after_injection(&mut engine, &test, &rows, far, &policies, &mut keep))
        .expect("injected contexts");
    all
}

#[test]
fn steps_are_timed_after_prefill_and_after_injection() {
    let all = measure();
    assert_eq!(all.len(), 2 * 3 * 2, "contexts, policies, numbers of steps");
    for speed in &all {
        let name = format!("{} at {}", speed.policy.policy, speed.context);
        let parts = speed.select_s + speed.fetch_s + speed.attend_s;
        assert!(speed.step_s > 0.0 && parts > 0.0, "{name}");
        assert!(speed.decode_s >= speed.steps as f64 / 2.0 * speed.step_s, "{name}: median");
        let is_full = speed.policy.policy == "full";
        assert_eq!(speed.hit_rate.is_none(), is_full, "{name}: only recall has a cache");
        assert_eq!(speed.select_s > 0.0, !is_full, "{name}: full attention selects nothing");
        let far = speed.context > PREFILLED;
        assert_eq!((speed.injected, speed.prefill_s.is_some()), (far, !far), "{name}");
        assert_eq!(speed.index_s.is_some(), !is_full && !far, "{name}: who has an index");
    }
    let device = |policy: &str, context: usize| {
        let of = |s: &&Speed| s.policy.policy == policy && s.context == context;
        all.iter().find(of).expect("a measurement").device_bytes
    };
    let (near, far) = (PREFILLED, 4 * PREFILLED);
    assert!(device("full", far) > 3 * device("full", near), "all of it is on the device");
    assert!(device("quest", far) < device("full", far) / 3, "what is attended is on the device");

    let folder = std::env::temp_dir().join(format!("longview-speed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let path = folder.join("speed.jsonl");
    let line = |speed: &Speed| {
        serde_json::to_string(&Record::Speed(speed.clone())).expect("a record") + "\n"
    };
    std::fs::write(&path, all.iter().map(line).collect::<String>()).expect("a results file");
    let mut data = Data::read(&[path]).expect("results");
    let figures = data.figures();
    let find = |name: &str| &figures.iter().find(|f| f.name == name).expect(name).chart;
    let Chart::Lines { series, x, .. } = find("latency") else { panic!("latency is lines") };
    assert!(x.label.contains("injected from 2K"), "{}", x.label);
    assert!(series.iter().all(|s| s.points.len() == 2), "one point for each context");
    let Chart::Stack { bars, parts, .. } = find("latency-grid-512") else {
        panic!("the grid is bars")
    };
    assert_eq!(bars.len(), 3, "answers of 128 tokens, not the sample of 8: {bars:?}");
    assert!(parts.iter().all(|(_, times)| times.iter().all(|t| *t > 0.0)));
    assert_eq!(data.keep(&["quest".into(), "loki".into()]), ["loki"], "what is not there is named");
    assert_eq!(data.speeds.len(), 2 * 2 * 2, "quest and full attention stay");
    std::fs::remove_dir_all(folder).expect("the test's own folder");
}
