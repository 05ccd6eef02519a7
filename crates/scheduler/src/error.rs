//! What can go wrong in the scheduler.

use longview_ops::OpError;

use crate::policy::PolicyError;

/// A step or a change of a sequence that did not happen.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The device refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Options that cannot work together.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// More tokens than the sequence was planned for.
    #[error("{needed} tokens do not fit a context of {capacity}; start with a larger --ctx-size")]
    ContextFull {
        /// Tokens that would be in the sequence.
        needed: usize,
        /// Tokens that fit.
        capacity: usize,
    },
    /// A chunk larger than the step's buffers.
    #[error("a chunk of {len} tokens exceeds the planned {chunk}")]
    Chunk {
        /// Tokens of the chunk.
        len: usize,
        /// Most tokens.
        chunk: usize,
    },
    /// In-place recall on a device that does not share memory with the host.
    #[error(
        "{backend} does not share memory with the host: in-place recall is not possible, \
         use a device cache"
    )]
    NotUnified {
        /// The backend.
        backend: &'static str,
    },
}
