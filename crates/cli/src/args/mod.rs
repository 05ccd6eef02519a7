//! Options that several commands share, named as llama.cpp names them.

mod compared;
mod engine;
mod names;
mod policy;
mod rope;
mod sampling;

pub use compared::ComparedArgs;
pub use engine::{EngineArgs, kv_types};
pub use names::one_of;
pub use policy::{PolicyArgs, TuningArgs};
pub use rope::RopeArgs;
pub use sampling::SamplingArgs;
