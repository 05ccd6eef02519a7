//! A session file of a long document, opened. Run by `cargo xtask bench open`.

#![expect(clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::process::ExitCode;

use longview_tests::bench::open::{OpenRequest, USAGE, open};

fn main() -> ExitCode {
    let request = match OpenRequest::parse(std::env::args().skip(1)) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("bench open: {error:#}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    match open(&request, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench open: {error:#}");
            ExitCode::FAILURE
        }
    }
}
