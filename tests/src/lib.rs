//! Helpers that the tests across crates share.
