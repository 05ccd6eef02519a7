//! Decode over long contexts, measured: recall against full attention, on shapes of published
//! models, and at a million tokens.
//!
//! Weights are random and keys and values injected, because speed does not depend on them
//! (clusterable keys: drawn around directions, as real ones are). Prints what a step costs and the
//! share of the memory bandwidth of this machine that it reaches. Run by `cargo xtask bench decode
//! [attention|qwen|million]`.
#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longview_core::{DType, SplitMix64};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, Session, SessionStep};
use longview_model::folder::ModelFolder;
use longview_scheduler::{
    KvShape, Policy, PolicyOptions, Preset, Sequence, SequenceOptions, SpanMode, Stats,
};
use longview_tests::sim::{attend, token_data};
use pollster::block_on;

/// A model's dimensions.
#[derive(Clone, Copy)]
struct Dims {
    name: &'static str,
    n_layers: usize,
    hidden: usize,
    n_q_heads: usize,
    n_kv_heads: usize,
    ffn: usize,
    vocab: usize,
}

const LLAMA_1B_4_LAYERS: Dims = Dims {
    name: "4 layers of Llama-3.2-1B",
    n_layers: 4,
    hidden: 2048,
    n_q_heads: 32,
    n_kv_heads: 8,
    ffn: 8192,
    vocab: 1024,
};

const QWEN_05B: Dims = Dims {
    name: "Qwen2.5-0.5B",
    n_layers: 24,
    hidden: 896,
    n_q_heads: 14,
    n_kv_heads: 2,
    ffn: 4864,
    vocab: 151_936,
};

const STEPS: usize = 40;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wants = |name: &str| chosen.is_empty() || chosen.iter().any(|c| c == name);
    let bandwidth = streaming_read_gb_s();
    println!("streaming read, 2 GiB, all cores: {bandwidth:.1} GB/s");
    if wants("attention") {
        compare(&LLAMA_1B_4_LAYERS, bandwidth);
    }
    if wants("qwen") {
        compare(&QWEN_05B, bandwidth);
    }
    if wants("million") {
        million();
    }
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
    /// Time in selection, recall and attention of one step.
    fn attention(&self) -> Duration {
        (self.stats.select + self.stats.fetch + self.stats.attend) / self.stats.steps as u32
    }
}

/// Full attention and recall at 4K and 32K.
fn compare(dims: &Dims, bandwidth: f64) {
    let folder = RandomFolder::new(dims);
    let weights = ModelFolder::open(&folder.path).expect("a sound folder");
    let weight_bytes = weights.tensors.weight_bytes(&weights.config);
    drop(weights);
    println!("\n{}: {:.0} MB of bf16 weights, f16 rows", dims.name, weight_bytes as f64 / 1e6);
    println!(
        "  context  policy     budget  ms/step  of which attention  select  fetch  hit rate  GB/s  \
         share"
    );
    let clusterkv = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
    let full = PolicyOptions::new(Preset::Full);
    let mut nowhere_dense = clusterkv.clone();
    nowhere_dense.dense_layers = Some(0);
    let mut results = Vec::new();
    for context in [4096, 32_768] {
        let mut engine = load(&folder.path, context + 256);
        let mut session = engine.session(&clusterkv).expect("a session");
        inject(&mut session, context, dims);
        for policy in [&clusterkv, &full, &nowhere_dense] {
            block_on(session.set_policy(policy)).expect("a policy");
            let measured = measure(&mut engine, &mut session, context);
            report(dims, context, &measured, policy, weight_bytes, bandwidth);
            results.push(measured);
        }
    }
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    println!("  * no dense layers; models of 16 layers and more have 2 unless told otherwise");
    let (short, long) = results.split_at(3);
    println!(
        "  at 32K recall is {:.2} x as fast as full attention (attention alone {:.2} x), and takes \
         {:.2} x its time at 4K ({:.2} x without dense layers)",
        ratio(long[1].step, long[0].step),
        ratio(long[1].attention(), long[0].attention()),
        ratio(long[0].step, short[0].step),
        ratio(long[2].step, short[2].step),
    );
}

fn report(
    dims: &Dims,
    context: usize,
    m: &Measured,
    policy: &PolicyOptions,
    weights: u64,
    bandwidth: f64,
) {
    let steps = m.stats.steps;
    let row = 2 * 64 * 2;
    let clusters = if policy.preset == Preset::Clusterkv { context / 16 } else { 0 };
    let index = dims.n_layers * dims.n_kv_heads * clusters * 64 * 2;
    let bytes = weights + m.stats.attended_rows / steps * row + index as u64;
    let gb_s = bytes as f64 / m.step.as_secs_f64() / 1e9;
    let ms = |d: Duration| d.as_secs_f64() * 1e3 / steps as f64;
    println!(
        "  {context:>7}  {:<9}  {:>6}  {:>7.2}  {:>18.2}  {:>6.2}  {:>5.2}  {:>8}  {gb_s:>4.1}  \
         {:>4.0}%",
        policy.preset,
        match (clusters, policy.dense_layers) {
            (0, _) => "all",
            (_, None) => "1024",
            (_, Some(_)) => "1024*",
        },
        m.step.as_secs_f64() * 1e3,
        m.attention().as_secs_f64() * 1e3,
        ms(m.stats.select),
        ms(m.stats.fetch),
        m.hit,
        100.0 * gb_s / bandwidth,
    );
}

fn load(path: &Path, ctx_size: usize) -> Engine<CpuBackend> {
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"));
    let folder = ModelFolder::open(path).expect("a sound folder");
    let options = EngineOptions { ctx_size, ..EngineOptions::default() };
    Engine::load(backend, folder, options, &PolicyOptions::new(Preset::Full)).expect("it loads")
}

fn inject(session: &mut Session<CpuBackend>, n: usize, dims: &Dims) {
    let ids: Vec<u32> = (0..n as u32).map(|i| i % dims.vocab as u32).collect();
    block_on(session.inject(&ids, &mut clusterable)).expect("room");
}

/// Keys around 256 directions, which change slowly along the text.
fn clusterable(layer: usize, head: usize, first_row: usize, rows: &mut [f32]) {
    let width = 128;
    for (i, row) in rows.chunks_exact_mut(width).enumerate() {
        let position = first_row + i;
        let topic =
            SplitMix64::new((position / 40) as u64 ^ ((layer * 64 + head) as u64) << 32).below(256);
        let mut direction = SplitMix64::new((topic + 1000 * (layer * 64 + head)) as u64);
        let mut noise = SplitMix64::new(position as u64 * 7919 + (layer * 64 + head) as u64);
        for x in row {
            *x = direction.next_f32() * 4.0 - 2.0 + noise.next_f32() - 0.5;
        }
    }
}

/// The mean step over [`STEPS`] after a warm-up; the session is cut back afterwards.
fn measure(
    engine: &mut Engine<CpuBackend>,
    session: &mut Session<CpuBackend>,
    context: usize,
) -> Measured {
    let mut best = Duration::MAX;
    let mut stats = None;
    for _ in 0..3 {
        block_on(session.truncate(context)).expect("a cut");
        for warm in [true, false] {
            session.reset_stats();
            let start = Instant::now();
            let n = if warm { 8 } else { STEPS };
            for i in 0..n {
                let ids = [i as u32 % 500];
                let part = SessionStep::new(session, &ids, SpanMode::Policy);
                block_on(engine.step(&mut [part])).expect("a step");
            }
            let step = start.elapsed() / n as u32;
            if !warm && step < best {
                best = step;
                stats = Some(session.stats().clone());
            }
        }
    }
    let stats = stats.expect("measured");
    let hit = stats.hit_rate().map_or("in place".into(), |h| format!("{:.0}%", 100.0 * h));
    Measured { step: best, stats, hit }
}

/// A million tokens of 4 layers x 2 KV heads x 64: building the index, then decoding.
fn million() {
    let n = 1_000_000;
    let shape = KvShape {
        n_layers: 4,
        n_q_heads: 8,
        n_kv_heads: 2,
        head_dim: 64,
        kv_dtype: DType::F16,
        capacity: n + 1000,
        scale: 0.125,
    };
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"));
    let policy = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
    let policy = Policy::resolve(&policy, shape.capacity).expect("a sound policy");
    let options = SequenceOptions { chunk: 4096, ..SequenceOptions::default() };
    let mut sequence = Sequence::new(&backend, shape.clone(), policy, options).expect("memory");
    println!("\n1,000,000 tokens, 4 layers x 2 KV heads x 64, f16 rows, B = 1024, clusters of 16");
    let start = Instant::now();
    block_on(sequence.inject(n, &mut clusterable)).expect("room");
    block_on(sequence.finish_prefill()).expect("clustered");
    let clusters = sequence.layers()[0].index.as_ref().expect("an index").heads()[0].sizes.len();
    println!(
        "  injected and indexed in {:.1} s, {clusters} clusters a head",
        start.elapsed().as_secs_f64()
    );
    println!(
        "  host rows {:.2} GB, index {:.1} MB",
        gb(sequence.host_kv_bytes()),
        gb(sequence.device_kv_bytes()) * 1e3
    );
    let mut scratch =
        longview_scheduler::StepScratch::new(&*backend, &shape, 1, options.tile, options.placement)
            .expect("memory");
    for warm in [true, false] {
        sequence.reset_stats();
        let start = Instant::now();
        for step_index in 0..20 {
            let spans = &mut [longview_scheduler::StepSpan {
                sequence: &mut sequence,
                start: 0,
                len: 1,
                mode: SpanMode::Policy,
            }];
            let mut step = longview_scheduler::Step { spans, scratch: &mut scratch };
            for layer in 0..shape.n_layers {
                let data = token_data(&shape, 3, layer, step_index);
                attend(&*backend, &shape, &mut step, layer, &[data]).expect("attention");
            }
            step.finish();
        }
        let (elapsed, stats) = (start.elapsed() / 20, sequence.stats());
        let per_step = |d: Duration| d.as_secs_f64() * 1e3 / stats.steps as f64;
        if !warm {
            println!(
                "  attention of a step, all layers: {:.2} ms: select {:.2}, list {:.2}, attend \
                 {:.2}; centroids are {:.1} MB",
                elapsed.as_secs_f64() * 1e3,
                per_step(stats.select),
                per_step(stats.fetch),
                per_step(stats.attend),
                (clusters * 2 * 4 * 64 * 2) as f64 / 1e6
            );
        }
    }
    println!("  peak memory of the process {:.2} GB", peak_memory_gb());
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

/// A model folder of random bf16 weights in the system's temporary directory, removed when dropped.
struct RandomFolder {
    path: PathBuf,
}

impl RandomFolder {
    fn new(dims: &Dims) -> Self {
        let path = std::env::temp_dir().join(format!("longview-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        let folder = Self { path };
        let config = format!(
            r#"{{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","hidden_size":{},
            "intermediate_size":{},"num_hidden_layers":{},"num_attention_heads":{},
            "num_key_value_heads":{},"head_dim":64,"vocab_size":{},"rms_norm_eps":1e-6,
            "max_position_embeddings":131072,"rope_theta":1000000.0,
            "tie_word_embeddings":true,"hidden_act":"silu"}}"#,
            dims.hidden, dims.ffn, dims.n_layers, dims.n_q_heads, dims.n_kv_heads, dims.vocab
        );
        std::fs::write(folder.path.join("config.json"), config).expect("room on the disk");
        folder.write_weights(dims);
        folder
    }

    fn write_weights(&self, dims: &Dims) {
        let tensors = tensor_shapes(dims);
        let (mut header, mut offset) = (String::from("{"), 0);
        for (i, (name, shape)) in tensors.iter().enumerate() {
            let bytes = shape.iter().product::<usize>() * 2;
            let comma = if i > 0 { "," } else { "" };
            let end = offset + bytes;
            header += &format!(
                r#"{comma}"{name}":{{"dtype":"BF16","shape":{shape:?},
                "data_offsets":[{offset},{end}]}}"#
            );
            offset = end;
        }
        header.push('}');
        while header.len() % 8 != 0 {
            header.push(' ');
        }
        let file =
            std::fs::File::create(self.path.join("model.safetensors")).expect("room on the disk");
        let mut file = std::io::BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes()).expect("room on the disk");
        file.write_all(header.as_bytes()).expect("room on the disk");
        let mut rng = SplitMix64::new(1);
        let block: Vec<f32> = (0..1 << 20).map(|_| 0.02 * rng.next_normal()).collect();
        let block = longview_core::encode_f32(DType::BF16, &block);
        let mut left = offset;
        while left > 0 {
            let n = left.min(block.len());
            file.write_all(&block[..n]).expect("room on the disk");
            left -= n;
        }
    }
}

impl Drop for RandomFolder {
    fn drop(&mut self) {
        // A leftover in the temporary directory is not worth a panic.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn tensor_shapes(dims: &Dims) -> Vec<(String, Vec<usize>)> {
    let (d, f) = (dims.hidden, dims.ffn);
    let (q, kv) = (dims.n_q_heads * 64, dims.n_kv_heads * 64);
    let mut list = vec![
        ("model.embed_tokens.weight".to_owned(), vec![dims.vocab, d]),
        ("model.norm.weight".to_owned(), vec![d]),
    ];
    for i in 0..dims.n_layers {
        let parts: [(&str, Vec<usize>); 12] = [
            ("input_layernorm.weight", vec![d]),
            ("post_attention_layernorm.weight", vec![d]),
            ("self_attn.q_proj.weight", vec![q, d]),
            ("self_attn.q_proj.bias", vec![q]),
            ("self_attn.k_proj.weight", vec![kv, d]),
            ("self_attn.k_proj.bias", vec![kv]),
            ("self_attn.v_proj.weight", vec![kv, d]),
            ("self_attn.v_proj.bias", vec![kv]),
            ("self_attn.o_proj.weight", vec![d, q]),
            ("mlp.gate_proj.weight", vec![f, d]),
            ("mlp.up_proj.weight", vec![f, d]),
            ("mlp.down_proj.weight", vec![d, f]),
        ];
        let named =
            parts.into_iter().map(|(name, shape)| (format!("model.layers.{i}.{name}"), shape));
        list.extend(named);
    }
    list
}
