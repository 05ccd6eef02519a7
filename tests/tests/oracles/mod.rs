//! Each published policy against an independent implementation of its equations: plain loops in
//! f64 over the tokens, written from the papers, without anything of the scheduler.
//!
//! Where the scheduler computes in f32, two rows whose scores are equal but for rounding may change
//! places: a choice is right if nothing that it left out is better than what it took by more than
//! that.

mod blocks;
mod keep;
mod naive;
mod tokens;

use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_scheduler::{Placement, PolicyOptions, Preset};
use longview_tests::sim::{Sim, small_shape};
use longview_tests::suite::policy::options;

/// Tokens of the prompt.
const PROMPT: usize = 300;

/// A sequence after a prompt.
fn prompt(policy: &PolicyOptions, seed: u64) -> Sim<CpuBackend> {
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"));
    let mut sim = Sim::new(&backend, small_shape(600), policy, options(Placement::InPlace))
        .unwrap_or_else(|e| panic!("{}: {e}", policy.preset));
    sim.prefill(seed, PROMPT);
    sim
}

/// A preset with a budget of 96 and these settings.
fn with(preset: Preset, settings: &[(&str, &str)]) -> PolicyOptions {
    let mut options = PolicyOptions::new(preset).with_budget(96);
    for (name, value) in settings {
        options.set(name, value).unwrap_or_else(|e| panic!("{preset} --{name}: {e}"));
    }
    options
}

/// `taken` are among the best by `scores`, but for what rounding may exchange.
fn assert_best(taken: &[usize], scores: &[f64], what: &str) {
    assert!(!taken.is_empty(), "{what}: nothing was taken");
    let worst = taken.iter().map(|i| scores[*i]).fold(f64::INFINITY, f64::min);
    let left = (0..scores.len()).filter(|i| !taken.contains(i)).map(|i| scores[i]);
    let best = left.fold(f64::NEG_INFINITY, f64::max);
    let spread = scores.iter().map(|s| s.abs()).fold(0.0, f64::max);
    assert!(best <= worst + 2e-5 * spread, "{what}: {best} was left out, {worst} was taken");
}
