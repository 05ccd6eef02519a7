//! What holds for every preset: rows and sums are right, the budget is kept, something is left out,
//! and a change of policy, a cut or a lost device changes nothing that it should not.

use std::collections::HashSet;
use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId};
use longview_ops::Backend;
use longview_scheduler::{
    Attend, AttentionBound, BudgetMode, HostRows, KvShape, LayerMode, Placement, Policy,
    PolicyOptions, Positions, Preset, RecallMode, Residency, Residual, SchedulerError,
    SequenceOptions, TokenPlace,
};
use pollster::block_on;

use super::steps::{clusterkv, options, placements, streaming};
use crate::backends::Probe;
use crate::sim::{Sim, Term, assert_within, small_shape};

/// ClusterKV that recalls the share `mass` of the estimated attention.
fn mass(mass: f32) -> PolicyOptions {
    let budget_mode = Some(BudgetMode::Mass);
    PolicyOptions { budget_mode, mass: Some(mass), ..clusterkv(96) }
}

/// Every preset but full attention, with small numbers: budgets below the context, several
/// variants where a preset has some.
pub fn small_presets() -> Vec<PolicyOptions> {
    let with = |preset: Preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(96);
        for (name, value) in settings {
            options.set(name, value).unwrap_or_else(|e| panic!("{preset} {name}: {e}"));
        }
        options
    };
    let blocks = [("block-size", "8"), ("sinks", "4"), ("recent", "8"), ("window", "16")];
    let block = |preset: Preset, more: &[(&str, &str)]| with(preset, &[&blocks, more].concat());
    let token = |preset: Preset, more: &[(&str, &str)]| {
        with(preset, &[&blocks[1..], &[("rank", "4")], more].concat())
    };
    let keep = |preset: Preset, more: &[(&str, &str)]| {
        with(preset, &[&[("recent", "8"), ("window", "16")], more].concat())
    };
    let mut all = vec![
        clusterkv(96),
        PolicyOptions { budget_mode: Some(BudgetMode::Ada), ..clusterkv(96) },
        mass(0.5),
        streaming(96),
        PolicyOptions { positions: Some(Positions::Text), ..streaming(96) },
        PolicyOptions { residual: Some(Residual::Means), ..clusterkv(96) },
        PolicyOptions { residual: Some(Residual::Means), ..mass(0.5) },
        PolicyOptions { residual: Some(Residual::Sample(20)), ..clusterkv(96) },
        PolicyOptions {
            residual: Some(Residual::Verified { error: 0.2, failure: 0.2 }),
            ..clusterkv(96)
        },
        PolicyOptions {
            residual: Some(Residual::Sample(30)),
            attend: Some(Attend::Host),
            seed: Some(3),
            ..clusterkv(96)
        },
        PolicyOptions { two_stage: Some(3), rank: Some(4), ..clusterkv(96) },
        with(Preset::Longview, &[("residual", "sample:25"), ("sinks", "4"), ("rank", "4")]),
        PolicyOptions { two_stage: Some(2), budget_mode: Some(BudgetMode::Ada), ..clusterkv(96) },
        block(Preset::Quest, &[]),
        block(Preset::Quest, &[("head-select", "shared"), ("budget-mode", "ada")]),
        block(Preset::Infllm, &[]),
        block(Preset::Infllm, &[("importance", "last")]),
        block(Preset::Ktransformers, &[("preselect", "20"), ("representative-num", "2")]),
        block(Preset::Ktransformers, &[("layer-step", "2"), ("token-step", "3")]),
        block(Preset::Ktransformers, &[("attend", "device")]),
        token(Preset::Loki, &[]),
        token(Preset::Infinigen, &[]),
        token(Preset::Infinigen, &[("alpha", "1.5")]),
        token(Preset::Infinigen, &[("alpha", "inf"), ("layer-prefetch", "false")]),
        token(Preset::Lrqk, &[]),
        token(Preset::Lrqk, &[("lrqk-decode", "adaptive")]),
        token(Preset::Lrqk, &[("budget-mode", "mass"), ("mass", "0.7")]),
        keep(Preset::Snapkv, &[]),
        keep(Preset::Pyramidkv, &[("beta", "4")]),
        keep(Preset::AdaSnapkv, &[("pool-order", "pool-first")]),
        keep(Preset::AdaPyramid, &[("beta", "4")]),
        with(Preset::H2o, &[("window", "16")]),
    ];
    for representative in ["max", "mean", "quest", "fix"] {
        let more = [("representative", representative), ("head-select", "separate")];
        all.push(block(Preset::Ktransformers, &more));
    }
    all
}

/// After a step: every head's attention is that over the rows that it says it attended, each once,
/// and no more than the budget allows.
pub(super) fn check_step<B: Backend>(sim: &Sim<B>, what: &str) {
    let shape = sim.sequence.shape();
    let d = shape.head_dim;
    let policy = sim.sequence.policy();
    // Keys of size 2 are off by up to 0.03 where they are rounded to 8 bits, and scores by more.
    let tolerance = if shape.host_rows == HostRows::EightBits { 0.1 } else { 1e-4 };
    let (mut total, mut heads) = (0, 0);
    for (layer, state) in shape.layers().zip(sim.sequence.layers()) {
        for head in shape.heads() {
            let attended = match state.mode() {
                LayerMode::Dense => (0..sim.n_tokens() as u32).collect(),
                _ => sim.sequence.attended_tokens(layer, head),
            };
            let distinct: HashSet<_> = attended.iter().collect();
            assert_eq!(distinct.len(), attended.len(), "{what}: a row twice");
            let last = sim.n_tokens() as u32 - 1;
            assert!(attended.contains(&last), "{what}: a token attends itself");
            total += attended.len();
            heads += 1;
            let mut terms: Vec<_> = attended.iter().map(|p| turned(sim, layer, head, *p)).collect();
            if policy.residual == Residual::Means {
                terms.extend(unread_clusters(sim, layer, head, &attended));
            }
            let drawn = sim.sequence.drawn_tokens(layer, head);
            let is_left = |(token, _): &(u32, usize)| !attended.contains(token);
            assert!(drawn.iter().all(is_left), "{what}: what was chosen is not drawn");
            assert_eq!(drawn.is_empty(), !policy.residual.draws(), "{what}: draws");
            terms.extend(drawn.iter().map(|(token, weight)| {
                let term = sim.term(layer, head, *token);
                Term { weight: *weight as f64, ..term }
            }));
            for h in shape.query_heads(head) {
                let got = &sim.out[layer][h * d..(h + 1) * d];
                assert_within(got, &sim.attention(layer, h, &terms), tolerance, what);
            }
        }
    }
    // Heads and layers may differ; together they keep to the budget, but for what rounding adds.
    let budget = policy.budget.tokens.unwrap_or(usize::MAX);
    assert!(total <= heads * budget.saturating_add(2), "{what}: {total} rows of {heads} heads");
    assert!(total < heads * sim.n_tokens(), "{what}: nothing was left out");
}

/// A token as a step attends it: a first token's key is turned to its place in the cache.
fn turned<B: Backend>(sim: &Sim<B>, layer: LayerId, head: HeadId, position: u32) -> Term {
    let (policy, shape) = (sim.sequence.policy(), sim.sequence.shape());
    let mut term = sim.term(layer, head, position);
    let is_first = policy.residency.first_positions() == Positions::Cache
        && (position as usize) < policy.sinks;
    let gone = sim.n_tokens().saturating_sub(policy.sinks + policy.recent);
    if is_first && sim.sequence.layers()[layer].mode() == LayerMode::Window {
        for (i, freq) in shape.inv_freq.iter().enumerate() {
            let (sin, cos) = (gone as f64 * freq).sin_cos();
            let (a, b) = (term.key[i], term.key[i + shape.inv_freq.len()]);
            term.key[i] = a * cos - b * sin;
            term.key[i + shape.inv_freq.len()] = b * cos + a * sin;
        }
    }
    term
}

/// Each cluster's mean key and mean value, as often as it has tokens that were not attended.
fn unread_clusters<B: Backend>(
    sim: &Sim<B>,
    layer: LayerId,
    head: HeadId,
    attended: &[u32],
) -> Vec<Term> {
    let state = &sim.sequence.layers()[layer];
    let index = &state.recall().expect("clusters").index.heads()[head];
    let mut terms = Vec::new();
    for (start, size) in index.starts.iter().zip(&index.sizes) {
        let rows = *start as usize..(start + size) as usize;
        let members: Vec<_> =
            state.positions[head][rows].iter().map(|p| sim.term(layer, head, *p)).collect();
        let taken = &state.positions[head][*start as usize..(start + size) as usize];
        let unread = taken.iter().filter(|p| !attended.contains(p)).count();
        let mean = |of: fn(&Term) -> &Vec<f64>| -> Vec<f64> {
            let sum = |i: usize| members.iter().map(|term| of(term)[i]).sum::<f64>();
            (0..of(&members[0]).len()).map(|i| sum(i) / members.len() as f64).collect()
        };
        if unread > 0 {
            let weight = unread as f64;
            terms.push(Term { key: mean(|t| &t.key), value: mean(|t| &t.value), weight });
        }
    }
    terms
}

pub(super) fn name(options: &PolicyOptions) -> String {
    let given: Vec<_> = options.given();
    format!("{} with {}", options.preset, given.join(", "))
}

pub fn every_preset_attends_what_it_says_within_its_budget<B: Probe>(backend: &Arc<B>) {
    for policy in small_presets() {
        for &placement in placements(&**backend) {
            let what = format!("{} {placement:?}", name(&policy));
            let mut sim = Sim::new(backend, small_shape(500), &policy, options(placement)).unwrap();
            sim.prefill(6, 300);
            for _ in 0..70 {
                sim.decode(6);
                check_step(&sim, &what);
            }
            let stats = sim.sequence.stats();
            let policy = sim.sequence.policy();
            if policy.residency.kept().is_some() {
                assert!(stats.evictions > 0, "{what}: nothing was let go of");
            }
            let fetches = matches!(policy.residency, Residency::Recall { .. });
            if fetches && placement == Placement::Device {
                assert!(stats.misses > 0 && stats.hits > 0, "{what}: {stats:?}");
            }
        }
    }
}

/// Each KV head is attended by one thread, so how many there are changes no bit.
pub fn attention_on_the_host_is_the_same_for_any_number_of_threads<B: Probe>(backend: &Arc<B>) {
    let shape = KvShape { n_q_heads: 6, n_kv_heads: 3, ..small_shape(500) };
    let run = |threads: usize| {
        let mut policy = PolicyOptions { attend: Some(Attend::Host), ..clusterkv(96) };
        policy.host_threads = Some(threads);
        let mut sim =
            Sim::new(backend, shape.clone(), &policy, options(Placement::Device)).unwrap();
        sim.prefill(13, 300);
        let step = |_| {
            sim.decode(13);
            check_step(&sim, "attention on the host");
            sim.out.clone()
        };
        (0..30).map(step).collect::<Vec<_>>()
    };
    let one = run(1);
    for threads in [2, 3, 7] {
        assert_eq!(run(threads), one, "{threads} threads");
    }
}

pub fn every_preset_may_follow_another_without_a_prefill<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let shape = small_shape(500);
        let first = clusterkv(96);
        let mut sim = Sim::new(backend, shape.clone(), &first, options(placement)).unwrap();
        sim.prefill(7, 300);
        for policy in small_presets() {
            let what = format!("{} {placement:?}", name(&policy));
            let resolved = Policy::resolve(&policy, 500).unwrap();
            let needs = match policy.preset {
                Preset::H2o => Some("--policy h2o needs the attention of all queries"),
                Preset::Infllm if resolved.local_window().is_some() => {
                    Some("--policy infllm needs the sums of all queries (--importance last")
                }
                _ => None,
            };
            let changed = block_on(sim.sequence.set_policy(resolved));
            if let Some(needs) = needs {
                let error = changed.unwrap_err();
                assert!(matches!(error, SchedulerError::NoStatistics { .. }), "{error}");
                assert!(error.to_string().starts_with(needs), "{error}");
                continue;
            }
            changed.unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut fresh = Sim::new(backend, shape.clone(), &policy, options(placement)).unwrap();
            fresh.prefill(7, 300);
            for _ in 0..20 {
                sim.decode(7);
                fresh.decode(7);
                assert_eq!(sim.out, fresh.out, "{what}: another result than after a prefill");
            }
            block_on(sim.sequence.truncate(300)).unwrap();
            sim.truth.iter_mut().for_each(|layer| layer.truncate(300));
        }
    }
}

pub fn every_preset_survives_a_lost_device<B: Probe>(backend: &Arc<B>) {
    for policy in small_presets() {
        let what = name(&policy);
        let new =
            || Sim::new(backend, small_shape(500), &policy, options(Placement::Device)).unwrap();
        let (mut sim, mut twin) = (new(), new());
        sim.prefill(8, 300);
        twin.prefill(8, 300);
        for step in 0..40 {
            if step == 13 {
                let fresh = Arc::new(backend.background());
                sim.move_to(&fresh).unwrap();
            }
            sim.decode(8);
            twin.decode(8);
            check_step(&sim, &what);
            // What rows received since the last choice is lost with the device, so another choice
            // may follow; until then nothing differs. A choice that holds for several steps is made
            // anew, and what it would have said to the next step is gone.
            let keeps = sim.sequence.policy().residency.forgets() && step >= 16;
            let remembers = policy.token_step.is_some() || policy.lrqk_decode.is_some();
            let holds = remembers && step >= 13;
            // What queries since the prompt said of keys is gone: the window that is full after 16
            // steps may have other representatives.
            let is_local = sim.sequence.policy().local_window().is_some();
            let represents = is_local && step >= 16;
            if !keeps && !holds && !represents {
                assert_eq!(sim.out, twin.out, "{what}: step {step}");
            }
        }
    }
}

pub fn what_was_let_go_of_is_not_on_the_device<B: Probe>(backend: &Arc<B>) {
    let full = PolicyOptions::new(Preset::Full);
    let bytes = |policy: &PolicyOptions| {
        let mut sim =
            Sim::new(backend, small_shape(500), policy, options(Placement::Device)).unwrap();
        sim.prefill(9, 400);
        sim.decode(9);
        (sim.sequence.device_kv_bytes(), sim.sequence.stats().evictions)
    };
    let (all, _) = bytes(&full);
    for policy in small_presets().into_iter().filter(|p| p.preset.info().residency == "evict") {
        let (left, evictions) = bytes(&policy);
        let what = name(&policy);
        // A budget of 96 of 500, a ring of a window more, and places that rounding adds.
        assert!(left * 500 <= all * (96 + 16 + 4), "{what}: {left} of {all} bytes");
        assert!(evictions > 0 || policy.preset == Preset::StreamingLlm, "{what}");
    }
}

/// A larger share of the attention takes more clusters, and those taken hold it by the index's own
/// estimate, but for the last one.
pub fn a_mass_budget_recalls_as_much_as_the_estimate_asks_for<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let mut attended = Vec::new();
        for share in [0.3, 0.6, 0.9] {
            let mut sim =
                Sim::new(backend, small_shape(500), &mass(share), options(placement)).unwrap();
            sim.prefill(10, 300);
            for _ in 0..20 {
                sim.decode(10);
                for head in sim.sequence.shape().heads() {
                    check_mass(&sim, head, f64::from(share));
                }
            }
            attended.push(sim.sequence.stats().mean_attended().unwrap());
        }
        assert!(attended.windows(2).all(|w| w[0] + 2.0 < w[1]), "{attended:?}");
    }
}

pub fn tokens_that_are_drawn_are_told_apart<B: Probe>(backend: &Arc<B>) {
    let policy = PolicyOptions { residual: Some(Residual::Sample(20)), ..clusterkv(96) };
    let (layer, head) = (LayerId(1), HeadId(0));
    for &placement in placements(&**backend) {
        let mut sim = Sim::new(backend, small_shape(500), &policy, options(placement)).unwrap();
        sim.prefill(10, 300);
        sim.sequence.track_head(Some((layer, head)));
        let mut places = Vec::new();
        for _ in 0..5 {
            sim.decode(10);
            sim.sequence.token_places(&mut places);
            assert_eq!(places.len(), sim.n_tokens());
            let of = |kinds: &[TokenPlace]| -> Vec<u32> {
                let places = places.iter().zip(0..);
                places.filter(|(place, _)| kinds.contains(place)).map(|(_, token)| token).collect()
            };
            let drawn = sim.sequence.drawn_tokens(layer, head);
            let mut drawn: Vec<u32> = drawn.into_iter().map(|(token, _)| token).collect();
            drawn.sort_unstable();
            assert_eq!((of(&[TokenPlace::Drawn]), drawn.len()), (drawn, 20), "{placement:?}");
            let mut attended = sim.sequence.attended_tokens(layer, head);
            attended.sort_unstable();
            let (sink, recent) = (TokenPlace::Sink, TokenPlace::Recent);
            let others = of(&[sink, recent, TokenPlace::Hit, TokenPlace::Missed]);
            assert_eq!(others, attended, "{placement:?}");
        }
    }
}

fn check_mass<B: Backend>(sim: &Sim<B>, head: HeadId, share: f64) {
    let shape = sim.sequence.shape();
    let (d, layer) = (shape.head_dim, &sim.sequence.layers()[1]);
    let index = &layer.recall().unwrap().index;
    let centroids = sim.landmarks(index, head);
    let index = &index.heads()[head];
    let mut mass = vec![0.0f64; index.sizes.len()];
    for h in shape.query_heads(head) {
        let q = &sim.truth[1].last().unwrap().q[h * d..(h + 1) * d];
        let weigh = |c: usize| {
            let c_row = &centroids[c * d..(c + 1) * d];
            let dot: f64 = q.iter().zip(c_row).map(|(a, b)| f64::from(a * b)).sum();
            f64::from(index.sizes[c]) * (f64::from(shape.scale) * dot).exp()
        };
        let total: f64 = (0..mass.len()).map(weigh).sum();
        mass.iter_mut().enumerate().for_each(|(c, m)| *m += weigh(c) / total);
    }
    let recalled: Vec<u32> = sim.sequence.last_recalled(LayerId(1), head).collect();
    let held: Vec<f64> = (0..mass.len())
        .map(|c| {
            let rows = index.starts[c] as usize..(index.starts[c] + index.sizes[c]) as usize;
            let tokens = &layer.positions[head][rows];
            let taken = tokens.iter().filter(|t| recalled.contains(t)).count();
            mass[c] * taken as f64 / tokens.len() as f64
        })
        .collect();
    let (total, held_all) = (mass.iter().sum::<f64>(), held.iter().sum::<f64>());
    let is_full = sim.sequence.attended_tokens(LayerId(1), head).len() == 96;
    assert!(is_full || held_all >= share * total - 1e-4, "{held_all} of {total}");
    let smallest = held.iter().copied().filter(|h| *h > 0.0).fold(f64::INFINITY, f64::min);
    assert!(held_all - smallest <= share * total + 1e-4, "a cluster more than needed");
}

/// Bounds of what steps leave out are never below what they leave out; they are counted, and say
/// something for some heads.
pub fn certificates_are_never_violated<B: Probe>(backend: &Arc<B>) {
    let certified = |mut policy: PolicyOptions| {
        policy.attention_bound = Some(AttentionBound::WorstCase);
        policy
    };
    let quest = |block: &str| {
        let mut quest = PolicyOptions::new(Preset::Quest).with_budget(96);
        quest.set("block-size", block).unwrap();
        quest
    };
    for (policy, kv_dtype) in [
        (clusterkv(96), DType::F32),
        (clusterkv(96), DType::F16),
        (clusterkv(96), DType::BF16),
        (quest("4"), DType::F32),
        (quest("8"), DType::BF16),
    ] {
        let shape = KvShape { kv_dtype, ..small_shape(500) };
        let policy = certified(policy);
        let what = format!("{} {kv_dtype}", name(&policy));
        let mut sim =
            Sim::new(backend, shape, &policy, options(placements(&**backend)[0])).unwrap();
        sim.prefill(11, 300);
        let steps = 30;
        for _ in 0..steps {
            sim.decode(11);
            for layer in sim.sequence.shape().layers() {
                check_bounds(&sim, layer, &what);
            }
        }
        let bounds = &sim.sequence.stats().bounds;
        assert_eq!(bounds.len(), steps * 2 * 4, "{what}: one for each layer and query head");
        let (median, telling) = (bounds.median().unwrap(), bounds.share_telling().unwrap());
        // Pages of unlike keys bound nothing: their largest channels belong to no key.
        let is_cluster = policy.preset == Preset::Clusterkv;
        assert!(median > 0.0 && (telling > 0.0 || !is_cluster), "{what}: {median} {telling}");
    }
}

/// The truth against the bound: masses of attended rows and of all others.
fn check_bounds<B: Backend>(sim: &Sim<B>, layer: LayerId, what: &str) {
    let (shape, n) = (sim.sequence.shape(), sim.n_tokens() as u32);
    let d = shape.head_dim;
    let q = &sim.truth[layer].last().unwrap().q;
    let (mut lse, mut ratios) = (Vec::new(), Vec::new());
    for h in 0..shape.n_q_heads {
        let head = HeadId::new(h / 2);
        let attended: HashSet<u32> =
            sim.sequence.attended_tokens(layer, head).into_iter().collect();
        let mass = |t: u32| -> f64 {
            let k = &sim.truth[layer][t as usize].k[head.index() * d..][..d];
            let k = longview_core::decode_f32(
                shape.kv_dtype,
                &longview_core::encode_f32(shape.kv_dtype, k),
            );
            let dot: f64 =
                q[h * d..(h + 1) * d].iter().zip(&k).map(|(a, b)| f64::from(a * b)).sum();
            (f64::from(shape.scale) * dot).exp()
        };
        let sum = |of: &dyn Fn(&u32) -> bool| (0..n).filter(|t| of(t)).map(mass).sum::<f64>();
        let (z, left) = (sum(&|t| attended.contains(t)), sum(&|t| !attended.contains(t)));
        lse.push(z.ln() as f32);
        ratios.push(left / z);
    }
    let bounds = sim.sequence.bounds(layer, q, &lse).expect("clusters and pages are bounded");
    for (h, (bound, ratio)) in bounds.iter().zip(&ratios).enumerate() {
        assert!(ratio <= &(bound * (1.0 + 1e-4)), "{what} head {h}: {ratio} above {bound}");
    }
}

pub fn a_choice_that_the_host_must_see_is_not_speculated<B: Probe>(backend: &Arc<B>) {
    let recall = RecallMode::Speculative { gate: 0.9 };
    let options = SequenceOptions { recall, ..options(Placement::Device) };
    for policy in small_presets() {
        let resolved = Policy::resolve(&policy, 500).unwrap();
        let is_plain = resolved.budget.mass.is_none()
            && resolved.budget.alpha.is_none()
            && resolved.residual == Residual::Drop
            && !resolved.index.is_some_and(|index| {
                index.schedule.token_step > 1
                    || index.schedule.layer_prefetch
                    || index.two_stage().is_some()
                    || index.adapts()
            })
            && !resolved.residency.attends_on_host();
        let refused = Sim::new(backend, small_shape(500), &policy, options).err();
        match (is_plain, refused) {
            (true, None) => {}
            (false, Some(SchedulerError::CannotSpeculate { .. })) => {}
            (_, other) => panic!("{}: {other:?}", name(&policy)),
        }
    }
}

/// InfLLM with representatives by the local window, in blocks of 8 tokens.
fn infllm() -> PolicyOptions {
    let mut policy = PolicyOptions::new(Preset::Infllm).with_budget(96);
    (policy.block_size, policy.sinks) = (Some(8), Some(4));
    (policy.recent, policy.window) = (Some(8), Some(16));
    policy
}

/// Sums of queries outlive other policies, cuts and lost devices, and are asked for where tokens
/// came that they do not have.
pub fn representative_scores_survive_a_detour_and_a_cut<B: Probe>(backend: &Arc<B>) {
    let resolve = |policy: &PolicyOptions| Policy::resolve(policy, 500).unwrap();
    for &placement in placements(&**backend) {
        let new = || Sim::new(backend, small_shape(500), &infllm(), options(placement)).unwrap();
        let (mut sim, mut twin) = (new(), new());
        sim.prefill(14, 300);
        twin.prefill(14, 300);
        let want: Vec<_> = (0..40)
            .map(|_| {
                twin.decode(14);
                twin.out.clone()
            })
            .collect();
        let check = |sim: &mut Sim<B>, what: &str| {
            for (step, want) in want.iter().enumerate() {
                sim.decode(14);
                assert_eq!(&sim.out, want, "{what}, {placement:?}, step {step}");
            }
        };
        block_on(sim.sequence.set_policy(resolve(&clusterkv(96)))).unwrap();
        sim.decode(14);
        let error = block_on(sim.sequence.set_policy(resolve(&infllm()))).unwrap_err();
        assert!(matches!(error, SchedulerError::NoStatistics { .. }), "{error}");
        let cut = |sim: &mut Sim<B>, n: usize| {
            block_on(sim.sequence.truncate(n)).unwrap();
            sim.truth.iter_mut().for_each(|layer| layer.truncate(n));
        };
        block_on(sim.sequence.set_policy(resolve(&clusterkv(96)))).unwrap();
        cut(&mut sim, 300);
        block_on(sim.sequence.set_policy(resolve(&infllm()))).unwrap();
        check(&mut sim, "after a detour");
        cut(&mut sim, 300);
        check(&mut sim, "after a cut");
        // A cut inside of the prompt, and the rest of it again.
        cut(&mut sim, 217);
        sim.prefill(14, 83);
        check(&mut sim, "after a cut in the prompt");
        if placement == Placement::Device {
            cut(&mut sim, 300);
            let fresh = Arc::new(backend.background());
            sim.move_to(&fresh).unwrap();
            check(&mut sim, "after a lost device");
        }
    }
}

/// Steps that are run again count once.
pub fn representative_scores_are_the_same_with_speculation<B: Probe>(backend: &Arc<B>) {
    let recall = RecallMode::Speculative { gate: 1.5 };
    let exact = options(Placement::Device);
    let again = SequenceOptions { recall, ..exact };
    let sim = |on| Sim::new(backend, small_shape(500), &infllm(), on).unwrap();
    let (mut one, mut two) = (sim(exact), sim(again));
    one.prefill(15, 300);
    two.prefill(15, 300);
    for step in 0..60 {
        one.decode(15);
        two.decode(15);
        assert_eq!(one.out, two.out, "step {step}");
    }
    let stats = two.sequence.stats();
    assert!(stats.repeated_steps > 40 && stats.clusterings > 4, "{stats:?}");
}

/// A choice that was made one layer ahead waits in its own slot, on the host and on the device.
pub fn a_choice_made_ahead_is_the_devices_too<B: Probe>(backend: &Arc<B>) {
    let mut policy = PolicyOptions::new(Preset::Infinigen).with_budget(96);
    (policy.alpha, policy.rank) = (Some(f32::INFINITY), Some(4));
    (policy.recent, policy.window) = (Some(8), Some(16));
    let on_host = options(Placement::Device);
    let on_device = SequenceOptions { device_cache: true, ..on_host };
    let sim = |policy: &PolicyOptions, on| Sim::new(backend, small_shape(500), policy, on).unwrap();
    let own = PolicyOptions { layer_prefetch: Some(false), ..policy.clone() };
    let mut sims = [sim(&policy, on_host), sim(&policy, on_device), sim(&own, on_host)];
    sims.iter_mut().for_each(|sim| sim.prefill(16, 300));
    let mut differs = 0;
    for step in 0..40 {
        sims.iter_mut().for_each(|sim| sim.decode(16));
        let [host, device, own] = &sims;
        assert_eq!(host.out, device.out, "step {step}");
        check_step(host, "chosen ahead");
        // The first layer has no layer before it.
        assert_eq!(host.out[0], own.out[0], "step {step}");
        differs += usize::from(host.out[1] != own.out[1]);
    }
    assert!(differs > 30, "another query chooses otherwise: {differs} of 40 steps");
}

/// A prompt that fits the budget says nothing about heads: decode then uses all of it, and nothing
/// is let go of before it is full.
pub fn a_short_prompt_leaves_every_head_its_budget<B: Probe>(backend: &Arc<B>) {
    for policy in small_presets() {
        let is_ada = matches!(policy.preset, Preset::AdaSnapkv)
            || policy.budget_mode == Some(BudgetMode::Ada);
        if !is_ada {
            continue;
        }
        let what = name(&policy);
        let placement = placements(&**backend)[0];
        let mut sim = Sim::new(backend, small_shape(500), &policy, options(placement)).unwrap();
        sim.prefill(12, 30);
        for n in 31..200usize {
            sim.decode(12);
            for (layer, head) in sim.heads() {
                let attended = sim.sequence.attended_tokens(layer, head).len();
                assert_eq!(attended, n.min(96), "{what}: token {n}");
            }
        }
    }
}
