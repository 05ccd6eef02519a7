//! Loki, InfiniGen and LRQK.

use longview_core::{HeadId, LayerId, SplitMix64};
use longview_cpu::CpuBackend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::sim::Sim;

use super::naive::{Rows, dot, eigen, inverse, keys, product, queries, sum, transposed};
use super::{PROMPT, assert_best, prompt, with};

const RANK: usize = 5;

fn token(preset: Preset, more: &[(&str, &str)]) -> PolicyOptions {
    let settings = [("sinks", "4"), ("recent", "8"), ("window", "16"), ("rank", "5")];
    with(preset, &[&settings, more].concat())
}

/// Queries of both heads of a group, one above the other.
fn group_queries(sim: &Sim<CpuBackend>, layer: LayerId, head: HeadId) -> Rows {
    let of = |q: usize| queries(sim, layer, q)[..PROMPT].to_vec();
    sim.sequence.shape().query_heads(head).flat_map(of).collect()
}

/// Decodes tokens and checks that those with the largest mass of `softmax(q w_q . k w_k)`, summed
/// over the group, were taken.
fn check(sim: &mut Sim<CpuBackend>, factors: impl Fn(&Rows, &Rows, HeadId) -> (Rows, Rows)) {
    for _ in 0..3 {
        sim.decode(51);
        let n = sim.n_tokens();
        let scale = f64::from(sim.sequence.shape().scale);
        for (layer, head) in sim.heads() {
            let keys = keys(sim, layer, head);
            let (w_q, w_k) =
                factors(&group_queries(sim, layer, head), &keys[..PROMPT].to_vec(), head);
            let n_indexed = sim.sequence.layers()[layer].n_indexed;
            let low = product(&keys[4..n_indexed].to_vec(), &w_k);
            let mut mass = vec![0.0; low.len()];
            for q in sim.sequence.shape().query_heads(head) {
                let q = product(&vec![choosing_query(sim, layer, q)], &w_q);
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

/// The query by which a query head chose in the last step: that which the layer before predicts
/// where the policy looks ahead and there is a layer before.
fn choosing_query(sim: &Sim<CpuBackend>, layer: LayerId, head: usize) -> Vec<f64> {
    let last = sim.truth[layer].last().expect("a token");
    let d = sim.sequence.shape().head_dim;
    let schedule = sim.sequence.policy().index.expect("an index").schedule;
    let is_ahead = schedule.layer_prefetch && layer > LayerId(0);
    let q = if is_ahead { last.predicted() } else { last.q.clone() };
    q[head * d..(head + 1) * d].iter().map(|x| f64::from(*x)).collect()
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
    for ahead in ["true", "false"] {
        let policy = token(Preset::Infinigen, &[("alpha", "inf"), ("layer-prefetch", ahead)]);
        check(&mut prompt(&policy, 51), |queries, keys, _| skewed(queries, keys));
    }
}

fn skewed(queries: &Rows, keys: &Rows) -> (Rows, Rows) {
    let (_, vectors) = eigen(&gram(queries));
    // The norms of the rotated queries and keys, channel by channel.
    let norm = |x: &Rows, v: &Vec<f64>| x.iter().map(|x| dot(x, v).powi(2)).sum::<f64>().sqrt();
    let telling = |v: &Vec<f64>| norm(queries, v) * norm(keys, v);
    let mut order = vectors;
    order.sort_by(|a, b| telling(b).total_cmp(&telling(a)));
    let w = transposed(&order[..RANK].to_vec());
    (w.clone(), w)
}

/// As many tokens for each head as lie within alpha of the best score, on average.
#[test]
fn infinigen_takes_what_is_near_the_best_score() {
    for (alpha, ahead) in [(0.5f64, "true"), (1.5, "true"), (1.5, "false")] {
        let alpha_text = alpha.to_string();
        let policy = token(Preset::Infinigen, &[("alpha", &alpha_text), ("layer-prefetch", ahead)]);
        let mut sim = prompt(&policy, 53);
        sim.decode(53);
        let (n, layer) = (sim.n_tokens(), LayerId(1));
        let scale = f64::from(sim.sequence.shape().scale);
        let near = |head: HeadId| {
            let keys = keys(&sim, layer, head);
            let group = group_queries(&sim, layer, head);
            let (w_q, w_k) = skewed(&group, &keys[..PROMPT].to_vec());
            let indexed = sim.sequence.layers()[layer].n_indexed;
            let low = product(&keys[4..indexed].to_vec(), &w_k);
            let mut mass = vec![0.0; low.len()];
            for q in sim.sequence.shape().query_heads(head) {
                let q = product(&vec![choosing_query(&sim, layer, q)], &w_q);
                let scores: Vec<f64> = low.iter().map(|k| (scale * dot(&q[0], k)).exp()).collect();
                let total: f64 = scores.iter().sum();
                mass.iter_mut().zip(&scores).for_each(|(m, s)| *m += s / total);
            }
            let best = mass.iter().copied().fold(0.0, f64::max);
            mass.iter().filter(|m| **m > best * (-alpha).exp()).count()
        };
        let mean = (near(HeadId(0)) + near(HeadId(1))).div_ceil(2);
        for head in sim.sequence.shape().heads() {
            let taken = sim.sequence.last_recalled(layer, head).count();
            let room = 96 - 4 - (n - sim.sequence.layers()[layer].n_indexed);
            assert_eq!(taken, mean.min(room), "alpha {alpha}, head {head}");
        }
    }
}

/// LRQK's algorithm 1 over tokens: factors `A_Q = Q W_0`, `A_K = K W_0'` from the same random
/// start, two rounds of `B_Q, B_K, A_K, A_Q`, then the projections that the factors are.
fn lrqk_factors(q: &Rows, k: &Rows, head: HeadId) -> (Rows, Rows) {
    let mut rng = SplitMix64::new(9 ^ (u64::from(head.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut draw = || -> Rows {
        let mut row = |_| (0..RANK).map(|_| f64::from(rng.next_normal())).collect();
        (0..8).map(&mut row).collect()
    };
    let (mut a_q, mut a_k) = (product(q, &draw()), product(k, &draw()));
    for _ in 0..2 {
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
    let projection = |x: &Rows, a: &Rows| product(&inverse(&gram(x)), &product(&transposed(x), a));
    (projection(q, &a_q), projection(k, &a_k))
}

/// `B = (A^T A)^-1 A^T X`.
fn basis(a: &Rows, x: &Rows) -> Rows {
    product(&inverse(&gram(a)), &product(&transposed(a), x))
}

#[test]
fn lrqk_compares_the_factors_of_its_paper() {
    check(&mut prompt(&token(Preset::Lrqk, &[("cluster-seed", "9")]), 51), lrqk_factors);
}

/// The naive state of one KV head under adaptive decoding.
struct Adaptive {
    b_q: Rows,
    b_k: Rows,
    /// Low ranks of all keys so far.
    low: Rows,
}

impl Adaptive {
    /// One step of the paper's decode, its equations term by term, with the sum over a group where
    /// the paper has one query head. Returns the low ranks of the queries.
    fn step(&mut self, queries: &Rows, key: &[f64], keys: &Rows, attended: &[usize]) -> Rows {
        let row = |x: &[f64]| vec![x.to_vec()];
        let times = |x: &Rows, factor: f64| -> Rows {
            x.iter().map(|row| row.iter().map(|x| factor * x).collect()).collect()
        };
        let a: Rows = attended.iter().map(|t| self.low[*t].clone()).collect();
        let k: Rows = attended.iter().map(|t| keys[*t].clone()).collect();
        let (b_q, b_k) = (self.b_q.clone(), self.b_k.clone());
        let own = product(&row(key), &transposed(&b_k));
        let mut low_key = product(&own, &inverse(&product(&b_k, &transposed(&b_k))));
        let mut low_queries = Vec::new();
        for _ in 0..2 {
            low_queries = queries
                .iter()
                .map(|q| {
                    let scores = product(&row(q), &transposed(&k));
                    let left = sum(
                        &product(&row(q), &transposed(&b_q)),
                        &sum(&product(&scores, &a), &times(&low_key, dot(q, key))),
                    );
                    let right =
                        sum(&product(&b_q, &transposed(&b_q)), &sum(&gram(&a), &gram(&low_key)));
                    product(&left, &inverse(&right))[0].clone()
                })
                .collect::<Rows>();
            let mut left = own.clone();
            for (q, low) in queries.iter().zip(&low_queries) {
                left = sum(&left, &times(&row(low), dot(q, key)));
            }
            let right = sum(&product(&b_k, &transposed(&b_k)), &gram(&low_queries));
            let next = product(&left, &inverse(&right));
            let moved: f64 =
                next[0].iter().zip(&low_key[0]).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
            low_key = next;
            if moved / (RANK as f64) < 1e-2 {
                break;
            }
        }
        // One step of gradient descent with exact line search in each basis.
        let descend = |b: &mut Rows, low: &[f64], x: &[f64]| {
            let fitted = product(&row(low), b);
            let error: Vec<f64> = fitted[0].iter().zip(x).map(|(f, x)| f - x).collect();
            let gradient = product(&transposed(&row(low)), &row(&error));
            let norm: f64 = gradient.iter().flatten().map(|g| g * g).sum();
            let along = product(&row(low), &gradient);
            let eta = norm / along[0].iter().map(|x| x * x).sum::<f64>();
            *b = sum(b, &times(&gradient, -eta));
        };
        for (q, low) in queries.iter().zip(&low_queries) {
            descend(&mut self.b_q, low, q);
        }
        descend(&mut self.b_k, &low_key[0], key);
        self.low.push(low_key.remove(0));
        low_queries
    }
}

/// LRQK's adaptive decode over 30 steps, in which windows of tokens become part of the index.
#[test]
fn lrqk_fits_its_bases_to_every_step() {
    let policy = token(Preset::Lrqk, &[("cluster-seed", "9"), ("lrqk-decode", "adaptive")]);
    let mut sim = prompt(&policy, 52);
    let (layer, head) = (LayerId(1), HeadId(1));
    let group = sim.sequence.shape().query_heads(head);
    let scale = f64::from(sim.sequence.shape().scale);
    let (q, k) = (group_queries(&sim, layer, head), keys(&sim, layer, head));
    let (w_q, w_k) = lrqk_factors(&q, &k, head);
    let (b_q, b_k) = (basis(&product(&q, &w_q), &q), basis(&product(&k, &w_k), &k));
    let mut naive = Adaptive { b_q, b_k, low: product(&k, &w_k) };
    let mut recalled: Vec<usize> = Vec::new();
    for step in 0..30 {
        // Omega: what the step before recalled, and the tokens that are not indexed.
        sim.decode(52);
        let n = sim.n_tokens();
        let indexed = sim.sequence.layers()[layer].n_indexed;
        let omega: Vec<usize> = recalled.iter().copied().chain(indexed..n - 1).collect();
        let all = keys(&sim, layer, head);
        let own: Rows = group.clone().map(|h| queries(&sim, layer, h)[n - 1].clone()).collect();
        let low_queries = naive.step(&own, &all[n - 1], &all, &omega);
        let low = &naive.low[4..indexed];
        let mut mass = vec![0.0; low.len()];
        for q in &low_queries {
            let scores: Vec<f64> = low.iter().map(|k| scale * dot(q, k)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            mass.iter_mut().zip(&scores).for_each(|(m, s)| *m += (s - max).exp() / total);
        }
        let scores: Vec<f64> = mass.iter().map(|m| m.ln()).collect();
        recalled = sim.sequence.last_recalled(layer, head).map(|t| t as usize).collect();
        let taken: Vec<usize> = recalled.iter().map(|t| t - 4).collect();
        assert_best(&taken, &scores, &format!("step {step}"));
    }
    assert!(sim.sequence.layers()[layer].n_indexed > PROMPT, "a window was indexed");
}

#[test]
fn the_choice_is_that_among_all_tokens_whatever_the_clusters_are() {
    let more = [("sinks", "4"), ("recent", "8"), ("window", "16"), ("rank", "4")];
    let clusters = |tokens| {
        let own = [("two-stage", "9"), ("cluster-tokens", tokens)];
        prompt(&with(Preset::Clusterkv, &[&more[..], &own].concat()), 53)
    };
    // With all of them opened, all tokens are ranked, by the same codes.
    let (mut small, mut large) = (clusters("4"), clusters("16"));
    for _ in 0..40 {
        [&mut small, &mut large].into_iter().for_each(|sim| sim.decode(53));
        for (layer, head) in small.heads() {
            let [a, b] = [&small, &large].map(|sim| chosen(sim, layer, head));
            assert!(!a.is_empty(), "nothing was recalled");
            assert_eq!(a, b, "layer {layer}, head {head}, token {}", small.n_tokens());
        }
    }
}

/// What a head recalled in the last step, in the order of the text.
fn chosen(sim: &Sim<CpuBackend>, layer: LayerId, head: HeadId) -> Vec<u32> {
    let mut chosen: Vec<u32> = sim.sequence.last_recalled(layer, head).collect();
    chosen.sort_unstable();
    chosen
}

/// With every cluster opened, the second stage ranks all tokens: LRQK's choice.
#[test]
fn tokens_of_all_clusters_are_chosen_as_lrqk_does() {
    let more = [("sinks", "4"), ("recent", "8"), ("window", "16"), ("rank", "4")];
    let refined = [&more[..], &[("two-stage", "9"), ("cluster-tokens", "8")]].concat();
    let mut two_stage = prompt(&with(Preset::Clusterkv, &refined), 53);
    let mut tokens = prompt(&with(Preset::Lrqk, &more), 53);
    // Few tokens are opened, by clusters that are large: small ones name nearly the same tokens.
    let few = [&refined[..], &[("two-stage", "2"), ("cluster-tokens", "32")]].concat();
    let mut few = prompt(&with(Preset::Clusterkv, &few), 53);
    // Tokens chosen, and those of the two others that `lrqk` did not choose.
    let (mut n, mut by_rounding, mut by_clusters) = (0, 0, 0);
    for _ in 0..40 {
        [&mut two_stage, &mut tokens, &mut few].into_iter().for_each(|sim| sim.decode(53));
        for (layer, head) in two_stage.heads() {
            let [a, b, few] = [&two_stage, &tokens, &few].map(|sim| chosen(sim, layer, head));
            assert!(!a.is_empty(), "nothing was recalled");
            assert_eq!(a.len(), b.len(), "layer {layer}, head {head}");
            let other = |tokens: Vec<u32>| tokens.iter().filter(|t| !b.contains(t)).count();
            n += b.len();
            by_rounding += other(a);
            by_clusters += other(few);
        }
    }
    // Codes of 8 bits may turn the order of tokens whose scores are nearly the same.
    assert!(by_rounding * 50 <= n, "{by_rounding} of {n} tokens differ");
    assert!(by_clusters > 4 * by_rounding, "{by_clusters} of {n}: opening says nothing");
}
