//! The `longview` program, called as a user calls it.

mod bad_input;
mod cuda;
#[cfg(unix)]
mod inputs;
#[cfg(unix)]
mod outputs;
mod policies;
mod processes;
mod results_files;
mod session;
mod support;
mod templates;
