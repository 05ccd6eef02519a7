//! Options that several commands share, named as llama.cpp names them.

mod engine;
mod names;
mod policy;
mod rope;
mod sampling;

pub use engine::{EngineArgs, kv_types};
pub use names::one_of;
#[cfg(feature = "evaluation")]
pub use policy::PolicyFile;
pub use policy::{PolicyArgs, TuningArgs};
pub use rope::RopeArgs;
pub use sampling::SamplingArgs;
