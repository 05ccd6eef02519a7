//! Evaluations from tasks to a report.

mod answers;
mod probe;
mod reading;
mod report;
mod speed;
