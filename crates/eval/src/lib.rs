//! Does recall keep the answers? The field's tasks generated offline, probes of the attention
//! itself, and a report that shows every policy beside full attention.
//!
//! A run writes one JSON object a line ([`Record`]); a report reads such files, whoever wrote them.

pub mod record;

pub use record::Record;
