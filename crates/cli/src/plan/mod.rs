//! `longview plan`: bytes before anything is loaded.
//!
//! The figures are those of a device with memory of its own, because that is where bytes decide;
//! the CPU attends in the host store itself and needs none of the device rows. The verdicts say
//! what fits here, as `longview run` would load it, and on a device of --device-memory.

mod seconds;
mod verdict;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use longview_core::DType;
use longview_engine::{Engine, EngineOptions, MemoryPlan, resolve_policy};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::Preset;
use serde::Serialize;

use self::seconds::{Estimate, Seconds};
use self::verdict::{Place, Verdict};
use crate::args::numbers::MOST_TOKENS;
use crate::args::{EngineArgs, RopeArgs, TuningArgs, kv_types, one_of};
use crate::context::Limit;
use crate::device::with_device;
use crate::interrupt::Interrupt;
use crate::load::{ModelArgs, warn_of_length};
use crate::table::Table;
use crate::{kv, out, run, template, units};

/// Options of `longview plan`.
#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// A document: the context is as long as its tokens, read as `longview kv build` reads it.
    /// Several are one document, in this order; - is stdin [default: none].
    #[arg(short, long, value_name = "FILE", conflicts_with = "ctx_size")]
    file: Vec<PathBuf>,

    /// Print one JSON object [default: off].
    #[arg(long)]
    json: bool,

    /// Measure this machine for some seconds, and say how long reading and answering take at this
    /// context and at shorter ones [default: off].
    #[arg(long)]
    time: bool,

    /// The policies to compare, separated by commas; `longview policies` lists them.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "full,longview,streaming-llm",
        value_parser = one_of(Preset::ALL)
    )]
    policies: Vec<Preset>,

    #[command(flatten)]
    tuning: TuningArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    rope: RopeArgs,
}

/// The bytes of one policy with one type of keys and values.
#[derive(Serialize)]
struct Entry {
    policy: &'static str,
    budget_tokens: Option<usize>,
    kv_type: &'static str,
    #[serde(flatten)]
    plan: MemoryPlan,
    device_bytes: u64,
    host_bytes: u64,
    total_bytes: u64,
}

#[derive(Serialize)]
struct Report {
    model: String,
    context_tokens: usize,
    available_bytes: Option<u64>,
    plans: Vec<Entry>,
    verdicts: Vec<Verdict>,
    /// What --time measured, by context and policy; absent without it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seconds: Vec<Seconds>,
}

/// Prints the plan of every policy.
pub fn run(args: &PlanArgs) -> Result<()> {
    let folder = args.model.open(&Interrupt::install()?)?;
    let context = match args.model.ctx_size {
        0 if !args.file.is_empty() => document_tokens(args, &folder)?,
        0 => Limit::new(&folder.config, &args.rope).tokens(),
        given => given,
    };
    with_device!(args.engine.device()?, backend => report(args, folder, context, backend))
}

/// The tokens of the documents, as those of one that is kept.
fn document_tokens(args: &PlanArgs, folder: &ModelFolder) -> Result<usize> {
    folder.tokenizer()?;
    if let Some(chat) = &folder.chat {
        template::check(chat)?;
    }
    let (text, _) = kv::read_documents("-f", &args.file)?;
    Ok(run::document_tokens(folder, folder.chat.is_some(), &text, MOST_TOKENS)?.len())
}

fn report<B: Backend>(
    args: &PlanArgs,
    folder: ModelFolder,
    context: usize,
    backend: Arc<B>,
) -> Result<()> {
    let rope = args.rope.scaling(&folder.config);
    let options = EngineOptions { rope, ..args.engine.options(context) };
    warn_of_length(&folder.config, &folder.path, &options);
    let report = plan(args, &folder, context, &*backend)?;
    let policies = (&args.policies[..], &args.tuning);
    let measure = || seconds::measure(folder, &args.engine, policies, context, backend);
    let estimate = args.time.then(measure).transpose()?;
    show(args, report, estimate)
}

fn plan<B: Backend>(
    args: &PlanArgs,
    folder: &ModelFolder,
    context: usize,
    backend: &B,
) -> Result<Report> {
    let mut plans = Vec::new();
    for dtype in kv_types() {
        for preset in &args.policies {
            let mut options = args.engine.options(context);
            options.kv_dtype = dtype;
            options.simulate_device = true;
            plans.push(entry(backend, folder, &options, args, *preset)?);
        }
    }
    let mut verdicts = Vec::new();
    for place in Place::all(&args.engine, backend) {
        for preset in &args.policies {
            let options = args.engine.options(context);
            let policy = args.tuning.meant_for(*preset)?;
            verdicts.push(place.verdict(backend, folder, &options, &policy)?);
        }
    }
    Ok(Report {
        model: args.model.name(),
        context_tokens: context,
        available_bytes: backend.capabilities().memory_bytes,
        plans,
        verdicts,
        seconds: Vec::new(),
    })
}

fn show(args: &PlanArgs, mut report: Report, estimate: Option<Estimate>) -> Result<()> {
    if args.json {
        report.seconds = estimate.map_or_else(Vec::new, |estimate| estimate.seconds);
        return out::json(&report);
    }
    let mut out = out::stdout();
    print(&report, args.engine.kv_type(), &mut out)?;
    if let Some(estimate) = estimate {
        seconds::print(&estimate, &args.policies, &mut out)?;
    }
    Ok(out.flush()?)
}

fn entry<B: Backend>(
    backend: &B,
    folder: &ModelFolder,
    options: &EngineOptions,
    args: &PlanArgs,
    preset: Preset,
) -> Result<Entry> {
    let policy = args.tuning.meant_for(preset)?;
    let plan = Engine::plan(backend, folder, options, &policy)?;
    let (_, resolved) = resolve_policy(&policy, folder.config.n_layers, options.ctx_size)?;
    Ok(Entry {
        policy: preset.name(),
        budget_tokens: resolved.budget.tokens,
        kv_type: options.kv_dtype.name(),
        device_bytes: plan.device_bytes(),
        host_bytes: plan.host_bytes(),
        total_bytes: plan.total_bytes(),
        plan,
    })
}

type Figure = (&'static str, fn(&Entry) -> u64);

const DEVICE: &[Figure] = &[
    ("  weights", |e| e.plan.weight_bytes),
    ("  layers that attend everything", |e| e.plan.kv.dense_bytes),
    ("  first and last tokens", |e| e.plan.kv.window_bytes),
    ("  cache of recalled tokens", |e| e.plan.kv.cache_bytes),
    ("  index", |e| e.plan.kv.index_bytes),
    ("  prefill buffers", |e| e.plan.kv.prefill_bytes),
    ("  clustering and staging", |e| e.plan.kv.work_bytes),
    ("  activations", |e| e.plan.workspace_bytes),
    ("  in all", |e| e.device_bytes),
];

const HOST: &[Figure] = &[
    ("  keys and values", |e| e.plan.kv.host_kv_bytes),
    ("  index and positions", |e| e.plan.kv.host_index_bytes),
    ("  in all", |e| e.host_bytes),
];

fn print(report: &Report, dtype: DType, out: &mut dyn Write) -> Result<()> {
    let shown: Vec<&Entry> = report.plans.iter().filter(|e| e.kv_type == dtype.name()).collect();
    let mut table = Table::new("", shown.iter().map(|e| e.policy));
    let budget = |e: &&Entry| e.budget_tokens.map_or("all".to_owned(), units::count);
    table.row("tokens attended per KV head", shown.iter().map(budget));
    for (heading, figures) in [("device", DEVICE), ("host", HOST)] {
        table.heading(heading);
        for (name, figure) in figures {
            table.row(name, shown.iter().map(|e| units::bytes(figure(e))));
        }
    }
    table.heading("device + host, by --kv-type");
    for dtype in kv_types() {
        let of_type = report.plans.iter().filter(|e| e.kv_type == dtype.name());
        let both = |e: &Entry| {
            format!("{} + {}", units::bytes(e.device_bytes), units::bytes(e.host_bytes))
        };
        table.row(&format!("  {dtype}"), of_type.map(both));
    }
    writeln!(
        out,
        "{}: context {} tokens, keys and values in {dtype}, as a device with its own memory has it",
        report.model,
        units::count(report.context_tokens),
    )?;
    table.write(out)?;
    verdict::print(&report.verdicts, out)
}
