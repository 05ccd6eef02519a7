//! Helpers that the tests across crates share.

pub mod backends;
pub mod bench;
pub mod sim;
