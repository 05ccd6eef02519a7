//! The `longview` command: a demo that proves itself, runs, plans, and a look at the machine.

mod app;
mod args;
mod clean;
mod completions;
mod context;
mod demo;
mod device;
mod doctor;
#[cfg(feature = "evaluation")]
mod evaluation;
#[cfg(not(feature = "evaluation"))]
#[path = "evaluation_absent.rs"]
mod evaluation;
mod failure;
mod files;
mod interrupt;
mod kv;
mod load;
mod log;
mod models;
mod out;
mod plan;
mod policies;
mod progress;
mod quantize;
mod run;
mod serve;
mod share;
mod table;
mod template;
mod terminal;
mod tokenize;
mod units;
mod wrap;

fn main() -> std::process::ExitCode {
    if let Some(code) = template::serve().or_else(longview_library::text::serve) {
        return code;
    }
    device::silence_mesa();
    // A server makes and drops sessions all day.
    longview_cpu::return_large_memory();
    app::main()
}
