//! Policies that let go of tokens for good: which rows are kept for their attention, and where
//! first tokens are attended once others are gone.

mod kept;
mod sink_rotation;

pub use kept::head_capacities;
pub(crate) use kept::{
    Kept, KeptPlaces, KeptRecord, ObservedToken, RechooseWindow, best, group_means,
};
pub(crate) use sink_rotation::{RotatedSinks, SinkRotation, sink_rotation_bytes};
