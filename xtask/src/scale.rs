//! `cargo xtask scale`: the simulation of many servers in `bench/scale`, with its measurements.

use anyhow::Result;

use crate::args::UsageError;
use crate::process::{cargo, run as run_child};

pub(crate) const OPTIONS: &str = "study|one|check|measure [--help | OPTION..]";
pub(crate) const ABOUT: &str = "what many servers do, by simulation (docs/scale.md). study: its \
                                tables; one: a set-up; check: the same questions to real servers \
                                (--binary FILE); measure: the times that all follows from";

const PARTS: &[&str] = &["study", "one", "check", "measure"];

/// The verb. What follows the part is the program's own.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args.first() {
        Some(part) if PARTS.contains(&part.as_str()) => {
            run_child(cargo("run --quiet -p longview-scale --").args(args))
        }
        Some(part) => {
            Err(UsageError(format!("scale: '{part}' is not {}", PARTS.join(", "))).into())
        }
        None => Err(UsageError(format!("scale: {}?", PARTS.join(", "))).into()),
    }
}
