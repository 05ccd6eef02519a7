//! Quest, InfLLM and KTransformers' five representatives.

use longview_cpu::CpuBackend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::sim::Sim;

use crate::naive::{Rows, attention, column_sums, dot, keys, queries};
use crate::{PROMPT, assert_best, prompt, with};

const BLOCK: usize = 8;

fn block(preset: Preset, more: &[(&str, &str)]) -> PolicyOptions {
    let settings = [("block-size", "8"), ("sinks", "4"), ("recent", "8"), ("window", "16")];
    with(preset, &[&settings, more].concat())
}

/// The tokens of each block that is indexed.
fn blocks(sim: &Sim<CpuBackend>, layer: usize) -> Vec<Vec<usize>> {
    let n_indexed = sim.sequence.layers()[layer].n_indexed;
    (4..n_indexed).step_by(BLOCK).map(|first| (first..first + BLOCK).collect()).collect()
}

/// Mean attention of the prompt's last 128 queries over a group, for each row.
fn mass(sim: &Sim<CpuBackend>, layer: usize, head: usize) -> Vec<f64> {
    let scale = f64::from(sim.sequence.shape().scale);
    let keys = keys(sim, layer, head)[..PROMPT].to_vec();
    let sums = |q: usize| {
        column_sums(&attention(&queries(sim, layer, q), PROMPT - 128..PROMPT, &keys, scale))
    };
    let (a, b) = (sums(2 * head), sums(2 * head + 1));
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The score of a block for one query, as the representative has it.
fn score(q: &[f64], keys: &Rows, of: &[usize], representative: &str, mass: &[f64]) -> f64 {
    let channel = |c: usize| of.iter().map(move |t| keys[*t][c]);
    let max = |c: usize| channel(c).fold(f64::NEG_INFINITY, f64::max);
    let min = |c: usize| channel(c).fold(f64::INFINITY, f64::min);
    let mean = |of: &[usize]| of.iter().map(|t| dot(q, &keys[*t])).sum::<f64>() / of.len() as f64;
    match representative {
        "max" => (0..q.len()).map(|c| q[c] * max(c)).sum(),
        "quest" => (0..q.len()).map(|c| (q[c] * max(c)).max(q[c] * min(c))).sum(),
        "mean" => mean(of),
        "fix" => mean(&of.iter().copied().step_by(BLOCK / 2).take(2).collect::<Vec<_>>()),
        _ => {
            let mut order = of.to_vec();
            order.sort_by(|a, b| mass[*b].total_cmp(&mass[*a]));
            mean(&order[..2])
        }
    }
}

/// Decodes a token and checks which blocks each head took.
fn check(sim: &mut Sim<CpuBackend>, representative: &str, shared: bool, what: &str) {
    sim.decode(41);
    let n = sim.n_tokens();
    for layer in 0..2 {
        let blocks = blocks(sim, layer);
        let own = |head: usize| -> Vec<f64> {
            let (keys, mass) = (keys(sim, layer, head), mass(sim, layer, head));
            let of = |block: &Vec<usize>| {
                (2 * head..2 * head + 2)
                    .map(|q| {
                        let q = &queries(sim, layer, q)[n - 1];
                        score(q, &keys, block, representative, &mass)
                    })
                    .sum()
            };
            blocks.iter().map(of).collect()
        };
        let heads = [own(0), own(1)];
        let both: Vec<f64> = heads[0].iter().zip(&heads[1]).map(|(a, b)| a + b).collect();
        for (head, own) in heads.iter().enumerate() {
            let scores = if shared { &both } else { own };
            let recalled: Vec<usize> =
                sim.sequence.last_recalled(layer, head).map(|t| t as usize).collect();
            let pending = n - sim.sequence.layers()[layer].n_indexed;
            assert_eq!(recalled.len(), 96 - 4 - pending, "{what}: the budget is used");
            // The last block is trimmed: a prefix of its tokens.
            let mut taken: Vec<usize> = recalled.iter().map(|t| (t - 4) / BLOCK).collect();
            taken.dedup();
            assert_best(&taken, scores, &format!("{what}, layer {layer}, head {head}"));
        }
    }
}

#[test]
fn quest_takes_the_pages_of_the_largest_upper_bound() {
    let mut sim = prompt(&block(Preset::Quest, &[]), 41);
    (0..5).for_each(|step| check(&mut sim, "quest", false, &format!("step {step}")));
}

#[test]
fn infllm_takes_blocks_by_the_mean_of_their_most_attended_keys() {
    let mut sim = prompt(&block(Preset::Infllm, &[("representative-num", "2")]), 41);
    (0..5).for_each(|step| check(&mut sim, "dynamic", true, &format!("step {step}")));
}

#[test]
fn ktransformers_takes_blocks_by_each_representative() {
    for representative in ["max", "mean", "quest", "dynamic", "fix"] {
        for mode in ["shared", "separate"] {
            let more = [
                ("representative", representative),
                ("representative-num", "2"),
                ("head-select", mode),
            ];
            let mut sim = prompt(&block(Preset::Ktransformers, &more), 41);
            let what = format!("{representative} {mode}");
            (0..3).for_each(|_| check(&mut sim, representative, mode == "shared", &what));
        }
    }
}

/// Quest and KTransformers with the same settings are the same.
#[test]
fn ktransformers_with_bounds_for_each_head_is_quest() {
    let more = [("representative", "quest"), ("head-select", "separate")];
    let none = [("sinks", "0"), ("recent", "0"), ("window", "16"), ("block-size", "16")];
    let kt = with(Preset::Ktransformers, &[&none[..], &more].concat());
    let (mut a, mut b) = (prompt(&kt, 42), prompt(&with(Preset::Quest, &none), 42));
    for _ in 0..50 {
        a.decode(42);
        b.decode(42);
        assert_eq!(a.out, b.out);
    }
}

/// With blocks of one token, preselection for each KV head and room for all that it leaves,
/// KTransformers is SnapKV without pooling, until rows leave the recent ones.
#[test]
fn ktransformers_with_blocks_of_one_token_is_snapkv_without_pooling() {
    let kt = with(
        Preset::Ktransformers,
        &[
            ("block-size", "1"),
            ("sinks", "0"),
            ("recent", "12"),
            ("window", "16"),
            ("head-select", "separate"),
            ("preselect", "84"),
            ("observe", "12"),
        ],
    );
    let snap = with(
        Preset::Snapkv,
        &[("recent", "12"), ("window", "16"), ("observe", "12"), ("pool-kernel", "1")],
    );
    let (mut kt, mut snap) = (prompt(&kt.with_budget(110), 43), prompt(&snap, 43));
    kt.decode(43);
    snap.decode(43);
    for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut chosen: Vec<u32> = kt.sequence.last_recalled(layer, head).collect();
        let mut kept: Vec<u32> = snap.sequence.kept_tokens(layer, head).collect();
        chosen.sort_unstable();
        kept.sort_unstable();
        assert_eq!(chosen, kept, "layer {layer}, head {head}");
    }
}

/// A choice holds for as many steps and layers as it is told to, and no longer.
#[test]
fn a_choice_of_blocks_is_shared_over_layers_and_steps() {
    let more = [("layer-step", "2"), ("token-step", "4")];
    let mut sim = prompt(&block(Preset::Ktransformers, &more), 44);
    let mut last: Vec<u32> = Vec::new();
    for step in 0..8 {
        sim.decode(44);
        let of = |layer: usize| sim.sequence.last_recalled(layer, 0).collect::<Vec<u32>>();
        assert_eq!(of(0), of(1), "the second layer takes the first one's choice");
        if step % 4 > 0 {
            let n = of(0).len();
            assert_eq!(of(0), last[..n], "step {step}: the choice of the step before");
        } else {
            assert_ne!(of(0), last, "step {step}: another query, another choice");
        }
        last = of(0);
    }
}
