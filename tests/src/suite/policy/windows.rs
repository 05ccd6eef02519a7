//! Layers that the model was trained with a window in: they attend to it alone and exactly, under
//! every policy, in prefill and in decode, and the device holds no more of them.

use std::sync::Arc;

use longview_core::{HeadId, LayerId};
use longview_ops::Backend;
use longview_scheduler::{
    KvPlan, KvShape, LayerMode, Placement, PolicyOptions, Preset, SpanMode, Step, StepScratch,
    StepSpan,
};
use pollster::block_on;

use super::steps::{clusterkv, options, placements, streaming};
use crate::backends::Probe;
use crate::sim::{Sim, assert_near, attend, small_shape, token_data};

/// A layer between two others sees the last 37 tokens, less than a chunk and a tile have.
const WINDOW: usize = 37;

fn shape(capacity: usize) -> KvShape {
    let windows = [None, Some(WINDOW), None].into();
    KvShape { n_layers: 3, windows, ..small_shape(capacity) }
}

/// The attention of the last token of the last step over its window, in f64.
fn check_window<B: Backend>(sim: &Sim<B>, last_of_step: usize, what: &str) {
    let (n, shape) = (sim.n_tokens() as u32, sim.sequence.shape());
    let (d, layer) = (shape.head_dim, LayerId(1));
    let seen: Vec<u32> = (n.saturating_sub(WINDOW as u32)..n).collect();
    let at = last_of_step * shape.n_q_heads * d;
    for h in 0..shape.n_q_heads {
        let got = &sim.out[layer][at + h * d..][..d];
        assert_near(got, &sim.oracle(layer, h, &seen), what);
    }
}

pub fn windows_are_attended_exactly_in_prefill<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let on = options(placement);
        for policy in [PolicyOptions::new(Preset::Full), clusterkv(96)] {
            let mut sim = Sim::new(backend, shape(400), &policy, on).unwrap();
            // Chunks of every length, across every place of the window and of tiles.
            for len in (1..=on.chunk).rev().step_by(5).chain([1, 2, 36, 37, 38]) {
                sim.step(3, len, SpanMode::Exact { remaining: 0 }).unwrap();
                let what = format!("{placement:?}, {len} tokens up to {}", sim.n_tokens());
                check_window(&sim, len - 1, &what);
            }
        }
    }
}

pub fn windows_are_attended_exactly_under_every_policy<B: Probe>(backend: &Arc<B>) {
    for (preset, name) in Preset::ALL {
        for &placement in placements(&**backend) {
            let mut policy = PolicyOptions::new(*preset);
            if *preset != Preset::Full {
                policy = policy.with_budget(192);
            }
            (policy.recent, policy.window) = match preset {
                Preset::Full | Preset::StreamingLlm => (None, None),
                Preset::H2o => (None, Some(16)),
                _ => (Some(16), Some(16)),
            };
            let made = Sim::new(backend, shape(700), &policy, options(placement));
            let Ok(mut sim) = made else { panic!("{name}: {}", made.err().unwrap()) };
            sim.prefill(6, 20);
            for n in 20..60 {
                sim.decode(6);
                check_window(&sim, 0, &format!("{name}, {placement:?}, token {n}"));
            }
            sim.prefill(6, 300);
            for n in 360..400 {
                sim.decode(6);
                check_window(&sim, 0, &format!("{name}, {placement:?}, token {n}"));
                let attended = sim.sequence.attended_tokens(LayerId(1), HeadId(1));
                assert_eq!(attended, (n + 1 - WINDOW as u32..=n).collect::<Vec<_>>(), "{name}");
            }
            assert_eq!(sim.sequence.layers()[1].mode(), LayerMode::Local, "{name}");
            sim.check_rows();
        }
    }
}

/// The device has the rows of the window, the host those of all tokens: a cut of 5,000 tokens finds
/// all that comes before it, and what comes then is what it would have been without them.
pub fn a_cut_of_5000_tokens_reads_nothing_before_it_again<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        for policy in [PolicyOptions::new(Preset::Full), clusterkv(192)] {
            let (on, shape) = (options(placement), shape(6000));
            let mut sim = Sim::new(backend, shape.clone(), &policy, on).unwrap();
            sim.prefill(4, 600);
            let mut twin = Sim::new(backend, shape, &policy, on).unwrap();
            twin.prefill(4, 600);
            sim.prefill(8, 5000);
            sim.decode(8);
            let before = sim.sequence.stats().steps;
            block_on(sim.sequence.truncate(600)).unwrap();
            assert_eq!((sim.n_tokens(), sim.sequence.stats().steps), (600, before));
            sim.check_rows();
            for _ in 0..50 {
                sim.decode(4);
                twin.decode(4);
                check_window(&sim, 0, "after the cut");
                assert_eq!(sim.out[1], twin.out[1], "{placement:?}: to the bit");
            }
            sim.step(4, 45, SpanMode::Exact { remaining: 0 }).unwrap();
            check_window(&sim, 44, "a prompt after the cut");
        }
    }
}

/// A session of several sequences, each with its own place in its window.
pub fn windows_of_several_sequences_do_not_mix<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let on = options(placement);
        let lengths = [10, 37, 100];
        let made = |n| {
            let full = PolicyOptions::new(Preset::Full);
            let mut sim = Sim::new(backend, shape(200), &full, on).unwrap();
            sim.prefill(5, n);
            sim
        };
        let mut alone = lengths.map(made);
        let mut together = lengths.map(made);
        let shape = shape(200);
        let mut scratch =
            StepScratch::new(&**backend, &shape, 3, on.tile, placement).expect("memory");
        let mode = SpanMode::Policy;
        let spans = together.iter_mut().enumerate();
        let mut spans: Vec<_> = spans
            .map(|(start, sim)| StepSpan {
                sequence: &mut sim.sequence,
                start,
                len: 1,
                mode,
                is_read: true,
            })
            .collect();
        let mut step = Step { spans: &mut spans, scratch: &mut scratch };
        let out: Vec<_> = shape
            .layers()
            .map(|layer| {
                let tokens = lengths.map(|n| token_data(&shape, 5, layer, n));
                attend(&**backend, &shape, &mut step, layer, &tokens).unwrap()
            })
            .collect();
        step.finish();
        let width = shape.n_q_heads * shape.head_dim;
        for (i, sim) in alone.iter_mut().enumerate() {
            sim.decode(5);
            check_window(sim, 0, "alone");
            assert_eq!(out[1][i * width..][..width], sim.out[1], "sequence {i}");
        }
    }
}

pub fn the_device_has_the_windows_alone<B: Probe>(backend: &Arc<B>) {
    let row = |shape: &KvShape| (shape.n_kv_heads * shape.row_bytes()) as u64;
    for policy in [PolicyOptions::new(Preset::Full), clusterkv(96), streaming(64)] {
        let (shape, on) = (shape(1000), options(Placement::Device));
        let sim = Sim::new(backend, shape.clone(), &policy, on).unwrap();
        let plan = KvPlan::new(&shape, sim.sequence.policy(), &on);
        assert_eq!(plan.device_kv_bytes(), sim.sequence.device_kv_bytes(), "{:?}", policy.preset);
        assert_eq!(plan.host_kv_bytes, sim.sequence.store().size_bytes());
        let own = sim.sequence.layers()[1].device_bytes();
        assert_eq!(own, WINDOW as u64 * row(&shape), "{:?}", policy.preset);
        if policy.preset == Preset::Full {
            let (dense, window) = (2 * 1000 * row(&shape), WINDOW as u64 * row(&shape));
            assert_eq!((plan.dense_bytes, plan.window_bytes), (dense, window));
        }
    }
    // A context that is shorter than the window has as many rows as tokens.
    let short = KvPlan::new(
        &shape(20),
        Sim::new(backend, shape(20), &PolicyOptions::new(Preset::Full), options(Placement::Device))
            .unwrap()
            .sequence
            .policy(),
        &options(Placement::Device),
    );
    assert_eq!(short.window_bytes, 20 * row(&shape(20)));
}

pub fn windows_survive_a_lost_device_and_other_policies<B: Probe>(backend: &Arc<B>) {
    for &placement in placements(&**backend) {
        let on = options(placement);
        let mut sim = Sim::new(backend, shape(600), &clusterkv(96), on).unwrap();
        sim.prefill(9, 200);
        for policy in [PolicyOptions::new(Preset::Full), streaming(64), clusterkv(128)] {
            let resolved = longview_scheduler::Policy::resolve(&policy, 600).unwrap();
            block_on(sim.sequence.set_policy(resolved)).unwrap();
            for _ in 0..20 {
                sim.decode(9);
                check_window(&sim, 0, "under another policy");
            }
            sim.move_to(backend).unwrap();
            for _ in 0..20 {
                sim.decode(9);
                check_window(&sim, 0, "on another device");
            }
        }
        sim.check_rows();
    }
}
