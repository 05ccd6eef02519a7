//! SnapKV, PyramidKV, Ada-KV and H2O.

use longview_core::{HeadId, LayerId};
use longview_cpu::CpuBackend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::sim::Sim;

use super::naive::{attention, column_sums, keys, queries};
use super::{PROMPT, assert_best, prompt, with};

const SETTINGS: &[(&str, &str)] = &[("recent", "8"), ("window", "16"), ("observe", "12")];

fn keep(preset: Preset, more: &[(&str, &str)]) -> PolicyOptions {
    with(preset, &[SETTINGS, more].concat())
}

/// Mean attention that each row received from the last `w` queries of the prompt, for each query
/// head of a KV head.
fn window_mass(sim: &Sim<CpuBackend>, layer: LayerId, kv_head: HeadId, w: usize) -> Vec<Vec<f64>> {
    let scale = f64::from(sim.sequence.shape().scale);
    let keys = keys(sim, layer, kv_head)[..PROMPT].to_vec();
    let mass = |head: usize| {
        let weights = attention(&queries(sim, layer, head), PROMPT - w..PROMPT, &keys, scale);
        column_sums(&weights).iter().map(|m| m / w as f64).collect()
    };
    sim.sequence.shape().query_heads(kv_head).map(mass).collect()
}

/// Scores smoothed over neighbours: zeros outside for the mean, nothing for the maximum.
pub fn pooled(x: &[f64], kernel: usize, max: bool) -> Vec<f64> {
    let half = kernel as isize / 2;
    let near = |i: isize| (i - half..=i + half).filter_map(|j| x.get(usize::try_from(j).ok()?));
    let pool = |i: isize| {
        if max {
            near(i).copied().fold(f64::NEG_INFINITY, f64::max)
        } else {
            near(i).sum::<f64>() / kernel as f64
        }
    };
    (0..x.len() as isize).map(pool).collect()
}

fn mean(heads: &[Vec<f64>]) -> Vec<f64> {
    column_sums(&heads.to_vec()).iter().map(|s| s / heads.len() as f64).collect()
}

/// Scores of rows before the recent ones, as a variant of SnapKV has them.
fn scores(
    sim: &Sim<CpuBackend>,
    layer: LayerId,
    kv_head: HeadId,
    max: bool,
    first: bool,
) -> Vec<f64> {
    let end = PROMPT - 8;
    let heads = window_mass(sim, layer, kv_head, 12);
    let heads: Vec<Vec<f64>> = heads.iter().map(|head| head[..end].to_vec()).collect();
    if first {
        mean(&heads.iter().map(|head| pooled(head, 7, max)).collect::<Vec<_>>())
    } else {
        pooled(&mean(&heads), 7, max)
    }
}

fn kept(sim: &Sim<CpuBackend>, layer: LayerId, head: HeadId) -> Vec<usize> {
    sim.sequence.kept_tokens(layer, head).map(|t| t as usize).collect()
}

#[test]
fn snapkv_keeps_what_the_last_queries_attended() {
    for (pool, max) in [("avg", false), ("max", true)] {
        for (order, first) in [("group-first", false), ("pool-first", true)] {
            let policy = keep(Preset::Snapkv, &[("pool", pool), ("pool-order", order)]);
            let sim = prompt(&policy, 31);
            for (layer, head) in sim.heads() {
                let kept = kept(&sim, layer, head);
                assert_eq!(kept.len(), 96 - 8);
                let what = format!("{pool} {order}, layer {layer}, head {head}");
                assert_best(&kept, &scores(&sim, layer, head, max, first), &what);
            }
        }
    }
}

#[test]
fn pyramidkv_keeps_more_in_the_first_layers() {
    let sim = prompt(&keep(Preset::Pyramidkv, &[("beta", "4")]), 32);
    let layers = sim.sequence.shape().layers();
    let n: Vec<usize> = layers.map(|layer| kept(&sim, layer, HeadId(0)).len()).collect();
    // c = 88: the least is c / 4, the most 2 c - that, in one step from first to last layer.
    assert_eq!(n, [2 * 88 - 22, 22]);
    for (layer, head) in [(LayerId(0), HeadId(0)), (LayerId(1), HeadId(1))] {
        let scores = scores(&sim, layer, head, false, false);
        assert_best(&kept(&sim, layer, head), &scores, &format!("layer {layer}"));
    }
}

#[test]
fn ada_kv_divides_the_budget_by_the_best_rows_of_all_heads() {
    for (preset, mean) in [(Preset::AdaSnapkv, [88, 88]), (Preset::AdaPyramid, [154, 22])] {
        let more: &[_] = match preset {
            Preset::AdaPyramid => &[("safeguard", "0.25"), ("beta", "4")],
            _ => &[("safeguard", "0.25")],
        };
        let sim = prompt(&keep(preset, more), 33);
        let shape = sim.sequence.shape();
        for (layer, mean) in shape.layers().zip(mean) {
            let all: Vec<Vec<f64>> =
                shape.heads().map(|head| scores(&sim, layer, head, true, false)).collect();
            let mut ranked: Vec<(HeadId, f64)> = shape
                .heads()
                .zip(&all)
                .flat_map(|(h, scores)| scores.iter().map(move |s| (h, *s)))
                .collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            for (head, scores) in shape.heads().zip(&all) {
                let own = ranked[..2 * mean].iter().filter(|(h, _)| *h == head).count();
                let want = (0.75 * own as f64 + (0.25 * mean as f64).floor()).round() as usize;
                let kept = kept(&sim, layer, head);
                // A row at the border may be the other head's by rounding.
                assert!(kept.len().abs_diff(want) <= 1, "{preset} {layer} {head}");
                assert_best(&kept, scores, &format!("{preset} layer {layer} head {head}"));
            }
        }
    }
}

#[test]
fn h2o_keeps_what_all_queries_attended() {
    let sim = prompt(&with(Preset::H2o, &[("window", "16"), ("heavy-ratio", "0.75")]), 34);
    let scale = f64::from(sim.sequence.shape().scale);
    for (layer, head) in sim.heads() {
        let keys = keys(&sim, layer, head)[..PROMPT].to_vec();
        let sums =
            |q: usize| column_sums(&attention(&queries(&sim, layer, q), 0..PROMPT, &keys, scale));
        let group = sim.sequence.shape().query_heads(head);
        let scores = mean(&group.map(sums).collect::<Vec<_>>());
        let kept = kept(&sim, layer, head);
        assert_eq!(kept.len(), 72, "three quarters of the budget");
        assert_best(&kept, &scores[..PROMPT - 24], &format!("layer {layer}, head {head}"));
    }
}

/// Decoding under H2O, step by step: what a naive cache of rows and sums would keep.
#[test]
fn h2o_lets_go_of_what_received_least_as_it_decodes() {
    let mut sim = prompt(&with(Preset::H2o, &[("window", "4"), ("heavy-ratio", "0.75")]), 35);
    let scale = f64::from(sim.sequence.shape().scale);
    let (layer, head) = (LayerId(1), HeadId(1));
    let group = sim.sequence.shape().query_heads(head);
    let mut sums: Vec<Vec<f64>> = group
        .clone()
        .map(|q| {
            let keys = keys(&sim, layer, head);
            column_sums(&attention(&queries(&sim, layer, q), 0..PROMPT, &keys, scale))
        })
        .collect();
    let mut heavy = kept(&sim, layer, head);
    let mut first = PROMPT - 24;
    for step in 0..21 {
        let n = PROMPT + step;
        if n >= first + 24 + 4 {
            // A window of 4 leaves the recent rows; the kept rows that it displaced are gone.
            heavy.truncate(72 - 4);
            let all: Vec<usize> = heavy.iter().copied().chain(first..n - 24).collect();
            let total = |row: usize| sums.iter().map(|s| s[row]).sum::<f64>();
            let scores: Vec<f64> = all.iter().map(|row| total(*row)).collect();
            first = n - 24;
            sim.decode(35);
            let now = kept(&sim, layer, head);
            let places: Vec<usize> = now
                .iter()
                .map(|row| all.iter().position(|r| r == row).expect("what is gone stays gone"))
                .collect();
            assert_eq!(now.len(), 72);
            assert_best(&places, &scores, &format!("step {step}"));
            heavy = now;
        } else {
            sim.decode(35);
        }
        let attended: Vec<usize> =
            sim.sequence.attended_tokens(layer, head).iter().map(|t| *t as usize).collect();
        assert_eq!(attended.len(), 96, "the budget is used");
        let keys = keys(&sim, layer, head);
        for (q, sums) in group.clone().zip(&mut sums) {
            let q = &queries(&sim, layer, q)[n];
            let scores: Vec<f64> =
                attended.iter().map(|t| (scale * super::naive::dot(q, &keys[*t])).exp()).collect();
            let total: f64 = scores.iter().sum();
            sums.resize(n + 1, 0.0);
            attended.iter().zip(&scores).for_each(|(t, s)| sums[*t] += s / total);
        }
    }
}
