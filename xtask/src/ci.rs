//! `cargo xtask ci`: everything that must hold before a commit lands, in stages that are timed.
//!
//! Cheap stages come first. Dependencies are built twice, once checked (clippy, rustdoc) and once
//! compiled (tests, parity, demo): the demo runs in the dev profile, which optimises, because a
//! release build of everything would cost more than it proves.

use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};

use crate::args::{Parsed, UsageError};
use crate::process::{cargo, run as run_child};
use crate::{demo, kernels, parity, sanitize, setup, tidy, web};

pub(crate) const OPTIONS: &str = "[--keep-going] [--only STAGE,..]";
pub(crate) const ABOUT: &str = "stages setup, fmt, tidy, kernels, clippy, rustdoc, sanitize, tests, parity, demo, web; \
                                stops at the first that fails";

/// A part of CI that passes or fails as a whole.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    run: fn() -> Result<()>,
}

/// In the order in which they run.
pub(crate) const STAGES: &[Stage] = &[
    Stage { name: "setup", run: || setup::run(&[]) },
    Stage { name: "fmt", run: || run_child(&mut cargo("fmt --all --check")) },
    Stage { name: "tidy", run: tidy::stage },
    Stage { name: "kernels", run: kernels::stage },
    Stage {
        name: "clippy",
        run: || {
            run_child(&mut cargo("clippy --workspace --all-features --all-targets -- -D warnings"))
        },
    },
    Stage { name: "rustdoc", run: rustdoc },
    Stage { name: "sanitize", run: sanitize::stage },
    Stage {
        name: "tests",
        run: || run_child(&mut cargo("test --workspace --all-features --no-fail-fast")),
    },
    Stage { name: "parity", run: parity::stage },
    Stage { name: "demo", run: demo::check },
    Stage { name: "web", run: web::stage },
];

/// How a stage went, and for how long.
struct Outcome {
    name: &'static str,
    result: &'static str,
    took: Duration,
}

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--keep-going"], &["--only"])?;
    let stages = chosen(parsed.value("--only"))?;
    let start = Instant::now();
    let outcomes = run_stages(&stages, parsed.has("--keep-going"));
    print!("\n{}", table(&outcomes, start.elapsed()));
    let failed = names(&outcomes, "FAILED");
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}; again with `cargo xtask ci --only {}`", failed.join(", "), failed.join(","))
}

fn rustdoc() -> Result<()> {
    let mut command = cargo("doc --workspace --all-features --no-deps");
    run_child(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Stage>> {
    let Some(only) = only else { return Ok(STAGES.iter().collect()) };
    let known: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
    if let Some(name) = only.split(',').find(|name| !known.contains(name)) {
        let message = format!("unknown stage '{name}': one of {}", known.join(", "));
        return Err(UsageError(message).into());
    }
    Ok(STAGES.iter().filter(|stage| only.split(',').any(|name| name == stage.name)).collect())
}

fn run_stages(stages: &[&'static Stage], keep_going: bool) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for stage in stages {
        if !keep_going && outcomes.iter().any(|outcome| outcome.result != "ok") {
            outcomes.push(Outcome { name: stage.name, result: "not run", took: Duration::ZERO });
            continue;
        }
        println!("\n== {}", stage.name);
        let start = Instant::now();
        let result = (stage.run)();
        let took = start.elapsed();
        println!("== {}: {} in {}", stage.name, told(&result), seconds(took));
        let result = if result.is_ok() { "ok" } else { "FAILED" };
        outcomes.push(Outcome { name: stage.name, result, took });
    }
    outcomes
}

fn told(result: &Result<()>) -> String {
    let failure = |error: &Error| format!("FAILED, {error:#}");
    result.as_ref().map_or_else(failure, |()| "ok".into())
}

fn names(outcomes: &[Outcome], result: &str) -> Vec<&'static str> {
    outcomes.iter().filter(|outcome| outcome.result == result).map(|o| o.name).collect()
}

fn table(outcomes: &[Outcome], total: Duration) -> String {
    let mut text = format!("{:<8} {:<8} {:>8}\n", "stage", "result", "time");
    for Outcome { name, result, took } in outcomes {
        text += &format!("{name:<8} {result:<8} {:>8}\n", seconds(*took));
    }
    let ok = outcomes.iter().all(|outcome| outcome.result == "ok");
    let result = if ok { "ok" } else { "FAILED" };
    text + &format!("{:<8} {result:<8} {:>8}\n", "total", seconds(total))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Stage = Stage { name: "good", run: || Ok(()) };
    const BAD: Stage = Stage { name: "bad", run: || bail!("as told") };

    fn results(keep_going: bool) -> Vec<(&'static str, &'static str)> {
        let outcomes = run_stages(&[&GOOD, &BAD, &GOOD], keep_going);
        outcomes.iter().map(|outcome| (outcome.name, outcome.result)).collect()
    }

    #[test]
    fn the_first_failure_stops_unless_told_to_keep_going() {
        assert_eq!(results(false), [("good", "ok"), ("bad", "FAILED"), ("good", "not run")]);
        assert_eq!(results(true), [("good", "ok"), ("bad", "FAILED"), ("good", "ok")]);
    }

    #[test]
    fn the_table_closes_with_the_total() {
        let outcomes = [Outcome { name: "fmt", result: "ok", took: Duration::from_millis(1234) }];
        let expected = "\
stage    result       time
fmt      ok          1.2 s
total    ok          2.0 s
";
        assert_eq!(table(&outcomes, Duration::from_secs(2)), expected);
    }

    #[test]
    fn stages_are_chosen_by_name_and_keep_their_order() {
        let stages = chosen(Some("tests,fmt")).unwrap();
        assert_eq!(stages.iter().map(|stage| stage.name).collect::<Vec<_>>(), ["fmt", "tests"]);
        assert_eq!(chosen(None).unwrap().len(), STAGES.len());
    }
}
