//! Speculative recall: what the last step's query chose is attended, this step's query checks it,
//! and a step that fails is run again exactly.

use super::steps::*;

/// On a device, by the last step's choice unless a cosine is below `gate`.
fn speculative(gate: f32, store: HostStoreKind) -> SequenceOptions {
    let recall = RecallMode::Speculative { gate };
    SequenceOptions { store, recall, ..options(Placement::Device) }
}

/// The same random data to a sequence with exact recall and to one that speculates and always
/// fails.
fn exact_and_always_repeated<B: Backend>(
    backend: &Arc<B>,
    store: HostStoreKind,
    mut disturb: impl FnMut(usize, &mut Sim<B>),
) {
    let shape = small_shape(1400);
    let exact = SequenceOptions { store, ..options(Placement::Device) };
    let sim = |on| Sim::new(backend, shape.clone(), &clusterkv(96), on).unwrap();
    let (mut one, mut two) = (sim(exact), sim(speculative(1.5, store)));
    one.prefill(9, 500);
    two.prefill(9, 500);
    for step in 0..200 {
        one.decode(9);
        two.decode(9);
        assert_eq!(one.out, two.out, "step {step}");
        disturb(step, &mut one);
        disturb(step, &mut two);
        assert_eq!(one.n_tokens(), two.n_tokens());
        for (a, b) in one.sequence.layers().iter().zip(two.sequence.layers()) {
            assert_eq!(a.positions, b.positions, "step {step}");
        }
    }
    one.check_rows();
    two.check_rows();
    let (a, b) = (one.sequence.stats(), two.sequence.stats());
    assert_eq!(a.attended_last, b.attended_last);
    assert_eq!(
        (a.steps, a.attended_rows, a.selected_clusters, a.clusterings),
        (b.steps, b.attended_rows, b.selected_clusters, b.clusterings)
    );
    assert_eq!((a.speculated_steps, a.repeated_steps, a.failed_gates), (0, 0, 0));
    assert!(b.speculated_steps > 150, "{b:?}");
    assert_eq!(b.repeated_steps, b.speculated_steps);
    assert_eq!(b.failed_gates, 4 * b.repeated_steps, "every head of both layers");
}

pub fn a_gate_above_one_repeats_every_step_and_equals_exact_recall_to_the_bit<B: Probe>(
    backend: &Arc<B>,
) {
    exact_and_always_repeated(backend, HostStoreKind::Auto, |_, _| {});
    exact_and_always_repeated(backend, HostStoreKind::Plain, |_, _| {});
}

pub fn repeated_steps_survive_cuts_and_lost_devices<B: Probe>(backend: &Arc<B>) {
    exact_and_always_repeated(backend, HostStoreKind::Plain, |step, sim| match step % 41 {
        7 => {
            let backend = Arc::clone(&sim.backend);
            sim.sequence.recover(&backend).unwrap();
        }
        19 => block_on(sim.sequence.truncate(sim.n_tokens() - 11)).unwrap(),
        31 => sim.prefill(9, 30),
        _ => {}
    });
}

/// What one step did.
struct Reads {
    /// Reads of the scheduler.
    n: u64,
    speculates: bool,
    /// A window became clusters; whoever needs them first clusters them, with reads of its own.
    clusters: bool,
}

/// 120 steps that recall as `on` says and are never run again.
fn reads_of_steps<B: Probe>(backend: &Arc<B>, on: SequenceOptions) -> Vec<Reads> {
    // Clustering reads too, when its result is asked for.
    let on = SequenceOptions { overlap: false, ..on };
    let mut sim = Sim::new(backend, small_shape(900), &clusterkv(96), on).unwrap();
    sim.prefill(6, 500);
    let steps = (0..120).map(|_| {
        let made = |sim: &Sim<B>| sim.backend.n_readbacks() - sim.own_readbacks;
        let (reads, before) = (made(&sim), sim.sequence.stats().clone());
        sim.decode(6);
        let after = sim.sequence.stats();
        Reads {
            n: made(&sim) - reads,
            speculates: after.speculated_steps > before.speculated_steps,
            clusters: after.clusterings > before.clusterings,
        }
    });
    let steps: Vec<_> = steps.collect();
    let stats = sim.sequence.stats();
    assert_eq!((stats.steps, stats.repeated_steps, stats.failed_gates), (120, 0, 0));
    steps
}

pub fn speculation_reads_once_a_step_and_exact_recall_once_a_layer_more<B: Probe>(
    backend: &Arc<B>,
) {
    for (store, of_exact_step) in [(HostStoreKind::Plain, 2 + 1), (HostStoreKind::Auto, 2)] {
        let exact = SequenceOptions { store, ..options(Placement::Device) };
        for step in reads_of_steps(backend, exact) {
            assert!(!step.speculates && (step.clusters || step.n == of_exact_step), "{}", step.n);
        }
        let steps = reads_of_steps(backend, speculative(-1.0, store));
        for (i, step) in steps.iter().enumerate() {
            assert_eq!(step.speculates, i > 0 && !step.clusters, "{store:?} step {i}");
            // Here even an exact step ends with a read: whether queries are near.
            let want = if step.speculates { 1 } else { 2 + 1 };
            assert!(step.clusters || step.n == want, "{store:?} step {i}: {} reads", step.n);
        }
        assert_eq!(steps.iter().filter(|step| step.clusters).count(), 120 / 16);
    }
}

pub fn a_speculative_step_attends_what_the_last_query_chose<B: Probe>(backend: &Arc<B>) {
    let on = speculative(-1.0, HostStoreKind::Plain);
    let mut sim = Sim::new(backend, small_shape(900), &clusterkv(96), on).unwrap();
    sim.prefill(8, 700);
    for _ in 0..60 {
        let before = sim.sequence.stats().speculated_steps;
        sim.decode(8);
        let speculates = sim.sequence.stats().speculated_steps > before;
        let (n, layer) = (sim.n_tokens(), &sim.sequence.layers()[1]);
        assert_eq!(sim.sequence.stats().attended_last, [96; 4], "the budget is used and kept");
        let shape = sim.sequence.shape();
        for head in shape.heads() {
            let chooser = if speculates { n - 2 } else { n - 1 };
            let recalled = brute_force(&sim, head, Pooling::SumSoftmax, chooser);
            let always = (0..4).chain(layer.n_indexed..n).map(|row| layer.positions[head][row]);
            let positions: Vec<u32> = always.chain(recalled).collect();
            for h in shape.query_heads(head) {
                let what = format!("token {n}, query head {h}, speculates: {speculates}");
                assert_near(
                    &sim.out[1][h * 8..(h + 1) * 8],
                    &sim.oracle(LayerId(1), h, &positions),
                    &what,
                );
            }
        }
    }
    sim.check_rows();
}

/// Queries that hardly move, but for those of KV head 1 in layer 0, which turn round every 9
/// tokens.
fn turning(seed: u64, layer: LayerId, position: usize) -> TokenData {
    let shape = small_shape(1);
    let mut data = token_data(&shape, seed, layer, position);
    let still = token_data(&shape, seed ^ 1, layer, 0).q;
    let turned = layer == LayerId(0) && position / 9 % 2 == 1;
    for (i, (q, still)) in data.q.iter_mut().zip(still).enumerate() {
        let side = if turned && i >= 16 { -1.0 } else { 1.0 };
        *q = side * (still + 0.02 * *q);
    }
    data
}

pub fn only_steps_whose_queries_turned_are_run_again<B: Probe>(backend: &Arc<B>) {
    let sim = |on| Sim::new(backend, small_shape(900), &clusterkv(96), on).unwrap();
    let mut exact = sim(options(Placement::Device));
    let mut sim = sim(speculative(RecallMode::DEFAULT_GATE, HostStoreKind::Plain));
    exact.prefill(8, 400);
    sim.prefill(8, 400);
    let (mut repeated, mut was_repeated) = (0, 0);
    for position in 400..600 {
        let data = move |layer: LayerId| vec![turning(8, layer, position)];
        let before = sim.sequence.stats().clone();
        exact.step_with(1, SpanMode::Policy, &data).unwrap();
        sim.step_with(1, SpanMode::Policy, &data).unwrap();
        let after = sim.sequence.stats();
        let speculated = after.speculated_steps - before.speculated_steps;
        let turns = u64::from(position / 9 != (position - 1) / 9) * speculated;
        assert_eq!(after.repeated_steps - before.repeated_steps, turns, "token {position}");
        assert_eq!(after.failed_gates - before.failed_gates, turns, "one head of one layer");
        assert_eq!(after.steps, before.steps + 1);
        if turns == 1 || speculated == 0 {
            assert_eq!(sim.out, exact.out, "token {position} is exact");
        }
        assert!(was_repeated + speculated < 2, "token {position} follows one that was repeated");
        (repeated, was_repeated) = (repeated + turns, turns);
    }
    assert!(repeated > 15 && sim.sequence.stats().speculated_steps > 140, "{repeated}");
    sim.check_rows();
}

pub fn random_steps_with_speculation_keep_budget_rows_and_cache<B: Probe>(backend: &Arc<B>) {
    let (mut rng, mut steps) = (SplitMix64::new(6), 0);
    // Random queries of 8 elements: about every third step fails.
    let on = speculative(-0.3, HostStoreKind::Plain);
    let mut sim = Sim::new(backend, small_shape(1024), &clusterkv(96), on).unwrap();
    while steps < 2000 {
        match rng.below(100) {
            0 if sim.n_tokens() > 100 => {
                let n = rng.below(sim.n_tokens());
                block_on(sim.sequence.truncate(n)).unwrap();
            }
            1 if sim.n_tokens() < 700 => sim.prefill(1, 1 + rng.below(250)),
            2 => {
                let backend = Arc::clone(&sim.backend);
                sim.sequence.recover(&backend).unwrap();
            }
            _ if sim.n_tokens() == 1024 => block_on(sim.sequence.truncate(50)).unwrap(),
            _ => {
                sim.decode(1);
                steps += 1;
                let attended = 96.min(sim.n_tokens() as u32);
                assert_eq!(sim.sequence.stats().attended_last, [attended; 4]);
                let recalling = sim.sequence.layers().iter().filter_map(|layer| layer.recall());
                for cache in recalling.flat_map(|recall| &recall.caches) {
                    assert_eq!(cache.n_free() + cache.n_used(), cache.n_slots());
                }
            }
        }
        if steps % 200 == 0 {
            sim.check_rows();
        }
    }
    let stats = sim.sequence.stats();
    assert_eq!(stats.steps, 2000);
    let stands = stats.speculated_steps - stats.repeated_steps;
    assert!(stands > 300 && stats.repeated_steps > 300, "{stats:?}");
}

pub fn the_step_after_a_change_is_exact<B: Probe>(backend: &Arc<B>) {
    let mut sim = Sim::new(
        backend,
        small_shape(900),
        &clusterkv(96),
        speculative(-1.0, HostStoreKind::Plain),
    )
    .unwrap();
    let policy = sim.sequence.policy().clone();
    type Change<'a, B> = &'a dyn Fn(&mut Sim<B>);
    let changes: [Change<'_, B>; 4] = [
        &|sim| sim.prefill(3, 40),
        &|sim| block_on(sim.sequence.truncate(sim.n_tokens() - 1)).unwrap(),
        &|sim| block_on(sim.sequence.set_policy(policy.clone())).unwrap(),
        &|sim| {
            let backend = Arc::clone(&sim.backend);
            sim.sequence.recover(&backend).unwrap();
        },
    ];
    sim.prefill(3, 400);
    for change in changes {
        change(&mut sim);
        let before = sim.sequence.stats().speculated_steps;
        sim.decode(3);
        assert_eq!(sim.sequence.stats().speculated_steps, before);
        sim.decode(3);
        assert_eq!(sim.sequence.stats().speculated_steps, before + 1);
    }
}

pub fn a_verdict_that_nobody_reads_is_an_error_of_the_next_call<B: Probe>(backend: &Arc<B>) {
    let (shape, on) = (small_shape(600), speculative(2.0, HostStoreKind::Plain));
    let mut sim = Sim::new(backend, shape.clone(), &clusterkv(96), on).unwrap();
    sim.prefill(3, 400);
    sim.decode(3);
    let mut scratch = StepScratch::new(&**backend, &shape, 48, 40, Placement::Device).unwrap();
    let mut step = |sim: &mut Sim<B>, n_layers: usize| {
        let spans = &mut [StepSpan {
            sequence: &mut sim.sequence,
            start: 0,
            len: 1,
            mode: SpanMode::Policy,
            is_read: true,
        }];
        let mut step = Step { spans, scratch: &mut scratch };
        for layer in shape.layers().take(n_layers) {
            attend(&*sim.backend, &shape, &mut step, layer, &[token_data(&shape, 3, layer, 401)])?;
        }
        step.finish();
        Ok::<(), SchedulerError>(())
    };
    step(&mut sim, 2).unwrap();
    assert!(matches!(step(&mut sim, 2), Err(SchedulerError::VerdictUnread)));
    let cut = block_on(sim.sequence.truncate(402));
    assert!(matches!(cut, Err(SchedulerError::VerdictUnread)));
    assert_eq!(block_on(sim.sequence.write_back()).unwrap(), StepVerdict::RunAgain);
    assert_eq!(sim.n_tokens(), 401);
    assert_eq!(block_on(sim.sequence.write_back()).unwrap(), StepVerdict::Stands);
    step(&mut sim, 2).unwrap();
    assert_eq!(block_on(sim.sequence.write_back()).unwrap(), StepVerdict::Stands);
    assert_eq!(sim.n_tokens(), 402);
}

pub fn speculation_that_means_nothing_is_refused<B: Probe>(backend: &Arc<B>) {
    let refused = |on| {
        let sim = Sim::new(backend, small_shape(100), &clusterkv(64), on);
        sim.err().expect("refused").to_string()
    };
    let in_place = SequenceOptions {
        placement: Placement::InPlace,
        ..speculative(RecallMode::DEFAULT_GATE, HostStoreKind::Auto)
    };
    let message = refused(in_place);
    assert!(message.contains("where they are") && message.contains("--recall exact"), "{message}");
    for gate in [f32::NAN, f32::INFINITY, -1.1] {
        let message = refused(speculative(gate, HostStoreKind::Auto));
        assert!(message.starts_with(&format!("--recall-gate {gate}: must be")), "{message}");
    }
}
