//! `cargo xtask fuzz`: bytes that no test thought of, for everything that reads the files of
//! strangers (`tests/fuzz` has the targets).
//!
//! libFuzzer changes what it has, keeps what reaches new code and ends at the first input that
//! panics, takes ten seconds or half a gigabyte. It is C++ that a crate brings, and the counters
//! that lead it are a pass of LLVM that the stable compiler has. Only the hook by which a target
//! ends a greedy template is unstable, so `RUSTC_BOOTSTRAP=1` lets the compiler take it.
//!
//! What a run finds stays in `target/fuzz`, and the next run begins with it. `--keep` makes the
//! committed corpus anew from it: the fewest files that reach as much. `--coverage` says which
//! lines of the parsers the committed corpora and the unit tests reach.

mod corpus;
mod coverage;
mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use self::target::{TARGETS, Target, folder};
use crate::args::{Parsed, UsageError};
use crate::process::{cargo, root, run as run_child, run_logged};

pub(crate) const OPTIONS: &str =
    "[--only TARGET,..] [--runs N | --seconds N | --keep | --coverage]";
pub(crate) const ABOUT: &str = "calls gguf, safetensors, config, tokenizer, chat, session, request with changed \
                                inputs: executions, crashes, coverage. --keep: makes the corpora anew; --coverage: \
                                lines of the parsers that corpora and unit tests reach";

/// The host, named to cargo so that flags stay off build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// The pass that counts the branches that were taken and shows what was compared.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// How long a target is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    Runs(u64),
    Seconds(u64),
}

const DEFAULT_SPAN: Span = Span::Seconds(60);

/// What came of a target.
struct Report {
    name: &'static str,
    executions: u64,
    crashes: usize,
    /// Branches that were taken, and inputs that together take them.
    edges: u64,
    kept: u64,
    seconds: f64,
}

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed =
        Parsed::parse(args, &["--keep", "--coverage"], &["--only", "--runs", "--seconds"])?;
    let targets = chosen(parsed.value("--only"))?;
    let span = span(&parsed)?;
    let modes = ["--keep", "--coverage"].iter().filter(|mode| parsed.has(mode)).count();
    if modes + usize::from(span.is_some()) > 1 {
        let message = "one of --runs, --seconds, --keep, --coverage";
        return Err(UsageError(message.into()).into());
    }
    if parsed.has("--coverage") {
        return coverage::report();
    }
    let program = build()?;
    if parsed.has("--keep") {
        return targets.into_iter().try_for_each(|target| corpus::keep(&program, target));
    }
    let span = span.unwrap_or(DEFAULT_SPAN);
    let reports: Result<Vec<_>> =
        targets.into_iter().map(|target| fuzz(target, &program, span)).collect();
    summary(&reports?)
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Target>> {
    let Some(only) = only else { return Ok(TARGETS.iter().collect()) };
    let find = |name: &str| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        let message = || format!("unknown target '{name}': one of {}", known.join(", "));
        TARGETS
            .iter()
            .find(|target| target.name == name)
            .ok_or_else(|| UsageError(message()).into())
    };
    only.split(',').map(find).collect()
}

fn span(parsed: &Parsed) -> Result<Option<Span>> {
    let number = |option: &str| -> Result<Option<u64>> {
        let Some(text) = parsed.value(option) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| *number > 0);
        let message = || format!("{option} {text}: a whole number above 0 is needed");
        Ok(Some(number.ok_or_else(|| UsageError(message()))?))
    };
    match (number("--runs")?, number("--seconds")?) {
        (Some(_), Some(_)) => Err(UsageError("one of --runs and --seconds".into()).into()),
        (runs, seconds) => Ok(runs.map(Span::Runs).or(seconds.map(Span::Seconds))),
    }
}

/// The fuzzer, which holds all targets.
fn build() -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")) {
        bail!("fuzzers are set up for {TRIPLE} alone: run this there");
    }
    let folder = folder()?;
    let mut command = cargo("build --package longview-fuzz --bin fuzz --profile fuzz");
    command.args(["--target", TRIPLE]).arg("--target-dir").arg(&folder);
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
    run_child(&mut command)?;
    Ok(folder.join(TRIPLE).join("fuzz/fuzz"))
}

/// Runs a target, and reads what it says at its end.
fn fuzz(target: &Target, program: &Path, span: Span) -> Result<Report> {
    let crashes = folder()?.join("crashes").join(target.name);
    fs::create_dir_all(&crashes).with_context(|| crashes.display().to_string())?;
    let before = files_in(&crashes);
    let mut command = target.command(program)?;
    command.arg(format!("-artifact_prefix={}/", crashes.display()));
    let words = root().join("tests/fuzz/dict").join(format!("{}.dict", target.name));
    if words.is_file() {
        command.arg(format!("-dict={}", words.display()));
    }
    command.arg(match span {
        Span::Runs(n) => format!("-runs={n}"),
        Span::Seconds(n) => format!("-max_total_time={n}"),
    });
    command.arg(target.found()?).args(target.seeds());
    let log = folder()?.join(format!("{}.log", target.name));
    println!("-- {}: {}", target.name, log.display());
    let start = Instant::now();
    let ended_well = run_logged(&mut command, &log)?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let new = files_in(&crashes).saturating_sub(before);
    if !ended_well {
        let last: Vec<_> = text.lines().rev().take(40).collect();
        let last: Vec<_> = last.into_iter().rev().collect();
        println!("{}", last.join("\n"));
    }
    let (edges, kept) = reached(&text);
    Ok(Report {
        name: target.name,
        executions: executions(&text),
        crashes: new.max(usize::from(!ended_well)),
        edges,
        kept,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn files_in(folder: &Path) -> usize {
    folder.read_dir().map_or(0, Iterator::count)
}

/// `stat::number_of_executed_units`, or where the last line stands if there is none.
fn executions(log: &str) -> u64 {
    let stat = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let last = || log.lines().rev().find_map(|line| line.strip_prefix('#')?.split('\t').next());
    stat.or_else(last).and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// The numbers behind `cov:` and `corp:` of the last line that has them.
fn reached(log: &str) -> (u64, u64) {
    let line = log.lines().rev().find(|line| line.starts_with('#') && line.contains(" cov: "));
    let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| *word == name);
        let number = at.and_then(|at| words.get(at + 1)?.split('/').next());
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    (after("cov:"), after("corp:"))
}

fn summary(reports: &[Report]) -> Result<()> {
    println!(
        "\n{:<12} {:>12} {:>8} {:>8} {:>7} {:>9}",
        "target", "executions", "crashes", "edges", "inputs", "seconds"
    );
    for report in reports {
        let Report { name, executions, crashes, edges, kept, seconds } = report;
        println!("{name:<12} {executions:>12} {crashes:>8} {edges:>8} {kept:>7} {seconds:>9.1}");
    }
    let failed: Vec<_> = reports.iter().filter(|r| r.crashes > 0).map(|r| r.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!(
        "inputs that end {} are in {}; `cargo run -p longview-fuzz -- TARGET FILE` runs one",
        failed.join(", "),
        folder()?.join("crashes").display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Span>> {
        let args: Vec<String> = line.split_whitespace().map(String::from).collect();
        span(&Parsed::parse(&args, &[], &["--runs", "--seconds"])?)
    }

    #[test]
    fn a_span_is_runs_or_seconds() {
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("--runs 7").unwrap(), Some(Span::Runs(7)));
        assert_eq!(parse("--seconds 9").unwrap(), Some(Span::Seconds(9)));
        assert!(parse("--runs 0").is_err() && parse("--runs 1 --seconds 1").is_err());
    }

    #[test]
    fn targets_are_those_of_the_package() {
        let source = fs::read_to_string(root().join("tests/fuzz/src/lib.rs")).unwrap();
        let named = |target: &Target| source.contains(&format!("name: \"{}\"", target.name));
        assert!(TARGETS.iter().all(named));
        assert_eq!(source.matches("Target { name: ").count(), TARGETS.len());
        assert!(TARGETS.iter().all(|target| ABOUT.contains(target.name)), "{ABOUT}");
    }

    #[test]
    fn numbers_are_read_from_the_log() {
        let log = "#2\tINITED cov: 5 ft: 6 corp: 1/1b\n\
                   #4096\tpulse  cov: 812 ft: 2345 corp: 67/8901b lim: 4096 exec/s: 2048\n";
        assert_eq!((executions(log), reached(log)), (4096, (812, 67)));
        let ended = format!("{log}stat::number_of_executed_units: 5000\n");
        assert_eq!((executions(&ended), reached(&ended)), (5000, (812, 67)));
        assert_eq!((executions(""), reached("")), (0, (0, 0)));
    }
}
