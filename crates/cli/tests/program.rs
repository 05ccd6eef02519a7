//! The `longview` program, called as a user calls it.

mod bad_input;
mod chat;
mod context;
mod cuda;
#[cfg(unix)]
mod inputs;
#[cfg(unix)]
mod models;
mod options;
#[cfg(unix)]
mod outputs;
mod plan;
mod policies;
mod policy_numbers;
mod processes;
mod results_files;
mod session;
mod support;
mod templates;
