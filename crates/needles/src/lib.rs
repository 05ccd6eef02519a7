//! Facts, and the text that they are hidden in: what the demo and the evaluation ask about.
//!
//! Both are generated from a seed. They are a crate of their own so that the demo builds without
//! the evaluation, which needs plotting and other crates that answer no question.

pub mod facts;
pub mod filler;
