//! What can go wrong with a report.

use std::path::PathBuf;

/// What can go wrong with a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that is no record.
    #[error("{path}, line {line}: {reason}; is it a results file of `longview eval`?")]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Numbers that say nothing beside each other.
    #[error(
        "{first} and {second} cannot be put together: {what} {found} in the one, {wanted} in the \
         other; make a report of each"
    )]
    Mixed {
        /// The file that came first.
        first: PathBuf,
        /// The other; the same where one file holds both.
        second: PathBuf,
        /// What differs.
        what: String,
        /// In the first.
        found: String,
        /// In the second.
        wanted: String,
    },
    /// Nothing to show.
    #[error("{0}: no results; `longview eval -o FILE` writes some")]
    Empty(PathBuf),
    /// A plot that cannot be drawn.
    #[error("a plot could not be drawn: {0}")]
    Draw(String),
}

impl ReportError {
    pub(super) fn draw(error: impl std::fmt::Display) -> Self {
        Self::Draw(error.to_string())
    }
}
