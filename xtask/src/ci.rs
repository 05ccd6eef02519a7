//! `cargo xtask ci`: everything that must hold before a commit lands, in stages that are timed.
//!
//! Cheap stages come first; building begins before them, as soon as its compilers are there.
//! Everything is compiled once, in the dev profile, by a compiler that checks and documents our
//! crates on the way (see [`lints`]): a release build of everything would cost more than it proves,
//! and to check all dependencies once more, as clippy and rustdoc do by themselves, took a tenth of
//! a run. These two are stages for whoever wants nothing else (`--only clippy,rustdoc`).
//!
//! Other stages seldom have work for more than one core too. The browser is such a chain: the
//! module, the page, and questions to it one after the other; so are the models of threads and the
//! sample of parity. They run beside the stages that compile or compute; the tests, some of which
//! look at the clock, begin when they have ended. One stage goes on beside the tests: the corpus of
//! ops on emulated devices, a quarter of what the tests compute. It looks at no clock and has the
//! lowest priority, so it takes the time in which they wait for something.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};

use crate::args::{Parsed, UsageError};
use crate::process::{Background, cargo, cpu_time, nicely, run as run_child, target_directory};
use crate::{
    clients, demo, kernels, lints, models, package, parity, sanitize, setup, soak, tidy, web,
};

pub(crate) const OPTIONS: &str = "[--quick] [--keep-going] [--only STAGE,..]";
pub(crate) const ABOUT: &str = "stages compilers, setup, fmt, tidy, package, kernels, build, models, \
                                sanitize, parity, soak, demo, clients, web, programs, tests, corpus; stops at the first that fails; clippy and rustdoc, which build does on the way, by --only. --quick: fmt, tidy, clippy, unit tests, every 13th \
                                case of parity, the demo at 1,024 tokens; it leaves out the kernels' compilers, \
                                rustdoc, tests across crates and of programs, published models, other clients, and the browser";

/// A part of CI that passes or fails as a whole.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    work: Work,
}

/// What a stage does.
enum Work {
    /// In its turn.
    Run(fn() -> Result<()>),
    /// Beside other stages, from the first on that comes behind the one that is named; waited for
    /// in its turn.
    Beside(&'static str, fn() -> Result<Command>),
}

/// In the order in which they run.
pub(crate) const STAGES: &[Stage] = &[
    Stage { name: COMPILERS, work: Work::Run(setup::compilers) },
    Stage { name: SETUP, work: Work::Run(set_up) },
    Stage { name: "fmt", work: Work::Run(fmt) },
    Stage { name: "tidy", work: Work::Run(tidy::stage) },
    Stage { name: "package", work: Work::Run(package::stage) },
    Stage { name: "kernels", work: Work::Run(kernels::stage) },
    Stage { name: BUILD, work: Work::Beside(COMPILERS, build) },
    Stage { name: "models", work: Work::Run(models::stage) },
    Stage { name: "sanitize", work: Work::Beside(BUILD, sanitize::stage_command) },
    Stage { name: "parity", work: Work::Beside(BUILD, parity::stage_command) },
    Stage { name: "soak", work: Work::Beside(BUILD, soak::stage_command) },
    Stage { name: "demo", work: Work::Run(demo::check) },
    Stage { name: "clients", work: Work::Run(clients::stage) },
    Stage { name: WEB, work: Work::Beside(SETUP, web::stage_command) },
    Stage { name: "programs", work: Work::Beside(WEB, web::programs_command) },
    Stage { name: TESTS, work: Work::Run(tests) },
    Stage { name: "corpus", work: Work::Beside(BUILD, corpus) },
];

/// What `build` does on the way, alone.
const CHECKS: &[Stage] = &[
    Stage { name: "clippy", work: Work::Run(clippy) },
    Stage { name: "rustdoc", work: Work::Run(rustdoc) },
];

/// What a change is tried with while it is made, on a tree that was built before.
const QUICK: &[Stage] = &[
    Stage { name: "fmt", work: Work::Run(fmt) },
    Stage { name: "clippy", work: Work::Run(clippy) },
    Stage {
        name: "unit",
        work: Work::Run(|| run_child(&mut cargo("test --workspace --lib --bins --no-fail-fast"))),
    },
    Stage { name: "parity", work: Work::Run(parity::stage) },
    Stage { name: "demo", work: Work::Run(demo::quick_check) },
];

/// Behind it runs what needs nothing but compilers: the longest stages do not wait for a browser.
const COMPILERS: &str = "compilers";

/// Behind it runs what needs nothing but tools.
const SETUP: &str = "setup";

/// Behind it runs what needs the programs.
const BUILD: &str = "build";

/// Behind it runs what needs the page and the programs.
const WEB: &str = "web";

/// Beside it runs what leaves it its time, and nothing else.
const TESTS: &str = "tests";

/// How a stage went, and what it took.
struct Outcome {
    name: &'static str,
    result: &'static str,
    took: Duration,
    /// Time on all cores, of this program and of those it waited for; none where nobody counts.
    cpu: Option<Duration>,
}

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--keep-going", "--quick"], &["--only"])?;
    let is_quick = parsed.has("--quick");
    let stages = chosen(if is_quick { QUICK } else { STAGES }, parsed.value("--only"))?;
    if !is_quick && std::env::var_os(lints::VARIABLE).is_none() {
        return with_lints(args);
    }
    let (start, cpu) = (Instant::now(), cpu_time());
    let outcomes = run_stages(&stages, parsed.has("--keep-going"));
    print!("\n{}", table(&outcomes, start.elapsed(), since(cpu)));
    let failed = names(&outcomes, "FAILED");
    if failed.is_empty() {
        return Ok(());
    }
    let quick = if parsed.has("--quick") { " --quick" } else { "" };
    let list = (failed.join(", "), failed.join(","));
    bail!("failed: {}; again with `cargo xtask ci{quick} --only {}`", list.0, list.1)
}

/// The verb once more, in a program from which all that calls cargo inherits the compiler.
fn with_lints(args: &[String]) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    let status = command.arg("ci").args(args).envs(lints::variables()?).status()?;
    std::process::exit(status.code().unwrap_or(1))
}

/// What every stage needs, the browser's too: whatever is missing is installed in one go.
fn set_up() -> Result<()> {
    setup::run(&[])?;
    web::set_up()
}

fn fmt() -> Result<()> {
    run_child(&mut cargo("fmt --all --check"))?;
    // A workspace of its own, which CI does not build.
    run_child(&mut cargo("fmt --check --manifest-path integrations/dynamo/worker/Cargo.toml"))
}

fn clippy() -> Result<()> {
    let mut command = cargo("clippy --workspace --all-targets --target-dir");
    run_child(command.arg(checked()?).arg("--").args(lints::CLIPPY))
}

/// Where cargo keeps what it checks. While it compiles, nobody else gets into that folder.
fn checked() -> Result<PathBuf> {
    Ok(target_directory()?.join("checked"))
}

/// Compiles all that runs, and the benches, by the compiler of [`lints`].
fn build() -> Result<Command> {
    Ok(cargo("test --workspace --all-features --no-run --tests --examples --bench *"))
}

/// What the names of the corpus's tests have in them. One stage runs what has it and the other what
/// has not, of all programs: no test is in neither.
const CORPUS: &str = "parity::";

/// All tests but those of [`corpus`]: what they need was installed by the stage `setup`.
fn tests() -> Result<()> {
    run_child(test_command().args(["--", "--skip", CORPUS]))
}

/// The tests that [`tests`] leaves out, with the lowest priority where the system knows one.
fn corpus() -> Result<Command> {
    let mut command = test_command();
    command.args(["--", CORPUS]);
    Ok(if cfg!(unix) { nicely(&command) } else { command })
}

fn test_command() -> Command {
    let mut command = cargo("test --workspace --all-features --no-fail-fast");
    if cfg!(target_os = "linux") {
        command.env("REQUIRE_NGINX", "1");
    }
    command
}

/// Documents what clippy has checked. Cargo keeps apart what the compiler made alone and what it
/// made in a wrapper, which clippy is: without the same one here, called as clippy calls it, all
/// libraries would be checked once more.
fn rustdoc() -> Result<()> {
    let mut command = cargo("doc --workspace --all-features --no-deps --target-dir");
    command.arg(checked()?);
    if let Some(driver) = lints::of_toolchain("clippy-driver") {
        command.env(lints::VARIABLE, driver).env(lints::CLIPPY_ARGS, lints::clippy_args());
    }
    run_child(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn chosen(all: &'static [Stage], only: Option<&str>) -> Result<Vec<&'static Stage>> {
    let Some(only) = only else { return Ok(all.iter().collect()) };
    let all =
        all.iter().chain(CHECKS.iter().filter(|check| !all.iter().any(|s| s.name == check.name)));
    let all: Vec<_> = all.collect();
    let known: Vec<_> = all.iter().map(|stage| stage.name).collect();
    if let Some(name) = only.split(',').find(|name| !known.contains(name)) {
        let message = format!("unknown stage '{name}': one of {}", known.join(", "));
        return Err(UsageError(message).into());
    }
    Ok(all.into_iter().filter(|stage| only.split(',').any(|name| name == stage.name)).collect())
}

fn run_stages(stages: &[&Stage], keep_going: bool) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    // Work beside, by stage. What is left at the end is stopped.
    let mut beside: Vec<(&str, Result<Background>)> = Vec::new();
    let mut waiting: Vec<&Stage> = stages.to_vec();
    for stage in stages {
        let name = stage.name;
        if !keep_going && outcomes.iter().any(|outcome| outcome.result != "ok") {
            outcomes.push(Outcome { name, result: "not run", took: Duration::ZERO, cpu: None });
            continue;
        }
        waiting.retain(|other| match other.work {
            Work::Beside(after, command) if other.name == name || is_behind(name, after) => {
                beside.push((other.name, command().and_then(Background::start)));
                false
            }
            _ => true,
        });
        println!("\n== {name}");
        let (start, cpu) = (Instant::now(), cpu_time());
        let result = match stage.work {
            Work::Run(run) => run(),
            Work::Beside(..) => {
                let place = beside.iter().position(|(begun, _)| *begun == name);
                let begun = place.map(|place| beside.swap_remove(place).1);
                begun.expect("it begins in its turn at the latest").and_then(Background::finish)
            }
        };
        let (took, cpu) = (start.elapsed(), since(cpu));
        println!("== {name}: {} in {}", told(&result), seconds(took));
        let result = if result.is_ok() { "ok" } else { "FAILED" };
        outcomes.push(Outcome { name, result, took, cpu });
    }
    outcomes
}

/// Whether a stage comes behind another one.
fn is_behind(name: &str, other: &str) -> bool {
    STAGES.iter().skip_while(|stage| stage.name != other).skip(1).any(|stage| stage.name == name)
}

/// CPU time since `before`.
fn since(before: Option<Duration>) -> Option<Duration> {
    Some(cpu_time()?.saturating_sub(before?))
}

fn told(result: &Result<()>) -> String {
    let failure = |error: &Error| format!("FAILED, {error:#}");
    result.as_ref().map_or_else(failure, |()| "ok".into())
}

fn names(outcomes: &[Outcome], result: &str) -> Vec<&'static str> {
    outcomes.iter().filter(|outcome| outcome.result == result).map(|o| o.name).collect()
}

fn table(outcomes: &[Outcome], total: Duration, cpu: Option<Duration>) -> String {
    let told = |cpu: Option<Duration>| cpu.map_or_else(|| "-".into(), seconds);
    let line = |name: &str, result: &str, took: Duration, cpu| {
        format!("{name:<9} {result:<8} {:>9} {:>9}\n", seconds(took), told(cpu))
    };
    let mut text = format!("{:<9} {:<8} {:>9} {:>9}\n", "stage", "result", "time", "CPU time");
    for outcome in outcomes {
        text += &line(outcome.name, outcome.result, outcome.took, outcome.cpu);
    }
    let ok = outcomes.iter().all(|outcome| outcome.result == "ok");
    let result = if ok { "ok" } else { "FAILED" };
    text + &line("total", result, total, cpu)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Stage = Stage { name: "good", work: Work::Run(|| Ok(())) };
    const BAD: Stage = Stage { name: "bad", work: Work::Run(|| bail!("as told")) };
    const BESIDE: Stage =
        Stage { name: "beside", work: Work::Beside(BUILD, || Ok(cargo("--version"))) };
    const WRONG: Stage =
        Stage { name: "wrong", work: Work::Beside(SETUP, || Ok(cargo("no-such-verb"))) };

    fn results(stages: &[&Stage], keep_going: bool) -> Vec<(&'static str, &'static str)> {
        let outcomes = run_stages(stages, keep_going);
        outcomes.iter().map(|outcome| (outcome.name, outcome.result)).collect()
    }

    #[test]
    fn the_first_failure_stops_unless_told_to_keep_going() {
        let stages = [&GOOD, &BAD, &GOOD];
        assert_eq!(
            results(&stages, false),
            [("good", "ok"), ("bad", "FAILED"), ("good", "not run")]
        );
        assert_eq!(results(&stages, true), [("good", "ok"), ("bad", "FAILED"), ("good", "ok")]);
    }

    #[test]
    fn work_beside_passes_and_fails_in_its_turn() {
        let stages = [&GOOD, &BESIDE, &WRONG, &GOOD];
        let expected = [("good", "ok"), ("beside", "ok"), ("wrong", "FAILED"), ("good", "not run")];
        assert_eq!(results(&stages, false), expected);
        assert_eq!(results(&[&BAD, &BESIDE], false), [("bad", "FAILED"), ("beside", "not run")]);
    }

    #[test]
    fn the_table_closes_with_the_total() {
        let took = Duration::from_millis(1234);
        let outcomes = [
            Outcome { name: "fmt", result: "ok", took, cpu: Some(2 * took) },
            Outcome { name: "tests", result: "ok", took, cpu: None },
        ];
        let expected = "\
stage     result        time  CPU time
fmt       ok           1.2 s     2.5 s
tests     ok           1.2 s         -
total     ok           3.0 s     4.0 s
";
        let total = (Duration::from_secs(3), Some(Duration::from_secs(4)));
        assert_eq!(table(&outcomes, total.0, total.1), expected);
    }

    #[test]
    fn stages_are_chosen_by_name_and_keep_their_order() {
        let stages = chosen(STAGES, Some("tests,fmt")).unwrap();
        assert_eq!(stages.iter().map(|stage| stage.name).collect::<Vec<_>>(), ["fmt", "tests"]);
        assert_eq!(chosen(STAGES, None).unwrap().len(), STAGES.len());
        assert!(chosen(QUICK, Some("web")).is_err());
    }

    #[test]
    fn work_beside_begins_behind_a_stage_that_there_is() {
        for stage in STAGES {
            if let Work::Beside(after, command) = stage.work {
                assert!(is_behind(stage.name, after), "{}", stage.name);
                // Whatever goes on beside the tests must leave them their time.
                let waits = || !cfg!(unix) || command().unwrap().get_program() == "nice";
                assert!(is_behind(TESTS, stage.name) || waits(), "{}", stage.name);
            }
        }
        assert!(!is_behind(SETUP, BUILD) && !is_behind(BUILD, BUILD));
    }
}
