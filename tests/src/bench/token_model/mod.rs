//! What a decoded token takes on GPUs that are not here, from the launches that are really made.
//!
//! `trace` records the commands of a token of Llama-3.1-8B's shape with four layers, `work` tells
//! from their arguments what they read and write, `time` makes time of it with the constants of
//! `gpu`. Layers beyond four are as the last one. Nothing of it was measured on a GPU.

mod gpu;
mod time;
mod trace;
mod work;
mod zeros;

use std::io::Write;

use anyhow::{Result, ensure};
use longview_core::DType;
use longview_core::quant::QuantType;
use longview_cuda_emulation::EmulatedOptions;
use longview_engine::KvResidency;
use longview_scheduler::{PolicyOptions, Preset};

use self::gpu::{CONSTANTS, GPUS, Gpu};
use self::time::{Model, Parts};
use super::random_model::{Dims, LLAMA_8B};

pub use self::trace::{Setup, Trace, Traces};
pub use self::work::Launch;

const CONTEXT: usize = 131_072;
const BUDGET: usize = 2048;
const CLUSTER_TOKENS: usize = 16;
/// As the presets for such models have them.
const DENSE_LAYERS: usize = 2;
/// Two of these attend everything, two recall.
const TRACED_LAYERS: usize = 4;

/// Goals for Q4_K weights and rows of 8 bits, in tokens a second.
const GOALS: &[(&str, f64)] = &[("RTX 4090", 110.0), ("H100 SXM", 150.0)];

/// How the model is stored.
#[derive(Clone, Copy)]
struct Stored {
    name: &'static str,
    quantised: Option<QuantType>,
    kv_dtype: DType,
    kv_residency: KvResidency,
}

impl Stored {
    const fn new(name: &'static str, quantised: Option<QuantType>, kv_dtype: DType) -> Self {
        Self { name, quantised, kv_dtype, kv_residency: KvResidency::Host }
    }

    /// All rows on the device.
    const fn resident(self) -> Self {
        Self { kv_residency: KvResidency::Device, ..self }
    }

    fn small(self, runs_kernels: bool) -> Setup {
        let Self { quantised, kv_dtype, kv_residency, .. } = self;
        Setup { kv_residency, ..small(quantised.is_some(), kv_dtype, runs_kernels) }
    }
}

const STORED: [Stored; 4] = [
    Stored::new("bf16, f16 rows", None, DType::F16),
    Stored::new("Q4_K, f16 rows", Some(QuantType::Q4K), DType::F16),
    Stored::new("Q4_K, f16 on device", Some(QuantType::Q4K), DType::F16).resident(),
    Stored::new("Q4_K, q8 rows", Some(QuantType::Q4K), DType::Q8),
];

fn setup(gpu: &Gpu, stored: Stored) -> Setup {
    let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(BUDGET);
    policy.dense_layers = Some(DENSE_LAYERS);
    policy.cluster_tokens = Some(CLUSTER_TOKENS);
    Setup {
        dims: Dims { n_layers: TRACED_LAYERS, has_bias: false, ..LLAMA_8B },
        quantised: stored.quantised,
        kv_dtype: stored.kv_dtype,
        kv_residency: stored.kv_residency,
        context: CONTEXT,
        chunk: 4096,
        policy,
        budget: BUDGET,
        cluster_tokens: CLUSTER_TOKENS,
        device: EmulatedOptions {
            runs_kernels: false,
            memory_bytes: gpu.memory_bytes,
            n_multiprocessors: gpu.n_multiprocessors,
            compute_capability: gpu.compute_capability,
            ..EmulatedOptions::default()
        },
    }
}

/// A model of the same heads and layers that is small enough to be computed on the emulated device,
/// with rows and matrices in the same kind of storage; of blocks, if `quantised`.
pub fn small(quantised: bool, kv_dtype: DType, runs_kernels: bool) -> Setup {
    let mut policy = PolicyOptions::new(Preset::Clusterkv).with_budget(128);
    policy.dense_layers = Some(DENSE_LAYERS);
    (policy.sinks, policy.recent) = (Some(4), Some(8));
    (policy.window, policy.cluster_segment, policy.cluster_tokens) = (Some(64), Some(64), Some(8));
    Setup {
        dims: Dims {
            name: "Llama-3.1-8B, small",
            n_layers: TRACED_LAYERS,
            has_bias: false,
            // Rows are whole blocks of 256.
            hidden: 512,
            head_dim: 16,
            ffn: 256,
            vocab: 64,
            ..LLAMA_8B
        },
        quantised: quantised.then_some(QuantType::Q4K),
        kv_dtype,
        kv_residency: KvResidency::Host,
        context: 400,
        chunk: 64,
        policy,
        budget: 128,
        cluster_tokens: 8,
        device: EmulatedOptions { runs_kernels, ..EmulatedOptions::default() },
    }
}

/// Records the launches, and holds them against those of the small model, whose kernels run.
fn traces(gpu: &Gpu, stored: Stored) -> Result<Traces> {
    let large = Traces::record(&setup(gpu, stored))?;
    let computed = Traces::record(&stored.small(true))?;
    for (large, computed) in [(&large.fused, &computed.fused), (&large.single, &computed.single)] {
        let [large, computed] = [large, computed].map(Trace::files);
        ensure!(large == computed, "{large:?} is not what was computed: {computed:?}");
    }
    Ok(large)
}

/// Prints the model for every GPU.
///
/// # Errors
/// If the launches cannot be recorded, or `out` takes nothing.
pub(super) fn tokens(out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\na decoded token by its launches: Llama-3.1-8B's shape, {CONTEXT} tokens, ClusterKV with \
         B = {BUDGET},\nclusters of {CLUSTER_TOKENS}, {DENSE_LAYERS} layers that attend \
         everything; recorded with {TRACED_LAYERS} layers on the emulated device, scaled to {}",
        LLAMA_8B.n_layers,
    )?;
    writeln!(out, "{CONSTANTS:?}")?;
    let mut known: Vec<((u32, u32), Vec<Traces>)> = Vec::new();
    for gpu in &GPUS {
        // H100 and H200 get the same launches.
        let found = known.iter().position(|(capability, _)| *capability == gpu.compute_capability);
        let at = match found {
            Some(at) => at,
            None => {
                let traces = STORED.iter().map(|stored| traces(gpu, *stored));
                known.push((gpu.compute_capability, traces.collect::<Result<_>>()?));
                known.len() - 1
            }
        };
        of_gpu(gpu, &known[at].1, out)?;
        out.flush()?;
    }
    Ok(())
}

fn of_gpu(gpu: &Gpu, traces: &[Traces], out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{gpu:?}\n")?;
    let names: String = Parts::NAMES.iter().map(|name| format!("{name:>10}")).collect();
    writeln!(out, "{:<44}{:>9}{:>8}{names}   (ms)", "", "tokens/s", "ms")?;
    let model = Model { gpu: *gpu, constants: CONSTANTS };
    for (stored, traces) in STORED.iter().zip(traces) {
        for (trace, how) in [(&traces.single, ", a launch for each op"), (&traces.fused, "")] {
            let layer = trace.recalling_layer()?;
            let parts = model.token(trace, layer, LLAMA_8B.n_layers);
            let title = format!("{}{how}", stored.name);
            let all: String = parts.all().iter().map(|ms| format!("{ms:>10.3}")).collect();
            let ms = parts.ms();
            writeln!(out, "{title:<44}{:>9.1}{ms:>8.2}{all}", 1e3 / ms)?;
            let n_more = LLAMA_8B.n_layers - trace.n_layers;
            writeln!(
                out,
                "  {} nodes of a layer that recalls, {} of a token, of them {} updated; {} wait",
                layer.len(),
                trace.launches.len() + n_more * layer.len(),
                trace.nodes_set,
                trace.waits,
            )?;
            let fetches = stored.kv_residency == KvResidency::Host;
            if how.is_empty() && fetches {
                for (title, ms) in hypotheses(&model, trace)? {
                    let title = format!("  hypothetical: {title}");
                    writeln!(out, "{title:<44}{:>9.1}{ms:>8.2}", 1e3 / ms)?;
                }
            }
        }
    }
    let Some(traces) = traces.last() else { return Ok(()) };
    let trace = &traces.fused;
    let layer = trace.recalling_layer()?;
    let tokens_per_s = |model: &Model| 1e3 / model.token(trace, layer, LLAMA_8B.n_layers).ms();
    if let Some((_, goal)) = GOALS.iter().find(|(name, _)| *name == gpu.name) {
        let reached = tokens_per_s(&model);
        let verdict = if reached >= *goal { "reached" } else { "missed" };
        writeln!(
            out,
            "goal with Q4_K weights and q8 rows: {goal} tokens/s; {verdict} by the model: {reached:.1}"
        )?;
    }
    writeln!(out, "\nQ4_K and q8 rows, tokens/s with a constant 20 % less and 20 % more:")?;
    for (name, change) in CHANGES {
        let [less, more] = [0.8, 1.2].map(|factor| {
            let mut model = model;
            change(&mut model, factor);
            tokens_per_s(&model)
        });
        writeln!(out, "  {name:<38}{less:>8.1}{more:>8.1}")?;
    }
    layer_table(&model, layer, out)
}

/// What is not there yet, and the milliseconds of a token with it.
fn hypotheses(model: &Model, trace: &Trace) -> Result<[(&'static str, f64); 2]> {
    let layer = trace.recalling_layer()?;
    let n_layers = LLAMA_8B.n_layers;
    let n_recalling = (n_layers - trace.n_layers + trace.n_recalling) as f64;
    let own = model.token(trace, layer, n_layers).ms();
    let [beside, all] = model.hidden(layer).map(|saved| own - n_recalling * saved);
    Ok([("fetched beside attention", beside), ("fetched beside everything", all)])
}

/// A constant and how it is changed by a factor.
type Change = (&'static str, fn(&mut Model, f64));

const CHANGES: &[Change] = &[
    ("memory bandwidth", |m, f| m.gpu.memory_gbps *= f),
    ("share of it that kernels reach", |m, f| m.constants.memory_share *= f),
    ("link", |m, f| m.gpu.link_gbps *= f),
    ("share of it that kernels reach", |m, f| m.constants.link_share *= f),
    ("latency of memory", |m, f| m.gpu.memory_latency_us *= f),
    ("latency of the L2 cache", |m, f| m.gpu.cache_latency_us *= f),
    ("latency of the link", |m, f| m.constants.link_latency_us *= f),
    ("a node", |m, f| m.constants.node_us *= f),
    ("an update of a node", |m, f| m.constants.update_us *= f),
    ("between two steps", |m, f| m.constants.step_us *= f),
    ("misses", |m, f| m.constants.misses *= f),
];

fn layer_table(model: &Model, layer: &[Launch], out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\n{:<34}{:>8}{:>9}{:>8}{:>10}{:>9}{:>9}  bound by",
        "a layer that recalls, Q4_K and q8", "blocks", "shared", "threads", "MB", "link MB", "us"
    )?;
    for launch in layer {
        let time = model.time(launch);
        let work = &launch.work;
        let missed = model.constants.misses * work.missed_bytes;
        let dynamic = launch.kernel.map_or(0, |(_, grid)| grid.dynamic_shared);
        let resources = gpu::resources(launch.name, model.gpu.target);
        let shared = dynamic + resources.map_or(0, |resources| resources.shared);
        writeln!(
            out,
            "{:<34}{:>8}{shared:>9}{:>6.0} %{:>10.3}{:>9.3}{:>9.2}  {}",
            launch.name,
            launch.n_blocks,
            100.0 * time.occupancy,
            (work.device_bytes + missed) / 1e6,
            (work.link_bytes + missed) / 1e6,
            time.us,
            time.bound,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Vec<Traces> {
        let of = |stored: &Stored| Traces::record(&stored.small(false));
        STORED.iter().map(of).collect::<Result<_>>().expect("launches of a small model")
    }

    /// Launches of kernels that do not run are those of kernels that do.
    #[test]
    fn what_is_recorded_is_what_is_made() {
        for (stored, recorded) in STORED.iter().zip(recorded()) {
            let computed = stored.small(true);
            let computed = Traces::record(&computed).expect("a token that is computed");
            let pairs = [(&computed.fused, &recorded.fused), (&computed.single, &recorded.single)];
            for (computed, recorded) in pairs {
                // Files, as norms of a folder are bf16 and those of a GGUF file f32.
                let names = |trace: &Trace| -> Vec<_> {
                    let blocks = trace.launches.iter().map(|launch| launch.n_blocks);
                    trace.files().into_iter().zip(blocks).collect()
                };
                assert_eq!(names(computed), names(recorded), "{}", stored.name);
                let counts = |trace: &Trace| (trace.nodes_set, trace.waits, trace.submits);
                assert_eq!(counts(computed), counts(recorded), "{}", stored.name);
                assert_eq!(recorded.n_recalling, TRACED_LAYERS - DENSE_LAYERS);
            }
            // As `tests/cuda_counts.rs` counts them.
            let n_nodes = match (stored.kv_dtype, stored.kv_residency) {
                (DType::Q8, _) => 15,
                (_, KvResidency::Device) => 11,
                _ => 12,
            };
            assert_eq!(recorded.fused.recalling_layer().map(<[_]>::len).ok(), Some(n_nodes));
            assert_eq!((recorded.fused.nodes_set, recorded.fused.waits), (4.0, 1.0));
            assert!(recorded.fused.launches.len() < recorded.single.launches.len());
        }
    }

    #[test]
    fn time_follows_constants_and_launches() {
        let traces = recorded();
        let trace = &traces[0].fused;
        let layer = trace.recalling_layer().expect("layers recall");
        let model = Model { gpu: GPUS[0], constants: CONSTANTS };
        let ms = |model: &Model, n_layers| model.token(trace, layer, n_layers).ms();
        let own = ms(&model, TRACED_LAYERS);
        // Layers beyond the trace are all alike.
        let more = [1, 2].map(|n| ms(&model, TRACED_LAYERS + n) - own);
        assert!(more[0] > 0.0 && (more[1] - 2.0 * more[0]).abs() < 1e-9, "{more:?}");
        let nodes = model.token(trace, layer, TRACED_LAYERS).nodes;
        assert!((nodes - trace.launches.len() as f64 * CONSTANTS.node_us / 1e3).abs() < 1e-9);
        for (name, change) in CHANGES {
            let [less, more] = [0.8, 1.2].map(|factor| {
                let mut model = model;
                change(&mut model, factor);
                ms(&model, TRACED_LAYERS)
            });
            let is_rate = name.contains("bandwidth") || name.contains("share") || *name == "link";
            let is_right =
                if is_rate { less >= own && own >= more } else { less < own && own < more };
            assert!(is_right, "{name}: {less} {own} {more}");
        }
        let single = &traces[0].single;
        let single = model.token(single, single.recalling_layer().expect("layers"), TRACED_LAYERS);
        assert!(single.ms() > own, "fewer launches take less time");
    }

    #[test]
    fn every_gpu_has_its_tables() {
        let traces = recorded();
        for gpu in &GPUS {
            let mut out = Vec::new();
            of_gpu(gpu, &traces, &mut out).expect("nothing fails");
            let text = String::from_utf8(out).expect("text");
            let begins = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
            let named: usize = STORED.iter().map(|stored| begins(stored.name)).sum();
            // Each with and without fused launches; the table of constants begins with a name too.
            assert_eq!(named, 2 * STORED.len(), "{text}");
            // What is fetched may be fetched beside other work.
            assert_eq!(begins("  hypothetical: "), 2 * (STORED.len() - 1), "{text}");
            assert_eq!(begins("look_up_rows"), 1, "{text}");
            assert_eq!(begins("goal "), GOALS.iter().filter(|(n, _)| *n == gpu.name).count());
        }
    }
}
