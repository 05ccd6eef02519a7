//! Bytes: what a token reads, what lies on the device, what is refused.

use std::sync::Arc;

use longview_core::DType;
use longview_engine::{Engine, EngineOptions};
use longview_model::folder::ModelFolder;
use longview_ops::parity::spot_check;
use longview_ops::{Backend, Op};
use longview_scheduler::{
    KvShape, Placement, Policy, PolicyOptions, Preset, Sequence, SequenceOptions,
};
use longview_tests::backends;
use longview_tests::sim::Sim;
use pollster::block_on;

use super::{Gpu, clusterkv, generate, prefill};

fn needle() -> ModelFolder {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/needle");
    ModelFolder::open(&path).expect("the embedded model")
}

fn index_bytes(sequence: &Sequence<Gpu>) -> u64 {
    let indexes =
        sequence.layers().iter().filter_map(|layer| layer.recall()).map(|recall| &recall.index);
    indexes.map(|index| index.device_bytes()).sum()
}

/// Decode is bound by the bytes that it reads: every weight, the index and the attended rows, each
/// once, and little else.
#[test]
fn a_token_reads_weights_index_and_attended_rows_once() {
    let Some(gpu) = backends::wgpu() else { return };
    for policy in [PolicyOptions::new(Preset::Full), clusterkv(256)] {
        let options = EngineOptions { ctx_size: 1024, chunk_size: 256, ..Default::default() };
        let folder = needle();
        // Of the embedding a token reads one row, unless it is the output projection too.
        let config = &folder.config;
        let embedding =
            if config.tie_word_embeddings { 0 } else { config.vocab_size * config.hidden_size };
        let weights = folder.tensors.weight_bytes(config) - embedding as u64 * 2;
        let mut engine = Engine::load(Arc::clone(&gpu), folder, options, &policy).expect("loads");
        let mut session = engine.session(&policy).expect("a session");
        prefill(&mut engine, &mut session, 700);
        generate(&mut engine, &mut session, 8).expect("warm-up");
        let sequence = session.sequence();
        let row_bytes = sequence.shape().row_bytes() as u64;
        let indexes =
            sequence.layers().iter().filter_map(|layer| layer.recall()).map(|recall| &recall.index);
        let index: u64 = indexes
            .flat_map(|index| index.heads())
            .map(|head| head.sizes.len() as u64 * row_bytes / 2)
            .sum();

        session.reset_stats();
        let (before, steps) = (gpu.counters(), 12);
        generate(&mut engine, &mut session, steps).expect("decode");
        let after = gpu.counters();
        let steps = steps as u64;
        let attended = session.stats().attended_rows * row_bytes / steps;
        let fetched = session.stats().fetched_bytes / steps;
        let read = (after.bytes_read - before.bytes_read) / steps;
        let needed = weights + index + attended + fetched;
        println!(
            "{}: {read} bytes a token; weights {weights}, index {index}, rows {attended}, \
             fetched {fetched}",
            session.policy().preset,
        );
        assert!(read >= weights + attended, "{read} bytes read, fewer than there are");
        assert!(read as f64 <= 1.1 * needed as f64, "{read} bytes read of {needed} needed");
    }
}

/// The most bytes on the device while `n_tokens` tokens are prefilled, the index with its scores,
/// and the bytes that were moved up.
fn streamed_prefill(n_tokens: usize) -> Option<(u64, u64, u64)> {
    // What attention gives changes no byte that is counted, and takes software devices minutes.
    let gpu = backends::wgpu_without("attend_chunk")?;
    let shape = KvShape {
        n_layers: 1,
        n_q_heads: 1,
        n_kv_heads: 1,
        head_dim: 16,
        kv_dtype: DType::F16,
        host_rows: longview_scheduler::HostRows::default(),
        capacity: n_tokens + 64,
        scale: 0.25,
        inv_freq: [].into(),
        windows: [].into(),
    };
    let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(256);
    policy.cluster_segment = Some(4096);
    // With a worker beside, what is alive at once would depend on its speed.
    let (placement, overlap) = (Placement::Device, false);
    let options = SequenceOptions { placement, overlap, ..SequenceOptions::default() };
    let resolved = Policy::resolve(&policy, shape.capacity).expect("a policy");
    let scores = 4 * shape.n_q_heads * resolved.max_units(shape.capacity);
    let row_bytes = shape.row_bytes();
    let mut sim = Sim::new(&gpu, shape, &policy, options).expect("a sequence");
    let before = gpu.counters();
    sim.prefill(1, n_tokens);
    let after = gpu.counters();
    let up = after.device.since(before.device).bytes_up;
    // Each chunk attends its whole past, which comes from the host with two row numbers a row. Each
    // token comes as four vectors of the simulation and as a key to cluster.
    let past: usize = (0..n_tokens).step_by(options.chunk).sum();
    let streamed = (past * (row_bytes + 8) + n_tokens * 5 * row_bytes) as f64;
    println!("{n_tokens} tokens: {} bytes at most, {up} bytes up", after.bytes_peak);
    assert!((1.0..1.2).contains(&(up as f64 / streamed)), "{up} bytes up for {streamed}");
    Some((after.bytes_peak, index_bytes(&sim.sequence) + scores as u64, up))
}

/// A device holds sinks, ring, cache, a chunk and two tiles, however long the prompt is.
#[test]
fn prefill_of_32k_tokens_takes_the_device_memory_of_16k_and_the_index() {
    let Some((short, short_index, few)) = streamed_prefill(16_384) else { return };
    let Some((long, long_index, many)) = streamed_prefill(32_768) else { return };
    // Buffers are whole vectors of 16 bytes.
    let difference = (long - short).abs_diff(long_index - short_index);
    assert!(difference <= 256, "{short} and {long} bytes, index {short_index} and {long_index}");
    assert!(many > 3 * few, "traffic grows with the square: {few} and {many} bytes up");
}

/// What does not fit is refused with numbers before anything is loaded; what is planned suffices.
#[test]
fn device_memory_is_planned_before_loading() {
    let Some(gpu) = backends::wgpu() else { return };
    let tells = gpu.capabilities().memory_bytes.is_some();
    assert!(tells || !cfg!(target_os = "linux"), "Vulkan tells how much memory there is");
    let policy = clusterkv(256);
    let options = EngineOptions { ctx_size: 2048, chunk_size: 256, ..Default::default() };
    // A device that has computed keeps scratch of its own, which is in no plan. One that tested
    // itself has, but this one may be spared that by another that did.
    block_on(spot_check(&*gpu, &[Op::Matvec, Op::Matmul, Op::AttendChunk])).expect("right numbers");
    let before = gpu.counters();
    let refusal = |bytes| {
        let refused = EngineOptions { device_memory: Some(bytes), ..options.clone() };
        let loaded = Engine::load(Arc::clone(&gpu), needle(), refused, &policy);
        loaded.err().expect("refused").to_string()
    };
    let plan = Engine::plan(&*gpu, &needle(), &options, &policy).expect("a plan");
    let nearly = refusal(plan.device_bytes() - 1);
    assert!(nearly.starts_with("not enough device memory: "), "{nearly}");
    assert!(nearly.contains("available; use --"), "{nearly}");
    let nothing = refusal(1 << 20);
    assert!(nothing.contains("no option makes it fit: use a smaller model"), "{nothing}");
    assert_eq!(gpu.counters(), before, "nothing was loaded");

    let mut engine = Engine::load(Arc::clone(&gpu), needle(), options, &policy).expect("loads");
    let mut session = engine.session(&policy).expect("a session");
    prefill(&mut engine, &mut session, 300);
    generate(&mut engine, &mut session, 4).expect("decode");
    let (planned, live) = (plan.device_bytes(), gpu.counters().bytes_live - before.bytes_live);
    println!("planned {planned} bytes, in use {live}");
    assert!(live <= planned + planned / 10, "{live} bytes in use, {planned} planned");
    assert!(live >= planned / 2, "{live} bytes in use, {planned} planned: a plan too large");
}
