//! Where log lines go.
//!
//! They are events of `tracing`. Who starts a server chooses who hears them, for the whole process
//! or for the starting thread alone, and a server's other threads tell the same: several servers
//! may run in one process. No line holds a prompt or an answer.

use tracing::dispatcher::{Dispatch, get_default, with_default};

/// `work` for another thread, whose lines go where those of this thread go.
pub(crate) fn same<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let hearer = get_default(Dispatch::clone);
    move || with_default(&hearer, work)
}
