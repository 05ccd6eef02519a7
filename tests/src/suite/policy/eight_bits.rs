//! Host stores whose rows have 8 bits: every policy attends what it says, first and recent rows as
//! they were written, and a cut, another policy or a lost device loses nothing but precision.

use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, kv8};
use longview_ops::Backend;
use longview_scheduler::{
    HostRows, KvPlan, KvShape, LayerMode, Placement, Policy, PolicyOptions, Preset,
    SequenceOptions, SpanMode,
};
use pollster::block_on;

use super::presets::{check_step, name, small_presets};
use super::steps::{clusterkv, options, streaming};
use crate::backends::Probe;
use crate::sim::{Sim, Term, assert_near, assert_within, small_shape};

/// Rows that the last query attends to as they were written, itself included, beside first ones.
const RECENT: usize = 128;

fn shape(capacity: usize) -> KvShape {
    KvShape { host_rows: HostRows::EightBits, ..small_shape(capacity) }
}

/// Where attention may read such rows on this device: in buffers, and in place.
fn layouts<B: Backend>(backend: &B) -> Vec<SequenceOptions> {
    let capabilities = backend.capabilities();
    let eight_bit_slots = capabilities.kv_dtypes.contains(&DType::Q8);
    let mut layouts = vec![SequenceOptions { eight_bit_slots, ..options(Placement::Device) }];
    if capabilities.unified_memory && eight_bit_slots {
        layouts.push(options(Placement::InPlace));
    }
    layouts
}

/// Whether attention may read the host store.
fn reads_in_place<B: Backend>(backend: &B) -> bool {
    layouts(backend).iter().any(|layout| layout.placement == Placement::InPlace)
}

/// A token as the host store has it once it is rounded.
fn rounded<B: Backend>(sim: &Sim<B>, layer: LayerId, head: HeadId, position: u32) -> Term {
    let mut term = sim.term(layer, head, position);
    let narrow = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    let d = term.key.len();
    let (mut row, mut numbers) = (vec![0; kv8::row_bytes(d)], vec![0.0; 2 * d]);
    kv8::encode(&narrow(&term.key), &narrow(&term.value), &mut row);
    kv8::decode(&row, &mut numbers);
    term.key = numbers[..d].iter().map(|x| f64::from(*x)).collect();
    term.value = numbers[d..].iter().map(|x| f64::from(*x)).collect();
    term
}

/// The attention of the last step's token `last_of_step` in a layer is that over `positions`, of
/// which `is_exact` says which are as they were written.
fn check_layer<B: Backend>(
    sim: &Sim<B>,
    (layer, last_of_step): (LayerId, usize),
    positions: &dyn Fn(HeadId) -> Vec<u32>,
    is_exact: &dyn Fn(u32) -> bool,
    what: &str,
) {
    let shape = sim.sequence.shape();
    let d = shape.head_dim;
    for head in shape.heads() {
        let term = |p: &u32| {
            if is_exact(*p) { sim.term(layer, head, *p) } else { rounded(sim, layer, head, *p) }
        };
        let terms: Vec<Term> = positions(head).iter().map(term).collect();
        for h in shape.query_heads(head) {
            let at = (last_of_step * shape.n_q_heads + h) * d;
            let got = &sim.out[layer][at..at + d];
            assert_near(got, &sim.attention(layer, h, &terms), what);
        }
    }
}

pub fn every_preset_attends_rows_of_8_bits<B: Probe>(backend: &Arc<B>) {
    for policy in small_presets() {
        for layout in layouts(&**backend) {
            let what = format!("{} {:?}", name(&policy), layout.placement);
            let mut sim = Sim::new(backend, shape(500), &policy, layout).unwrap();
            sim.prefill(6, 300);
            for _ in 0..40 {
                sim.decode(6);
                check_step(&sim, &what);
            }
        }
    }
}

/// In place, where nothing else holds rows: full attention, a window of the model that is longer
/// than what is recent and one that is shorter.
pub fn recent_rows_are_attended_as_written_and_others_rounded<B: Probe>(backend: &Arc<B>) {
    if !reads_in_place(&**backend) {
        return;
    }
    let windows = [None, Some(200), Some(37)];
    let of = |n_layers| KvShape { n_layers, windows: windows.into(), ..shape(500) };
    let full = PolicyOptions::new(Preset::Full);
    let mut sim = Sim::new(backend, of(3), &full, options(Placement::InPlace)).unwrap();
    let check = |sim: &Sim<B>, last_of_step: usize| {
        let n = sim.n_tokens();
        for (layer, window) in sim.sequence.shape().layers().zip(windows) {
            let seen = window.map_or(0, |window| n.saturating_sub(window)) as u32..n as u32;
            let is_exact = |p: u32| p as usize + RECENT >= n;
            let what = format!("layer {layer}, {n} tokens");
            check_layer(sim, (layer, last_of_step), &|_| seen.clone().collect(), &is_exact, &what);
        }
    };
    for len in [1, 47, 48, 30, 13, 48, 2, 48, 31] {
        sim.step(3, len, SpanMode::Exact { remaining: 0 }).unwrap();
        check(&sim, len - 1);
    }
    block_on(sim.sequence.finish_prefill()).unwrap();
    for _ in 0..60 {
        sim.decode(3);
        check(&sim, 0);
    }
}

/// Also those in the device cache, which has them as the host store does.
pub fn recalled_rows_are_attended_rounded<B: Probe>(backend: &Arc<B>) {
    for layout in layouts(&**backend) {
        if layout.placement == Placement::Device && !layout.eight_bit_slots {
            continue;
        }
        let mut sim = Sim::new(backend, shape(500), &clusterkv(96), layout).unwrap();
        sim.prefill(3, 300);
        let layer = LayerId(1);
        for _ in 0..40 {
            sim.decode(3);
            let state = &sim.sequence.layers()[layer];
            assert_eq!(state.mode(), LayerMode::Recall);
            let attended = |head| sim.sequence.attended_tokens(layer, head);
            // Sinks, and what no cluster holds.
            let indexed = state.n_indexed as u32;
            let is_exact = |p: u32| p < 4 || p >= indexed;
            check_layer(&sim, (layer, 0), &attended, &is_exact, "recalled");
        }
        let (stats, row) = (sim.sequence.stats(), sim.sequence.shape().host_row_bytes());
        assert_eq!(stats.fetched_bytes, stats.misses * row as u64, "no more than codes came");
        assert_eq!(stats.misses > 0, layout.placement == Placement::Device);
    }
}

/// A prompt in one chunk, or in many: what each token sees does not depend on it.
pub fn rows_of_8_bits_do_not_depend_on_chunks<B: Probe>(backend: &Arc<B>) {
    if !reads_in_place(&**backend) {
        return;
    }
    let full = PolicyOptions::new(Preset::Full);
    let outs = |chunks: &[usize]| {
        let mut sim = Sim::new(backend, shape(300), &full, options(Placement::InPlace)).unwrap();
        let mut all = Vec::new();
        for len in chunks {
            sim.step(5, *len, SpanMode::Exact { remaining: 0 }).unwrap();
            all.extend_from_slice(&sim.out[1]);
        }
        all
    };
    let whole = outs(&[48, 48, 48, 48, 48]);
    for chunks in [&[30; 8][..], &[1; 240], &[7, 41, 48, 1, 47, 48, 48]] {
        let got = outs(chunks);
        let same: Vec<f64> = whole.iter().map(|x| f64::from(*x)).collect();
        assert_near(&got, &same, &format!("chunks of {}", chunks[0]));
    }
}

/// Prompts that are clustered in segments, in one part and in several, and one that was cancelled
/// on the way: the clusters are those of rows that nothing has rounded.
pub fn clusters_of_a_prompt_are_made_of_unrounded_keys<B: Probe>(backend: &Arc<B>) {
    let policy = clusterkv(96);
    for layout in layouts(&**backend) {
        let index = |host_rows: HostRows| {
            let shape = KvShape { host_rows, ..small_shape(500) };
            let mut sim = Sim::new(backend, shape, &policy, layout).unwrap();
            for len in [48, 48, 30, 48] {
                sim.step(4, len, SpanMode::Exact { remaining: 100 }).unwrap();
            }
            block_on(sim.sequence.truncate(150)).unwrap();
            sim.truth.iter_mut().for_each(|layer| layer.truncate(150));
            sim.prefill(4, 150);
            let index = &sim.sequence.layers()[1].recall().expect("it recalls").index;
            let of_head =
                |head: HeadId| (index.heads()[head].sizes.clone(), sim.landmarks(index, head));
            sim.sequence.shape().heads().map(of_head).collect::<Vec<_>>()
        };
        let exact = index(HostRows::Plain);
        assert!(exact[0].0.len() > 40, "{} clusters", exact[0].0.len());
        assert!(index(HostRows::EightBits) == exact, "{:?}", layout.placement);
    }
}

pub fn rows_of_8_bits_survive_cuts_and_other_policies<B: Probe>(backend: &Arc<B>) {
    for layout in layouts(&**backend) {
        let mut sim = Sim::new(backend, shape(500), &clusterkv(96), layout).unwrap();
        sim.prefill(7, 300);
        for policy in small_presets().into_iter().chain([streaming(96), clusterkv(96)]) {
            let what = format!("{} {:?}", name(&policy), layout.placement);
            let resolved = Policy::resolve(&policy, 500).unwrap();
            if policy.preset == Preset::H2o || resolved.local_window().is_some() {
                // Only a prefill under them records what they need.
                continue;
            }
            block_on(sim.sequence.set_policy(resolved)).unwrap_or_else(|e| panic!("{what}: {e}"));
            for _ in 0..6 {
                sim.decode(7);
                check_step(&sim, &what);
            }
            block_on(sim.sequence.truncate(300)).unwrap();
            sim.truth.iter_mut().for_each(|layer| layer.truncate(300));
        }
        // Further back than the rows that are there as they were written.
        block_on(sim.sequence.truncate(110)).unwrap();
        sim.truth.iter_mut().for_each(|layer| layer.truncate(110));
        sim.prefill(9, 70);
        for _ in 0..20 {
            sim.decode(9);
            check_step(&sim, "after a cut");
        }
    }
}

pub fn rows_of_8_bits_survive_a_lost_device<B: Probe>(backend: &Arc<B>) {
    for layout in layouts(&**backend) {
        let placement = layout.placement;
        for policy in [clusterkv(96), streaming(96), PolicyOptions::new(Preset::Full)] {
            let new = || Sim::new(backend, shape(500), &policy, layout).unwrap();
            let (mut sim, mut twin) = (new(), new());
            sim.prefill(8, 300);
            twin.prefill(8, 300);
            for step in 0..30 {
                if step == 13 {
                    let fresh = Arc::new(backend.background());
                    sim.move_to(&fresh).unwrap();
                }
                sim.decode(8);
                twin.decode(8);
                let what = format!("{} {placement:?}: step {step}", name(&policy));
                // A device that holds all rows has them as they were written, and rounded once they
                // had to be loaded again.
                let is_rounded = policy.preset == Preset::Full && placement == Placement::Device;
                if is_rounded && step >= 13 {
                    for (got, want) in sim.out.iter().zip(&twin.out) {
                        let want: Vec<f64> = want.iter().map(|x| f64::from(*x)).collect();
                        assert_within(got, &want, 0.1, &what);
                    }
                } else {
                    assert_eq!(sim.out, twin.out, "{what}");
                }
            }
        }
    }
}

pub fn rows_of_8_bits_take_half_the_memory<B: Probe>(backend: &Arc<B>) {
    let of = |host_rows| KvShape {
        head_dim: 64,
        host_rows,
        kv_dtype: DType::F16,
        ..small_shape(1 << 16)
    };
    let [plain, rounded] = [HostRows::Plain, HostRows::EightBits].map(of);
    for layout in layouts(&**backend) {
        let policy = Policy::resolve(&clusterkv(96), 1 << 16).unwrap();
        let [of_plain, plan] = [&plain, &rounded].map(|shape| KvPlan::new(shape, &policy, &layout));
        let share = plan.host_kv_bytes as f64 / of_plain.host_kv_bytes as f64;
        assert!((0.53..0.54).contains(&share), "{layout:?}: {share} of the bytes");
        if layout.eight_bit_slots {
            let share = plan.cache_bytes as f64 / of_plain.cache_bytes as f64;
            assert!((0.53..0.54).contains(&share), "{share} of the cache");
        }
        let sequence =
            longview_scheduler::Sequence::new(backend, rounded.clone(), policy, layout).unwrap();
        assert_eq!(sequence.store().size_bytes(), plan.host_kv_bytes, "the plan is what there is");
        assert_eq!(sequence.device_kv_bytes(), plan.device_kv_bytes(), "and on the device");
    }
}
