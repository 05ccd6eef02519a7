//! Whether a model fits: a verdict for each policy and place, with the number that decides and
//! what would fit.

use std::io::Write;

use anyhow::Result;
use longview_engine::{Engine, EngineOptions, Fit, MAX_CONTEXT, Memory, MemoryPlan};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, RecallMode};
use serde::Serialize;

use crate::args::EngineArgs;
use crate::context;
use crate::units;

/// Contexts under it are no help to anybody.
const SHORTEST: usize = 256;

/// Where a model would be loaded.
pub struct Place {
    /// As `--json` names it.
    name: &'static str,
    /// As people read it.
    title: String,
    /// Whether rows lie on a device with memory of its own.
    has_device: bool,
    memory: Memory,
}

/// Whether a policy fits at a place.
#[derive(Serialize)]
pub struct Verdict {
    /// `here`, as `longview run` would load it, or `device`, with memory of its own.
    place: &'static str,
    #[serde(skip)]
    title: String,
    policy: &'static str,
    fits: bool,
    /// Which memory is too small, with what it needs and has; `null` if it fits.
    short_of: Option<&'static str>,
    needed_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// The longest context that fits with these options; `null` where none does.
    largest_context_tokens: Option<usize>,
    /// Words for the command line, each of which makes it fit; empty if it fits, or nothing does.
    options: Vec<String>,
}

impl Place {
    /// This machine, and a device of --device-memory where this one shares the host's.
    pub fn all<B: Backend>(args: &EngineArgs, backend: &B) -> Vec<Self> {
        let memory = context::memory(args, backend);
        let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), units::bytes);
        let is_unified = backend.capabilities().unified_memory;
        let host = if is_unified { longview_cpu::available_memory() } else { memory.host };
        let title = |device: &str| {
            format!(
                "{device} with {} of its own and {} of host memory",
                size(memory.device),
                size(host)
            )
        };
        let mut all = vec![Self {
            name: "here",
            title: if is_unified {
                format!("here ({}), with {} of memory", backend.name(), size(memory.device))
            } else {
                title(&format!("here ({})", backend.name()))
            },
            has_device: !is_unified,
            memory,
        }];
        if is_unified && args.device_memory.is_some() {
            let memory = Memory { host, ..memory };
            all.push(Self {
                name: "device",
                title: title("on a device"),
                has_device: true,
                memory,
            });
        }
        all
    }

    /// The verdict on a policy.
    pub fn verdict<B: Backend>(
        &self,
        backend: &B,
        folder: &ModelFolder,
        options: &EngineOptions,
        policy: &PolicyOptions,
    ) -> Result<Verdict> {
        // Rows that are read in place leave nothing to speculate about.
        let recall = if self.has_device { options.recall } else { RecallMode::Exact };
        let simulate_device = self.has_device;
        let options = EngineOptions { simulate_device, recall, ..options.clone() };
        let unified = !self.has_device;
        let plan = Engine::plan(backend, folder, &options, policy)?;
        let plan = MemoryPlan { unified, ..plan };
        let shortage = plan.shortage(self.memory);
        let memory = self.memory.with_room();
        let fit = Fit { backend, folder, options: &options, policy, memory, unified };
        let advice = shortage.map(|_| fit.advice(SHORTEST)).unwrap_or_default();
        Ok(Verdict {
            place: self.name,
            title: self.title.clone(),
            policy: policy.preset.info().name,
            fits: shortage.is_none(),
            short_of: shortage.map(|shortage| shortage.place.name()),
            needed_bytes: shortage.map(|shortage| shortage.needed),
            available_bytes: shortage.map(|shortage| shortage.available),
            largest_context_tokens: fit.longest_context(SHORTEST, MAX_CONTEXT),
            options: advice.options(),
        })
    }
}

impl Verdict {
    /// `fits`, or the number that it fails by and what would fit.
    fn text(&self) -> String {
        let largest = self.largest_context_tokens.map_or_else(
            || "no context fits".to_owned(),
            |tokens| format!("largest context {}", units::count(tokens)),
        );
        let (Some(place), Some(needed), Some(available)) =
            (self.short_of, self.needed_bytes, self.available_bytes)
        else {
            return format!("fits; {largest}");
        };
        let help = match self.options.as_slice() {
            [] => "no option makes it fit".to_owned(),
            options => format!("fits with {}", options.join(", or with ")),
        };
        format!(
            "does not fit: {} of {place} needed, {} available, {} too much; {help}; {largest}",
            units::bytes(needed),
            units::bytes(available),
            units::bytes(needed - available),
        )
    }
}

/// Writes the verdicts, the places one after the other.
pub fn print(verdicts: &[Verdict], out: &mut dyn Write) -> Result<()> {
    let width = verdicts.iter().map(|verdict| verdict.policy.len()).max().unwrap_or(0);
    let mut title = "";
    for verdict in verdicts {
        if verdict.title != title {
            title = &verdict.title;
            writeln!(out, "\nverdict {title}")?;
        }
        writeln!(out, "  {:<width$}  {}", verdict.policy, verdict.text())?;
    }
    Ok(())
}
