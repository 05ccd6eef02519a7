//! Speed of one backend's ops, with the share of what its device can do, and the cost of a decoded
//! token; or what they would be at best on GPUs that are not here. Run by `cargo xtask bench
//! --device cpu|wgpu|cuda` and `cargo xtask bench --bounds`.

#![expect(clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::process::ExitCode;

use longview_tests::bench::{Asked, USAGE, answer};

fn main() -> ExitCode {
    let asked = match Asked::parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("bench: {error:#}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    match answer(&asked, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
