//! Steps under one policy, and what the other checks of policies share.

pub(super) use std::collections::HashSet;
pub(super) use std::sync::Arc;

pub(super) use longview_core::{DType, HeadId, LayerId, SplitMix64};
pub(super) use longview_ops::{Backend, Distance, Pooling};
pub(super) use longview_scheduler::{
    ClusterJob, ClusterTask, HostStoreKind, KvPlan, LayerMode, Placement, Policy, PolicyOptions,
    Positions, PrefillMode, Preset, RecallMode, SchedulerError, SequenceOptions, SpanMode, Step,
    StepScratch, StepSpan, StepVerdict, TaskKind,
};
pub(super) use pollster::block_on;

pub(super) use crate::backends::Probe;
pub(super) use crate::sim::{Sim, TokenData, assert_near, attend, small_shape, token_data};

/// Hands the names of all checks to a macro, so that whoever runs them runs the same.
#[macro_export]
macro_rules! policy_checks {
    ($then:ident) => {
        $then! {
            the_control_attends_to_sinks_and_the_most_recent_tokens,
            full_attention_and_dense_layers_attend_to_everything,
            few_tokens_are_all_attended_where_they_lie,
            one_prefill_serves_several_policies_and_is_taken_back,
            the_same_seed_gives_the_same_bits_with_and_without_overlap,
            several_sequences_of_unequal_length_share_a_step,
            selection_equals_a_brute_force_oracle,
            members_of_a_cluster_stand_closest_first,
            kmeans_recovers_planted_clusters,
            the_plan_is_what_is_allocated,
            what_later_policies_need_is_recorded,
            a_sequence_that_is_full_says_so_and_stays_usable,
            rows_through_staging_equal_rows_that_kernels_carry,
            a_sequence_made_again_from_the_host_attends_the_same,
            random_steps_keep_budget_and_rows,
            the_device_attends_what_the_host_would_to_the_bit,
            cuts_policies_and_lost_devices_leave_the_device_cache_right,
            a_step_that_the_device_resolves_waits_once,
            what_the_device_chose_is_there_for_who_looks,
            rows_on_the_device_are_attended_where_they_lie,
            rows_on_the_device_are_those_that_would_be_fetched,
            choices_among_rows_on_the_device_are_those_in_place,
            rows_on_the_device_are_waited_for_once_a_step,
            every_preset_attends_what_it_says_within_its_budget,
            attention_on_the_host_is_the_same_for_any_number_of_threads,
            every_preset_may_follow_another_without_a_prefill,
            every_preset_survives_a_lost_device,
            what_was_let_go_of_is_not_on_the_device,
            a_mass_budget_recalls_as_much_as_the_estimate_asks_for,
            tokens_that_are_drawn_are_told_apart,
            certificates_are_never_violated,
            a_choice_that_the_host_must_see_is_not_speculated,
            representative_scores_survive_a_detour_and_a_cut,
            representative_scores_are_the_same_with_speculation,
            a_choice_made_ahead_is_the_devices_too,
            a_short_prompt_leaves_every_head_its_budget,
            a_gate_above_one_repeats_every_step_and_equals_exact_recall_to_the_bit,
            repeated_steps_survive_cuts_and_lost_devices,
            speculation_reads_once_a_step_and_exact_recall_once_a_layer_more,
            a_speculative_step_attends_what_the_last_query_chose,
            only_steps_whose_queries_turned_are_run_again,
            random_steps_with_speculation_keep_budget_rows_and_cache,
            the_step_after_a_change_is_exact,
            a_verdict_that_nobody_reads_is_an_error_of_the_next_call,
            speculation_that_means_nothing_is_refused,
            windows_are_attended_exactly_in_prefill,
            windows_are_attended_exactly_under_every_policy,
            a_cut_of_5000_tokens_reads_nothing_before_it_again,
            windows_of_several_sequences_do_not_mix,
            the_device_has_the_windows_alone,
            windows_survive_a_lost_device_and_other_policies,
            every_preset_attends_rows_of_8_bits,
            recent_rows_are_attended_as_written_and_others_rounded,
            recalled_rows_are_attended_rounded,
            rows_of_8_bits_do_not_depend_on_chunks,
            clusters_of_a_prompt_are_made_of_unrounded_keys,
            rows_of_8_bits_survive_cuts_and_other_policies,
            rows_of_8_bits_survive_a_lost_device,
            rows_of_8_bits_take_half_the_memory,
            a_fork_and_its_origin_go_on_as_if_alone,
            a_cut_of_a_fork_leaves_its_origin_alone,
            a_fork_outlives_its_origin_and_a_lost_device,
            forks_share_the_rows_that_neither_writes
        }
    };
}

/// ClusterKV with small numbers, so that segments, windows and splits all happen.
pub fn clusterkv(budget: usize) -> PolicyOptions {
    let mut o = PolicyOptions::new(Preset::Clusterkv).with_budget(budget);
    (o.sinks, o.recent, o.window) = (Some(4), Some(8), Some(16));
    (o.cluster_tokens, o.cluster_segment) = (Some(5), Some(64));
    o
}

/// Sinks and recent tokens, nothing else.
pub fn streaming(budget: usize) -> PolicyOptions {
    PolicyOptions::new(Preset::StreamingLlm).with_budget(budget)
}

/// Small chunks and tiles, exact recall, and clustering beside other work.
pub fn options(placement: Placement) -> SequenceOptions {
    let (store, recall) = (HostStoreKind::Auto, RecallMode::Exact);
    let device_cache = false;
    let eight_bit_slots = false;
    let resident_rows = false;
    SequenceOptions {
        placement,
        store,
        prefill: PrefillMode::Exact,
        chunk: 48,
        tile: 40,
        overlap: true,
        recall,
        device_cache,
        resident_rows,
        eight_bit_slots,
        max_buffer_bytes: None,
    }
}

/// Where attention may read rows on this device.
pub(super) fn placements<B: Backend>(backend: &B) -> &'static [Placement] {
    if backend.capabilities().unified_memory {
        &[Placement::InPlace, Placement::Device]
    } else {
        &[Placement::Device]
    }
}

pub fn the_control_attends_to_sinks_and_the_most_recent_tokens<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let positions = Some(Positions::Text);
        let policy = PolicyOptions { positions, ..streaming(64) };
        let mut sim = Sim::new(backend, small_shape(600), &policy, options(placement)).unwrap();
        sim.prefill(3, 300);
        for _ in 0..100 {
            sim.decode(3);
            let (n, shape) = (sim.n_tokens() as u32, sim.sequence.shape().clone());
            let positions: Vec<u32> = (0..4).chain(n - 60..n).collect();
            for h in 0..shape.n_q_heads {
                let got = &sim.out[1][h * shape.head_dim..(h + 1) * shape.head_dim];
                assert_near(got, &sim.oracle(LayerId(1), h, &positions), "sinks and recent");
            }
        }
    }
}

pub fn full_attention_and_dense_layers_attend_to_everything<B: Probe>(backend: &Arc<B>) {
    let mut dense = clusterkv(96);
    dense.dense_layers = Some(2);
    let full = PolicyOptions::new(Preset::Full);
    let mut layouts: Vec<_> = placements(&**backend).iter().map(|p| options(*p)).collect();
    // Five buffers of 80 rows each, of which prompt and tokens reach the third.
    let shape = small_shape(400);
    let max_buffer_bytes = Some((90 * shape.n_kv_heads * shape.row_bytes()) as u64);
    layouts.push(SequenceOptions { max_buffer_bytes, ..options(Placement::Device) });
    let cases = [full, dense]
        .into_iter()
        .flat_map(|policy| layouts.iter().map(move |layout| (policy.clone(), *layout)));
    for (policy, layout) in cases {
        let mut sim = Sim::new(backend, small_shape(400), &policy, layout).unwrap();
        sim.prefill(3, 200);
        for _ in 0..30 {
            sim.decode(3);
            let positions: Vec<u32> = (0..sim.n_tokens() as u32).collect();
            for (layer, h) in [(0, 0), (0, 3), (1, 1), (1, 2)] {
                let layer = LayerId(layer);
                let got = &sim.out[layer][h * 8..(h + 1) * 8];
                assert_near(got, &sim.oracle(layer, h, &positions), "full attention");
            }
        }
    }
}

/// The search begins with the first token behind the limit. Where rows lie, the index waits until
/// then, and is that of a policy which comes into force one step before for each layer that is
/// left; on a device there is no limit.
pub fn few_tokens_are_all_attended_where_they_lie<B: Probe>(backend: &Arc<B>) {
    const LIMIT: usize = 230;
    const FIRST: usize = 200;
    const STEPS: usize = 60;
    let plain = PolicyOptions::new(Preset::Longview);
    let searching = Policy::resolve(&plain.clone().with_budget(96), 400).unwrap();
    assert_eq!(searching.attend_all, 96, "a budget is kept, and what fits into it is attended");
    let plain = Policy::resolve(&plain, 400).unwrap();
    assert!(plain.attend_all >= 400, "a context as short as this is attended whole");
    let step = |sim: &mut Sim<B>| {
        sim.decode(3);
        let attended = sim.sequence.attended_tokens(LayerId(1), HeadId::new(0)).len();
        (sim.out.clone(), attended)
    };
    for &placement in placements(&**backend) {
        // Full attention, and from so many tokens on another policy.
        let begun = |attend_all: usize, from: usize| {
            let full = PolicyOptions::new(Preset::Full);
            let mut sim = Sim::new(backend, small_shape(400), &full, options(placement)).unwrap();
            sim.prefill(3, FIRST);
            let mut steps: Vec<_> = (FIRST..from).map(|_| step(&mut sim)).collect();
            let policy = Policy { attend_all, ..searching.clone() };
            block_on(sim.sequence.set_policy(policy)).unwrap();
            steps.extend((from..FIRST + STEPS).map(|_| step(&mut sim)));
            (sim, steps)
        };
        let (mut sim, whole) = begun(LIMIT, FIRST);
        let is_in_place = placement == Placement::InPlace;
        let n_layers = sim.sequence.shape().n_layers;
        for layer in 0..n_layers {
            let from = if is_in_place { LIMIT - n_layers + layer } else { FIRST };
            let (_, searched) = begun(0, from);
            for (i, (searched, whole)) in searched.iter().zip(&whole).enumerate() {
                let is_whole = is_in_place && FIRST + i < LIMIT;
                assert_eq!(whole.1, if is_whole { FIRST + 1 + i } else { searched.1 }, "step {i}");
                if !is_whole {
                    assert!(whole.1 <= 96, "{placement:?}, step {i}: {}", whole.1);
                    assert_eq!(whole.0[layer], searched.0[layer], "{placement:?}, step {i}");
                }
            }
        }
        let positions: Vec<u32> = (0..210).collect();
        block_on(sim.sequence.truncate(209)).unwrap();
        let (out, attended) = step(&mut sim);
        if is_in_place {
            assert_near(&out[1][..8], &sim.oracle(LayerId(1), 0, &positions), "all tokens");
            assert_eq!(attended, 210);
        } else {
            assert!(attended <= 96, "{placement:?}: {attended}");
        }
    }
}

pub fn one_prefill_serves_several_policies_and_is_taken_back<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let shape = small_shape(700);
        let mut sim = Sim::new(backend, shape.clone(), &clusterkv(96), options(placement)).unwrap();
        sim.prefill(4, 400);
        let first: Vec<_> = (0..60)
            .map(|_| {
                sim.decode(4);
                sim.out.clone()
            })
            .collect();
        for policy in [PolicyOptions::new(Preset::Full), streaming(80), clusterkv(96)] {
            block_on(sim.sequence.truncate(400)).unwrap();
            let policy = longview_scheduler::Policy::resolve(&policy, shape.capacity).unwrap();
            block_on(sim.sequence.set_policy(policy)).unwrap();
            sim.decode(4);
            sim.check_rows();
            if sim.sequence.policy().preset == Preset::Full {
                let positions: Vec<u32> = (0..401).collect();
                assert_near(
                    &sim.out[1][..8],
                    &sim.oracle(LayerId(1), 0, &positions),
                    "full after clusterkv",
                );
            }
        }
        block_on(sim.sequence.truncate(400)).unwrap();
        let again: Vec<_> = (0..60)
            .map(|_| {
                sim.decode(4);
                sim.out.clone()
            })
            .collect();
        assert_eq!(
            first, again,
            "the same question after a detour gets the same answer, bit for bit"
        );
    }
}

pub fn the_same_seed_gives_the_same_bits_with_and_without_overlap<B: Probe>(backend: &Arc<B>) {
    let run = |overlap: bool| {
        let on = SequenceOptions { overlap, ..options(Placement::Device) };
        let mut sim = Sim::new(backend, small_shape(900), &clusterkv(96), on).unwrap();
        sim.prefill(6, 600);
        (0..100)
            .map(|_| {
                sim.decode(6);
                sim.out.clone()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

pub fn several_sequences_of_unequal_length_share_a_step<B: Probe>(backend: &Arc<B>) {
    let placement = placements(&**backend)[0];
    let shape = small_shape(500);
    let policies = [clusterkv(96), PolicyOptions::new(Preset::Full), streaming(40)];
    let lengths = [310, 45, 170];
    let make = || {
        let sims = policies.iter().zip(lengths).map(|(policy, n)| {
            let mut sim = Sim::new(backend, shape.clone(), policy, options(placement)).unwrap();
            sim.prefill(n as u64, n);
            sim
        });
        sims.collect::<Vec<_>>()
    };
    let (mut alone, mut together) = (make(), make());
    let mut scratch = StepScratch::new(&**backend, &shape, 48, 40, placement).unwrap();
    for _ in 0..50 {
        alone.iter_mut().zip(lengths).for_each(|(sim, n)| sim.decode(n as u64));
        let data: Vec<Vec<_>> = shape
            .layers()
            .map(|layer| {
                let token = |(sim, n): (&Sim<_>, usize)| {
                    token_data(&shape, n as u64, layer, sim.n_tokens())
                };
                together.iter().zip(lengths).map(token).collect()
            })
            .collect();
        let mut spans: Vec<_> = together
            .iter_mut()
            .enumerate()
            .map(|(start, sim)| StepSpan {
                sequence: &mut sim.sequence,
                start,
                len: 1,
                mode: SpanMode::Policy,
                is_read: true,
            })
            .collect();
        let mut step = Step { spans: &mut spans, scratch: &mut scratch };
        for (layer, tokens) in shape.layers().zip(&data) {
            let out = attend(&**backend, &shape, &mut step, layer, tokens).unwrap();
            let width = shape.n_q_heads * shape.head_dim;
            for (sim, got) in alone.iter().zip(out.chunks_exact(width)) {
                assert_eq!(got, sim.out[layer], "a sequence alone and in company");
            }
        }
        step.finish();
    }
}

pub fn selection_equals_a_brute_force_oracle<B: Probe>(backend: &Arc<B>) {
    for pooling in [Pooling::SumSoftmax, Pooling::MaxSoftmax, Pooling::SizeWeighted] {
        let mut policy = clusterkv(96);
        policy.pooling = Some(pooling);
        let mut sim =
            Sim::new(backend, small_shape(900), &policy, options(Placement::Device)).unwrap();
        sim.prefill(8, 700);
        for _ in 0..40 {
            sim.decode(8);
            for head in sim.sequence.shape().heads() {
                check_selection(&sim, head, pooling);
            }
        }
    }
}

/// What a head recalled is what its query chooses, but for clusters that score the same.
pub(super) fn check_selection<B: Backend>(sim: &Sim<B>, head: HeadId, pooling: Pooling) {
    let got: HashSet<u32> = sim.sequence.last_recalled(LayerId(1), head).collect();
    let want = brute_force(sim, head, pooling, sim.n_tokens() - 1);
    assert_eq!(got, want, "token {} head {head} {pooling:?}", sim.n_tokens());
}

/// The tokens of clusters that the query of the token at `position` chooses in the last layer for a
/// budget of 96: clusters by pooled score until it is full, with the index's own centroids and
/// sizes, in f64.
pub(super) fn brute_force<B: Backend>(
    sim: &Sim<B>,
    head: HeadId,
    pooling: Pooling,
    position: usize,
) -> HashSet<u32> {
    let shape = sim.sequence.shape();
    let (d, layer) = (shape.head_dim, &sim.sequence.layers()[1]);
    let index = &layer.recall().unwrap().index;
    let centroids = sim.landmarks(index, head);
    let index = &index.heads()[head];
    let q = &sim.truth[1][position].q;
    let mut pooled = vec![0.0f64; index.sizes.len()];
    for h in shape.query_heads(head) {
        let dot = |c: usize| {
            let c = &centroids[c * d..(c + 1) * d];
            let dot: f64 = q[h * d..(h + 1) * d].iter().zip(c).map(|(a, b)| f64::from(a * b)).sum();
            dot * f64::from(shape.scale)
        };
        let weigh = |c: usize| match pooling {
            Pooling::SizeWeighted => f64::from(index.sizes[c]) * dot(c).exp(),
            Pooling::SumSoftmax | Pooling::MaxSoftmax => dot(c).exp(),
            Pooling::SumScores | Pooling::SharedScores => panic!("scores of blocks"),
        };
        let sum: f64 = (0..pooled.len()).map(weigh).sum();
        for (c, score) in pooled.iter_mut().enumerate() {
            let share = weigh(c) / sum;
            *score = if pooling == Pooling::MaxSoftmax { score.max(share) } else { *score + share };
        }
    }
    let mut ranked: Vec<usize> = (0..pooled.len()).collect();
    ranked.sort_by(|a, b| pooled[*b].total_cmp(&pooled[*a]).then(a.cmp(b)));
    let pending = sim.n_tokens() - layer.n_indexed;
    let (mut left, mut tokens) = (96 - 4 - pending, HashSet::new());
    for c in ranked {
        let take = left.min(index.sizes[c] as usize);
        let first = index.starts[c] as usize;
        tokens.extend(&layer.positions[head][first..first + take]);
        left -= take;
    }
    tokens
}

pub fn members_of_a_cluster_stand_closest_first<B: Probe>(backend: &Arc<B>) {
    let mut sim =
        Sim::new(backend, small_shape(900), &clusterkv(96), options(placements(&**backend)[0]))
            .unwrap();
    sim.prefill(8, 700);
    for (l, layer) in sim.sequence.layers().iter().enumerate() {
        let index = &layer.recall().unwrap().index;
        for (h, head) in sim.sequence.shape().heads().enumerate() {
            let centroids = sim.landmarks(index, head);
            let index = &index.heads()[head];
            for (c, (start, size)) in index.starts.iter().zip(&index.sizes).enumerate() {
                let centroid = &centroids[c * 8..(c + 1) * 8];
                let keys: Vec<&[f32]> = (*start..start + size)
                    .map(|row| {
                        &sim.truth[l][layer.positions[h][row as usize] as usize].k
                            [h * 8..(h + 1) * 8]
                    })
                    .collect();
                assert!(keys.len() <= 96 / 4, "a cluster above a quarter of the budget");
                let mean: Vec<f64> = (0..8)
                    .map(|i| keys.iter().map(|k| f64::from(k[i])).sum::<f64>() / keys.len() as f64)
                    .collect();
                assert_near(centroid, &mean, "the centroid is the mean of the final members");
                let closeness: Vec<f32> = keys.iter().map(|k| cosine(k, centroid)).collect();
                assert!(closeness.windows(2).all(|w| w[0] >= w[1] - 1e-5), "{closeness:?}");
                let radius = keys.iter().map(|k| distance(k, centroid)).fold(0.0, f32::max);
                assert!(
                    (radius - index.radius[c]).abs() < 1e-4,
                    "radius {radius} {}",
                    index.radius[c]
                );
            }
        }
    }
}

pub(super) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

pub(super) fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f32>().sqrt()
}

pub fn kmeans_recovers_planted_clusters<B: Probe>(backend: &Arc<B>) {
    for distance in [Distance::Cosine, Distance::L2] {
        let (n_points, d, planted) = (1200, 16, 12);
        let task = ClusterTask {
            kind: TaskKind::Clusters,
            layer: LayerId(0),
            row_start: 0,
            n_kv_heads: 2,
            n_points,
            n_clusters: 48,
            head_dim: d,
            distance,
            iterations: 20,
            max_cluster: n_points,
            seed: 1,
            is_grouped: false,
        };
        let mut job = ClusterJob::new(task);
        let mut rng = SplitMix64::new(2);
        let centers: Vec<f32> = (0..planted * d).map(|_| 3.0 * rng.next_normal()).collect();
        let keys = job.host_keys();
        for i in 0..2 * n_points {
            let center = i % n_points % planted;
            for j in 0..d {
                keys[i * d + j] = centers[center * d + j] + 0.1 * rng.next_normal();
            }
        }
        block_on(job.run(&**backend)).unwrap();
        for head in &job.heads {
            let mut start = 0;
            for size in &head.sizes {
                let members = &head.order[start..start + *size as usize];
                let kind = members[0] as usize % planted;
                assert!(members.iter().all(|m| *m as usize % planted == kind), "a mixed cluster");
                start += *size as usize;
            }
            assert_eq!(start, n_points);
            let all: HashSet<_> = head.order.iter().collect();
            assert_eq!(all.len(), n_points, "every point once");
        }
    }
}

pub fn the_plan_is_what_is_allocated<B: Probe>(backend: &Arc<B>) {
    for (policy, placement) in [
        (clusterkv(96), Placement::InPlace),
        (clusterkv(96), Placement::Device),
        (clusterkv(5000), Placement::Device),
        (streaming(64), Placement::Device),
        (PolicyOptions::new(Preset::Full), Placement::Device),
    ] {
        if !placements(&**backend).contains(&placement) {
            continue;
        }
        let shape = small_shape(1000);
        let on = options(placement);
        let sim = Sim::new(backend, shape.clone(), &policy, on).unwrap();
        let plan = KvPlan::new(&shape, sim.sequence.policy(), &on);
        assert_eq!(plan.device_kv_bytes(), sim.sequence.device_kv_bytes(), "{:?}", policy.preset);
        assert_eq!(plan.host_kv_bytes, sim.sequence.store().size_bytes());
    }
}

pub fn what_later_policies_need_is_recorded<B: Probe>(backend: &Arc<B>) {
    let mut sim =
        Sim::new(backend, small_shape(600), &clusterkv(96), options(placements(&**backend)[0]))
            .unwrap();
    sim.prefill(2, 300);
    let layer = &sim.sequence.layers()[1];
    assert_eq!(layer.mode(), LayerMode::Recall);
    let mut gram = vec![0.0f32; 2 * 64];
    let view = longview_ops::View::all(&layer.recorded.gram_q);
    block_on(sim.backend.read(view, bytemuck::cast_slice_mut(&mut gram))).unwrap();
    let want = |head: usize, i: usize, j: usize| -> f64 {
        let heads = sim.truth[1]
            .iter()
            .flat_map(|t| [&t.q[head * 16..head * 16 + 8], &t.q[head * 16 + 8..head * 16 + 16]]);
        heads.map(|q| f64::from(q[i]) * f64::from(q[j])).sum()
    };
    let want: Vec<f64> = (0..128).map(|x| want(x / 64, x / 8 % 8, x % 8)).collect();
    let scaled: Vec<f32> = gram.iter().map(|x| x / 1000.0).collect();
    assert_near(&scaled, &want.iter().map(|x| x / 1000.0).collect::<Vec<_>>(), "sum of q q^T");
    let last: Vec<f32> = sim.truth[1][300 - 128..].iter().flat_map(|t| t.q.clone()).collect();
    assert_eq!(layer.recorded.last_queries, last);
}

pub fn a_sequence_that_is_full_says_so_and_stays_usable<B: Probe>(backend: &Arc<B>) {
    let mut sim =
        Sim::new(backend, small_shape(100), &clusterkv(64), options(placements(&**backend)[0]))
            .unwrap();
    sim.prefill(1, 100);
    let error = sim.step(1, 1, SpanMode::Policy).unwrap_err().to_string();
    assert!(error.starts_with("101 tokens do not fit a context of 100"), "{error}");
    block_on(sim.sequence.truncate(90)).unwrap();
    sim.decode(1);
    sim.check_rows();
}

/// The same random data to a sequence that nothing happens to and to one of another kind, or to
/// which something happens: both attend the same to the bit.
pub(super) fn twins<B: Backend>(
    backend: &Arc<B>,
    other: SequenceOptions,
    mut disturb: impl FnMut(usize, &mut Sim<B>),
) {
    let shape = small_shape(1400);
    let sim = |on| Sim::new(backend, shape.clone(), &clusterkv(96), on).unwrap();
    let (mut one, mut two) = (sim(options(Placement::Device)), sim(other));
    one.prefill(9, 500);
    two.prefill(9, 500);
    for step in 0..200 {
        one.decode(9);
        two.decode(9);
        assert_eq!(one.out, two.out, "step {step}");
        assert_eq!(one.sequence.stats().attended_last, two.sequence.stats().attended_last);
        let recalling = two.sequence.layers().iter().filter_map(|layer| layer.recall());
        for cache in recalling.flat_map(|recall| &recall.caches) {
            assert_eq!(cache.n_free() + cache.n_used(), cache.n_slots());
        }
        disturb(step, &mut two);
    }
    one.check_rows();
    two.check_rows();
    let stats = two.sequence.stats();
    assert!(stats.hits > 0 && stats.misses > 0, "{stats:?}");
    assert_eq!(stats.fetched_bytes, stats.misses * shape.row_bytes() as u64);
}

pub fn rows_through_staging_equal_rows_that_kernels_carry<B: Probe>(backend: &Arc<B>) {
    let plain = SequenceOptions { store: HostStoreKind::Plain, ..options(Placement::Device) };
    twins(backend, plain, |_, _| {});
}

pub fn a_sequence_made_again_from_the_host_attends_the_same<B: Probe>(backend: &Arc<B>) {
    twins(backend, options(Placement::Device), |step, sim| {
        if step % 37 == 5 {
            let backend = Arc::clone(&sim.backend);
            sim.sequence.recover(&backend).unwrap();
        }
    });
}

/// Every token is attended that must be, none twice, and no more than the budget: prefills, cuts
/// and steps in any order.
pub fn random_steps_keep_budget_and_rows<B: Probe>(backend: &Arc<B>) {
    let (mut rng, mut steps) = (SplitMix64::new(5), 0);
    let on = options(Placement::Device);
    let mut sim = Sim::new(backend, small_shape(1024), &clusterkv(96), on).unwrap();
    while steps < 1000 {
        match rng.below(100) {
            0 if sim.n_tokens() > 100 => {
                let n = rng.below(sim.n_tokens());
                block_on(sim.sequence.truncate(n)).unwrap();
            }
            1 if sim.n_tokens() < 700 => sim.prefill(1, 1 + rng.below(250)),
            _ if sim.n_tokens() == 1024 => block_on(sim.sequence.truncate(50)).unwrap(),
            _ => {
                sim.decode(1);
                steps += 1;
                check_step(&sim, 96);
            }
        }
        if steps % 200 == 0 {
            sim.check_rows();
        }
    }
    assert!(sim.sequence.stats().clusterings > 30, "{:?}", sim.sequence.stats());
}

/// The attention is that of sinks, recalled and pending tokens, which together are the budget.
pub(super) fn check_step<B: Backend>(sim: &Sim<B>, budget: usize) {
    let (n, shape) = (sim.n_tokens(), sim.sequence.shape());
    let layer = &sim.sequence.layers()[1];
    for head in shape.heads() {
        let pending = layer.n_indexed.max(4.min(n))..n;
        let recalled = sim.sequence.last_recalled(LayerId(1), head);
        let always = (0..4.min(n)).chain(pending).map(|row| layer.positions[head][row]);
        let positions: Vec<u32> = always.chain(recalled).collect();
        let set: HashSet<u32> = positions.iter().copied().collect();
        assert_eq!(set.len(), positions.len(), "a token twice");
        assert_eq!(positions.len(), budget.min(n), "the budget is a limit and is used");
        for h in shape.query_heads(head) {
            let got = &sim.out[1][h * 8..(h + 1) * 8];
            let what = format!("token {n}, query head {h}");
            assert_near(got, &sim.oracle(LayerId(1), h, &positions), &what);
        }
    }
}
