//! `longview policies`: which published systems there are, what they cost and what can be said
//! about them.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use longview_core::DType;
use longview_scheduler::{
    KvPlan, KvShape, OPTIONS, OptionInfo, Placement, Policy, PolicyOptions, Preset, PresetInfo,
    SequenceOptions,
};
use serde::Serialize;

use crate::args::{one_of, option_help};
use crate::out;
use crate::table::Table;
use crate::terminal::text_columns;
use crate::units;
use crate::wrap::wrapped;

/// Options of `longview policies`.
#[derive(Args)]
pub struct PoliciesArgs {
    /// The policy whose options are to be explained [default: none, all are listed].
    #[arg(value_name = "NAME", value_parser = one_of(Preset::ALL))]
    name: Option<Preset>,

    /// Print one JSON object [default: off].
    #[arg(long)]
    json: bool,
}

/// A preset, and what a token of context costs under it.
#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    info: PresetInfo,
    /// Bytes on the device by which one more token of context makes the plan grow.
    device_bytes_per_token: u64,
    /// The same in host memory.
    host_bytes_per_token: u64,
    options_given_defaults: Vec<OptionEntry>,
}

#[derive(Serialize)]
struct OptionEntry {
    name: &'static str,
    value: &'static str,
    /// Which values mean something; none where the help says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<String>,
    help: &'static str,
}

/// The shape that costs are shown for: Llama-3.1-8B with keys and values of 16 bits.
fn shape(capacity: usize) -> KvShape {
    KvShape {
        n_layers: 32,
        n_q_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        scale: 1.0 / 128f32.sqrt(),
        kv_dtype: DType::F16,
        host_rows: longview_scheduler::HostRows::default(),
        capacity,
        inv_freq: [].into(),
        windows: [].into(),
    }
}

fn entry(preset: Preset) -> Result<Entry> {
    let options = PolicyOptions::new(preset).with_budget(2048).for_depth(32);
    let sequence = SequenceOptions { placement: Placement::Device, ..SequenceOptions::default() };
    let plan = |context: usize| -> Result<KvPlan> {
        let policy = Policy::resolve(&options, 1 << 17)?;
        Ok(KvPlan::new(&shape(context), &policy, &sequence))
    };
    let (small, large) = (plan(1 << 16)?, plan(1 << 17)?);
    let growth = |of: fn(&KvPlan) -> u64| (of(&large) - of(&small)) >> 16;
    Ok(Entry {
        info: preset.info(),
        device_bytes_per_token: growth(KvPlan::device_kv_bytes),
        host_bytes_per_token: growth(|plan| plan.host_kv_bytes + plan.host_index_bytes),
        options_given_defaults: options_of(preset)
            .map(|o| OptionEntry {
                name: o.name,
                value: o.value,
                range: (!o.range.is_any()).then(|| o.range.to_string()),
                help: o.help.trim(),
            })
            .collect(),
    })
}

/// The options that mean something to a preset.
fn options_of(preset: Preset) -> impl Iterator<Item = &'static OptionInfo> {
    let names = preset.info().options;
    OPTIONS.iter().filter(move |option| names.contains(&option.name))
}

const ABOUT_LIST: &str = "index: what a step looks through to choose tokens; budget: how the \
                          number of attended tokens is divided; rows: where the keys and values of \
                          the other tokens are: resident (on the device), recall (in host memory, \
                          fetched when they are chosen), evict (in host memory, and no decode step \
                          attends them).";
const ABOUT_BYTES: &str = "Bytes that one more token of context takes: Llama-3.1-8B (32 layers, 8 KV \
                           heads of 128, keys and values of 16 bits), 2,048 attended tokens, a \
                           device with memory of its own.";

/// Prints the list, one policy, or the object.
pub fn run(args: &PoliciesArgs) -> Result<()> {
    let presets = Preset::ALL.iter().map(|(preset, _)| *preset);
    let is_meant = |preset: &Preset| args.name.is_none_or(|name| name == *preset);
    let entries = presets.filter(is_meant).map(entry).collect::<Result<Vec<_>>>()?;
    if args.json {
        return out::json(&entries);
    }
    let (mut out, columns) = (out::stdout(), text_columns());
    let set = |text: &str, indent: usize| wrapped(text, indent, columns);
    if args.name.is_none() {
        writeln!(out, "{}\n", set(ABOUT_LIST, 0))?;
    }
    for Entry { info, .. } in &entries {
        writeln!(out, "{}", set(&format!("{}: {}", info.name, info.source), 2))?;
        let PresetInfo { description, index, budget, residency, .. } = info;
        writeln!(out, "{}", set(&format!("  {description}"), 2))?;
        let place = format!("  index: {index}; budget: {budget}; rows: {residency}");
        writeln!(out, "{}", set(&place, 4))?;
        let options: Vec<String> = info.options.iter().map(|o| format!("--{o}")).collect();
        writeln!(out, "{}", set(&format!("  options: {}", options.join(" ")), 4))?;
    }
    writeln!(out, "\n{}", set(ABOUT_BYTES, 0))?;
    let mut table = Table::new("", ["device", "host"]);
    for entry in &entries {
        let bytes = [entry.device_bytes_per_token, entry.host_bytes_per_token];
        table.row(entry.info.name, bytes.map(|b| units::count(b as usize)));
    }
    table.write(&mut out)?;
    let Some(preset) = args.name else {
        writeln!(out, "\n`longview policies NAME` explains the options of one of them.")?;
        return Ok(());
    };
    writeln!(out, "\nOptions (--NAME VALUE, or name = value in a --policy-file):")?;
    for option in options_of(preset) {
        let help = set(&format!("      {}", option_help(option)), 6);
        writeln!(out, "  --{} {}\n{help}", option.name, option.value)?;
    }
    Ok(())
}
