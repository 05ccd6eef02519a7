//! What `cargo xtask parity` runs: the corpus on every backend, and the table of what came out.
//!
//! Exit codes: 1 where a case failed or a backend named in `REQUIRE_BACKENDS` was not run, 2 for a
//! call that makes no sense.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use longview_ops::Op;
use longview_ops::parity::{ParitySummary, format_parity, missing_required};
use longview_tests::backends::{KNOWN, Sample, parity_rows, parse_list};

/// What is asked for.
struct Request {
    backends: Vec<&'static str>,
    required: Vec<&'static str>,
    sample: Sample,
}

fn main() -> ExitCode {
    match Request::read(std::env::args().skip(1)) {
        Ok(request) => answer(&request),
        Err(error) => {
            eprintln!("parity: {error:#}");
            eprintln!("usage: parity [--backends {}] [--op NAME] [--every N]", KNOWN.join(","));
            ExitCode::from(2)
        }
    }
}

impl Request {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
        let required = parse_list(&required).context("REQUIRE_BACKENDS")?;
        let mut request = Self { backends: KNOWN.to_vec(), required, sample: Sample::ALL };
        while let Some(option) = args.next() {
            let value = args.next().with_context(|| format!("{option} needs a value"));
            match option.as_str() {
                "--backends" => request.backends = parse_list(&value?)?,
                "--op" => {
                    let op: Op = value?.parse().map_err(anyhow::Error::msg)?;
                    request.sample.op = Some(op);
                }
                "--every" => request.sample.every = every(&value?)?,
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

fn answer(request: &Request) -> ExitCode {
    let rows: Vec<_> =
        request.backends.iter().flat_map(|name| parity_rows(name, request.sample)).collect();
    let missing = missing_required(&rows, &request.required);
    print!("{}", format_parity(&rows));
    missing.iter().for_each(|message| eprintln!("{message}"));
    let failed = ParitySummary::of(&rows).failed;
    if failed == 0 && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
