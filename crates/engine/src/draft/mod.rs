//! Drafts: tokens that may follow are guessed from what the session has read and said, and one
//! step computes several of them (prompt lookup decoding). A wrong guess costs time, never a token:
//! what is drafted counts only if it is what would have been chosen.

mod lookup;
mod pace;

pub(crate) use lookup::Lookup;
pub use pace::{MAX_DRAFTED, Pace};
use serde::Serialize;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Draft {
    /// There are none: one token a step.
    #[default]
    Off,
    /// What followed the same tokens earlier in the session.
    Lookup,
}
