//! `cargo xtask bench`: a table of benches, each a program of the crate that it measures.

use anyhow::Result;

use crate::args::{Parsed, UsageError};
use crate::process::{cargo, run as run_child};

pub(crate) const OPTIONS: &str = "[NAME] [-- ARGS]";
pub(crate) const ABOUT: &str = "runs a bench in release (cpu: kernels of the CPU backend against \
                                the machine's limits; decode: long contexts, recall against full)";

/// Names, and the cargo arguments behind them. The first is the default.
const BENCHES: &[(&str, &str)] = &[
    ("cpu", "run --release -p longview-cpu --example cpu_bench --"),
    ("decode", "bench -p longview-tests --bench decode --"),
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse_with_words(args, &[], &[])?;
    let command = match parsed.words.as_slice() {
        [] => BENCHES[0].1,
        [name] => find(name)?,
        [_, extra, ..] => return Err(UsageError(format!("unexpected argument '{extra}'")).into()),
    };
    run_child(cargo(command).args(&parsed.rest))
}

fn find(name: &str) -> Result<&'static str> {
    let found = BENCHES.iter().find(|(known, _)| *known == name);
    let known: Vec<_> = BENCHES.iter().map(|(name, _)| *name).collect();
    let message = || UsageError(format!("unknown bench '{name}': one of {}", known.join(", ")));
    found.map(|(_, command)| *command).ok_or_else(|| message().into())
}
