//! Evaluations from tasks to a report.

mod answers;
mod left_out;
mod probe;
mod reading;
mod report;
mod speed;
