//! `cargo xtask bench`: benches of what ships, each a program of the `tests` crate.

use anyhow::Result;

use crate::args::{Parsed, UsageError};
use crate::process::{SHIPPED, cargo, run as run_child};

pub(crate) const OPTIONS: &str = "--device cpu|wgpu|cuda [--filter TEXT] [--quick] [--threads N] \
                                  [--isa NAME] [--adapter NAME] [--shader-level NAME] \
                                  [--cuda-device N] | --bounds [--filter TEXT] | \
                                  decode [--device NAME] [PART..] | \
                                  open [--tokens N] [--policy NAME] [--kv-type NAME] [--threads N]";
pub(crate) const ABOUT: &str = "a bench of what ships. --device: every heavy op of a backend against \
                                the device's measured limits, and what a decoded token costs; \
                                --bounds: what bytes and FLOP imply on GPUs that are not here, and \
                                a decoded token's time there by its launches; \
                                decode: steps over long contexts (attention, qwen, million, llama) \
                                and prompts (prefill); \
                                open: the session file of a long document, opened";

const FLAGS: &[&str] = &["--quick", "--bounds"];
const TAKES_VALUE: &[&str] =
    &["--device", "--filter", "--threads", "--isa", "--adapter", "--shader-level", "--cuda-device"];

/// Benches that go by a name; what follows it is the bench's own.
const NAMED: &[&str] = &["decode", "open"];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (bench, rest) = match args.split_first() {
        Some((name, rest)) if !name.starts_with('-') => (named(name)?, rest),
        _ => ("ops", ops_arguments(args)?),
    };
    let words = format!("bench --profile {SHIPPED} -p longview-tests --bench {bench} --");
    run_child(cargo(&words).args(rest))
}

fn named(name: &str) -> Result<&'static str> {
    let found = NAMED.iter().copied().find(|known| *known == name);
    found.ok_or_else(|| {
        let message = format!("unknown bench '{name}': --device, or one of {}", NAMED.join(", "));
        UsageError(message).into()
    })
}

/// The arguments, where they make sense: a mistake is told before anything is built.
fn ops_arguments(args: &[String]) -> Result<&[String]> {
    let parsed = Parsed::parse(args, FLAGS, TAKES_VALUE)?;
    if parsed.value("--device").is_some() || parsed.has("--bounds") {
        Ok(args)
    } else {
        Err(UsageError("which --device, or which bench?".into()).into())
    }
}
