//! The hit/miss cache that the device keeps itself: the same rows, and no wait in a layer.

use longview_scheduler::{HostRows, KvShape};

use super::steps::*;

/// On a device that reads the host store, and has slots like its rows.
fn on(device_cache: bool) -> SequenceOptions {
    SequenceOptions { device_cache, eight_bit_slots: true, ..options(Placement::Device) }
}

/// Rows as they are attended, and of 8 bits where kernels read such.
fn shapes<B: Backend>(backend: &B, capacity: usize) -> Vec<KvShape> {
    let shape = |host_rows| KvShape { host_rows, ..small_shape(capacity) };
    let reads_codes = backend.capabilities().kv_dtypes.contains(&DType::Q8);
    let coded = reads_codes.then(|| shape(HostRows::EightBits));
    [shape(HostRows::Plain)].into_iter().chain(coded).collect()
}

fn cached(cache_steps: usize) -> PolicyOptions {
    PolicyOptions { cache_steps: Some(cache_steps), ..clusterkv(96) }
}

/// Tokens chosen one by one in clusters, and groups for what is left.
fn longview(cache_steps: usize) -> PolicyOptions {
    let mut o = PolicyOptions::new(Preset::Longview).with_budget(96);
    (o.sinks, o.recent, o.window, o.rank) = (Some(4), Some(8), Some(16), Some(4));
    (o.cluster_tokens, o.cluster_segment) = (Some(5), Some(64));
    PolicyOptions { cache_steps: Some(cache_steps), ..o }
}

/// Blocks that every second layer selects for the next one too.
pub(super) fn shared() -> PolicyOptions {
    let mut options = PolicyOptions::new(Preset::Ktransformers).with_budget(96);
    for (name, value) in [
        ("attend", "device"),
        ("layer-step", "2"),
        ("block-size", "8"),
        ("sinks", "4"),
        ("recent", "8"),
        ("window", "16"),
        ("cache-steps", "1"),
    ] {
        options.set(name, value).expect("an option");
    }
    options
}

/// The same random data to a sequence whose host resolves and to one whose device does.
fn host_and_device<B: Backend>(
    backend: &Arc<B>,
    (shape, policy): (&KvShape, &PolicyOptions),
    mut disturb: impl FnMut(usize, &mut Sim<B>),
) -> [Sim<B>; 2] {
    let mut sims = [false, true]
        .map(|device_cache| Sim::new(backend, shape.clone(), policy, on(device_cache)).unwrap());
    sims.iter_mut().for_each(|sim| sim.prefill(9, 500));
    for step in 0..200 {
        sims.iter_mut().for_each(|sim| sim.decode(9));
        let [host, device] = &sims;
        assert_eq!(host.out, device.out, "step {step}");
        let attended = |sim: &Sim<B>| sim.sequence.stats().attended_last.clone();
        assert_eq!(attended(host), attended(device), "step {step}");
        sims.iter_mut().for_each(|sim| disturb(step, sim));
        let [host, device] = &sims;
        assert_eq!(host.n_tokens(), device.n_tokens());
    }
    if shape.host_rows == HostRows::Plain {
        sims.iter().for_each(Sim::check_rows);
    }
    assert_eq!(sims.each_ref().map(|sim| sim.sequence.uses_device_cache()), [false, true]);
    let plan = KvPlan::new(shape, sims[1].sequence.policy(), &on(true));
    assert_eq!(plan.device_kv_bytes(), sims[1].sequence.device_kv_bytes());
    sims
}

pub fn the_device_attends_what_the_host_would_to_the_bit<B: Probe>(backend: &Arc<B>) {
    let shapes = shapes(&**backend, 1400);
    let clusters = (0..=3).map(cached).chain([1, 2].map(longview));
    let policies: Vec<_> = clusters.chain([shared()]).collect();
    let settings = shapes.iter().flat_map(|shape| policies.iter().map(move |p| (shape, p)));
    for (shape, policy) in settings {
        let cache_steps = policy.cache_steps.unwrap();
        let [host, device] = host_and_device(backend, (shape, policy), |_, _| {});
        let (a, b) = (host.sequence.stats(), device.sequence.stats());
        assert_eq!((a.steps, a.attended_rows), (b.steps, b.attended_rows));
        assert_eq!(a.hits + a.misses, b.hits + b.misses);
        // The host cuts what it has of a cluster to what a step takes; the device keeps rows.
        assert!(b.hits >= a.hits && (cache_steps > 1 || b.hits == a.hits), "{a:?} {b:?}");
        assert!((b.hits > 0) == (cache_steps > 0) && b.misses > 0, "{b:?}");
        let row_bytes = shape.host_row_bytes() as u64;
        assert_eq!(b.fetched_bytes, b.misses * row_bytes);
    }
}

pub fn cuts_policies_and_lost_devices_leave_the_device_cache_right<B: Probe>(backend: &Arc<B>) {
    let shapes = shapes(&**backend, 1400);
    let policies = [cached(2), longview(2)];
    let settings = shapes.iter().flat_map(|shape| policies.iter().map(move |p| (shape, p)));
    for setting in settings {
        host_and_device(backend, setting, |step, sim| match step % 41 {
            5 => block_on(sim.sequence.truncate(sim.n_tokens() - 2)).unwrap(),
            7 => {
                let backend = Arc::clone(&sim.backend);
                sim.sequence.recover(&backend).unwrap();
            }
            19 => block_on(sim.sequence.truncate(sim.n_tokens() - 40)).unwrap(),
            25 => {
                let policy = sim.sequence.policy().clone();
                block_on(sim.sequence.set_policy(policy)).unwrap();
            }
            31 => sim.prefill(9, 30),
            _ => {}
        });
    }
}

pub fn a_step_that_the_device_resolves_waits_once<B: Probe>(backend: &Arc<B>) {
    // Clustering reads too, when its result is asked for.
    let alone = SequenceOptions { overlap: false, ..on(true) };
    let shapes = shapes(&**backend, 900);
    let policies = [cached(1), longview(1)];
    let settings = shapes.iter().flat_map(|shape| policies.iter().map(move |p| (shape, p)));
    for (shape, policy) in settings {
        let what = format!("{}, {:?}", policy.preset, shape.host_rows);
        let mut sim = Sim::new(backend, shape.clone(), policy, alone).unwrap();
        sim.prefill(6, 500);
        for step in 0..60 {
            let made = |sim: &Sim<B>| sim.backend.n_readbacks() - sim.own_readbacks;
            let (reads, clusterings) = (made(&sim), sim.sequence.stats().clusterings);
            sim.decode(6);
            if sim.sequence.stats().clusterings == clusterings {
                assert_eq!(made(&sim) - reads, 1, "{what}, step {step}: counts, with the token");
            }
        }
    }
}

/// Passages and maps are made of what the host knows.
pub fn what_the_device_chose_is_there_for_who_looks<B: Probe>(backend: &Arc<B>) {
    let shape = small_shape(900);
    for policy in [cached(1), longview(1)] {
        let mut sims = [false, true].map(|device_cache| {
            Sim::new(backend, shape.clone(), &policy, on(device_cache)).unwrap()
        });
        sims.iter_mut().for_each(|sim| sim.prefill(6, 500));
        for step in 0..30 {
            let followed = (step % 3 == 0).then_some((LayerId(1), HeadId(0)));
            for sim in &mut sims {
                sim.sequence.track_head(followed);
                sim.sequence.trace(step % 3 == 1);
                sim.decode(6);
            }
            let [host, device] = sims.each_ref().map(|sim| &sim.sequence);
            for layer in shape.layers() {
                for head in shape.heads() {
                    let recalled = host.last_recalled(layer, head).collect::<Vec<_>>();
                    let what = format!("{} {layer} {head}, step {step}", policy.preset);
                    let recalls = host.layers()[layer].mode() == LayerMode::Recall;
                    assert_eq!(!recalled.is_empty(), recalls, "{what}");
                    if step % 3 < 2 {
                        let found = device.last_recalled(layer, head).collect::<Vec<_>>();
                        assert_eq!(found, recalled, "{what}");
                        let attended = host.attended_tokens(layer, head);
                        assert_eq!(device.attended_tokens(layer, head), attended, "{what}");
                    }
                }
            }
            if step % 3 == 1 {
                let mass = sims.each_ref().map(|sim| {
                    let mut mass = vec![0.0; sim.n_tokens()];
                    sim.sequence.add_attention(&mut mass);
                    mass
                });
                assert!(mass[0] == mass[1] && mass[0].iter().any(|mass| *mass > 0.0));
            }
        }
    }
}
