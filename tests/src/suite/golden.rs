//! Logits and greedy tokens against a published implementation, through the engine.
//!
//! The fixtures are tiny random checkpoints of every architecture and RoPE scaling, with logits and
//! tokens computed by Hugging Face transformers (`tests/fixtures/make_fixtures.py`). Full attention
//! must agree, and so must ClusterKV with a budget that holds the whole context: then recall has
//! nothing to leave out.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longview_core::DType;
use longview_engine::{Engine, EngineOptions, GenerationParams, Session};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{BudgetOption, PolicyOptions, Preset};
use serde::Deserialize;

use crate::backends::Probe;
use crate::files;

/// Largest difference of a logit that arithmetic in another order may make.
const MAX_LOGIT_ERROR: f32 = 1e-3;

/// Largest difference where products of many rows round activations to 16 bits, for logits of a
/// standard deviation of 2: a few times what bf16 makes.
const MAX_ROUNDED_ERROR: f32 = 0.15;

/// Tokens computed at a time.
const CHUNK: usize = 64;

#[derive(Deserialize)]
struct Golden {
    planned_context: usize,
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
}

/// Every checkpoint, by name.
pub fn fixtures() -> std::io::Result<Vec<PathBuf>> {
    let folders = std::fs::read_dir(files::fixtures())?;
    let mut folders =
        folders.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    folders.retain(|path| path.join("golden.json").exists() && path.join("config.json").exists());
    folders.sort();
    Ok(folders)
}

fn golden(path: &Path) -> Golden {
    let text = std::fs::read_to_string(path.join("golden.json")).expect("readable");
    serde_json::from_str(&text).expect("a golden file")
}

/// ClusterKV with small windows and segments, so that clusters are made in prefill and in decode.
pub fn clusterkv(budget: usize) -> PolicyOptions {
    let mut options = PolicyOptions::new(Preset::Clusterkv);
    options.budget = Some(BudgetOption::Tokens(budget));
    (options.window, options.recent, options.cluster_segment) = (Some(20), Some(8), Some(96));
    options
}

fn open(path: &Path) -> ModelFolder {
    ModelFolder::open(path).expect("a sound fixture")
}

struct Run<B: Backend> {
    engine: Engine<B>,
    session: Session<B>,
}

impl<B: Backend> Run<B> {
    fn new(
        backend: &Arc<B>,
        folder: ModelFolder,
        golden: &Golden,
        policy: &PolicyOptions,
        simulate_device: bool,
        chunk_size: usize,
    ) -> Self {
        let options = EngineOptions {
            ctx_size: golden.planned_context,
            chunk_size,
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

    /// Computes the prompt and compares the logits at every golden position.
    fn prefill_all(&mut self, golden: &Golden, tolerance: f32, path: &Path) {
        let (name, mut done) = (path.display(), 0);
        for (position, expected) in golden.positions.iter().zip(&golden.logits) {
            self.prefill(&golden.prompt[done..=*position]);
            done = position + 1;
            let error = worst(self.session.logits(), expected);
            assert!(error <= tolerance, "{name}: logits at {position} are off by {error}");
        }
        assert_eq!(done, golden.prompt.len(), "{name}: the last golden position ends the prompt");
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

/// Prefill in parts (later ones see a past that may be clustered), then greedy tokens. A backend
/// that rounds activations in products of many rows computes few rows at a time.
///
/// # Panics
/// If a logit or a token differs.
pub fn check<B: Probe>(
    backend: &Arc<B>,
    path: &Path,
    policy: &PolicyOptions,
    simulate_device: bool,
) {
    let (name, golden) = (path.display(), golden(path));
    let few = backend.capabilities().matvec_max_rows;
    let chunk = if B::ROUNDS_ACTIVATIONS { few } else { CHUNK };
    let mut run = Run::new(backend, open(path), &golden, policy, simulate_device, chunk);
    run.prefill_all(&golden, MAX_LOGIT_ERROR, path);
    assert_eq!(run.greedy(golden.greedy.len()), golden.greedy, "{name}: greedy tokens");
}

/// As [`check`] of the GGUF file `file` that was made of the checkpoint.
///
/// # Panics
/// If a logit or a token differs.
pub fn check_file<B: Probe>(backend: &Arc<B>, path: &Path, file: &Path) {
    let (golden, policy) = (golden(path), PolicyOptions::new(Preset::Full));
    let mut run = Run::new(backend, open(file), &golden, &policy, false, CHUNK);
    run.prefill_all(&golden, MAX_LOGIT_ERROR, path);
    assert_eq!(run.greedy(golden.greedy.len()), golden.greedy, "{}", path.display());
}

/// The prefill of [`check`] with products of many rows, on a backend that rounds in them.
///
/// # Panics
/// If a logit differs by more than rounding explains.
pub fn check_rounded<B: Probe>(backend: &Arc<B>, path: &Path, policy: &PolicyOptions) {
    let golden = golden(path);
    let mut run = Run::new(backend, open(path), &golden, policy, true, CHUNK);
    run.prefill_all(&golden, MAX_ROUNDED_ERROR, path);
}
