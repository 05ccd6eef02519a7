//! The engine: a model on a device, sessions over it, prefill, decode and sampling.
//!
//! Everything is async and nothing blocks, so that the same code runs in a browser; native faces
//! block with a small executor. Progress and cancellation are part of the calls, and a call that is
//! cancelled or fails leaves its session as it was after the last complete step.

mod engine;
mod error;
mod fingerprint;
mod generate;
mod options;
mod output;
mod sampler;
mod saved;
mod session;
mod stop;

pub use engine::{Engine, MemoryPlan};
pub use error::EngineError;
pub use fingerprint::fingerprint;
pub use generate::{FinishReason, Generation, GenerationParams};
pub use options::{CancelToken, EngineOptions, RopeOverride};
pub use sampler::{Sampler, SamplingParams};
pub use saved::Restored;
pub use session::{Progress, Session, SessionStep, Timings};
pub use stop::StopFilter;
