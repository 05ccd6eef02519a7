//! Why a file gives no text: each error names the cause and what to do.

use serde::{Deserialize, Serialize};

use super::kind::Kind;
use crate::size::Size;

/// A file without text that this program can read. The caller names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TextError {
    /// A file with nothing in it.
    #[error("there is no text in it; give a file with something to read")]
    Empty,
    /// Something that is no text.
    #[error("is {what}, and no text; give a txt, md, html, pdf or docx file")]
    NotText {
        /// What it seems to be.
        what: String,
    },
    /// An older format of Word.
    #[error(
        "is an old Word document or a protected one, which is not read; open it in Word or \
         LibreOffice and save it as docx without a password"
    )]
    OldOrProtected,
    /// A password keeps it.
    #[error("is encrypted and asks for a password; save it without one, then give that file")]
    Encrypted,
    /// Pages that are pictures.
    #[error(
        "has no text: its pages ({n_pages}) are pictures, as of a scanner; put text behind them \
         first, for example with ocrmypdf"
    )]
    Scanned {
        /// Its pages.
        n_pages: usize,
    },
    /// It is not what its beginning says.
    #[error("is broken as a {kind} file ({reason}); open it elsewhere and save it again")]
    Broken {
        /// What it claims to be.
        kind: Kind,
        /// What is wrong.
        reason: String,
    },
    /// Too much.
    #[error("has more text than {}, which is the most that is read here; split it", Size(*max_bytes))]
    TooLong {
        /// The limit.
        max_bytes: u64,
    },
    /// The file itself is too large.
    #[error("has {}, and at most {} of a file are read; split it", Size(*bytes), Size(*max_bytes))]
    TooLarge {
        /// What it has.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The process that read it was ended.
    #[error("cannot be read as {kind} within the limits of this program: {reason}")]
    Limits {
        /// What it claims to be.
        kind: Kind,
        /// Which limit.
        reason: String,
    },
    /// No process could be started, or the file cannot be read.
    #[error("cannot be read: {reason}")]
    Io {
        /// What the system says.
        reason: String,
    },
}
