//! One queue: who works, and with which memory.

use crate::scratch::Scratch;
use crate::team::Team;

/// The workers and scratch of one queue.
pub(crate) struct Queue {
    /// The threads that share the work of a call.
    pub(crate) team: Team,
    /// Scratch of the op as a whole, read by all workers.
    pub(crate) shared: Scratch,
}
