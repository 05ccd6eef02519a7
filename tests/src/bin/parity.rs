//! What `cargo xtask parity` runs: the corpus on every backend, and the table of what came out.
//!
//! Exit codes: 1 where a case failed or a backend named in `REQUIRE_BACKENDS` was not run, 2 for a
//! call that makes no sense.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use longview_cuda::Target;
use longview_cuda_emulation::EmulatedOptions;
use longview_ops::Op;
use longview_ops::parity::{
    ParityRow, ParitySummary, format_parity, missing_required, parity_part,
};
use longview_tests::backends::{KNOWN, Sample, cuda_emulated, parity_rows, parse_list};
use longview_tests::levels::{Share, parity_at_levels};

/// What is asked for.
struct Request {
    backends: Vec<&'static str>,
    required: Vec<&'static str>,
    sample: Sample,
    /// The WGSL backend at each of its shader levels.
    levels: Option<Share>,
    /// The compute capability of the emulated device, where it is not the usual one.
    capability: Option<(u32, u32)>,
}

fn main() -> ExitCode {
    match Request::read(std::env::args().skip(1)) {
        Ok(request) => answer(&request),
        Err(error) => {
            eprintln!("parity: {error:#}");
            let backends = KNOWN.join(",");
            eprintln!(
                "usage: parity [--backends {backends}] [--op NAME] [--every N] \
                 [--levels all|turns] [--capability 7.5]"
            );
            ExitCode::from(2)
        }
    }
}

impl Request {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
        let required = parse_list(&required).context("REQUIRE_BACKENDS")?;
        let (backends, sample, levels) = (KNOWN.to_vec(), Sample::ALL, None);
        let mut request = Self { backends, required, sample, levels, capability: None };
        while let Some(option) = args.next() {
            let value = args.next().with_context(|| format!("{option} needs a value"));
            match option.as_str() {
                "--backends" => request.backends = parse_list(&value?)?,
                "--op" => {
                    let op: Op = value?.parse().map_err(anyhow::Error::msg)?;
                    request.sample.op = Some(op);
                }
                "--every" => request.sample.every = every(&value?)?,
                "--levels" => request.levels = Some(share(&value?)?),
                "--capability" => request.capability = Some(capability(&value?)?),
                _ => bail!("unknown option '{option}'"),
            }
        }
        Ok(request)
    }
}

fn every(text: &str) -> Result<usize> {
    let every = text.parse().ok().filter(|every| *every > 0);
    every.with_context(|| format!("--every {text}: not a number from 1"))
}

fn share(text: &str) -> Result<Share> {
    match text {
        "all" => Ok(Share::All),
        "turns" => Ok(Share::Turns),
        _ => bail!("--levels {text}: all or turns"),
    }
}

fn capability(text: &str) -> Result<(u32, u32)> {
    let parts = text.split_once('.');
    let numbers = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let known = numbers.filter(|capability| Target::of(*capability).is_some());
    known.with_context(|| format!("--capability {text}: not a compute capability from 7.5"))
}

/// The rows of the emulated device with such a compute capability.
fn emulated_rows(compute_capability: (u32, u32), sample: Sample) -> Vec<ParityRow> {
    let options = EmulatedOptions { compute_capability, ..EmulatedOptions::default() };
    match cuda_emulated(options) {
        Ok(backend) => {
            let rows = |op| pollster::block_on(parity_part(&backend, op, sample.every));
            sample.ops().flat_map(rows).collect()
        }
        Err(reason) => vec![ParityRow::absent("cuda-emulated", reason)],
    }
}

/// The rows of a backend. Those of each shader level are shown at once, with how many cases of how
/// many there are, which whoever keeps the table away sees too.
fn rows_of(name: &'static str, request: &Request) -> Vec<ParityRow> {
    if let Some(capability) = request.capability.filter(|_| name == "cuda-emulated") {
        return emulated_rows(capability, request.sample);
    }
    let share = match request.levels {
        Some(share) if name == "wgpu" => share,
        _ => return parity_rows(name, request.sample),
    };
    let levels = match parity_at_levels(request.sample, share) {
        Ok(levels) => levels,
        Err(reason) => return vec![ParityRow::absent(name, reason)],
    };
    for at in &levels {
        let heading = format!("shader level {}: {} of {} cases", at.level, at.n_taken, at.n_cases);
        eprintln!("parity: {heading}");
        println!("{heading}\n{}", format_parity(&at.rows));
    }
    levels.into_iter().flat_map(|at| at.rows).collect()
}

fn answer(request: &Request) -> ExitCode {
    let rows: Vec<_> = request.backends.iter().flat_map(|name| rows_of(name, request)).collect();
    let missing = missing_required(&rows, &request.required);
    print!("{}", format_parity(&rows));
    missing.iter().for_each(|message| eprintln!("{message}"));
    let failed = ParitySummary::of(&rows).failed;
    if failed == 0 && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
