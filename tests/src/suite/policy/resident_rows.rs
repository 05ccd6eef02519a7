//! Layers that recall with all their rows on the device: what is chosen is attended where it lies,
//! nothing is fetched, and no layer waits for the host.

use longview_cpu::{CpuBackend, CpuOptions};
use longview_scheduler::Residency;

use super::device_cache::shared;
use super::presets::{check_step, name, small_presets};
use super::steps::*;
use crate::sim::{assert_near, assert_within};

fn on() -> SequenceOptions {
    SequenceOptions { resident_rows: true, ..options(Placement::Device) }
}

/// Tokens chosen one by one in clusters, of which some are compared again by their keys.
fn longview(rerank: usize) -> PolicyOptions {
    let mut o = PolicyOptions::new(Preset::Longview).with_budget(96);
    (o.sinks, o.recent, o.window, o.rank) = (Some(4), Some(8), Some(16), Some(4));
    (o.cluster_tokens, o.cluster_segment) = (Some(5), Some(64));
    PolicyOptions { rerank: Some(rerank), ..o }
}

/// Through decoded windows, a cut, a lost device, another prompt and another policy.
pub fn rows_on_the_device_are_attended_where_they_lie<B: Probe>(backend: &Arc<B>) {
    let (mut n_resident, mut n_others) = (0, 0);
    for policy in small_presets().into_iter().chain([shared()]) {
        let what = name(&policy);
        let mut sim = Sim::new(backend, small_shape(500), &policy, on()).unwrap();
        let recalls = matches!(sim.sequence.policy().residency, Residency::Recall { .. });
        assert_eq!(sim.sequence.has_resident_rows(), recalls, "{what}");
        if !recalls {
            n_others += 1;
            continue;
        }
        n_resident += 1;
        sim.prefill(6, 300);
        sim.sequence.trace(true);
        // Some policies lose with a device what queries said.
        let forgets = policy.lrqk_decode.is_some() || policy.token_step.is_some();
        for step in 0..60 {
            match step {
                25 => {
                    block_on(sim.sequence.truncate(280)).unwrap();
                    sim.truth.iter_mut().for_each(|layer| layer.truncate(280));
                }
                33 if !forgets => sim.move_to(&Arc::new(backend.background())).unwrap(),
                _ => {}
            }
            sim.decode(6);
            check_step(&sim, &what);
        }
        sim.check_rows();
        let stats = sim.sequence.stats();
        assert_eq!((stats.hits, stats.misses, stats.fetched_bytes), (0, 0, 0), "{what}");
        let plan = KvPlan::new(&small_shape(500), sim.sequence.policy(), &on());
        assert_eq!(plan.device_kv_bytes(), sim.sequence.device_kv_bytes(), "{what}");
    }
    assert!(n_resident > 10 && n_others > 5, "{n_resident} and {n_others}");
}

/// Without a second comparison the choice is that of rows which are fetched, and so is attention,
/// to the bit.
pub fn rows_on_the_device_are_those_that_would_be_fetched<B: Probe>(backend: &Arc<B>) {
    for policy in [clusterkv(96), longview(0), shared()] {
        let shape = small_shape(1400);
        let fetching = options(Placement::Device);
        let mut sims =
            [fetching, on()].map(|on| Sim::new(backend, shape.clone(), &policy, on).unwrap());
        sims.iter_mut().for_each(|sim| sim.prefill(9, 500));
        for step in 0..120 {
            sims.iter_mut().for_each(|sim| sim.decode(9));
            let [fetched, resident] = &sims;
            let attended = |sim: &Sim<B>| sim.sequence.stats().attended_last.clone();
            let what = format!("{}, step {step}", policy.preset);
            assert_eq!(attended(fetched), attended(resident), "{what}");
            assert_eq!(resident.out, fetched.out, "{what}");
            if step == 70 {
                sims.iter_mut().for_each(|sim| sim.prefill(9, 40));
                // The past is streamed to the one, and lies in its clusters' order in the other.
                let [fetched, resident] = &sims;
                for (out, want) in resident.out.iter().zip(&fetched.out) {
                    let want: Vec<f64> = want.iter().map(|x| f64::from(*x)).collect();
                    assert_near(out, &want, &what);
                }
            }
        }
        sims.iter().for_each(Sim::check_rows);
        let [fetched, resident] = sims.each_ref().map(|sim| sim.sequence.stats());
        assert_eq!(fetched.attended_rows, resident.attended_rows);
        assert!(fetched.misses > 0 && resident.misses == 0);
    }
}

/// Kernels compare keys where rows lie in either way, so the choice is that of the CPU in place.
pub fn choices_among_rows_on_the_device_are_those_in_place<B: Probe>(backend: &Arc<B>) {
    let cpu = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"));
    let (shape, policy) = (small_shape(900), longview(3));
    let mut resident = Sim::new(backend, shape.clone(), &policy, on()).unwrap();
    let in_place = options(Placement::InPlace);
    let mut here = Sim::new(&cpu, shape.clone(), &policy, in_place).unwrap();
    resident.prefill(7, 400);
    here.prefill(7, 400);
    let (steps, mut n_alike) = (60, 0);
    for step in 0..steps {
        resident.decode(7);
        here.decode(7);
        let near = |(out, want): (&Vec<f32>, &Vec<f32>)| {
            out.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-3 * (1.0 + b.abs()))
        };
        // Numbers that are equal but for rounding may change places.
        n_alike += usize::from(resident.out.iter().zip(&here.out).all(near));
        for (out, want) in resident.out.iter().zip(&here.out) {
            let want: Vec<f64> = want.iter().map(|x| f64::from(*x)).collect();
            assert_within(out, &want, 0.1, &format!("step {step}"));
        }
    }
    assert!(n_alike * 10 >= steps * 9, "{n_alike} of {steps} steps");
}

pub fn rows_on_the_device_are_waited_for_once_a_step<B: Probe>(backend: &Arc<B>) {
    // Clustering reads too, when its result is asked for.
    let alone = SequenceOptions { overlap: false, ..on() };
    for policy in [clusterkv(96), longview(2)] {
        let mut sim = Sim::new(backend, small_shape(900), &policy, alone).unwrap();
        sim.prefill(6, 500);
        for step in 0..40 {
            let made = |sim: &Sim<B>| sim.backend.n_readbacks() - sim.own_readbacks;
            let (reads, clusterings) = (made(&sim), sim.sequence.stats().clusterings);
            sim.decode(6);
            if sim.sequence.stats().clusterings == clusterings {
                assert_eq!(made(&sim) - reads, 1, "{}, step {step}", policy.preset);
            }
        }
    }
}
