//! What can go wrong, each with a code that the page has words for.

use longview_core::{HeadId, LayerId};
use longview_engine::EngineError;
use longview_model::folder::FolderError;
use longview_model::tokenizer::TokenizerError;
use longview_model::transformer::LoadError;
use longview_ops::OpError;
use longview_scheduler::{PolicyError, SchedulerError, SessionFileError};

/// A call of a [`crate::Reader`] that did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// The engine, the model or the device.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A model without a tokenizer.
    #[error("the model's folder holds no tokenizer.json, so no text can be encoded: add it")]
    NoTokenizer,
    /// A question before there is a document.
    #[error("there is no document yet: read one first")]
    NoDocument,
    /// A document of no words.
    #[error("the document is empty: paste some text or drop a text file")]
    EmptyDocument,
    /// A saved session of another text.
    #[error("the saved session was made of another text; read this one anew")]
    OtherDocument,
    /// A document that does not fit with a question.
    #[error(
        "the document has {tokens} tokens, and a context of {context} leaves no room for a \
         question; choose a longer context or a shorter document"
    )]
    DocumentTooLong {
        /// Tokens of the document.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A policy that keeps more on the device than was allowed.
    #[error(
        "{policy} keeps {needed} bytes of keys, values and index on the device, and {limit} are \
         allowed; allow more, lower the budget, or choose a policy that recalls"
    )]
    CacheTooSmall {
        /// The policy's name.
        policy: String,
        /// Bytes at least.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A KV head that the model has not.
    #[error(
        "there is no layer {layer} with KV head {head}: the model has {n_layers} and {n_kv_heads}"
    )]
    NoSuchHead {
        /// The layer asked for.
        layer: LayerId,
        /// The head asked for.
        head: HeadId,
        /// Layers of the model.
        n_layers: usize,
        /// KV heads of a layer.
        n_kv_heads: usize,
    },
}

impl From<TokenizerError> for ReaderError {
    fn from(error: TokenizerError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<FolderError> for ReaderError {
    fn from(error: FolderError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<PolicyError> for ReaderError {
    fn from(error: PolicyError) -> Self {
        Self::Engine(error.into())
    }
}

impl ReaderError {
    /// The code: `device-lost`, `out-of-memory`, `context-too-long`, `bad-model`, `bad-session`,
    /// `wrong-model`, `cancelled`, `bad-input` or `other`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoDocument | Self::EmptyDocument | Self::NoSuchHead { .. } => "bad-input",
            Self::NoTokenizer => "bad-model",
            Self::OtherDocument => "bad-session",
            Self::DocumentTooLong { .. } => "context-too-long",
            Self::CacheTooSmall { .. } => "out-of-memory",
            Self::Engine(error) => code_of(error),
        }
    }
}

fn code_of(error: &EngineError) -> &'static str {
    match error {
        EngineError::Folder(_) | EngineError::Tokenizer(_) | EngineError::Chat(_) => "bad-model",
        EngineError::Load(LoadError::Op(op)) | EngineError::Op(op) => code_of_op(op),
        EngineError::Load(LoadError::Window(_))
        | EngineError::PromptTooLong { .. }
        | EngineError::PromptFarTooLong { .. }
        | EngineError::Context(..)
        | EngineError::Scheduler(SchedulerError::ContextFull { .. }) => "context-too-long",
        EngineError::Session(SessionFileError::Wrong(_)) => "wrong-model",
        EngineError::Session(SessionFileError::TooLong { .. }) => "context-too-long",
        EngineError::Session(_) => "bad-session",
        EngineError::Weights(_) | EngineError::Load(_) | EngineError::NonFinite { .. } => {
            "bad-model"
        }
        EngineError::Scheduler(SchedulerError::Op(op)) => code_of_op(op),
        EngineError::Memory { .. }
        | EngineError::DeviceMemory { .. }
        | EngineError::DeviceBuffer { .. }
        | EngineError::HostMemory { .. } => "out-of-memory",
        EngineError::Cancelled => "cancelled",
        EngineError::Policy(_)
        | EngineError::Scheduler(SchedulerError::Policy(_) | SchedulerError::NoStatistics { .. })
        | EngineError::EmptyPrompt
        | EngineError::Sampling { .. }
        | EngineError::ChunkSize(..) => "bad-input",
        _ => "other",
    }
}

fn code_of_op(error: &OpError) -> &'static str {
    match error {
        OpError::OutOfMemory { .. } => "out-of-memory",
        // A browser tells of memory that it could not get after the fact, by losing the device.
        OpError::DeviceLost { reason, .. } if reason.to_lowercase().contains("memory") => {
            "out-of-memory"
        }
        OpError::DeviceLost { .. } => "device-lost",
        OpError::Weight { .. } => "bad-model",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_what_a_visitor_can_do() {
        let lost = |reason: &str| {
            let error = OpError::DeviceLost { backend: "wgpu", reason: reason.into() };
            ReaderError::Engine(EngineError::Op(error)).code()
        };
        assert_eq!(lost("destroyed"), "device-lost");
        assert_eq!(lost("Out of Memory"), "out-of-memory");
        let full = SchedulerError::ContextFull { needed: 9, capacity: 8 };
        assert_eq!(ReaderError::Engine(full.into()).code(), "context-too-long");
        let weight = OpError::Weight { name: "w".into(), what: "cannot be read".into() };
        assert_eq!(ReaderError::Engine(LoadError::from(weight).into()).code(), "bad-model");
        assert_eq!(ReaderError::NoDocument.code(), "bad-input");
        assert_eq!(ReaderError::Engine(EngineError::Cancelled).code(), "cancelled");
    }
}
