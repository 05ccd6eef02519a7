//! Does recall keep the answers? The field's tasks generated offline, probes of the attention
//! itself, and a report that shows every policy beside full attention.
//!
//! A run writes one JSON object a line ([`Record`]); a report reads such files, whoever wrote them.

pub mod coverage;
mod error;
pub mod haystack;
pub mod policies;
pub mod probe;
pub mod prompt;
pub mod record;
pub mod report;
pub mod results;
pub mod runner;
pub mod sample;
pub mod score;
pub mod speed;
pub mod summary;
pub mod tasks;
mod words;

pub use error::EvalError;
pub use longview_needles::{facts, filler};
pub use record::Record;
