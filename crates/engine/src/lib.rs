//! The engine: a model on a device, sessions over it, prefill, decode and sampling.
//!
//! Everything is async and nothing blocks, so that the same code runs in a browser; native faces
//! block with a small executor. Progress and cancellation are part of the calls, and a call that is
//! cancelled or fails leaves its session as it was after the last complete step.

mod advice;
mod coming;
mod draft;
mod engine;
mod error;
mod fingerprint;
mod fit;
mod fork;
mod generate;
mod home;
mod memory;
mod options;
mod output;
mod plan;
mod policy;
mod prefill;
mod repeated_rows;
mod sampler;
mod saved;
mod session;
mod share;
mod step;
mod stop;
mod timing;

pub use advice::{Advice, Change};
pub use coming::{BegunChunk, ComingSession};
pub use draft::{Draft, MAX_DRAFTED, Pace};
pub use engine::Engine;
pub use error::EngineError;
pub use fingerprint::{fingerprint, fingerprint_digest};
pub use fit::Fit;
pub use generate::{FinishReason, Generation, GenerationParams};
pub use longview_scheduler::{BlockCounts, MAX_CONTEXT, PrefillMode, PromptEnd};
pub use memory::{Memory, MemoryPlace, MemoryPlan, Shortage};
pub use options::{CancelToken, EngineOptions, KvResidency, RopeOverride};
pub use plan::MAX_CHUNK_SIZE;
pub use policy::resolve_policy;
pub use prefill::Progress;
pub use repeated_rows::RepeatedRows;
pub use sampler::{Sampler, SamplingParams};
pub use saved::{Compute, Restored, SessionFiles};
pub use session::{Session, Timings};
pub use share::EngineShare;
pub use step::{SessionStep, StepResults};
pub use stop::StopFilter;
pub use timing::Timing;
