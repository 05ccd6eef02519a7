//! Why the backend could not start.

use crate::isa::Isa;

/// The backend's name on command lines and in errors.
pub(crate) const NAME: &str = "cpu";

/// An instruction set or threads that are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// An instruction set was forced that this machine lacks.
    #[error(
        "this processor has no {isa}: leave the instruction set to the program, or use portable"
    )]
    MissingIsa {
        /// The one that was forced.
        isa: Isa,
    },
    /// The operating system refused a thread.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}
