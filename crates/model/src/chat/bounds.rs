//! Bounds of a template that several modules share.

use minijinja::{Error, ErrorKind};

/// The longest template source, in bytes. Published ones have up to 20 KB.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Instructions one rendering may take: some hundred per message, so enough for 10,000 of them.
/// A fuzzer would spend its day in loops.
pub(super) const FUEL: u64 = if cfg!(fuzzing) { 50_000 } else { 10_000_000 };

/// The longest text that one call may make, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 20;

/// An error about a limit.
pub(super) fn beyond(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}
