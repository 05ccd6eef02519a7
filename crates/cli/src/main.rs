//! The `longview` command: a demo that proves itself, runs, plans, and a look at the machine.

mod app;
mod args;
mod completions;
mod demo;
mod device;
mod doctor;
mod embedded;
mod eval;
mod failure;
mod interrupt;
mod load;
mod out;
mod plan;
mod policies;
mod probe;
mod progress;
mod report;
mod run;
mod speed;
mod table;
mod units;

fn main() -> std::process::ExitCode {
    device::silence_mesa();
    app::main()
}
