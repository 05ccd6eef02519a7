//! Options that several commands share, named as llama.cpp names them.

mod engine;
mod help;
mod llama;
mod names;
pub mod numbers;
mod policy;
#[cfg(test)]
mod random;
mod rope;
mod sampling;
mod words;

#[cfg(feature = "evaluation")]
pub use engine::PrefillModes;
pub use engine::{EngineArgs, kv_types};
pub use help::{check_topic, on_topic, shorten};
pub use names::one_of;
#[cfg(feature = "evaluation")]
pub use policy::PolicyFile;
pub use policy::{PolicyArgs, TuningArgs, option_help};
pub use rope::RopeArgs;
pub use sampling::{DRAFTS, SamplingArgs, draft_name};
pub use words::{Refusal, prepare};
