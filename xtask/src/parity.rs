//! `cargo xtask parity`: every case of the corpus on every backend, by the program `parity` of the
//! `tests` crate.

use anyhow::Result;

use crate::args::{Parsed, UsageError};
use crate::process::{cargo, dev_binary, run as run_child};

pub(crate) const OPTIONS: &str =
    "[--backends cpu,wgpu,cuda,cuda-emulated] [--op NAME] [--every N] [--capability 7.5]; --all";
pub(crate) const ABOUT: &str = "every case of every op on every backend against the f64 reference; \
                                REQUIRE_BACKENDS=a,b makes their absence fail; --every \
                                13 takes that share of the cases; --capability 7.5 is \
                                for the emulated device. --all: the tests of parity with \
                                every case at every shader level and under the sanitizers, which \
                                take turns in CI";

const TAKES_VALUE: &[&str] = &["--backends", "--op", "--every", "--capability"];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--all"], TAKES_VALUE)?;
    if parsed.has("--all") {
        return all(&parsed);
    }
    let mut command = cargo("run --quiet --package longview-tests --bin parity --");
    for option in TAKES_VALUE {
        if let Some(value) = parsed.value(option) {
            command.args([option, value]);
        }
    }
    run_child(&mut command)
}

/// The tests of parity with every case everywhere. They are built as CI builds them.
fn all(parsed: &Parsed) -> Result<()> {
    if let Some(option) = TAKES_VALUE.iter().find(|option| parsed.value(option).is_some()) {
        return Err(UsageError(format!("--all takes everything: leave out {option}")).into());
    }
    let mut command =
        cargo("test --workspace --all-features --lib --test runtime --test backend --");
    command.args(["parity::", "give_the_same", "attention::"]);
    run_child(command.env("LONGVIEW_ALL_CASES", "1"))
}

/// The quick stage, by the binary that the tests built: the CPU, a Vulkan device and the emulation
/// of CUDA must be there. A prime number does not fall in step with the loops that the corpus is
/// made of.
pub(crate) fn stage() -> Result<()> {
    run_child(&mut sample("13")?)
}

/// The stage of CI, for whoever runs it beside others. The tests run all cases on each of these, at
/// every instruction set and order of threads and, in turns, at every shader level, so this is what
/// shows that the table does.
pub(crate) fn stage_command() -> Result<std::process::Command> {
    sample("53")
}

fn sample(every: &str) -> Result<std::process::Command> {
    let mut command = std::process::Command::new(dev_binary("parity")?);
    command.args(["--every", every]);
    // Mesa's software device compiles longer than these kernels run: it need not optimise.
    command.env("GALLIVM_PERF", "nopt");
    command.env("REQUIRE_BACKENDS", "cpu,wgpu,cuda-emulated");
    Ok(command)
}
