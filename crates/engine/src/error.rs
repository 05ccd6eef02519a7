//! What can go wrong while a model is loaded or runs.

use std::fmt;

use longview_core::Grouped;
use longview_model::batch::BatchError;
use longview_model::chat::ChatError;
use longview_model::folder::FolderError;
use longview_model::tokenizer::TokenizerError;
use longview_model::transformer::{ForwardError, LoadError, LogitsError};
use longview_model::weights::WeightsError;
use longview_ops::OpError;
use longview_scheduler::{PolicyError, SchedulerError, SessionFileError};

use crate::advice::Advice;

/// A call that did not happen. The session it was meant for stays usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The weights on the device.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A tokenizer that failed on a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A chat template that failed on a conversation.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Tokens that the model cannot run.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The device.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Options that cannot work together.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// What the scheduler could not do with a sequence.
    #[error(transparent)]
    Scheduler(SchedulerError),
    /// Weights that cannot be read to tell which they are.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The file of a session.
    #[error(transparent)]
    Session(#[from] SessionFileError),
    /// A prompt that does not fit; nothing was computed, nothing was cut off.
    #[error(
        "the prompt has {} tokens{} the context holds {}; start with --ctx-size {} or more, or \
         shorten the prompt",
        Grouped::from(*prompt),
        InUse(*used),
        Grouped::from(*context),
        prompt + used + 1
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens in the session before it.
        used: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A prompt that is so long that it was not even encoded to its end.
    #[error(
        "the prompt has at least {} tokens, about {} by what was read of it, but the context holds \
         {}; start with a larger --ctx-size or shorten the prompt",
        Grouped::from(*at_least),
        Grouped::from(*about),
        Grouped::from(*context)
    )]
    PromptFarTooLong {
        /// Tokens of the prompt that were counted.
        at_least: usize,
        /// Tokens of the whole prompt, if its end is as its beginning.
        about: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// A prompt of no tokens where one is needed.
    #[error("the prompt is empty: give at least one token to continue from")]
    EmptyPrompt,
    /// Not enough memory, found before loading.
    #[error(
        "not enough memory: {} are needed ({} weights, {} keys and values, {} index and buffers) \
         and {} are available; {advice}",
        Bytes(*needed),
        Bytes(*weights),
        Bytes(*kv),
        Bytes(*rest),
        Bytes(*available)
    )]
    Memory {
        /// Bytes in all.
        needed: u64,
        /// Of which weights.
        weights: u64,
        /// Of which keys and values.
        kv: u64,
        /// Of which the rest.
        rest: u64,
        /// Bytes that the device or machine has free.
        available: u64,
        /// What would fit.
        advice: Advice,
    },
    /// Not enough memory on a device that has its own, found before loading.
    #[error(
        "not enough device memory: {} are needed ({} weights, {} keys, values and index, {} \
         buffers) and {} are available; {advice}",
        Bytes(*needed),
        Bytes(*weights),
        Bytes(*kv),
        Bytes(*rest),
        Bytes(*available)
    )]
    DeviceMemory {
        /// Bytes on the device in all.
        needed: u64,
        /// Of which weights.
        weights: u64,
        /// Of which keys, values and index.
        kv: u64,
        /// Of which the rest.
        rest: u64,
        /// Bytes that the device has.
        available: u64,
        /// What would fit.
        advice: Advice,
    },
    /// A session that takes a larger buffer than the device has, found before loading.
    #[error(
        "{what} would take {} in one buffer, and the device allows {}; up to {tokens} tokens fit: use --ctx-size {tokens}, a --policy with a smaller index, or --device cpu",
        Bytes(*needed),
        Bytes(*available)
    )]
    DeviceBuffer {
        /// What is in the buffer.
        what: &'static str,
        /// Its bytes.
        needed: u64,
        /// The most that a buffer of the device has.
        available: u64,
        /// The longest context whose buffers the device has.
        tokens: usize,
    },
    /// Not enough host memory beside a device that has its own, found before loading.
    #[error(
        "not enough host memory: {} are needed ({} keys and values, {} index and positions) and {} \
         are available; {advice}",
        Bytes(*needed),
        Bytes(*kv),
        Bytes(*rest),
        Bytes(*available)
    )]
    HostMemory {
        /// Bytes in host memory in all.
        needed: u64,
        /// Of which keys and values.
        kv: u64,
        /// Of which the rest.
        rest: u64,
        /// Bytes that the host has free.
        available: u64,
        /// What would fit.
        advice: Advice,
    },
    /// A context longer than the model knows positions for.
    #[error(
        "a context of {} tokens: --ctx-size must be from 1 to {}",
        Grouped::from(*.0),
        Grouped::from(*.1)
    )]
    Context(usize, usize),
    /// A chunk size of nothing, or one that only takes memory.
    #[error("--chunk-size {}: must be from 1 to {}", .0, Grouped::from(*.1))]
    ChunkSize(usize, usize),
    /// A sampling parameter that means nothing.
    #[error("{option} {value}: must be {range}")]
    Sampling {
        /// As on the command line.
        option: &'static str,
        /// What was given.
        value: f32,
        /// What may be given.
        range: &'static str,
    },
    /// The model made a logit that is no number: weights or arithmetic are broken.
    #[error(
        "the logit of token {token} is NaN or infinite: the weights, the keys and values of a \
         session that was opened, or the arithmetic are broken"
    )]
    NonFinite {
        /// Its id.
        token: u32,
    },
    /// A step that failed in a way this version has no name for.
    #[error("{0}")]
    Step(String),
    /// The caller cancelled in the middle of a step; what was complete is kept.
    #[error("cancelled")]
    Cancelled,
}

/// What fills a context beside a prompt.
struct InUse(usize);

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str(" and"),
            used => write!(f, " and {} are in use, but", Grouped::from(used)),
        }
    }
}

/// Bytes in the largest unit of which there is at least one.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20)];
        let (unit, shift) =
            units.into_iter().find(|(_, shift)| self.0 >> shift > 0).unwrap_or(("KiB", 10));
        write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64)
    }
}

impl From<ForwardError<EngineError>> for EngineError {
    fn from(error: ForwardError<EngineError>) -> Self {
        match error {
            ForwardError::Op(error) => error.into(),
            ForwardError::Batch(error) => error.into(),
            ForwardError::Attention(error) => error,
            other => EngineError::Step(other.to_string()),
        }
    }
}

impl From<SchedulerError> for EngineError {
    fn from(error: SchedulerError) -> Self {
        match error {
            SchedulerError::Session(error) => error.into(),
            SchedulerError::Stopped => EngineError::Cancelled,
            other => EngineError::Scheduler(other),
        }
    }
}

impl From<LogitsError> for EngineError {
    fn from(error: LogitsError) -> Self {
        match error {
            LogitsError::Op(error) => error.into(),
            LogitsError::Batch(error) => error.into(),
            other => EngineError::Step(other.to_string()),
        }
    }
}
