//! 64-bit ARM: built with Debian's cross compiler, run under qemu's emulation of single processors.
//!
//! An emulated processor has the instructions of one that is sold, so each way to multiply bytes is
//! chosen and run as there. It says nothing about speed.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::place::{in_folder, program};
use super::report::Report;

use crate::cross::Target;
use crate::demo;
use crate::process::{capture, run as run_child};
use crate::setup::{self, Source, Tool};

const TARGET: Target = Target {
    triple: "aarch64-unknown-linux-gnu",
    linker: Some("aarch64-linux-gnu-gcc"),
    std_parts: "",
};

const TOOLS: &[Tool] = &[
    Tool {
        name: "C compiler for 64-bit ARM",
        probe: &["aarch64-linux-gnu-gcc", "--version"],
        source: Source::Packages("gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    },
    Tool {
        name: "emulator of 64-bit ARM",
        probe: &[QEMU, "--version"],
        source: Source::Packages("qemu-user-static"),
    },
];

const QEMU: &str = "qemu-aarch64-static";

/// Where the cross compiler's C library is.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// An emulated processor.
struct Processor {
    /// qemu's name of it.
    name: &'static str,
    /// What the CPU backend says that it computes with there.
    instructions: &'static str,
}

/// One for each way in which products of bytes are summed.
const PROCESSORS: [Processor; 3] = [
    Processor { name: "cortex-a53", instructions: "neon" },
    Processor { name: "neoverse-n1", instructions: "neon with dotprod" },
    Processor { name: "max", instructions: "neon with i8mm" },
];

/// Emulated, every case of the corpus takes minutes for each processor, and most of that is the
/// reference. A prime number does not fall in step with the loops that the corpus is made of.
const EVERY: &str = "13";

pub(super) fn run(report: &mut Report) -> Result<()> {
    setup::require(TARGET.compiler_tools().iter().chain(TOOLS))?;
    if !report
        .check("the CPU backend's tests, built", || build("test --no-run --package longview-cpu"))
    {
        return Ok(());
    }
    for processor in &PROCESSORS {
        let name = format!("corpus, {} ({})", processor.instructions, processor.name);
        report.check(&name, || corpus(processor));
        let name = format!("unit tests, {} ({})", processor.instructions, processor.name);
        report.check(&name, || unit_tests(processor));
    }
    if !report.check("longview, built", || build("build --package longview-cli")) {
        return Ok(());
    }
    let [.., last] = &PROCESSORS;
    let name = format!("demo at 1,024 tokens, {} ({})", last.instructions, last.name);
    report.check(&name, || {
        let longview = program(TARGET.triple, "longview")?;
        demo::short_check_with(&|| {
            let mut command = Command::new(QEMU);
            command.args(["-cpu", last.name, "-L", LIBRARIES]).arg(&longview);
            command
        })
    });
    Ok(())
}

fn build(args: &str) -> Result<String> {
    run_child(&mut in_folder(TARGET.cargo(args)?)?)?;
    let how = if TARGET.is_of_rustup() { "rustup's target" } else { "std from source" };
    Ok(format!("{}, {how}", TARGET.triple))
}

/// A sample of the corpus, with the instructions that the processor is there for.
fn corpus(processor: &Processor) -> Result<String> {
    let mut command = tests_on(processor)?;
    command.args(["parity::", "--nocapture"]).env("LONGVIEW_EVERY_NTH_CASE", EVERY);
    let text = capture(&mut command)?;
    print!("{text}");
    counted(&text, processor.instructions)
}

/// Among them: all ways to sum products of bytes give the same bits.
fn unit_tests(processor: &Processor) -> Result<String> {
    let text = capture(tests_on(processor)?.args(["--skip", "parity::"]))?;
    print!("{text}");
    let passed = text.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    Ok(passed.and_then(|line| line.split(';').next()).context("no tests were run")?.to_owned())
}

/// The call of cargo that runs tests of the CPU backend on an emulated processor.
fn tests_on(processor: &Processor) -> Result<Command> {
    let command = TARGET.cargo("test --package longview-cpu --lib")?;
    let mut command = in_folder(command)?;
    let runner = format!("{QEMU} -cpu {} -L {LIBRARIES}", processor.name);
    command.env(TARGET.variable("RUNNER"), runner).arg("--");
    Ok(command)
}

/// Sums what the tests say, `parity: 12 of 150 cases on NAME, neon, 1 thread`, for one thread and
/// these instructions. None is a failure: the processor was not what it should be.
fn counted(text: &str, instructions: &str) -> Result<String> {
    let end = format!(", {instructions}, 1 thread");
    let (mut run, mut all) = (0, 0);
    for line in text.lines().filter(|line| line.ends_with(&end)) {
        // What the harness says of a test may stand before it in the line.
        let words = line.split("parity: ").nth(1).and_then(|words| words.split(" cases").next());
        let counts = words.and_then(|words| words.split_once(" of ")).context("no counts")?;
        run += counts.0.parse::<usize>()?;
        all += counts.1.parse::<usize>()?;
    }
    if run == 0 {
        bail!("no case was run with {instructions}");
    }
    Ok(format!("{run} of {all} cases"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_count_where_the_right_instructions_ran_them() {
        let text = "test a ... parity: 3 of 30 cases on aarch64, neon with dotprod, 1 thread\n\
                    parity: 3 of 30 cases on aarch64, neon with dotprod, 3 threads\n\
                    parity: 4 of 40 cases on aarch64, neon with dotprod, 1 thread\n\
                    parity: 9 of 40 cases on aarch64, portable, 1 thread\n";
        assert_eq!(counted(text, "neon with dotprod").unwrap(), "7 of 70 cases");
        assert!(counted(text, "neon with i8mm").is_err());
    }
}
