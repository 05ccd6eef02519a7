//! Checks that run on any backend: what `longview-gpu` runs on a machine with a GPU, and what the
//! tests of this crate run where there is none.

pub mod answers;
pub mod faults;
pub mod golden;
pub mod parity;
pub mod policy;
pub mod quantised;
mod run;
pub mod selection;

pub use run::{BACKENDS, Outcome, SECTIONS, SuiteRequest, run};
