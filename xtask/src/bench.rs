//! `cargo xtask bench`: a table of benches, each a program of the crate that it measures.

use anyhow::Result;

use crate::args::UsageError;
use crate::process::{cargo, run as run_child};

pub(crate) const OPTIONS: &str = "NAME [ARGS]";
pub(crate) const ABOUT: &str = "a bench in release. cpu: kernels of the CPU backend against the \
                                machine's limits; decode: steps over long contexts";

/// Names, and the cargo arguments behind them.
const BENCHES: &[(&str, &str)] = &[
    ("cpu", "run --release -p longview-cpu --example cpu_bench --"),
    ("decode", "bench -p longview-tests --bench decode --"),
];

/// The verb. What follows the name is the bench's own.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (name, rest) = args.split_first().ok_or_else(|| unknown("which bench?"))?;
    let found = BENCHES.iter().find(|(known, _)| known == name);
    let (_, command) = found.ok_or_else(|| unknown(&format!("unknown bench '{name}'")))?;
    run_child(cargo(command).args(rest))
}

fn unknown(message: &str) -> UsageError {
    let known: Vec<_> = BENCHES.iter().map(|(name, _)| *name).collect();
    UsageError(format!("{message}: one of {}", known.join(", ")))
}
