//! What can go wrong in the scheduler.

mod scheduler_error;
mod session_file_error;

pub use scheduler_error::SchedulerError;
pub use session_file_error::{DamagedPart, Difference, SessionFileError};
