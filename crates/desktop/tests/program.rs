//! One program for all tests of the window: linking it takes longer than compiling a file of them.

#![expect(clippy::print_stdout, reason = "tests say what they measured, and what could not run")]

mod flows;
mod frames;
mod kept;
mod models;
mod newcomer;
mod pictures;
mod real;
mod serving;
mod several;
// Elsewhere there is no screen that nobody sees.
#[cfg(target_os = "linux")]
mod start;
mod support;
mod trouble;
