//! The `longview` program, called as a user calls it.

mod bad_input;
mod chat;
mod context;
mod cuda;
mod inputs;
mod kv;
#[cfg(unix)]
mod models;
#[cfg(unix)]
mod nginx;
mod options;
mod outputs;
mod plan;
mod policies;
mod policy_numbers;
mod processes;
mod quantize;
mod results_files;
#[cfg(unix)]
mod serve;
mod serve_library;
mod session;
#[cfg(all(feature = "shared", unix))]
mod shared;
mod support;
mod templates;
mod tokens;
