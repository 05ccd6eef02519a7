//! Sequences without a model into files, and back.

use std::sync::Arc;

use longview_core::{DType, RangeSource};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_ops::Backend;
use longview_scheduler::{
    Fingerprint, FingerprintPart, KvShape, Placement, Policy, PolicyOptions, SaveOptions,
    SchedulerError, Sequence, SequenceOptions, SessionContent, SessionFile, append_sequence,
    restore_sequence, save_sequence,
};
use longview_tests::sim::{Sim, small_shape};
use pollster::block_on;

pub type Cpu = CpuBackend;

pub fn cpu() -> Arc<Cpu> {
    // Layers of a file are read by both.
    Arc::new(Cpu::new(CpuOptions { threads: 2, isa: None }).expect("a processor"))
}

pub fn shape(kv_dtype: DType) -> KvShape {
    let windows = [None, Some(30), None].into();
    KvShape { kv_dtype, n_layers: 3, windows, ..small_shape(160) }
}

/// Rows in place, in separate buffers, and in separate buffers whose hits the device finds itself.
pub fn layouts() -> [(&'static str, SequenceOptions); 3] {
    let in_place = SequenceOptions { chunk: 16, tile: 8, ..SequenceOptions::default() };
    let device = SequenceOptions { placement: Placement::Device, ..in_place };
    let resolving = SequenceOptions { device_cache: true, ..device };
    [("in place", in_place), ("on a device", device), ("resolved on a device", resolving)]
}

fn part(name: &str) -> FingerprintPart {
    FingerprintPart { digest: *blake3::hash(name.as_bytes()).as_bytes(), about: name.into() }
}

/// Of no model.
pub fn fingerprint() -> Fingerprint {
    Fingerprint {
        config: part("a config"),
        weights: part("some weights"),
        tokenizer: Some(part("a tokenizer")),
        vocabulary: Some(part("a vocabulary")),
        rope: part("no positions"),
    }
}

/// A sequence of `n` tokens that were prefilled.
pub fn prefilled(
    shape: KvShape,
    policy: &PolicyOptions,
    options: SequenceOptions,
    n: usize,
) -> Result<Sim<Cpu>, SchedulerError> {
    let mut sim = Sim::new(&cpu(), shape, policy, options)?;
    sim.prefill(1, n);
    Ok(sim)
}

/// Tokens and a note.
pub fn content(n_tokens: usize) -> SessionContent {
    SessionContent {
        tokens: (0..n_tokens as u32).map(|i| i * i % 1000).collect(),
        owed: Some(7),
        logits: vec![0.5, -0.25],
        ids: vec![3, 4],
        note: b"a note".to_vec(),
    }
}

pub fn save<B: Backend>(sim: &mut Sim<B>, policy: &PolicyOptions) -> Vec<u8> {
    let (fingerprint, content) = (fingerprint(), content(sim.n_tokens()));
    let options = SaveOptions { segment_rows: 20, ..SaveOptions::new(&fingerprint, policy) };
    let mut bytes = Vec::new();
    block_on(save_sequence(&mut sim.sequence, &options, &content, &mut bytes))
        .expect("memory takes all");
    bytes
}

/// Adds to a file what a sequence has and the file has not; `false` where it has to be written as a
/// whole.
pub fn append<B: Backend>(sim: &mut Sim<B>, policy: &PolicyOptions, file: &mut Vec<u8>) -> bool {
    let (fingerprint, content) = (fingerprint(), content(sim.n_tokens()));
    let options = SaveOptions { segment_rows: 20, ..SaveOptions::new(&fingerprint, policy) };
    let (source, mut more) = (file.clone(), Vec::new());
    let opened = SessionFile::open(&source).expect("a session");
    let at = opened.append_at().expect("a version that is appended to") as usize;
    let appended = append_sequence(&mut sim.sequence, &options, &content, &opened, &mut more);
    let appended = block_on(appended).expect("memory takes all");
    assert!(appended || more.is_empty(), "nothing is written in vain");
    file.truncate(at);
    file.extend(more);
    appended
}

/// Opens a file as the engine does.
pub fn open<B: Backend>(
    source: &dyn RangeSource,
    backend: &Arc<B>,
    shape: KvShape,
    policy: Option<&PolicyOptions>,
    options: SequenceOptions,
) -> Result<(Sequence<B>, SessionContent), SchedulerError> {
    let file = SessionFile::open(source)?;
    let header = file.header();
    header.check(&fingerprint(), &shape)?;
    let policy = match policy {
        Some(policy) => Policy::resolve(policy, shape.capacity)?,
        None => Policy::resolve(&header.policy_options()?, header.context)?,
    };
    let mut file = file.read()?;
    let content = file.content()?;
    Ok((block_on(restore_sequence(backend, shape, policy, options, &mut file))?, content))
}
