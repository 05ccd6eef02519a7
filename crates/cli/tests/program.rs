//! The `longview` program, called as a user calls it.

mod bad_input;
mod chat;
mod context;
mod cuda;
#[cfg(unix)]
mod inputs;
mod kv;
#[cfg(unix)]
mod models;
mod options;
#[cfg(unix)]
mod outputs;
mod plan;
mod policies;
mod policy_numbers;
mod processes;
#[cfg(unix)]
mod quantize;
mod results_files;
#[cfg(unix)]
mod serve;
mod serve_library;
mod session;
mod support;
mod templates;
