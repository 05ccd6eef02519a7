//! The tests that need a device, in one program that needs no cargo: what `cargo xtask gpu` packs
//! for a machine with a GPU.
//!
//! Exit codes: 0 all right, 1 something failed, 2 a call that makes no sense, 3 not run, because
//! the device is not there.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use longview_tests::bench::decode::{self, DecodeRequest};
use longview_tests::bench::{self, Asked};
use longview_tests::suite::{Outcome, SuiteRequest, run};

const NOT_RUN: u8 = 3;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args == ["--version"] {
        println!("longview-gpu {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let asked = match Call::parse(args) {
        Ok(asked) => asked,
        Err(error) => {
            let [suite, ops, decode] = [SuiteRequest::USAGE, bench::USAGE, decode::USAGE];
            eprintln!("longview-gpu: {error:#}\nusage: longview-gpu {suite}");
            eprintln!("       longview-gpu ops {ops}\n       longview-gpu decode {decode}");
            return ExitCode::from(2);
        }
    };
    let result = match asked {
        Call::Suite(request) => tell(&request),
        Call::Ops(asked) => {
            bench::answer(&asked, &mut std::io::stdout().lock()).map(|()| ExitCode::SUCCESS)
        }
        Call::Decode(request) => {
            decode::decode(&request, &mut std::io::stdout().lock()).map(|()| ExitCode::SUCCESS)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("longview-gpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is asked for: the whole suite, or one bench alone.
enum Call {
    Suite(SuiteRequest),
    Ops(Asked),
    Decode(DecodeRequest),
}

impl Call {
    fn parse(args: Vec<String>) -> Result<Self> {
        match args.split_first() {
            Some((first, rest)) if first == "ops" => Asked::parse(rest.to_vec()).map(Self::Ops),
            Some((first, rest)) if first == "decode" => {
                DecodeRequest::parse(rest.to_vec()).map(Self::Decode)
            }
            _ => SuiteRequest::parse(args).map(Self::Suite),
        }
    }
}

fn tell(request: &SuiteRequest) -> Result<ExitCode> {
    let out = &mut std::io::stdout().lock();
    let name = request.backend;
    match run(request, out)? {
        Outcome::NotRun(reason) => {
            writeln!(out, "NOT RUN on {name}: {reason}")?;
            Ok(ExitCode::from(NOT_RUN))
        }
        Outcome::Done { passed, failed, not_run } => {
            writeln!(out, "\non {name}: {passed} passed, {failed} failed, {not_run} not run")?;
            Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}
