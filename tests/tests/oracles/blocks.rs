//! Quest, InfLLM and KTransformers' five representatives.

use longview_core::{HeadId, LayerId};
use longview_cpu::CpuBackend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::sim::Sim;

use super::keep::pooled;
use super::naive::{Rows, attention, column_sums, dot, keys, queries};
use super::{PROMPT, assert_best, prompt, with};

const BLOCK: usize = 8;

fn block(preset: Preset, more: &[(&str, &str)]) -> PolicyOptions {
    let settings = [("block-size", "8"), ("sinks", "4"), ("recent", "8"), ("window", "16")];
    with(preset, &[&settings, more].concat())
}

/// The tokens of each block that is indexed.
fn blocks(sim: &Sim<CpuBackend>, layer: LayerId) -> Vec<Vec<usize>> {
    let n_indexed = sim.sequence.layers()[layer].n_indexed;
    (4..n_indexed).step_by(BLOCK).map(|first| (first..first + BLOCK).collect()).collect()
}

/// Mean attention of the prompt's last 128 queries over a group, for each row.
fn mass(sim: &Sim<CpuBackend>, layer: LayerId, head: HeadId) -> Vec<f64> {
    let scale = f64::from(sim.sequence.shape().scale);
    let keys = keys(sim, layer, head)[..PROMPT].to_vec();
    let sums = |q: usize| {
        column_sums(&attention(&queries(sim, layer, q), PROMPT - 128..PROMPT, &keys, scale))
    };
    column_sums(&sim.sequence.shape().query_heads(head).map(sums).collect())
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

/// InfLLM's representative scores of all keys, summed over a group: the mean inner product with the
/// queries of the `l` tokens behind the key's block of a 32nd of them.
fn local_scores(sim: &Sim<CpuBackend>, layer: LayerId, head: HeadId, l: usize) -> Vec<f64> {
    let (keys, n) = (keys(sim, layer, head), sim.n_tokens());
    let group = sim.sequence.shape().query_heads(head);
    let group: Vec<Rows> = group.map(|q| queries(sim, layer, q)).collect();
    let block = (l / 32).max(1);
    let score = |m: usize| -> f64 {
        let first = (m / block + 1) * block;
        let window = first.min(n)..(first + l / block * block).min(n);
        let sum = |q: &Rows| window.clone().map(|t| dot(&q[t], &keys[m])).sum::<f64>();
        group.iter().map(sum).sum::<f64>() / l as f64
    };
    (0..n).map(score).collect()
}

/// Decodes a token and checks which blocks each head took.
fn check(sim: &mut Sim<CpuBackend>, representative: &str, shared: bool, what: &str) {
    sim.decode(41);
    check_chosen(sim, representative, shared, &mass, what);
}

/// How much keys of a layer and a head count.
type Counts<'a> = dyn Fn(&Sim<CpuBackend>, LayerId, HeadId) -> Vec<f64> + 'a;

/// Checks which blocks each head took in the last step, if keys count `mass`.
fn check_chosen(
    sim: &Sim<CpuBackend>,
    representative: &str,
    shared: bool,
    mass: &Counts<'_>,
    what: &str,
) {
    let (n, budget) = (sim.n_tokens(), sim.sequence.policy().budget.tokens.expect("a budget"));
    let shape = sim.sequence.shape();
    for layer in shape.layers() {
        let blocks = blocks(sim, layer);
        let own = |head: HeadId| -> Vec<f64> {
            let (keys, mass) = (keys(sim, layer, head), mass(sim, layer, head));
            let of = |block: &Vec<usize>| {
                shape
                    .query_heads(head)
                    .map(|q| {
                        let q = &queries(sim, layer, q)[n - 1];
                        score(q, &keys, block, representative, &mass)
                    })
                    .sum()
            };
            blocks.iter().map(of).collect()
        };
        let heads = [own(HeadId(0)), own(HeadId(1))];
        let both: Vec<f64> = heads[0].iter().zip(&heads[1]).map(|(a, b)| a + b).collect();
        for (head, own) in shape.heads().zip(&heads) {
            let scores = if shared { &both } else { own };
            let recalled: Vec<usize> =
                sim.sequence.last_recalled(layer, head).map(|t| t as usize).collect();
            let pending = n - sim.sequence.layers()[layer].n_indexed;
            assert_eq!(recalled.len(), budget - 4 - pending, "{what}: the budget is used");
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
    let more = [("representative-num", "2"), ("importance", "last")];
    let mut sim = prompt(&block(Preset::Infllm, &more), 41);
    (0..5).for_each(|step| check(&mut sim, "dynamic", true, &format!("step {step}")));
}

/// The paper's representatives, by the queries of the local window behind each key: of the prompt's
/// blocks, and of those that generated tokens became.
#[test]
fn infllm_takes_blocks_by_the_keys_that_their_local_window_agrees_with() {
    for (recent, budget, steps) in [("8", 96, 60), ("64", 220, 5), ("100", 260, 5)] {
        let more = [("representative-num", "2"), ("recent", recent)];
        let policy = block(Preset::Infllm, &more).with_budget(budget);
        let mut sim = prompt(&policy, 41);
        let l: usize = recent.parse().unwrap();
        for step in 0..steps {
            sim.decode(41);
            let scores = |sim: &Sim<CpuBackend>, layer: LayerId, head: HeadId| {
                local_scores(sim, layer, head, l)
            };
            check_chosen(&sim, "dynamic", true, &scores, &format!("{recent}, step {step}"));
        }
        let indexed = sim.sequence.layers()[1].n_indexed;
        assert_eq!(indexed > PROMPT, l == 8, "{indexed} rows are indexed");
    }
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
/// KTransformers is SnapKV with the same pooling, and without where there is none, until rows leave
/// the recent ones. (A quarter of a neighbour of one token is none of it.)
#[test]
fn ktransformers_with_blocks_of_one_token_is_snapkv_with_and_without_pooling() {
    for (kernel, pool) in [("1", "avg"), ("7", "avg"), ("5", "max")] {
        let kt = with(
            Preset::Ktransformers,
            &[
                ("block-size", "1"),
                ("sinks", "0"),
                ("recent", "12"),
                ("window", "16"),
                ("head-select", "separate"),
                ("preselect", "84"),
                ("preselect-kernel", kernel),
                ("pool", pool),
                ("observe", "12"),
            ],
        );
        let snap = [("recent", "12"), ("window", "16"), ("observe", "12"), ("pool", pool)];
        let snap = with(Preset::Snapkv, &[&snap[..], &[("pool-kernel", kernel)]].concat());
        let (mut kt, mut snap) = (prompt(&kt.with_budget(110), 43), prompt(&snap, 43));
        kt.decode(43);
        snap.decode(43);
        for (layer, head) in kt.heads() {
            let mut chosen: Vec<u32> = kt.sequence.last_recalled(layer, head).collect();
            let mut kept: Vec<u32> = snap.sequence.kept_tokens(layer, head).collect();
            chosen.sort_unstable();
            kept.sort_unstable();
            assert_eq!(chosen, kept, "layer {layer}, head {head}, {kernel} {pool}");
        }
    }
}

/// Preselection as the released program has it: the attention to a block's tokens and to the
/// nearest quarter of each neighbour; and the same without neighbours, and with pooled attention.
#[test]
fn ktransformers_preselects_blocks_with_a_quarter_of_their_neighbours() {
    for (neighbours, kernel, pool, mode) in [
        ("true", "1", "avg", "shared"),
        ("true", "1", "avg", "separate"),
        ("false", "1", "avg", "separate"),
        ("true", "5", "avg", "shared"),
        ("false", "5", "max", "separate"),
    ] {
        let more = [
            ("preselect", "12"),
            ("preselect-neighbours", neighbours),
            ("preselect-kernel", kernel),
            ("pool", pool),
            ("head-select", mode),
        ];
        let sim = prompt(&block(Preset::Ktransformers, &more), 45);
        let reach = if neighbours == "true" { BLOCK as isize / 4 } else { 0 };
        let shape = sim.sequence.shape();
        for layer in shape.layers() {
            let n_indexed = sim.sequence.layers()[layer].n_indexed;
            let own = |head: HeadId| -> Vec<f64> {
                let mass = &mass(&sim, layer, head)[4..n_indexed];
                let mass = pooled(mass, kernel.parse().unwrap(), pool == "max");
                let block = |first: usize| -> f64 {
                    let near = first as isize - reach..(first + BLOCK) as isize + reach;
                    near.filter_map(|t| mass.get(usize::try_from(t).ok()?)).sum()
                };
                (0..mass.len()).step_by(BLOCK).map(block).collect()
            };
            let heads = [own(HeadId(0)), own(HeadId(1))];
            let both: Vec<f64> = heads[0].iter().zip(&heads[1]).map(|(a, b)| a + b).collect();
            let index = &sim.sequence.layers()[layer].recall().expect("an index").index;
            for (head, own) in shape.heads().zip(&heads) {
                let scores = if mode == "shared" { &both } else { own };
                let open: Vec<usize> =
                    (0..scores.len()).filter(|b| index.heads()[head].open[*b]).collect();
                assert_eq!(open.len(), 12);
                let what = format!("{neighbours} {kernel} {pool} {mode}, {layer} {head}");
                assert_best(&open, scores, &what);
            }
        }
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
        let of = |layer: u32| -> Vec<u32> {
            sim.sequence.last_recalled(LayerId(layer), HeadId(0)).collect()
        };
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
