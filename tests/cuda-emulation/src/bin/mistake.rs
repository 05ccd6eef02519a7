//! Runs one mistake of `kernels/primitives.cu`, by its number: the sanitizer ends a program that it
//! finds wrong, so its tests need one to end.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: tests read what it says")]

use std::process::ExitCode;

use longview_cuda_emulation::{EmulatedOptions, Primitives};

fn main() -> ExitCode {
    let which = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let Some(which) = which else {
        eprintln!("usage: mistake NUMBER");
        return ExitCode::from(2);
    };
    match Primitives::new(EmulatedOptions::default()).and_then(|mut p| p.mistake(which)) {
        Ok(words) => println!("nobody noticed: {:?}", &words[..4]),
        Err(message) => println!("{message}"),
    }
    ExitCode::SUCCESS
}
