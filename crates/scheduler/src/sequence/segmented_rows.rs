//! Layers that attend to everything with their rows in several device buffers: they attend what
//! they attend with all rows in one.

use longview_core::{HeadId, LayerId};
use pollster::block_on;

use super::options::{HostStoreKind, Placement, SequenceOptions};
use super::plan::KvPlan;
use super::random_settings::Runner;
use super::step::SpanMode;
use crate::layout::{LayerMode, PrefillMode};
use crate::policy::{Policy, PolicyOptions, Preset};

const CAPACITY: usize = 40;
/// Of both heads, as the runner's shape has them: keys and values of width 4 in f32.
const ROW_BYTES: u64 = 2 * 8 * 4;

fn policies() -> [Policy; 3] {
    let mut first_dense = PolicyOptions::new(Preset::Clusterkv).with_budget(24);
    first_dense.dense_layers = Some(1);
    (first_dense.sinks, first_dense.recent, first_dense.window) = (Some(1), Some(2), Some(4));
    let snapkv = PolicyOptions::new(Preset::H2o).with_budget(16);
    [PolicyOptions::new(Preset::Full), first_dense, snapkv]
        .map(|options| Policy::resolve(&options, CAPACITY).unwrap())
}

fn layout(store: HostStoreKind, max_buffer_bytes: Option<u64>) -> SequenceOptions {
    SequenceOptions {
        placement: Placement::Device,
        store,
        chunk: 7,
        tile: 6,
        overlap: false,
        max_buffer_bytes,
        ..SequenceOptions::default()
    }
}

#[track_caller]
fn check_near(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 1e-5, "{what}, element {i}: {got}, not {want}");
    }
}

/// Rows of the host store, which both fill from their device rows.
fn host_rows(runner: &Runner) -> Vec<u8> {
    let shape = runner.sequence.shape();
    let n = runner.sequence.n_tokens();
    let mut all = Vec::new();
    for layer in 0..shape.n_layers {
        for head in 0..shape.n_kv_heads {
            let mut bytes = vec![0; n * shape.row_bytes()];
            let (layer, head) = (LayerId::new(layer), HeadId::new(head));
            runner.sequence.store().read_rows(layer, head, 0..n, &mut bytes);
            all.extend(bytes);
        }
    }
    all
}

/// How many buffers each layer has, and rows of a head in each of them.
fn buffers(runner: &Runner) -> Vec<(usize, usize)> {
    let layers = runner.sequence.layers();
    let of = |mode: LayerMode| layers.iter().filter(move |layer| layer.mode() == mode);
    of(LayerMode::Dense).map(|layer| (layer.segments().count(), layer.device_rows)).collect()
}

fn compare(policy: &Policy, store: HostStoreKind, most: u64) {
    let (limited, free) = (layout(store, Some(most)), layout(store, None));
    let mut both = [limited, free].map(|layout| Runner::new(policy.clone(), CAPACITY, layout));
    for (runner, layout) in both.iter().zip([limited, free]) {
        let plan = KvPlan::new(runner.sequence.shape(), policy, &layout);
        assert_eq!(plan.device_kv_bytes(), runner.sequence.device_kv_bytes());
    }
    let mut check = |what: &str, run: &dyn Fn(&mut Runner) -> Vec<f32>| {
        let [got, want] = both.each_mut().map(run);
        check_near(&got, &want, &format!("{:?}, {most} bytes, {what}", policy.preset));
        assert!(host_rows(&both[0]) == host_rows(&both[1]), "{what}: rows on the host");
    };
    let decode = |n: usize| {
        move |runner: &mut Runner| -> Vec<f32> {
            (0..n).flat_map(|_| runner.step(1, SpanMode::Policy)).collect()
        }
    };
    check("a prompt", &|runner| runner.prefill(19));
    check("tokens", &decode(6));
    check("drafted tokens", &|runner| {
        let n = runner.sequence.most_drafted(3);
        let attended = runner.step(1 + n, SpanMode::Policy);
        if n > 1 {
            runner.sequence.accept_drafted();
            runner.sequence.drop_drafted().unwrap();
        }
        attended
    });
    check("tokens behind drafted ones", &decode(2));
    check("tokens behind a cut", &|runner| {
        block_on(runner.sequence.truncate(11)).unwrap();
        [runner.prefill(4), decode(3)(runner)].concat()
    });
    check("tokens on a fresh device", &|runner| {
        let backend = runner.backend.clone();
        runner.sequence.recover(&backend).unwrap();
        decode(3)(runner)
    });
    check("tokens of a fork", &|runner| {
        let fork = block_on(runner.sequence.fork()).unwrap();
        runner.sequence = fork;
        decode(2)(runner)
    });
}

#[test]
fn rows_in_several_buffers_are_attended_as_rows_in_one() {
    for policy in policies() {
        for store in [HostStoreKind::Auto, HostStoreKind::Plain] {
            // Ten buffers of four rows, three of 14, and one row each.
            for most in [4 * ROW_BYTES, 19 * ROW_BYTES + 5, 1] {
                compare(&policy, store, most);
            }
        }
    }
}

#[test]
fn sparse_prefill_attends_the_same_blocks_in_several_buffers() {
    const N: usize = 1500;
    let policy = Policy::resolve(&PolicyOptions::new(Preset::Full), N).unwrap();
    let [several, one] = [Some(400 * ROW_BYTES), None].map(|most| {
        let prefill = PrefillMode::Sparse { threshold: 1.0 };
        let layout = SequenceOptions {
            chunk: 1024,
            tile: 96,
            prefill,
            ..layout(HostStoreKind::Plain, most)
        };
        let mut runner = Runner::new(policy.clone(), N, layout);
        let attended = [runner.prefill(1000), runner.prefill(N - 1000)].concat();
        (attended, runner.sequence.block_counts(), buffers(&runner))
    });
    assert_eq!((several.2, one.2), (vec![(4, 384); 2], vec![(1, N); 2]));
    assert_eq!(several.1, one.1);
    assert!(one.1.density() < 0.9, "{:?}", one.1);
    check_near(&several.0, &one.0, "a prompt in two chunks");
}

#[test]
fn buffers_are_as_many_as_the_limit_asks_for() {
    let [full, first_dense, _] = policies();
    let of = |policy: &Policy, most: u64| {
        let layout = layout(HostStoreKind::Plain, Some(most));
        buffers(&Runner::new(policy.clone(), CAPACITY, layout))
    };
    // The second layer has a window.
    assert_eq!(of(&full, 4 * ROW_BYTES), [(10, 4), (10, 4)]);
    assert_eq!(of(&full, 19 * ROW_BYTES + 5), [(3, 14), (3, 14)]);
    assert_eq!(of(&full, 40 * ROW_BYTES), [(1, 40), (1, 40)]);
    assert_eq!(of(&first_dense, 4 * ROW_BYTES), [(10, 4)]);
}
