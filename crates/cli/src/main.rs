//! The `longview` command: a demo that proves itself, runs, plans, and a look at the machine.

mod app;
mod args;
mod completions;
mod demo;
mod device;
mod doctor;
mod embedded;
#[cfg(feature = "evaluation")]
mod evaluation;
#[cfg(not(feature = "evaluation"))]
#[path = "evaluation_absent.rs"]
mod evaluation;
mod failure;
mod interrupt;
mod load;
mod out;
mod plan;
mod policies;
mod progress;
mod run;
mod table;
mod terminal;
mod units;

fn main() -> std::process::ExitCode {
    device::silence_mesa();
    app::main()
}
