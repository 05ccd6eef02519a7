//! The `longview` program, called as a user calls it.

mod bad_input;
mod context;
mod cuda;
mod options;
mod plan;
mod policies;
mod processes;
mod results_files;
mod session;
mod support;
