//! Decode over long contexts: recall against full attention, on shapes of published models, and at
//! a million tokens. Run by `cargo xtask bench decode`.

#![expect(clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::process::ExitCode;

use longview_tests::bench::decode::{DecodeRequest, USAGE, decode};

fn main() -> ExitCode {
    let request = match DecodeRequest::parse(std::env::args().skip(1)) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("bench decode: {error:#}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    match decode(&request, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench decode: {error:#}");
            ExitCode::FAILURE
        }
    }
}
