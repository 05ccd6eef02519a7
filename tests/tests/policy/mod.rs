//! Every preset on the CPU: the checks that every backend passes, and those of rows that are
//! attended where they lie.

use std::collections::HashSet;
use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, SplitMix64};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_ops::Backend;
use longview_scheduler::{HostRows, HostStoreKind, KvShape, Placement, SequenceOptions};
use longview_tests::policy_checks;
use longview_tests::sim::{Sim, assert_near, small_shape};
use longview_tests::suite::policy::{self, clusterkv, options};
use pollster::block_on;

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"))
}

macro_rules! on_the_cpu {
    ($($check:ident),+) => {$(
        #[test]
        fn $check() {
            policy::$check(&cpu());
        }
    )+};
}

policy_checks!(on_the_cpu);

/// The positions that a head attended, for a sequence that reads rows in place. (Only the last
/// layer's lists remain.)
fn attended<B: Backend>(sim: &Sim<B>, head: HeadId) -> Vec<u32> {
    let last = sim.sequence.layers().last().expect("layers");
    sim.sequence.last_attended(head).iter().map(|row| last.positions[head][*row as usize]).collect()
}

/// No token twice, the budget kept and used up, sinks and recent tokens there, and the attention is
/// that of these tokens.
fn check_step<B: Backend>(sim: &Sim<B>, budget: usize, sinks: u32, recent: u32) {
    let shape = sim.sequence.shape().clone();
    let (n, layer) = (sim.n_tokens(), LayerId::new(shape.n_layers - 1));
    for head in shape.heads() {
        let positions = attended(sim, head);
        let set: HashSet<u32> = positions.iter().copied().collect();
        assert_eq!(set.len(), positions.len(), "a token twice");
        assert_eq!(positions.len(), budget.min(n), "the budget is a limit and is used");
        assert!((0..sinks.min(n as u32)).all(|p| set.contains(&p)), "a sink is missing");
        assert!(
            (n.saturating_sub(recent as usize)..n).all(|p| set.contains(&(p as u32))),
            "a recent token is missing"
        );
        for h in shape.query_heads(head) {
            let got = &sim.out[layer][h * shape.head_dim..(h + 1) * shape.head_dim];
            assert_near(
                got,
                &sim.oracle(layer, h, &positions),
                &format!("token {n}, query head {h}"),
            );
        }
    }
}

#[test]
fn ten_thousand_random_steps_keep_every_invariant() {
    let (budget, mut rng, mut steps) = (96, SplitMix64::new(5), 0);
    let mut sim =
        Sim::new(&cpu(), small_shape(2048), &clusterkv(budget), options(Placement::InPlace))
            .unwrap();
    while steps < 10_000 {
        match rng.below(400) {
            0 if sim.n_tokens() > 100 => {
                let n = rng.below(sim.n_tokens());
                block_on(sim.sequence.truncate(n)).unwrap();
            }
            1..=3 if sim.n_tokens() < 1700 => sim.prefill(1, 1 + rng.below(250)),
            _ if sim.n_tokens() == 2048 => block_on(sim.sequence.truncate(50)).unwrap(),
            _ => {
                sim.decode(1);
                steps += 1;
                check_step(&sim, budget, 4, 8);
            }
        }
        if steps % 500 == 0 {
            sim.check_rows();
        }
    }
    assert!(sim.sequence.stats().clusterings > 100);
}

/// Twins on the same data: one reads in place, the other through device buffers and the cache.
fn twins(
    budget: usize,
    store: HostStoreKind,
    steps: usize,
    mut disturb: impl FnMut(usize, &mut Sim<CpuBackend>),
) {
    let backend = cpu();
    let shape = small_shape(1400);
    let mut one =
        Sim::new(&backend, shape.clone(), &clusterkv(budget), options(Placement::InPlace)).unwrap();
    let on_device = SequenceOptions { store, ..options(Placement::Device) };
    let mut two = Sim::new(&backend, shape.clone(), &clusterkv(budget), on_device).unwrap();
    one.prefill(9, 500);
    two.prefill(9, 500);
    for (a, b) in one.out.iter().flatten().zip(two.out.iter().flatten()) {
        assert!((a - b).abs() < 1e-4, "prefill differs: {a} {b}");
    }
    for step in 0..steps {
        one.decode(9);
        two.decode(9);
        for layer in 0..shape.n_layers {
            let want: Vec<f64> = one.out[layer].iter().map(|x| f64::from(*x)).collect();
            assert_near(&two.out[layer], &want, &format!("step {step} layer {layer}"));
        }
        assert_eq!(one.sequence.stats().attended_last, two.sequence.stats().attended_last);
        for layer in two.sequence.layers() {
            for cache in layer.recall().iter().flat_map(|recall| &recall.caches) {
                assert_eq!(cache.n_free() + cache.n_used(), cache.n_slots());
            }
        }
        disturb(step, &mut two);
    }
    one.check_rows();
    two.check_rows();
    let stats = two.sequence.stats();
    assert!(stats.hits > 0 && stats.misses > 0, "{stats:?}");
    assert_eq!(stats.fetched_bytes, stats.misses * shape.row_bytes() as u64);
}

#[test]
fn a_device_cache_attends_the_same_as_the_host_in_place() {
    twins(96, HostStoreKind::Auto, 700, |_, _| {});
}

#[test]
fn rows_that_kernels_cannot_read_arrive_through_staging() {
    twins(80, HostStoreKind::Plain, 200, |_, _| {});
}

#[test]
fn a_lost_device_is_replaced_from_the_host() {
    twins(96, HostStoreKind::Auto, 200, |step, sim| {
        if step % 37 == 5 {
            let backend = Arc::clone(&sim.backend);
            sim.sequence.recover(&backend).unwrap();
        }
    });
}

#[test]
fn more_than_256_clusters_are_all_within_reach() {
    let mut policy = clusterkv(64);
    policy.cluster_tokens = Some(1);
    (policy.window, policy.cluster_segment) = (Some(16), Some(0));
    let mut sim =
        Sim::new(&cpu(), small_shape(2000), &policy, options(Placement::InPlace)).unwrap();
    sim.prefill(8, 1500);
    let n_clusters = sim.sequence.layers()[1].recall().unwrap().index.heads()[0].sizes.len();
    assert!(n_clusters > 1000, "{n_clusters}");
    let mut seen = HashSet::new();
    for _ in 0..300 {
        sim.decode(8);
        seen.extend(sim.sequence.last_attended(HeadId(0)).iter().map(|row| row / 300));
    }
    assert_eq!(
        seen.len(),
        6 + 1 - usize::from(sim.n_tokens() <= 1800),
        "clusters of every part are selected"
    );
}

/// Bytes of memory that the process has in use, as the kernel counts them.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("resident memory");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib * 1024
}

/// Rows for a million tokens, 4 GB and half of it: memory is taken as rows are written.
#[cfg(target_os = "linux")]
#[test]
fn a_large_context_costs_no_memory_before_it_is_filled() {
    for (host_rows, store) in [
        (HostRows::Plain, HostStoreKind::Auto),
        (HostRows::Plain, HostStoreKind::Plain),
        (HostRows::EightBits, HostStoreKind::Auto),
        (HostRows::EightBits, HostStoreKind::Plain),
    ] {
        let shape = KvShape {
            n_layers: 4,
            head_dim: 128,
            kv_dtype: DType::F16,
            host_rows,
            ..small_shape(1_000_000)
        };
        let placement = match store {
            HostStoreKind::Auto => Placement::InPlace,
            _ => Placement::Device,
        };
        // The device itself would hold all rows under full attention.
        let (policy, on) = (policy::streaming(1024), options(placement));
        let before = resident_bytes();
        let mut sim =
            Sim::new(&cpu(), shape, &policy, SequenceOptions { store, ..on }).expect("a sequence");
        assert!(sim.sequence.store().size_bytes() > 2_000_000_000, "{host_rows:?}");
        sim.prefill(3, 300);
        sim.decode(3);
        let taken = resident_bytes().saturating_sub(before);
        // Other tests of this program run beside it.
        assert!(taken < 1_000_000_000, "{host_rows:?} {store:?}: {taken} bytes of memory");
    }
}
