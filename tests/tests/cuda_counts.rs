//! What a decoded token costs on a CUDA device, by count: nodes of graphs a layer, nodes that are
//! given other arguments, work that is handed over, waits.
//!
//! The shape is that of Llama-3.1-8B with fewer and narrower layers: weights of bf16 or of blocks,
//! eight KV heads with four query heads each, two dense layers below those that recall. What a
//! layer costs is the difference of two models, so what a token costs once does not count.

#![expect(clippy::print_stdout, reason = "tests say what they counted")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use longview_core::DType;
use longview_core::quant::QuantType;
use longview_cuda::CudaBackend;
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_engine::{Engine, EngineOptions, GenerationParams, KvResidency, Session};
use longview_model::folder::ModelFolder;
use longview_scheduler::{LayerMode, PolicyOptions, Preset};
use longview_tests::backends;
use longview_tests::bench::random_model::{Dims, RandomFolder};
use pollster::block_on;

type Emulated = CudaBackend<EmulatedDriver>;

const DENSE_LAYERS: usize = 2;
/// Decoded tokens that are counted.
const N: u64 = 6;

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    Bf16,
    Blocks(QuantType),
}

/// As many heads as Llama-3.1-8B has. Rows of blocks are whole blocks.
fn dims(n_layers: usize, weights: Weights) -> Dims {
    let (hidden, ffn) = match weights {
        Weights::Bf16 => (64, 128),
        Weights::Blocks(_) => (256, 256),
    };
    Dims {
        name: "Llama-3.1-8B, small",
        has_bias: false,
        n_layers,
        hidden,
        n_q_heads: 32,
        n_kv_heads: 8,
        head_dim: 16,
        ffn,
        vocab: 64,
    }
}

/// No window of decoded tokens fills while tokens are counted.
fn policy(preset: Preset) -> PolicyOptions {
    let mut options = PolicyOptions::new(preset);
    if preset == Preset::Full {
        return options;
    }
    options = options.with_budget(128);
    options.dense_layers = Some(DENSE_LAYERS);
    (options.sinks, options.recent) = (Some(4), Some(8));
    (options.window, options.cluster_segment, options.cluster_tokens) =
        (Some(64), Some(64), Some(8));
    options
}

/// What a token costs, in the mean over [`N`].
#[derive(Debug)]
struct Cost {
    /// Commands that streams were given: launches and copies.
    nodes: f64,
    by_kernel: BTreeMap<&'static str, f64>,
    copies: f64,
    nodes_set: f64,
    /// Graphs launched, and commands that were handed over by themselves.
    submits: f64,
    waits: f64,
    n_recalling: usize,
}

fn generate(engine: &mut Engine<Emulated>, session: &mut Session<Emulated>, n: usize) {
    let params = GenerationParams { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    block_on(engine.generate(session, &params, &mut go_on)).expect("decode");
}

/// Without kernels that run they are given and counted all the same: what is given does not depend
/// on what they compute. The first test holds the one against the other.
fn cost(n_layers: usize, preset: Preset, weights: Weights, runs_kernels: bool) -> Cost {
    cost_of_rows(n_layers, (preset, DType::F16, KvResidency::Host), weights, runs_kernels)
}

fn cost_of_rows(
    n_layers: usize,
    (preset, kv_dtype, kv_residency): (Preset, DType, KvResidency),
    weights: Weights,
    runs_kernels: bool,
) -> Cost {
    let made = RandomFolder::new(&dims(n_layers, weights)).expect("a folder");
    let mut folder = ModelFolder::open(&made.path).expect("a model");
    if let Weights::Blocks(ty) = weights {
        folder.tensors.quantize(&folder.config, ty).expect("blocks");
    }
    let backend = backends::cuda_emulated(EmulatedOptions { runs_kernels, ..Default::default() });
    let backend = Arc::new(backend.expect("the kernels are compiled as C++"));
    let (chunk_size, tile_rows) = (64, 64);
    let options = EngineOptions {
        ctx_size: 1024,
        chunk_size,
        tile_rows,
        kv_dtype,
        kv_residency,
        ..EngineOptions::default()
    };
    let policy = policy(preset);
    let mut engine = Engine::load(Arc::clone(&backend), folder, options, &policy).expect("loaded");
    let mut session = engine.session(&policy).expect("a session");
    let prompt: Vec<u32> = (0..400u32).map(|i| 2 + (i * i * 7 + 13 * i) % 61).collect();
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &prompt, &mut go_on)).expect("prefill"));
    // Every shape was seen twice then.
    generate(&mut engine, &mut session, 9);
    let (counters, launches) = (backend.counters(), backend.driver().launches());
    let copies = backend.driver().n_copies();
    generate(&mut engine, &mut session, N as usize);
    let after = backend.counters();
    assert_eq!(after.graphs, counters.graphs, "all shapes were seen");
    let mean = |after: u64, before: u64| (after - before) as f64 / N as f64;
    let by_kernel: BTreeMap<_, _> = backend.driver().launches().into_iter().collect();
    let by_kernel: BTreeMap<_, _> = by_kernel
        .into_iter()
        .map(|(name, n)| (name, mean(n, launches.get(name).copied().unwrap_or(0))))
        .filter(|(_, n)| *n > 0.0)
        .collect();
    let copies = mean(backend.driver().n_copies(), copies);
    let modes = session.sequence().layers().iter().map(|layer| layer.mode());
    Cost {
        nodes: by_kernel.values().sum::<f64>() + copies,
        by_kernel,
        copies,
        nodes_set: mean(after.nodes_set, counters.nodes_set),
        submits: mean(after.device.submits, counters.device.submits),
        waits: mean(after.device.readbacks, counters.device.readbacks),
        n_recalling: modes.filter(|mode| *mode == LayerMode::Recall).count(),
    }
}

/// What one more layer costs, by kernel, with all copies as one.
fn layer(few: &Cost, many: &Cost, n: f64) -> (f64, Vec<(&'static str, f64)>) {
    let of = |cost: &Cost, name: &str| cost.by_kernel.get(name).copied().unwrap_or(0.0);
    let more = |name: &&'static str| (of(many, name) - of(few, name)) / n;
    let mut parts: Vec<_> = many.by_kernel.keys().map(|name| (*name, more(name))).collect();
    parts.push(("copy", (many.copies - few.copies) / n));
    parts.retain(|(_, n)| *n != 0.0);
    (parts.iter().map(|(_, n)| n).sum(), parts)
}

#[test]
fn a_layer_that_recalls_takes_few_nodes_and_a_token_few_updates() {
    let [few, many] =
        [(4, true), (6, false)].map(|(n, runs)| cost(n, Preset::Clusterkv, Weights::Bf16, runs));
    assert_eq!((few.n_recalling, many.n_recalling), (2, 4));
    let (nodes, parts) = layer(&few, &many, 2.0);
    println!("a layer that recalls: {nodes} nodes: {parts:?}");
    println!("a token of 6 layers: {many:?}");
    // It was 22.
    assert_eq!(nodes, 12.0, "{parts:?}");
    // What attends all rows is told how many there are: two kernels of each dense layer. It was one
    // more with each layer.
    assert_eq!((few.nodes_set, many.nodes_set), (4.0, 4.0));
    assert_eq!(many.copies, 2.0, "the token, and what was recalled");
    assert_eq!(many.waits, 1.0);
    println!("{} commands in {} submits", many.nodes, many.submits);
    assert!(many.submits < many.nodes, "most commands are nodes of a graph");
    let n_told = many.by_kernel["upload_words"];
    assert!(n_told <= 6.0, "{n_told} times the host tells something");
    assert_eq!(n_told, few.by_kernel["upload_words"]);
}

/// What norms, rounds, multiplies, rotates and gates is as few launches as with weights of bf16.
#[test]
fn a_layer_of_quantised_weights_that_recalls_takes_few_nodes() {
    for ty in [QuantType::Q4K, QuantType::Q8_0] {
        let [few, many] = [4, 6].map(|n| cost(n, Preset::Clusterkv, Weights::Blocks(ty), false));
        assert_eq!((few.n_recalling, many.n_recalling), (2, 4));
        let (nodes, parts) = layer(&few, &many, 2.0);
        println!("a layer of {ty} that recalls: {nodes} nodes: {parts:?}");
        println!("a token of 6 layers: {many:?}");
        // It was 24.
        assert_eq!(nodes, 12.0, "{parts:?}");
        let single = ["round_rows", "rms_norm_wide", "silu_mul", "rope", "tile_product"];
        let is_single = |name: &&str| single.iter().any(|start| name.starts_with(start));
        assert_eq!(parts.iter().map(|(name, _)| *name).find(is_single), None);
        assert_eq!((few.nodes_set, many.nodes_set), (4.0, 4.0));
        assert_eq!(many.waits, 1.0);
        assert!(many.submits < many.nodes, "most commands are nodes of a graph");
    }
}

/// Rows of 8 bits are looked up on the device too: a new row is written in both forms, and what is
/// recalled is attended by itself and merged.
#[test]
fn a_layer_that_recalls_rows_of_8_bits_waits_for_nobody() {
    let rows = (Preset::Clusterkv, DType::Q8, KvResidency::Host);
    let [few, many] =
        [(4, true), (6, false)].map(|(n, runs)| cost_of_rows(n, rows, Weights::Bf16, runs));
    assert_eq!((few.n_recalling, many.n_recalling), (2, 4));
    let (nodes, parts) = layer(&few, &many, 2.0);
    println!("a layer that recalls rows of 8 bits: {nodes} nodes: {parts:?}");
    println!("a token of 6 layers: {many:?}");
    assert_eq!(nodes, 15.0, "{parts:?}");
    assert_eq!((few.waits, many.waits), (1.0, 1.0));
    assert_eq!((few.nodes_set, many.nodes_set), (4.0, 4.0));
    assert_eq!(many.copies, 2.0, "the token, and what was recalled");
    assert!(many.submits < many.nodes, "most commands are nodes of a graph");
}

/// Under the default policy the device also lists what a choice of tokens left of their clusters.
#[test]
fn a_layer_of_the_default_policy_waits_for_nobody() {
    // The space in which tokens are compared is made of numbers that kernels computed.
    let [few, many] = [4, 6].map(|n| cost(n, Preset::Longview, Weights::Bf16, true));
    assert_eq!((few.n_recalling, many.n_recalling), (2, 4));
    let (nodes, parts) = layer(&few, &many, 2.0);
    println!("a layer of the default policy: {nodes} nodes: {parts:?}");
    println!("a token of 6 layers: {many:?}");
    assert_eq!(nodes, 23.0, "{parts:?}");
    assert_eq!((few.nodes_set, many.nodes_set), (4.0, 4.0));
    assert_eq!((few.waits, many.waits), (1.0, 1.0));
    assert_eq!(many.copies, 2.0, "the token, and what was recalled");
    assert!(many.submits < many.nodes, "most commands are nodes of a graph");
}

/// Where all rows lie on the device nothing is looked up or fetched: what is chosen is listed.
/// Under the default policy the best tokens are compared again by their keys: four nodes.
#[test]
fn a_layer_that_recalls_rows_of_the_device_fetches_nothing() {
    for (preset, n_nodes) in [(Preset::Clusterkv, 11.0), (Preset::Longview, 25.0)] {
        let rows = (preset, DType::F16, KvResidency::Device);
        let [few, many] = [4, 6].map(|n| cost_of_rows(n, rows, Weights::Bf16, true));
        assert_eq!((few.n_recalling, many.n_recalling), (2, 4));
        let (nodes, parts) = layer(&few, &many, 2.0);
        println!("a layer of {preset} with all rows on the device: {nodes} nodes: {parts:?}");
        println!("a token of 6 layers: {many:?}");
        assert_eq!(nodes, n_nodes, "{parts:?}");
        let moves = ["kv_gather", "look_up_rows"];
        let is_move = |name: &&str| moves.iter().any(|start| name.starts_with(start));
        assert_eq!(parts.iter().map(|(name, _)| *name).find(is_move), None);
        assert_eq!((few.nodes_set, many.nodes_set), (4.0, 4.0));
        assert_eq!((few.waits, many.waits), (1.0, 1.0));
        assert_eq!(many.copies, 2.0, "the token, and how many were recalled");
    }
}

/// Without recall a layer is attention and three products.
#[test]
fn a_layer_that_attends_everything_takes_few_nodes() {
    for weights in [Weights::Bf16, Weights::Blocks(QuantType::Q4K)] {
        let [few, many] = [2, 4].map(|n| cost(n, Preset::Full, weights, false));
        let (nodes, parts) = layer(&few, &many, 2.0);
        println!("a layer of {weights:?} that attends everything: {nodes} nodes: {parts:?}");
        assert_eq!(nodes, 7.0, "{parts:?}");
        assert_eq!(many.waits, 1.0);
    }
}
