//! Loki, InfiniGen and LRQK.

use longview_core::SplitMix64;
use longview_cpu::CpuBackend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::sim::Sim;

use crate::naive::{Rows, dot, eigen, inverse, keys, product, queries, sum, transposed};
use crate::{PROMPT, assert_best, prompt, with};

const RANK: usize = 5;

fn token(preset: Preset, more: &[(&str, &str)]) -> PolicyOptions {
    let settings = [("sinks", "4"), ("recent", "8"), ("window", "16"), ("rank", "5")];
    with(preset, &[&settings, more].concat())
}

/// Queries of both heads of a group, one above the other.
fn group_queries(sim: &Sim<CpuBackend>, layer: usize, head: usize) -> Rows {
    let of = |q: usize| queries(sim, layer, q)[..PROMPT].to_vec();
    [of(2 * head), of(2 * head + 1)].concat()
}

/// Decodes tokens and checks that those with the largest mass of `softmax(q w_q . k w_k)`, summed
/// over the group, were taken.
fn check(sim: &mut Sim<CpuBackend>, factors: impl Fn(&Rows, &Rows, usize) -> (Rows, Rows)) {
    for _ in 0..3 {
        sim.decode(51);
        let n = sim.n_tokens();
        let scale = f64::from(sim.sequence.shape().scale);
        for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let keys = keys(sim, layer, head);
            let (w_q, w_k) =
                factors(&group_queries(sim, layer, head), &keys[..PROMPT].to_vec(), head);
            let n_indexed = sim.sequence.layers()[layer].n_indexed;
            let low = product(&keys[4..n_indexed].to_vec(), &w_k);
            let mut mass = vec![0.0; low.len()];
            for q in 2 * head..2 * head + 2 {
                let q = product(&vec![queries(sim, layer, q)[n - 1].clone()], &w_q);
                let scores: Vec<f64> = low.iter().map(|k| scale * dot(&q[0], k)).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                mass.iter_mut().zip(&scores).for_each(|(m, s)| *m += (s - max).exp() / total);
            }
            // Ranks, not masses, decide: the logarithm keeps small masses apart.
            let scores: Vec<f64> = mass.iter().map(|m| m.ln()).collect();
            let taken: Vec<usize> =
                sim.sequence.last_recalled(layer, head).map(|t| t as usize - 4).collect();
            assert_eq!(taken.len(), 96 - 4 - (n - n_indexed), "the budget is used");
            assert_best(&taken, &scores, &format!("layer {layer}, head {head}"));
        }
    }
}

/// `x^T x`.
fn gram(x: &Rows) -> Rows {
    product(&transposed(x), x)
}

#[test]
fn loki_compares_leading_components_of_keys() {
    check(&mut prompt(&token(Preset::Loki, &[]), 51), |_, keys, _| {
        let (_, vectors) = eigen(&gram(keys));
        let w = transposed(&vectors[..RANK].to_vec());
        (w.clone(), w)
    });
}

#[test]
fn infinigen_compares_the_most_telling_channels_of_skewed_keys() {
    check(&mut prompt(&token(Preset::Infinigen, &[]), 51), |queries, keys, _| {
        let (_, vectors) = eigen(&gram(queries));
        // The norms of the rotated queries and keys, channel by channel.
        let norm = |x: &Rows, v: &Vec<f64>| x.iter().map(|x| dot(x, v).powi(2)).sum::<f64>().sqrt();
        let telling = |v: &Vec<f64>| norm(queries, v) * norm(keys, v);
        let mut order = vectors;
        order.sort_by(|a, b| telling(b).total_cmp(&telling(a)));
        let w = transposed(&order[..RANK].to_vec());
        (w.clone(), w)
    });
}

/// LRQK's algorithm 1 over tokens: factors `A_Q = Q W_0`, `A_K = K W_0'` from the same random
/// start, two rounds of `B_Q, B_K, A_K, A_Q`, then the projections that the factors are.
#[test]
fn lrqk_compares_the_factors_of_its_paper() {
    check(&mut prompt(&token(Preset::Lrqk, &[("cluster-seed", "9")]), 51), |q, k, head| {
        let mut rng = SplitMix64::new(9 ^ (head as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut draw = || -> Rows {
            let mut row = |_| (0..RANK).map(|_| f64::from(rng.next_normal())).collect();
            (0..8).map(&mut row).collect()
        };
        let (mut a_q, mut a_k) = (product(q, &draw()), product(k, &draw()));
        for _ in 0..2 {
            let basis =
                |a: &Rows, x: &Rows| product(&inverse(&gram(a)), &product(&transposed(a), x));
            let (b_q, b_k) = (basis(&a_q, q), basis(&a_k, k));
            let solve = |x: &Rows, other: &Rows, a: &Rows, b: &Rows| {
                let left = sum(&product(&transposed(other), a), &transposed(b));
                let right = sum(&gram(a), &product(b, &transposed(b)));
                product(&product(x, &left), &inverse(&right))
            };
            a_k = solve(k, q, &a_q, &b_k);
            a_q = solve(q, k, &a_k, &b_q);
        }
        // W with x W = A, by least squares.
        let projection =
            |x: &Rows, a: &Rows| product(&inverse(&gram(x)), &product(&transposed(x), a));
        (projection(q, &a_q), projection(k, &a_k))
    });
}
