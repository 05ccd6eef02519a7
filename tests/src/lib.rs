//! Helpers that the tests across crates share, and the checks that run on any backend.

pub mod backends;
pub mod bench;
pub mod files;
pub mod levels;
pub mod published;
pub mod sim;
pub mod suite;
