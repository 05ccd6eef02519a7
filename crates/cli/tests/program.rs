//! The `longview` program, called as a user calls it.

mod bad_input;
mod chat;
mod cuda;
mod policies;
mod processes;
mod results_files;
mod session;
mod support;
