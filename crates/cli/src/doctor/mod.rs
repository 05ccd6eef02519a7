//! `longview doctor`: what Longview finds on this machine, and why something is missing.

mod cuda;
mod pages;

use std::io::Write;
use std::thread::available_parallelism;

use anyhow::Result;
use clap::Args;
use longview_cpu::{CpuBackend, CpuOptions, Isa};
use longview_engine::{EngineOptions, GenerationParams};
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};
use longview_wgpu::{WgpuBackend, WgpuOptions};
use pollster::block_on;
use serde::Serialize;

use self::cuda::Cuda;
use self::pages::Pages;
use crate::failure::describe;
use longview_startup::embedded;

use crate::{load, out, units};

/// Options of `longview doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Print one JSON object [default: off].
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    platform: String,
    /// Hardware threads that this process may use.
    cores: usize,
    /// Instruction sets of the kernels, and whether the processor has them.
    simd: Vec<Simd>,
    memory_available_bytes: Option<u64>,
    /// `null` where the system does not tell.
    huge_pages: Option<Pages>,
    backends: Vec<BackendReport>,
    /// GPUs for --device wgpu.
    adapters: Vec<Adapter>,
    /// Driver, GPUs and libraries for --device cuda.
    cuda: Cuda,
    /// `null` if the embedded model answers, else what went wrong.
    embedded_model_error: Option<String>,
}

#[derive(Serialize)]
struct Simd {
    name: &'static str,
    available: bool,
}

#[derive(Serialize)]
struct BackendReport {
    name: &'static str,
    available: bool,
    /// The device, or the reason for its absence.
    detail: String,
}

/// Looks and prints. Fails if the embedded model does not run.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let report = examine();
    if args.json {
        out::json(&report)?;
    } else {
        print(&report)?;
    }
    match report.embedded_model_error {
        None => Ok(()),
        Some(error) => anyhow::bail!("the embedded model does not run: {error}"),
    }
}

fn examine() -> Report {
    let cpu = CpuBackend::new(CpuOptions::default());
    let adapters: Vec<Adapter> = block_on(longview_wgpu::adapters()).iter().map(adapter).collect();
    let cuda = Cuda::from(&block_on(longview_cuda::probe::probe()));
    let memory = cpu.as_ref().ok().and_then(|cpu| cpu.capabilities().memory_bytes);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        platform: format!("{} {}", std::env::consts::ARCH, std::env::consts::OS),
        cores: available_parallelism().map_or(1, |n| n.get()),
        simd: Isa::ALL
            .iter()
            .map(|isa| Simd { name: isa.name(), available: isa.is_available() })
            .collect(),
        memory_available_bytes: memory,
        huge_pages: longview_cpu::huge_pages().map(Pages::from),
        backends: vec![
            match &cpu {
                Ok(cpu) => found("cpu", &cpu.capabilities().device),
                Err(error) => missing("cpu", error.to_string()),
            },
            wgpu_report(&adapters),
            match cuda.first_device() {
                Ok(device) => found("cuda", &device),
                Err(reason) => missing("cuda", reason),
            },
        ],
        adapters,
        cuda,
        embedded_model_error: try_embedded().err().map(|error| describe(&error)),
    }
}

/// One GPU; `index` and `name` are what `--adapter` takes.
#[derive(Serialize)]
struct Adapter {
    index: usize,
    name: String,
    api: String,
    kind: String,
    driver: String,
    max_binding_bytes: u64,
    max_buffer_bytes: u64,
    memory_bytes: Option<u64>,
    shared_memory_bytes: u32,
    subgroup_sizes: Option<(u32, u32)>,
    f16: bool,
    /// The self-test at each shader level: `null` where it computes right numbers, else what is
    /// wrong.
    #[serde(rename = "tiers")]
    levels: Vec<(&'static str, Option<String>)>,
}

fn adapter(a: &longview_wgpu::AdapterReport) -> Adapter {
    let tested = block_on(WgpuBackend::test_shader_levels(&a.index.to_string()));
    let levels = match tested {
        Ok(levels) => levels.into_iter().map(|(level, r)| (level.name(), r.err())).collect(),
        Err(error) => vec![("core", Some(error.to_string()))],
    };
    Adapter {
        index: a.index,
        name: a.name.clone(),
        api: a.api.clone(),
        kind: a.kind.clone(),
        driver: a.driver.clone(),
        max_binding_bytes: a.max_binding,
        max_buffer_bytes: a.max_buffer,
        memory_bytes: a.memory,
        shared_memory_bytes: a.shared_memory,
        subgroup_sizes: a.subgroup_sizes,
        f16: a.f16,
        levels,
    }
}

/// The adapter that `--device wgpu` would take, or why there is none.
fn wgpu_report(adapters: &[Adapter]) -> BackendReport {
    if adapters.is_empty() {
        let what = "no adapter: install a Vulkan, Metal or DX12 driver";
        return missing("wgpu", what);
    }
    match block_on(WgpuBackend::new(&WgpuOptions::default())) {
        Ok(backend) => found("wgpu", &backend.capabilities().device),
        Err(error) => missing("wgpu", error.to_string()),
    }
}

fn found(name: &'static str, device: &str) -> BackendReport {
    BackendReport { name, available: true, detail: device.to_owned() }
}

fn missing(name: &'static str, reason: impl Into<String>) -> BackendReport {
    BackendReport { name, available: false, detail: reason.into() }
}

/// Loads the embedded model and lets it say one token.
fn try_embedded() -> Result<()> {
    let backend = CpuBackend::new(CpuOptions::default())?.into();
    let options = EngineOptions { ctx_size: 64, chunk_size: 16, ..EngineOptions::default() };
    let policy = PolicyOptions::new(Preset::Full);
    let (mut engine, _) = load::engine(backend, embedded::open()?, options, &policy)?;
    let mut session = engine.session(&policy)?;
    let params = GenerationParams { max_tokens: Some(1), ..GenerationParams::default() };
    block_on(async {
        engine.prefill(&mut session, &[0], &mut |_| std::ops::ControlFlow::Continue(())).await?;
        engine
            .generate(&mut session, &params, &mut |_| std::ops::ControlFlow::Continue(()))
            .await
            .map(drop)
    })?;
    Ok(())
}

fn print_adapter(out: &mut impl Write, a: &Adapter) -> Result<()> {
    let subgroups = match a.subgroup_sizes {
        Some((least, most)) if least == most => format!("subgroups of {least}"),
        Some((least, most)) => format!("subgroups of {least} to {most}"),
        None => "no subgroups".to_owned(),
    };
    writeln!(out, "adapter    {} {}, {} ({}), {}", a.index, a.name, a.api, a.kind, a.driver)?;
    writeln!(
        out,
        "           memory {}, bindings of {}, buffers of {}, {} shared, {subgroups}, {}",
        a.memory_bytes.map_or("unknown".to_owned(), units::bytes),
        units::bytes(a.max_binding_bytes),
        units::bytes(a.max_buffer_bytes),
        units::bytes(u64::from(a.shared_memory_bytes)),
        if a.f16 { "f16" } else { "no f16" },
    )?;
    for (level, error) in &a.levels {
        let result = error.as_deref().unwrap_or("computes right numbers");
        writeln!(out, "           shader level {level}: {result}")?;
    }
    Ok(())
}

fn print(report: &Report) -> Result<()> {
    let mut out = out::stdout();
    let simd: Vec<String> = report
        .simd
        .iter()
        .map(|s| format!("{} {}", s.name, if s.available { "yes" } else { "no" }))
        .collect();
    writeln!(out, "longview   {} on {}", report.version, report.platform)?;
    writeln!(out, "cores      {}", report.cores)?;
    writeln!(out, "simd       {}", simd.join(", "))?;
    let memory = report.memory_available_bytes.map_or("unknown".to_owned(), units::bytes);
    writeln!(out, "memory     {memory} available")?;
    if let Some(pages) = &report.huge_pages {
        pages.print(&mut out)?;
    }
    for backend in &report.backends {
        let state = if backend.available { "found" } else { "missing" };
        writeln!(out, "backend    {:<5} {state:<8} {}", backend.name, backend.detail)?;
    }
    for a in &report.adapters {
        print_adapter(&mut out, a)?;
    }
    report.cuda.print(&mut out)?;
    let model = report.embedded_model_error.as_deref().unwrap_or("loads and answers");
    writeln!(out, "model      embedded: {model}")?;
    Ok(out.flush()?)
}
