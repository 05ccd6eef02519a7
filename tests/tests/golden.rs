//! Logits and greedy tokens against a published implementation, through the engine on every
//! backend.
//!
//! The fixtures are tiny random checkpoints of every architecture and RoPE scaling, with logits and
//! tokens computed by Hugging Face transformers (`tests/fixtures/make_fixtures.py`). Full attention
//! must agree, and so must ClusterKV with a budget that holds the whole context: then recall has
//! nothing to leave out.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, GenerationParams, Session};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{BudgetOption, PolicyOptions, Preset};
use serde::Deserialize;

/// Largest difference of a logit that arithmetic in another order may make.
const MAX_LOGIT_ERROR: f32 = 1e-3;

#[derive(Deserialize)]
struct Golden {
    planned_context: usize,
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
}

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folders = std::fs::read_dir(&root).expect("tests/fixtures is there");
    let mut folders: Vec<_> = folders.map(|entry| entry.expect("readable").path()).collect();
    folders.retain(|path| path.join("golden.json").exists() && path.join("config.json").exists());
    folders.sort();
    folders
}

fn golden(path: &Path) -> Golden {
    let text = std::fs::read_to_string(path.join("golden.json")).expect("readable");
    serde_json::from_str(&text).expect("a golden file")
}

fn clusterkv(budget: usize) -> PolicyOptions {
    let mut options = PolicyOptions::new(Preset::Clusterkv);
    options.budget = BudgetOption::Tokens(budget);
    // Small windows and segments, so that clusters are made in prefill and in decode.
    (options.window, options.recent, options.cluster_segment) = (Some(20), Some(8), Some(96));
    options
}

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"))
}

struct Run<B: Backend> {
    engine: Engine<B>,
    session: Session<B>,
}

impl<B: Backend> Run<B> {
    fn new(
        backend: &Arc<B>,
        path: &Path,
        golden: &Golden,
        policy: &PolicyOptions,
        simulate_device: bool,
    ) -> Self {
        let folder = ModelFolder::open(path).expect("a sound fixture");
        let options = EngineOptions {
            ctx_size: golden.planned_context,
            chunk_size: 64,
            tile_rows: 50,
            kv_dtype: DType::F32,
            simulate_device,
            ..EngineOptions::default()
        };
        let engine =
            Engine::load(Arc::clone(backend), folder, options, policy).expect("a sound fixture");
        let session = engine.session(policy).expect("a session");
        Self { engine, session }
    }

    fn prefill(&mut self, ids: &[u32]) {
        let mut go_on = |_| ControlFlow::Continue(());
        let call = self.engine.prefill(&mut self.session, ids, &mut go_on);
        assert!(pollster::block_on(call).expect("prefill"));
    }

    fn greedy(&mut self, n: usize) -> Vec<u32> {
        let params =
            GenerationParams { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
        let mut go_on = |_: &str| ControlFlow::Continue(());
        pollster::block_on(self.engine.generate(&mut self.session, &params, &mut go_on))
            .expect("decode")
            .ids
    }
}

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "lengths of logits");
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // `max` would let a NaN pass.
    differences.fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

/// Prefill in two parts (the second sees a past that may be clustered), then greedy tokens.
fn check<B: Backend>(backend: &Arc<B>, path: &Path, policy: &PolicyOptions, simulate_device: bool) {
    let (name, golden) = (path.display(), golden(path));
    let mut run = Run::new(backend, path, &golden, policy, simulate_device);
    let mut done = 0;
    for (position, expected) in golden.positions.iter().zip(&golden.logits) {
        run.prefill(&golden.prompt[done..=*position]);
        done = position + 1;
        let error = worst(run.session.logits(), expected);
        assert!(error <= MAX_LOGIT_ERROR, "{name}: logits at {position} are off by {error}");
    }
    assert_eq!(done, golden.prompt.len(), "{name}: the last golden position ends the prompt");
    assert_eq!(run.greedy(golden.greedy.len()), golden.greedy, "{name}: greedy tokens");
}

#[test]
fn there_is_a_fixture_of_every_kind() {
    let names: Vec<_> = fixtures().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert!(names.len() >= 14, "{names:?}");
}

#[test]
fn full_attention_agrees() {
    for path in fixtures() {
        check(&cpu(), &path, &PolicyOptions::new(Preset::Full), false);
    }
}

#[test]
fn full_attention_agrees_through_a_separate_device() {
    for path in fixtures() {
        check(&cpu(), &path, &PolicyOptions::new(Preset::Full), true);
    }
}

#[test]
fn clusterkv_with_the_whole_context_as_budget_agrees() {
    for path in fixtures() {
        check(&cpu(), &path, &clusterkv(512), false);
    }
}

#[test]
fn clusterkv_agrees_through_a_separate_device() {
    for path in fixtures() {
        check(&cpu(), &path, &clusterkv(512), true);
    }
}

#[test]
fn a_budget_beyond_the_context_equals_full() {
    for path in fixtures().iter().take(3) {
        check(&cpu(), path, &clusterkv(100_000), true);
    }
}

#[test]
fn a_gpu_agrees_under_full_attention_and_clusterkv() {
    let Some(gpu) = longview_tests::backends::wgpu() else { return };
    for path in fixtures() {
        check(&gpu, &path, &PolicyOptions::new(Preset::Full), false);
        check(&gpu, &path, &clusterkv(512), false);
    }
}
