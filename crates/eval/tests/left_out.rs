//! Sampled bounds of what steps leave out against the truth, step by step, on the embedded model.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_core::{HeadId, LayerId, SplitMix64, decode_f32};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, Session};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_needles::facts::facts;
use longview_needles::filler::Filler;
use longview_ops::Backend;
use longview_scheduler::{LayerMode, PolicyOptions, Preset};
use pollster::block_on;

const PROMPT: usize = 3000;
const STEPS: usize = 84;

/// Filler with facts in it, as the demo has them, in other orders for every seed.
fn text(seed: u64) -> String {
    let (mut filler, mut rng) = (Filler::new(seed), SplitMix64::new(seed));
    let mut text = String::new();
    for fact in facts(60, &mut rng) {
        (0..6).for_each(|_| text.push_str(&filler.sentence()));
        text.extend([" ", &fact.statement]);
    }
    text
}

fn engine() -> Engine<CpuBackend> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
    let folder = ModelFolder::open(&path).unwrap();
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let options = EngineOptions { ctx_size: PROMPT + STEPS + 1, ..EngineOptions::default() };
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::StreamingLlm)).unwrap()
}

/// The truth and the bound of each query head of a KV head in the last step: shares of the
/// attention that were left out.
fn cases<B: Backend>(session: &Session<B>, layer: LayerId, head: HeadId, all: &mut Vec<[f64; 2]>) {
    let sequence = session.sequence();
    let (shape, n) = (sequence.shape(), sequence.n_tokens());
    let (d, q) = (shape.head_dim, &sequence.traced()[layer].q);
    let mut bytes = vec![0; n * shape.row_bytes()];
    sequence.store().read_rows(layer, head, 0..n, &mut bytes);
    let rows = decode_f32(shape.kv_dtype, &bytes);
    let mut attended = vec![false; n];
    for token in sequence.attended_tokens(layer, head) {
        attended[token as usize] = true;
    }
    let positions = &sequence.layers()[layer].positions[head];
    let (mut lse, mut left) = (vec![0.0f32; shape.n_q_heads], Vec::new());
    for h in shape.query_heads(head) {
        let (query, keys) = (&q[h * d..(h + 1) * d], &rows);
        // Plain loops, as this crate is not optimised for tests and these are most of what it does.
        let mass = |row: usize| -> f64 {
            let (first, mut i, mut dot) = (row * 2 * d, 0, 0.0);
            while i < d {
                dot += query[i] as f64 * keys[first + i] as f64;
                i += 1;
            }
            (f64::from(shape.scale) * dot).exp()
        };
        let masses: Vec<f64> = (0..n).map(mass).collect();
        let sum = |of: bool| -> f64 {
            (0..n).filter(|row| attended[positions[*row] as usize] == of).map(|r| masses[r]).sum()
        };
        let within = sum(true);
        lse[h] = within.ln() as f32;
        left.push(sum(false) / within);
    }
    let bounds = sequence.sampled_bounds(layer, q, &lse).expect("the layer recalls");
    let share = |ratio: f64| ratio / (1.0 + ratio);
    for (h, left) in shape.query_heads(head).zip(left) {
        all.push([share(left), share(bounds[h])]);
    }
}

/// What was left out and its bounds, over all steps after the prompt of `seed`.
fn all_cases(engine: &mut Engine<CpuBackend>, policy: &PolicyOptions, seed: u64) -> Vec<[f64; 2]> {
    let ids = engine.tokenizer().unwrap().encode(&text(seed), Specials::Add).unwrap();
    let mut session = engine.session(policy).unwrap();
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &ids[..PROMPT], &mut go_on)).unwrap());
    session.trace(true);
    let mut all = Vec::new();
    for id in &ids[PROMPT..PROMPT + STEPS] {
        block_on(engine.feed(&mut session, &[*id])).unwrap();
        let sequence = session.sequence();
        for layer in sequence.shape().layers() {
            if sequence.layers()[layer].mode() == LayerMode::Recall {
                for head in sequence.shape().heads() {
                    cases(&session, layer, head, &mut all);
                }
            }
        }
    }
    let counted = session.stats().bounds.len() as usize;
    assert_eq!(counted, all.len(), "one bound for each step, layer and query head");
    all
}

/// Each holds with a confidence of 95 %, and tells something: where more than 1 % was left out, the
/// median of bound over truth is at most 1.5.
#[test]
#[expect(clippy::print_stdout, reason = "`--nocapture` shows the figures of the record")]
fn sampled_bounds_hold_in_95_of_100_cases_and_are_near_the_truth() {
    let mut engine = engine();
    let mut n_cases = 0;
    for (preset, budget) in [
        (Preset::Clusterkv, 128),
        (Preset::Clusterkv, 512),
        (Preset::Longview, 256),
        (Preset::Quest, 256),
    ] {
        let mut policy = PolicyOptions::new(preset).with_budget(budget);
        policy.set("attention-bound", "sampled").unwrap();
        let all = all_cases(&mut engine, &policy, budget as u64);
        let held = all.iter().filter(|[truth, bound]| *bound >= truth * (1.0 - 1e-6)).count();
        let large = all.iter().filter(|[truth, _]| *truth > 0.01);
        let mut ratios: Vec<f64> = large.map(|[truth, bound]| bound / truth).collect();
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        let holds = held as f64 / all.len() as f64;
        println!(
            "{preset} at {budget}: {} cases, {:.2} % held; {} above 1 %, median {median:.3}",
            all.len(),
            100.0 * holds,
            ratios.len()
        );
        assert!(holds >= 0.95, "{preset} at {budget}: {held} of {}", all.len());
        assert!(median <= 1.5, "{preset} at {budget}: {median}");
        n_cases += all.len();
    }
    assert!(n_cases >= 10_000, "{n_cases}");
}

/// To ask for the bound does not make steps search that would attend everything.
#[test]
fn where_all_is_attended_the_bound_is_that_nothing_was_left_out() {
    let mut engine = engine();
    let mut policy = PolicyOptions::new(Preset::Longview);
    policy.set("attention-bound", "sampled").unwrap();
    let ids = engine.tokenizer().unwrap().encode(&text(1), Specials::Add).unwrap();
    let mut session = engine.session(&policy).unwrap();
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &ids[..600], &mut go_on)).unwrap());
    for id in &ids[600..604] {
        block_on(engine.feed(&mut session, &[*id])).unwrap();
    }
    let (shape, bounds) = (session.sequence().shape(), &session.stats().bounds);
    assert_eq!(bounds.len() as usize, 4 * shape.n_layers * shape.n_q_heads);
    assert!(bounds.of_most().unwrap() < 1e-6, "{:?}", bounds.of_most());
}

/// The same request has the same tokens, and another seed other draws.
#[test]
fn draws_follow_from_the_seed() {
    let mut engine = engine();
    let mut logits = |seed: &str, residual: &str| {
        let mut policy = PolicyOptions::new(Preset::Longview).with_budget(128);
        policy.set("residual", residual).unwrap();
        policy.set("cluster-seed", seed).unwrap();
        let ids = engine.tokenizer().unwrap().encode(&text(1), Specials::Add).unwrap();
        let mut session = engine.session(&policy).unwrap();
        let mut go_on = |_| ControlFlow::Continue(());
        assert!(block_on(engine.prefill(&mut session, &ids[..600], &mut go_on)).unwrap());
        block_on(engine.feed(&mut session, &ids[600..604])).unwrap();
        session.logits().to_vec()
    };
    for residual in ["sample:32", "verified:0.1,0.1"] {
        let first = logits("3", residual);
        assert_eq!(first, logits("3", residual), "{residual}");
        assert_ne!(first, logits("4", residual), "{residual}");
    }
    assert_ne!(logits("3", "sample:32"), logits("3", "drop"));
}
