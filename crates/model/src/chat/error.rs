//! What can go wrong with a chat template.

use serde::{Deserialize, Serialize};

use super::bounds::{FUEL, MAX_TEMPLATE_BYTES};

/// A template that cannot be used, or that refused a conversation. It can be sent to another
/// process, as templates are run in one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The system refused.
    #[error("{origin}: cannot be read ({reason})")]
    Read {
        /// The file.
        origin: String,
        /// What the system said.
        reason: String,
    },
    /// No template has ever been this long.
    #[error("{origin}: the chat template has {bytes} bytes, above the cap of {MAX_TEMPLATE_BYTES}")]
    TooLong {
        /// The file.
        origin: String,
        /// Its length.
        bytes: usize,
    },
    /// No template has ever been this deep.
    #[error("{origin}: the chat template is too complex in line {line}: {reason}")]
    TooComplex {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What there is too much of, and the limit.
        reason: String,
    },
    /// Several templates and none to begin with.
    #[error("{origin}: none of the chat templates ({names}) is called \"default\"")]
    NoDefault {
        /// The file.
        origin: String,
        /// What they are called.
        names: String,
    },
    /// It does not parse.
    #[error("{origin}: the chat template is broken in line {line}: {reason}")]
    Syntax {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// It stopped while running.
    #[error("{origin}: the chat template failed in line {line}: {reason}")]
    Render {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What went wrong.
        reason: String,
    },
    /// It called `raise_exception`.
    #[error("{origin}: the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The file.
        origin: String,
        /// The template's words.
        message: String,
    },
    /// It ran without end.
    #[error("{origin}: the chat template did not end within {FUEL} steps")]
    Endless {
        /// The file.
        origin: String,
    },
    /// It wrote without end.
    #[error(
        "{origin}: the chat template writes more than {} MiB from a conversation of {} KiB",
        limit >> 20,
        input.div_ceil(1024)
    )]
    TooMuch {
        /// The file.
        origin: String,
        /// The bytes it may write.
        limit: usize,
        /// Bytes of the conversation.
        input: usize,
    },
    /// What ran it ended it.
    #[error("{origin}: the chat template was stopped: {reason}")]
    Stopped {
        /// The file.
        origin: String,
        /// The limit it met.
        reason: String,
    },
    /// The model would never see what was said.
    #[error("{origin}: the chat template leaves out the {role} message")]
    Dropped {
        /// The file.
        origin: String,
        /// Whose message.
        role: String,
    },
}
