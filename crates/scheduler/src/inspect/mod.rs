//! What somebody sees who inspects a sequence: where its tokens stood, and what its steps computed.

mod token_place;
mod trace;

pub use token_place::TokenPlace;
pub(crate) use token_place::{TrackedHead, mark};
pub use trace::TracedLayer;
pub(crate) use trace::{AttendedHead, Trace};
