//! Speed of one backend's ops, with the share of what its device can do, and the cost of a decoded
//! token. Run by `cargo xtask bench --device cpu|wgpu`.

#![expect(clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::process::ExitCode;

use longview_tests::bench::{Request, USAGE, run};

fn main() -> ExitCode {
    let request = match Request::parse(std::env::args().skip(1)) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("bench: {error:#}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&request, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
