//! Decode over long contexts, measured: recall against full attention, on shapes of published
//! models, and at a million tokens.
//!
//! Weights are random and keys and values injected, because speed does not depend on them
//! (clusterable keys: drawn around directions, as real ones are). Prints what a step costs and the
//! share of the device's memory bandwidth that it reaches. Run by `cargo xtask bench decode`.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use longview_core::quant::QuantType;
use longview_core::{DType, LayerId, SplitMix64};
use longview_cpu::CpuBackend;
use longview_cuda::CudaBackend;
use longview_engine::{Engine, EngineOptions, KvResidency, Session, SessionStep};
use longview_model::folder::ModelFolder;
use longview_ops::{Backend, OpError, View, ViewMut};
use longview_scheduler::{
    KvShape, LayerTensors, Placement, Policy, PolicyOptions, Preset, Sequence, SequenceOptions,
    SpanMode, Stats, Step, StepScratch, StepSpan,
};
use longview_wgpu::WgpuBackend;
use pollster::block_on;

use super::harness::Bench;
use super::limits::copy_gbps;
use super::random_model::{Dims, LLAMA_1B_4_LAYERS, LLAMA_8B, QWEN_05B, RandomFolder};
use super::request::{Device, Request};

/// What can be asked for.
pub const USAGE: &str = "[attention] [qwen] [million] [llama] [prefill] [--layers N] [--weights \
                         QUANTISED] [--kv-type f16|q8] [--kv-residency host|device] \
                         [--chunk-size N] [--repeat N] [--policy clusterkv|full] [--device cpu|wgpu|cuda] [options of the device]";

/// Parts by name; without any all but the last two: the one takes 50 GB of host memory, the other
/// is about prompts.
const PARTS: [&str; 5] = ["attention", "qwen", "million", "llama", "prefill"];

const STEPS: usize = 40;

/// The parts that are measured, and where.
pub struct DecodeRequest {
    parts: Vec<String>,
    device: Device,
    stored: Stored,
}

/// How the models are stored, and how much of them is run.
#[derive(Clone, Copy, Default)]
struct Stored {
    /// Only so many layers.
    layers: Option<usize>,
    /// Of the matrices; bf16 without.
    weights: Option<QuantType>,
    /// Rows of 8 bits; f16 without.
    is_kv8: bool,
    /// Where rows of layers that recall lie.
    kv_residency: KvResidency,
    /// Prompt tokens computed at a time.
    chunk: Option<usize>,
    /// How often a decoded token comes in a row; once without. Queries of random weights have
    /// nothing in common from token to token, so that nearly nothing is recalled twice; of repeated
    /// tokens all but the first hit, as neighbours in text do.
    repeat: Option<usize>,
    /// Only this policy, where several are compared.
    policy: Option<Preset>,
}

impl Stored {
    /// Takes what it knows out of the arguments.
    fn take(args: Vec<String>) -> Result<(Self, Vec<String>)> {
        let (mut stored, mut rest) = (Self::default(), Vec::new());
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let known = [
                "--layers",
                "--weights",
                "--kv-type",
                "--kv-residency",
                "--chunk-size",
                "--repeat",
                "--policy",
            ];
            if !known.contains(&arg.as_str()) {
                rest.push(arg);
                continue;
            }
            let value = args.next().with_context(|| format!("{arg} needs a value"))?;
            match (arg.as_str(), value.as_str()) {
                ("--layers", n) => stored.layers = Some(n.parse().context("--layers")?),
                ("--weights", name) => stored.weights = Some(name.parse()?),
                ("--policy", "clusterkv") => stored.policy = Some(Preset::Clusterkv),
                ("--policy", "full") => stored.policy = Some(Preset::Full),
                ("--policy", other) => bail!("--policy {other}: use clusterkv or full"),
                ("--repeat", n) => stored.repeat = Some(n.parse().context("--repeat")?),
                ("--chunk-size", n) => stored.chunk = Some(n.parse().context("--chunk-size")?),
                ("--kv-residency", "host") => stored.kv_residency = KvResidency::Host,
                ("--kv-residency", "device") => stored.kv_residency = KvResidency::Device,
                ("--kv-residency", other) => bail!("--kv-residency {other}: use host or device"),
                (_, "f16") => stored.is_kv8 = false,
                (_, "q8") => stored.is_kv8 = true,
                (_, other) => bail!("--kv-type {other}: use f16 or q8"),
            }
        }
        Ok((stored, rest))
    }

    /// A shape with so many layers as are asked for.
    fn dims(&self, dims: &Dims) -> Dims {
        Dims { n_layers: self.layers.unwrap_or(dims.n_layers), ..*dims }
    }

    /// The folder's model, stored so.
    fn model(&self, folder: &RandomFolder) -> Result<ModelFolder> {
        let mut model = ModelFolder::open(&folder.path)?;
        if let Some(ty) = self.weights {
            model.tensors.quantize(&model.config, ty)?;
        }
        Ok(model)
    }

    /// What an engine is told of it.
    fn options(&self, ctx_size: usize) -> EngineOptions {
        let defaults = EngineOptions::default();
        let kv_dtype = if self.is_kv8 { DType::Q8 } else { defaults.kv_dtype };
        let chunk_size = self.chunk.unwrap_or(defaults.chunk_size);
        EngineOptions {
            ctx_size,
            kv_dtype,
            chunk_size,
            kv_residency: self.kv_residency,
            ..defaults
        }
    }

    /// In words.
    fn words(&self) -> String {
        let weights = self.weights.map_or("bf16", QuantType::name);
        let rows = if self.is_kv8 { "q8" } else { "f16" };
        let all = if self.kv_residency == KvResidency::Device { ", all on the device" } else { "" };
        format!("{weights} weights, {rows} rows{all}")
    }
}

impl DecodeRequest {
    /// Reads what follows the program's name.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let args = args.into_iter().filter(|arg| arg != "--bench");
        let (mut parts, options): (Vec<_>, Vec<_>) =
            args.partition(|arg| PARTS.contains(&arg.as_str()));
        let (stored, mut options) = Stored::take(options)?;
        if !options.iter().any(|option| option.starts_with("--device")) {
            options.extend(["--device".into(), "cpu".into()]);
        }
        let Request { device, filter, quick } = Request::parse(options)?;
        ensure!(filter.is_empty() && !quick, "--filter and --quick are for the bench of ops");
        if parts.is_empty() {
            parts = PARTS[..3].iter().map(|part| (*part).to_owned()).collect();
        }
        Ok(Self { parts, device, stored })
    }
}

/// Opens the device and measures.
pub fn decode(request: &DecodeRequest, out: &mut dyn Write) -> Result<()> {
    match &request.device {
        Device::Cpu(options) => on(&Arc::new(CpuBackend::new(*options)?), request, out),
        Device::Wgpu(options) => on(&Arc::new(block_on(WgpuBackend::new(options))?), request, out),
        Device::Cuda(options) => on(&Arc::new(block_on(CudaBackend::new(options))?), request, out),
    }
}

/// Where the numbers come from and go to.
struct Measure<'a, B: Backend> {
    backend: &'a Arc<B>,
    /// Of the device's memory, in GB/s.
    bandwidth: f64,
    stored: Stored,
    out: &'a mut dyn Write,
}

fn on<B: Backend>(backend: &Arc<B>, request: &DecodeRequest, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}", backend.capabilities().device)?;
    let bandwidth = if backend.capabilities().unified_memory {
        let bandwidth = streaming_read_gb_s();
        writeln!(out, "streaming read, 2 GiB, all cores: {bandwidth:.1} GB/s")?;
        bandwidth
    } else {
        let (bandwidth, bytes) = copy_gbps(&mut Bench::new(&**backend, "", false)?)?;
        let size = bytes >> 20;
        writeln!(out, "copy, {size} MiB, read and written: {bandwidth:.1} GB/s")?;
        bandwidth
    };
    let mut measure = Measure { backend, bandwidth, stored: request.stored, out };
    for part in &request.parts {
        match part.as_str() {
            "attention" => measure.compare(&LLAMA_1B_4_LAYERS, &[4096, 32_768], 1024)?,
            "qwen" => measure.compare(&QWEN_05B, &[4096, 32_768], 1024)?,
            "llama" => measure.compare(&LLAMA_8B, &[131_072], 2048)?,
            "prefill" => measure.prefill(&LLAMA_8B, &[512, 4096, 32_768])?,
            _ => measure.million()?,
        }
        measure.out.flush()?;
    }
    Ok(())
}

/// The best of several passes over memory that no cache holds.
fn streaming_read_gb_s() -> f64 {
    let data = vec![1u64; 1 << 28];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pass = || {
        let start = Instant::now();
        let sum: u64 = std::thread::scope(|scope| {
            let parts = data.chunks(data.len() / cores);
            let sum = |part: &[u64]| part.iter().fold(0u64, |a, b| a.wrapping_add(*b));
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || sum(part))).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).sum()
        });
        assert_eq!(sum, 1 << 28);
        (data.len() * 8) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}

struct Measured {
    step: Duration,
    stats: Stats,
    hit: String,
}

impl Measured {
    /// Time in selection, recall and attention of one step, as the host sees it: a device goes on
    /// behind it.
    fn attention(&self) -> Duration {
        (self.stats.select + self.stats.fetch + self.stats.attend) / self.stats.steps as u32
    }
}

/// A model of random weights with what is said of it.
struct Subject<'a> {
    dims: &'a Dims,
    weight_bytes: u64,
    budget: usize,
}

impl<B: Backend> Measure<'_, B> {
    /// Recall with `budget` tokens against full attention over contexts.
    fn compare(&mut self, dims: &Dims, contexts: &[usize], budget: usize) -> Result<()> {
        let stored = self.stored;
        let dims = &stored.dims(dims);
        let folder = RandomFolder::new(dims).context("the folder of random weights")?;
        let first = stored.model(&folder)?;
        let weight_bytes = first.tensors.file_bytes(&first.config);
        let mut first = Some(first);
        let subject = Subject { dims, weight_bytes, budget };
        writeln!(
            self.out,
            "\n{}, {} layers: {:.0} MB, {}\n  context  policy     budget  ms/step  of \
             which attention  select  fetch  hit rate  GB/s  share",
            dims.name,
            dims.n_layers,
            weight_bytes as f64 / 1e6,
            stored.words()
        )?;
        let clusterkv = PolicyOptions::new(Preset::Clusterkv).with_budget(budget);
        let full = PolicyOptions::new(Preset::Full);
        let mut nowhere_dense = clusterkv.clone();
        nowhere_dense.dense_layers = Some(0);
        let mut results = Vec::new();
        for context in contexts {
            let options = stored.options(context + 256);
            let model = first.take().map_or_else(|| stored.model(&folder), Ok)?;
            // Recall needs less than full attention, which may not fit.
            let mut engine = Engine::load(Arc::clone(self.backend), model, options, &clusterkv)?;
            let mut session = engine.session(&clusterkv)?;
            let ids: Vec<u32> = (0..*context as u32).map(|i| i % dims.vocab as u32).collect();
            block_on(session.inject(&ids, &mut |l, h, first, rows| {
                clusterable(dims.head_dim, l.index() * 64 + h.index(), first, rows);
            }))?;
            let all = [&clusterkv, &full, &nowhere_dense];
            let alone = match stored.policy {
                Some(Preset::Full) => &all[1..2],
                Some(_) => &all[..1],
                None => &all,
            };
            for policy in alone {
                block_on(session.set_policy(policy))?;
                let measured = measure(&mut engine, &mut session, *context, stored)?;
                self.report(&subject, *context, &measured, policy)?;
                results.push(measured);
            }
        }
        writeln!(
            self.out,
            "  * no dense layers; models of 16 layers and more have 2 unless told otherwise"
        )?;
        if stored.policy.is_some() {
            return Ok(());
        }
        self.conclude(contexts, &results)
    }

    /// Prompts of so many tokens, each read by a session of its own under full attention.
    fn prefill(&mut self, dims: &Dims, lengths: &[usize]) -> Result<()> {
        let stored = self.stored;
        let dims = &stored.dims(dims);
        let folder = RandomFolder::new(dims).context("the folder of random weights")?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let options = stored.options(longest + 256);
        let (name, n, chunk) = (dims.name, dims.n_layers, options.chunk_size);
        let words = stored.words();
        writeln!(self.out, "\n{name}, {n} layers: {words}, prompts in chunks of {chunk}")?;
        let full = PolicyOptions::new(Preset::Full);
        let model = stored.model(&folder)?;
        let mut engine = Engine::load(Arc::clone(self.backend), model, options, &full)?;
        for length in lengths {
            let ids: Vec<u32> = (0..*length as u32).map(|i| i % dims.vocab as u32).collect();
            let mut best = Duration::MAX;
            for _ in 0..2 {
                let mut session = engine.session(&full)?;
                let start = Instant::now();
                let mut go_on = |_| ControlFlow::Continue(());
                block_on(engine.prefill(&mut session, &ids, &mut go_on))?;
                best = best.min(start.elapsed());
            }
            let seconds = best.as_secs_f64();
            let speed = *length as f64 / seconds;
            writeln!(self.out, "  {length:>7} tokens: {seconds:>7.3} s, {speed:>7.0} tokens/s")?;
            self.out.flush()?;
        }
        Ok(())
    }

    fn report(
        &mut self,
        subject: &Subject<'_>,
        context: usize,
        m: &Measured,
        policy: &PolicyOptions,
    ) -> Result<()> {
        let Subject { dims, weight_bytes, budget } = subject;
        let steps = m.stats.steps;
        let row = 2 * dims.head_dim as u64 * 2;
        let clusters = if policy.preset == Preset::Clusterkv { context / 16 } else { 0 };
        let index = dims.n_layers * dims.n_kv_heads * clusters * dims.head_dim * 2;
        let bytes = weight_bytes + m.stats.attended_rows / steps * row + index as u64;
        let gb_s = bytes as f64 / m.step.as_secs_f64() / 1e9;
        let ms = |d: Duration| d.as_secs_f64() * 1e3 / steps as f64;
        let budget = match (clusters, policy.dense_layers) {
            (0, _) => "all".to_owned(),
            (_, None) => budget.to_string(),
            (_, Some(_)) => format!("{budget}*"),
        };
        writeln!(
            self.out,
            "  {context:>7}  {:<9}  {budget:>6}  {:>7.2}  {:>18.2}  {:>6.2}  {:>5.2}  {:>8}  \
             {gb_s:>4.1}  {:>4.0}%",
            policy.preset.name(),
            m.step.as_secs_f64() * 1e3,
            m.attention().as_secs_f64() * 1e3,
            ms(m.stats.select),
            ms(m.stats.fetch),
            m.hit,
            100.0 * gb_s / self.bandwidth,
        )?;
        Ok(self.out.flush()?)
    }

    /// What recall gains at the longest context, and loses from the shortest to it.
    fn conclude(&mut self, contexts: &[usize], results: &[Measured]) -> Result<()> {
        let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        let long = &results[results.len() - 3..];
        write!(
            self.out,
            "  at {}K recall is {:.2} x as fast as full attention (attention alone {:.2} x)",
            contexts[contexts.len() - 1] / 1024,
            ratio(long[1].step, long[0].step),
            ratio(long[1].attention(), long[0].attention()),
        )?;
        if contexts.len() > 1 {
            write!(
                self.out,
                ", and takes {:.2} x its time at {}K ({:.2} x without dense layers)",
                ratio(long[0].step, results[0].step),
                contexts[0] / 1024,
                ratio(long[2].step, results[2].step),
            )?;
        }
        Ok(writeln!(self.out)?)
    }

    /// A million tokens of 4 layers x 2 KV heads x 64: building the index, then decoding.
    fn million(&mut self) -> Result<()> {
        let n = 1_000_000;
        let shape = KvShape {
            n_layers: 4,
            n_q_heads: 8,
            n_kv_heads: 2,
            head_dim: 64,
            kv_dtype: DType::F16,
            host_rows: longview_scheduler::HostRows::default(),
            capacity: n + 1000,
            scale: 0.125,
            inv_freq: [].into(),
            windows: [].into(),
        };
        let policy = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
        let policy = Policy::resolve(&policy, shape.capacity)?;
        let unified = self.backend.capabilities().unified_memory;
        let options = SequenceOptions {
            placement: if unified { Placement::InPlace } else { Placement::Device },
            device_cache: !unified,
            chunk: 4096,
            ..SequenceOptions::default()
        };
        let mut sequence = Sequence::new(self.backend, shape.clone(), policy, options)?;
        writeln!(
            self.out,
            "\n1,000,000 tokens, 4 layers x 2 KV heads x 64, f16 rows, B = 1024, clusters of 16"
        )?;
        let start = Instant::now();
        block_on(sequence.inject(n, &mut |l, h, first, rows| {
            clusterable(64, l.index() * 64 + h.index(), first, rows)
        }))?;
        block_on(sequence.finish_prefill())?;
        let clusters =
            sequence.layers()[0].recall().context("no index")?.index.heads()[0].sizes.len();
        writeln!(
            self.out,
            "  injected and indexed in {:.1} s, {clusters} clusters a head\n  host rows {:.2} GB, \
             on the device {:.1} MB",
            start.elapsed().as_secs_f64(),
            gb(sequence.host_kv_bytes()),
            gb(sequence.device_kv_bytes()) * 1e3
        )?;
        let mut attention = Attention::new(self.backend, &shape, &options)?;
        let (mut elapsed, n_steps) = (Duration::ZERO, 20);
        for _ in 0..2 {
            sequence.reset_stats();
            let start = Instant::now();
            (0..n_steps).try_for_each(|_| attention.step(&mut sequence))?;
            elapsed = start.elapsed() / n_steps;
        }
        let stats = sequence.stats();
        let per_step = |d: Duration| d.as_secs_f64() * 1e3 / stats.steps as f64;
        writeln!(
            self.out,
            "  attention of a step, all layers: {:.2} ms: select {:.2}, list {:.2}, attend {:.2}; \
             centroids are {:.1} MB\n  peak memory of the process {:.2} GB",
            elapsed.as_secs_f64() * 1e3,
            per_step(stats.select),
            per_step(stats.fetch),
            per_step(stats.attend),
            (clusters * 2 * 4 * 64 * 2) as f64 / 1e6,
            peak_memory_gb()
        )?;
        Ok(())
    }
}

/// Keys around 256 directions, which change slowly along the text. `seed` tells the KV heads of a
/// model apart.
pub(super) fn clusterable(head_dim: usize, seed: usize, first_row: usize, rows: &mut [f32]) {
    let width = 2 * head_dim;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let each = (rows.len() / width).div_ceil(cores).max(64);
    std::thread::scope(|scope| {
        for (i, part) in rows.chunks_mut(each * width).enumerate() {
            scope.spawn(move || clusterable_rows(width, seed, first_row + i * each, part));
        }
    });
}

fn clusterable_rows(width: usize, seed: usize, first_row: usize, rows: &mut [f32]) {
    let mut direction = Vec::with_capacity(width);
    for (position, row) in (first_row..).zip(rows.chunks_exact_mut(width)) {
        if direction.is_empty() || position % 40 == 0 {
            let topic = SplitMix64::new((position / 40) as u64 ^ (seed as u64) << 32).below(256);
            let mut numbers = SplitMix64::new((topic + 1000 * seed) as u64);
            direction = (0..width).map(|_| numbers.next_f32() * 4.0 - 2.0).collect();
        }
        let mut noise = SplitMix64::new(position as u64 * 7919 + seed as u64);
        for (x, centre) in row.iter_mut().zip(&direction) {
            *x = centre + noise.next_f32() - 0.5;
        }
    }
}

/// The mean step over [`STEPS`] after a warm-up; the session is cut back afterwards.
fn measure<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    context: usize,
    stored: Stored,
) -> Result<Measured> {
    let repeat = stored.repeat.unwrap_or(1).max(1);
    let mut best = Duration::MAX;
    let mut stats = None;
    for _ in 0..3 {
        block_on(session.truncate(context))?;
        for warm in [true, false] {
            session.reset_stats();
            let start = Instant::now();
            let n = if warm { 8 } else { STEPS };
            for i in 0..n {
                let ids = [(i / repeat) as u32 % 500];
                let part = SessionStep::new(session, &ids, SpanMode::Policy);
                block_on(engine.step(&mut [part]))?;
            }
            let step = start.elapsed() / n as u32;
            if !warm && step < best {
                best = step;
                stats = Some(session.stats().clone());
            }
        }
    }
    let stats = stats.context("nothing was measured")?;
    let hit = stats.hit_rate().map_or("in place".into(), |h| format!("{:.0}%", 100.0 * h));
    Ok(Measured { step: best, stats, hit })
}

/// Steps of attention alone, with buffers made once.
struct Attention<B: Backend> {
    backend: Arc<B>,
    scratch: StepScratch<B>,
    /// Queries, keys, values and results of a token.
    tensors: [B::Buffer; 4],
    n_layers: usize,
}

impl<B: Backend> Attention<B> {
    fn new(backend: &Arc<B>, shape: &KvShape, options: &SequenceOptions) -> Result<Self> {
        let SequenceOptions { tile, placement, .. } = *options;
        let (q, kv) = (shape.n_q_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim);
        let mut rng = SplitMix64::new(3);
        let mut tensor = |n: usize| {
            let values: Vec<f32> = (0..n).map(|_| rng.next_normal()).collect();
            let mut buffer = backend.alloc(DType::F32, n, "a token")?;
            backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(&values))?;
            Ok::<_, OpError>(buffer)
        };
        Ok(Self {
            backend: Arc::clone(backend),
            scratch: StepScratch::new(&**backend, shape, 1, tile, placement)?,
            tensors: [tensor(q)?, tensor(kv)?, tensor(kv)?, tensor(q)?],
            n_layers: shape.n_layers,
        })
    }

    /// All layers of a token, waited for.
    fn step(&mut self, sequence: &mut Sequence<B>) -> Result<()> {
        let spans =
            &mut [StepSpan { sequence, start: 0, len: 1, mode: SpanMode::Policy, is_read: true }];
        let mut step = Step { spans, scratch: &mut self.scratch };
        let [q, k, v, out] = &mut self.tensors;
        for layer in (0..self.n_layers).map(LayerId::new) {
            let tensors = LayerTensors {
                q: View::all(q),
                k: View::all(k),
                v: View::all(v),
                out: ViewMut::all(out),
            };
            block_on(step.attend(layer, tensors))?;
        }
        step.finish();
        Ok(block_on(self.backend.read(View::part(out, 0, 1), &mut [0; 4]))?)
    }
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// The high-water mark of resident memory, where the system tells.
fn peak_memory_gb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    let kb: f64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
    kb * 1024.0 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<DecodeRequest> {
        DecodeRequest::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn parts_and_devices_come_in_any_order() {
        let request = parse("--bench").unwrap();
        assert_eq!(request.parts, PARTS[..3]);
        assert!(matches!(request.device, Device::Cpu(_)));
        let request = parse("--device cuda llama --cuda-device 1").unwrap();
        assert_eq!(request.parts, ["llama"]);
        assert!(matches!(request.device, Device::Cuda(options) if options.device == Some(1)));
        assert!(parse("--device tpu").is_err() && parse("mistral").is_err());
        assert!(parse("--quick").is_err());
    }

    #[test]
    fn models_are_stored_as_it_is_asked() {
        let plain = parse("").unwrap();
        assert_eq!(plain.parts, PARTS[..3]);
        assert_eq!(plain.stored.words(), "bf16 weights, f16 rows");
        let line = "llama --layers 8 --weights q4_k --kv-type q8 --chunk-size 2048 --repeat 3 \
                    --device cuda";
        let DecodeRequest { parts, device, stored } = parse(line).unwrap();
        assert!(parts == ["llama"] && matches!(device, Device::Cuda(_)));
        assert_eq!(stored.words(), "q4_k weights, q8 rows");
        assert_eq!(stored.dims(&LLAMA_8B).n_layers, 8);
        let options = stored.options(100);
        assert_eq!((options.kv_dtype, options.chunk_size), (DType::Q8, 2048));
        assert_eq!(stored.repeat, Some(3));
    }

    #[test]
    fn mistakes_are_named() {
        let message = |line| format!("{:#}", parse(line).err().expect("a mistake"));
        assert_eq!(message("--policy quest"), "--policy quest: use clusterkv or full");
        assert_eq!(message("--layers"), "--layers needs a value");
        assert!(message("--layers x").starts_with("--layers: "));
        assert!(message("--weights q9").starts_with("unknown quantised type 'q9'"));
        assert_eq!(message("--kv-type f64"), "--kv-type f64: use f16 or q8");
        assert_eq!(message("--fast"), "unknown argument '--fast'");
    }
}
