//! Forks: two sequences go on from one context, each as if it were alone, and share the rows that
//! neither writes.

use std::sync::Arc;

use longview_core::DType;
use longview_ops::Backend;
use longview_scheduler::{
    HostRows, HostStoreKind, KvShape, Placement, PolicyOptions, Preset, SequenceOptions,
};
use pollster::block_on;

use super::presets::{check_step, name, small_presets};
use super::steps::{clusterkv, options, streaming};
use crate::backends::Probe;
use crate::sim::{Sim, small_shape};

const PROMPT: usize = 150;

/// Rows in place where the device may read them so, in buffers of its own, there with a host store
/// that it does not read, and all of them there.
fn layouts<B: Backend>(backend: &B) -> Vec<SequenceOptions> {
    // As the engine has it: what a recalled row is does not depend on when it was cached.
    let eight_bit_slots = backend.capabilities().kv_dtypes.contains(&DType::Q8);
    let device = SequenceOptions { eight_bit_slots, ..options(Placement::Device) };
    let plain = SequenceOptions { store: HostStoreKind::Plain, ..device };
    let mut layouts = vec![device, plain, SequenceOptions { resident_rows: true, ..plain }];
    if backend.capabilities().unified_memory {
        layouts.push(options(Placement::InPlace));
    }
    layouts
}

/// Rows as they are attended, and of 8 bits where the device has kernels for them.
fn shapes<B: Backend>(backend: &B, capacity: usize) -> Vec<KvShape> {
    let has_q8 = backend.capabilities().kv_dtypes.contains(&DType::Q8);
    let kinds = [HostRows::Plain, HostRows::EightBits];
    let kinds = kinds.into_iter().filter(|kind| has_q8 || *kind == HostRows::Plain);
    kinds.map(|host_rows| KvShape { host_rows, ..small_shape(capacity) }).collect()
}

/// How rows may lie under a policy. Those of 8 bits, and those that the host alone reads, are the
/// business of few policies, and emulated devices are slow.
fn cases<B: Backend>(backend: &B, policy: &PolicyOptions) -> Vec<(SequenceOptions, KvShape)> {
    let is_one_of_few = [clusterkv(96), streaming(96), PolicyOptions::new(Preset::Full)]
        .iter()
        .any(|few| few.text() == policy.text())
        || policy.two_stage.is_some();
    let all = layouts(backend).into_iter();
    let all = all.flat_map(|layout| shapes(backend, 260).into_iter().map(move |s| (layout, s)));
    let is_common = |(layout, shape): &(SequenceOptions, KvShape)| {
        let is_plain = matches!(layout.store, HostStoreKind::Plain);
        !is_plain && shape.host_rows == HostRows::Plain
    };
    all.filter(|case| is_one_of_few || is_common(case)).collect()
}

fn policies() -> Vec<PolicyOptions> {
    let full = PolicyOptions::new(Preset::Full);
    small_presets().into_iter().chain([full]).collect()
}

/// A second simulation that goes on from the tokens of this one.
fn fork<B: Backend>(sim: &mut Sim<B>, layout: SequenceOptions) -> Sim<B> {
    let fork = block_on(sim.sequence.fork()).expect("a fork");
    sim.twin(&Arc::clone(&sim.backend), fork, layout).expect("a twin")
}

fn cut<B: Backend>(sim: &mut Sim<B>, n: usize) {
    block_on(sim.sequence.truncate(n)).expect("a cut");
    sim.truth.iter_mut().for_each(|layer| layer.truncate(n));
}

fn go_on_alike<B: Backend>(
    one: &mut Sim<B>,
    other: &mut Sim<B>,
    (seed, n): (u64, usize),
    what: &str,
) {
    for step in 0..n {
        one.decode(seed);
        other.decode(seed);
        assert_eq!(one.out, other.out, "{what}: step {step}");
    }
}

/// Windows of 16 tokens fill, are indexed, and fill again, in both, by turns.
pub fn a_fork_and_its_origin_go_on_as_if_alone<B: Probe>(backend: &Arc<B>) {
    for policy in policies() {
        for (layout, shape) in cases(&**backend, &policy) {
            let what = format!("{} {:?} {:?}", name(&policy), layout.placement, shape.host_rows);
            let new = || {
                let mut sim = Sim::new(backend, shape.clone(), &policy, layout).unwrap();
                sim.prefill(6, PROMPT);
                // Into a window that is being indexed.
                (0..19).for_each(|_| sim.decode(6));
                sim
            };
            let (mut origin, mut alone) = (new(), new());
            let mut forked = fork(&mut origin, layout);
            assert_eq!(forked.n_tokens(), origin.n_tokens(), "{what}");
            go_on_alike(&mut origin, &mut alone, (6, 7), &what);
            let mut other = new();
            go_on_alike(&mut forked, &mut other, (7, 20), &format!("{what}, the fork"));
            go_on_alike(&mut origin, &mut alone, (6, 13), &what);
            let mut second = fork(&mut forked, layout);
            go_on_alike(&mut second, &mut other, (8, 6), &format!("{what}, a fork of the fork"));
            drop((origin, second));
            check_step_if_rows_are_exact(&forked, &what);
        }
    }
}

fn check_step_if_rows_are_exact<B: Backend>(sim: &Sim<B>, what: &str) {
    let is_full = sim.sequence.policy().preset == Preset::Full;
    // Where all rows lie on the device the host knows no choice unless it looks.
    let is_known = !sim.sequence.has_resident_rows();
    if sim.sequence.shape().host_rows == HostRows::Plain {
        sim.check_rows();
        if !is_full && is_known {
            check_step(sim, what);
        }
    }
}

pub fn a_cut_of_a_fork_leaves_its_origin_alone<B: Probe>(backend: &Arc<B>) {
    for layout in layouts(&**backend) {
        for policy in [clusterkv(96), streaming(96), PolicyOptions::new(Preset::Full)] {
            let what = format!("{} {:?}", name(&policy), layout.placement);
            let new = || {
                let mut sim = Sim::new(backend, small_shape(300), &policy, layout).unwrap();
                sim.prefill(6, PROMPT);
                sim
            };
            let (mut origin, mut alone) = (new(), new());
            let mut forked = fork(&mut origin, layout);
            // Into clusters, whose rows go back into token order.
            cut(&mut forked, 60);
            forked.prefill(9, 80);
            (0..20).for_each(|_| forked.decode(9));
            forked.check_rows();
            go_on_alike(&mut origin, &mut alone, (6, 20), &what);
            origin.check_rows();
            let mut again = fork(&mut origin, layout);
            cut(&mut origin, 60);
            origin.prefill(10, 90);
            go_on_alike(&mut again, &mut alone, (6, 20), &format!("{what}, another fork"));
            [origin, again, forked].iter().for_each(Sim::check_rows);
        }
    }
}

pub fn a_fork_outlives_its_origin_and_a_lost_device<B: Probe>(backend: &Arc<B>) {
    for layout in layouts(&**backend) {
        for policy in [clusterkv(96), streaming(96), PolicyOptions::new(Preset::Full)] {
            let what = format!("{} {:?}", name(&policy), layout.placement);
            let new = || {
                let mut sim = Sim::new(backend, small_shape(300), &policy, layout).unwrap();
                sim.prefill(8, PROMPT);
                sim
            };
            let (mut origin, mut alone) = (new(), new());
            let mut forked = fork(&mut origin, layout);
            drop(origin);
            go_on_alike(&mut forked, &mut alone, (8, 13), &what);
            forked.move_to(&Arc::new(backend.background())).unwrap();
            go_on_alike(&mut forked, &mut alone, (8, 20), &format!("{what}, on another device"));
            let mut second = fork(&mut forked, layout);
            go_on_alike(&mut second, &mut alone, (8, 5), &format!("{what}, a fork there"));
            second.check_rows();
        }
    }
}

/// A store that kernels do not read shares rows everywhere; one that they read where the backend
/// does.
pub fn forks_share_the_rows_that_neither_writes<B: Probe>(backend: &Arc<B>) {
    let policy = PolicyOptions::new(Preset::StreamingLlm).with_budget(96);
    for layout in layouts(&**backend) {
        for shape in shapes(&**backend, 24_000) {
            let what = format!("{:?} {:?} {:?}", layout.placement, layout.store, shape.host_rows);
            let mut sim = Sim::new(backend, shape, &policy, layout).unwrap();
            let fill = &mut |_, _, _, rows: &mut [f32]| rows.fill(0.25);
            block_on(sim.sequence.inject(20_000, fill)).unwrap();
            block_on(sim.sequence.finish_prefill()).unwrap();
            assert_eq!(sim.sequence.shared_host_kv_bytes(), 0, "{what}");
            let mut forks: Vec<_> =
                (0..3).map(|_| block_on(sim.sequence.fork()).expect("a fork")).collect();
            let all = sim.sequence.host_kv_bytes();
            let shares = sim.sequence.shared_host_kv_bytes() > 0;
            let must = matches!(layout.store, HostStoreKind::Plain);
            assert!(shares || !must, "{what}");
            for sequence in forks.iter().chain([&sim.sequence]).filter(|_| shares) {
                let shared = sequence.shared_host_kv_bytes();
                assert!(shared * 100 >= all * 97, "{what}: {shared} of {all} bytes");
            }
            // A row that is written takes a page or a segment of each head with it.
            forks.truncate(1);
            block_on(forks[0].truncate(10_000)).unwrap();
            let fill = &mut |_, _, _, rows: &mut [f32]| rows.fill(0.5);
            block_on(forks[0].inject(1, fill)).unwrap();
            let shared = forks[0].shared_host_kv_bytes();
            assert!(!shares || shared * 100 >= all * 45, "{what}: {shared} of {all} bytes");
            drop(sim);
            assert_eq!(forks[0].shared_host_kv_bytes(), 0, "{what}: nobody else has them");
        }
    }
}
