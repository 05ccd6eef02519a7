//! What `cargo xtask models` runs: the published checkpoints of a folder against the committed
//! references, and the table of what came out.
//!
//! Exit codes: 1 where a check failed, or where one was not run and `REQUIRE_MODELS` is 1; 2 for a
//! call that makes no sense.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a face: it talks to a terminal")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use longview_tests::published::{self, Row, Status};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        [folder] => show(|row| published::check(Path::new(folder), row)),
        [folder, "--windows", n] if n.parse::<usize>().is_ok_and(|n| n > 0) => {
            let n = n.parse().expect("it was a number");
            show(|row| published::measure(Path::new(folder), n, row))
        }
        _ => {
            eprintln!("usage: published FOLDER [--windows N]");
            ExitCode::from(2)
        }
    }
}

/// Prints rows as they come, and how long each took: some take long.
fn show(run: impl FnOnce(&mut dyn FnMut(Row))) -> ExitCode {
    let [mut passed, mut failed, mut absent] = [0; 3];
    let mut start = Instant::now();
    run(&mut |row: Row| {
        println!("{row} ({:.1} s)", start.elapsed().as_secs_f64());
        start = Instant::now();
        match row.status {
            Status::Passed(_) => passed += 1,
            Status::Failed(_) => failed += 1,
            Status::NotRun(_) => absent += 1,
        }
    });
    println!("{passed} passed, {failed} failed, {absent} NOT RUN");
    let is_required = std::env::var("REQUIRE_MODELS").is_ok_and(|value| value == "1");
    let is_fatal = failed > 0 || (absent > 0 && is_required);
    if is_fatal { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
