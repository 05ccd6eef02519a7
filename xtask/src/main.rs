//! `cargo xtask <verb>`: the one place for set-up, CI, checks and benches.
//!
//! Plain Rust instead of scripts, so that every machine runs the same steps in the same way. It
//! depends on none of Longview's crates: it builds in seconds, and it still runs when they do not
//! compile. Whatever needs them is a program of its own that a verb starts through cargo.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: it talks to a terminal")]

mod args;
mod bench;
mod ci;
mod clients;
mod cluster;
mod cross;
mod debian;
mod demo;
mod fuzz;
mod gpu;
mod kernels;
mod lints;
mod measure;
mod models;
mod package;
mod parity;
mod platforms;
mod process;
mod sanitize;
mod scale;
mod setup;
mod soak;
mod storage;
#[cfg(test)]
mod test_targets;
mod tidy;
mod web;
mod wheel;

use std::process::ExitCode;

use anyhow::{Error, Result};

use crate::args::UsageError;
use crate::process::ChildFailed;

/// Something `cargo xtask` can do.
struct Verb {
    name: &'static str,
    options: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<()>,
}

const VERBS: &[Verb] = &[
    Verb { name: "ci", options: ci::OPTIONS, about: ci::ABOUT, run: ci::run },
    Verb { name: "tidy", options: tidy::OPTIONS, about: tidy::ABOUT, run: tidy::run },
    Verb { name: "measure", options: measure::OPTIONS, about: measure::ABOUT, run: measure::run },
    Verb { name: "setup", options: "", about: setup::ABOUT, run: setup::run },
    Verb { name: "parity", options: parity::OPTIONS, about: parity::ABOUT, run: parity::run },
    Verb { name: "kernels", options: kernels::OPTIONS, about: kernels::ABOUT, run: kernels::run },
    Verb { name: "models", options: models::OPTIONS, about: models::ABOUT, run: models::run },
    Verb { name: "clients", options: "", about: clients::ABOUT, run: clients::run },
    Verb { name: "cluster", options: cluster::OPTIONS, about: cluster::ABOUT, run: cluster::run },
    Verb { name: "storage", options: "", about: storage::ABOUT, run: storage::run },
    Verb { name: "references", options: "", about: models::MAKES, run: models::make_references },
    Verb { name: "demo-check", options: "", about: demo::ABOUT, run: demo::run },
    Verb { name: "bench", options: bench::OPTIONS, about: bench::ABOUT, run: bench::run },
    Verb {
        name: "sanitize",
        options: sanitize::OPTIONS,
        about: sanitize::ABOUT,
        run: sanitize::run,
    },
    Verb {
        name: "platforms",
        options: platforms::OPTIONS,
        about: platforms::ABOUT,
        run: platforms::run,
    },
    Verb { name: "scale", options: scale::OPTIONS, about: scale::ABOUT, run: scale::run },
    Verb { name: "soak", options: soak::OPTIONS, about: soak::ABOUT, run: soak::run },
    Verb { name: "fuzz", options: fuzz::OPTIONS, about: fuzz::ABOUT, run: fuzz::run },
    Verb { name: "gpu", options: "", about: gpu::ABOUT, run: gpu::run },
    Verb { name: "package", options: package::OPTIONS, about: package::ABOUT, run: package::run },
    Verb { name: "web", options: web::OPTIONS, about: web::ABOUT, run: web::run },
    Verb { name: "help", options: "", about: "prints this", run: help },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = if lints::is_call(&args) { lints::run(&args) } else { dispatch(&args) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn dispatch(args: &[String]) -> Result<()> {
    let Some((name, rest)) = args.split_first() else {
        return Err(UsageError("which verb?".into()).into());
    };
    if matches!(name.as_str(), "-h" | "--help") || rest == ["--help"] {
        return help(&[]);
    }
    match VERBS.iter().find(|verb| verb.name == name) {
        Some(verb) => (verb.run)(rest),
        None => Err(UsageError(format!("unknown verb '{name}'")).into()),
    }
}

fn help(rest: &[String]) -> Result<()> {
    args::Parsed::parse(rest, &[], &[])?;
    print!("{}", usage());
    Ok(())
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask <verb>\n\n");
    for verb in VERBS {
        let call = format!("{} {}", verb.name, verb.options);
        text += &format!("  {}\n      {}\n", call.trim_end(), verb.about);
    }
    text
}

/// 2 for a wrong call, the child's own code where a child failed, else 1.
fn report(error: &Error) -> ExitCode {
    eprintln!("xtask: {error:#}");
    if error.is::<UsageError>() {
        eprint!("\n{}", usage());
        return ExitCode::from(2);
    }
    let child = error.downcast_ref::<ChildFailed>().and_then(|child| child.code);
    ExitCode::from(child.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Result<()> {
        dispatch(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_calls_are_usage_errors() {
        let calls = [
            "",
            "frobnicate",
            "ci --fast",
            "ci --only nothing",
            "parity --op",
            "parity --all --op rope",
            "help me",
            "scale",
            "scale everything",
        ];
        let benches = ["bench", "bench gpu", "bench ops", "bench --fast", "bench --quick"];
        for line in calls.into_iter().chain(benches).chain([
            "setup x",
            "tidy now",
            "measure nowhere",
            "measure --all",
            "tidy --only nothing",
            "kernels all",
            "models now",
            "clients openai",
            "cluster 3",
            "storage azure",
            "cluster --worker go",
            "models --windows",
            "references smollm2",
            "kernels --only",
            "gpu now",
            "fuzz gguf",
            "fuzz --only nothing",
            "fuzz --runs many",
            "fuzz --runs 1 --seconds 1",
            "fuzz --coverage --runs 1",
            "sanitize loom",
            "sanitize --only nothing",
            "sanitize --only loom --quick",
            "package now",
            "platforms aarch64",
            "platforms --only beos",
            "soak now",
            "soak --minutes 0",
            "soak --minutes 1 --seconds 1",
            "package --check --test",
            "web --port 80",
            "web --serve --test",
            "web --serve --port x",
        ]) {
            let error = call(line).expect_err(line);
            assert!(error.is::<UsageError>(), "{line}: {error:#}");
        }
    }

    #[test]
    fn usage_names_every_verb_and_stage() {
        let text = usage();
        assert!(VERBS.iter().all(|verb| text.contains(&format!("\n  {}", verb.name))), "{text}");
        assert!(ci::STAGES.iter().all(|stage| text.contains(stage.name)), "{text}");
    }
}
