//! The tests that need a device, in one program that needs no cargo: what `cargo xtask gpu` packs
//! for a machine with a GPU.
//!
//! Exit codes: 0 all right, 1 something failed, 2 a call that makes no sense, 3 not run, because
//! the device is not there.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use longview_tests::suite::{Outcome, SuiteRequest, run};

const NOT_RUN: u8 = 3;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args == ["--version"] {
        println!("longview-gpu {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let request = match SuiteRequest::parse(args) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("longview-gpu: {error:#}\nusage: longview-gpu {}", SuiteRequest::USAGE);
            return ExitCode::from(2);
        }
    };
    match tell(&request) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("longview-gpu: {error:#}");
            ExitCode::FAILURE
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
