//! Tasks: a document that is read once, and questions about it, as a function of a seed, a number
//! and a length.
//!
//! A task is one small file: it says what it is called and how a sample is made. What answers, and
//! under which policy, is the runner's business; how right an answer is, a metric's
//! ([`crate::score`]).

mod files;
mod infinitebench;
mod longbench;
mod many;
mod native;
mod niah;
mod registry;
mod ruler;
mod task;

pub use self::files::TaskFiles;
pub use self::registry::{GROUPS, all, select};
pub use self::task::{Setting, Task};
pub use crate::sample::{Question, Sample};

#[cfg(test)]
mod tests;
