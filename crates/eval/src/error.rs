//! What can go wrong in an evaluation.

use std::path::{Path, PathBuf};

use longview_engine::EngineError;
use longview_model::chat::ChatError;
use longview_model::tokenizer::TokenizerError;

/// An evaluation, or a part of one, that did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// No task or group of that name.
    #[error("unknown task '{name}': one of {known}; `longview eval --list` says what they are")]
    UnknownTask {
        /// What was given.
        name: String,
        /// Names and groups.
        known: String,
    },
    /// A length that a task cannot be made for.
    #[error("--tasks {task}: {length} tokens are too few: its shortest form takes {needed}")]
    TooShort {
        /// Its name on the command line.
        task: String,
        /// What was asked for.
        length: usize,
        /// What the shortest takes, answer included.
        needed: usize,
    },
    /// A task that reads a file which was not given.
    #[error("--tasks {task}: needs {option} ({what})")]
    NoFile {
        /// Its name on the command line.
        task: String,
        /// The option, with what it takes.
        option: &'static str,
        /// What the file is.
        what: &'static str,
    },
    /// A word of `--policies` that says nothing.
    #[error("--policies {text}: {reason}")]
    PolicyText {
        /// What was given.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// The system refused.
    #[error("{}: {action} failed ({source})", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Reading or writing.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A policy whose choice the host does not see.
    #[error(
        "--policies {policy}: the device finds what to recall itself, so what was attended is not \
         known here; load the engine with `device_cache: false` to probe it"
    )]
    DeviceResolves {
        /// As the user wrote it.
        policy: String,
    },
    /// A results file that another run began.
    #[error(
        "{}: was written with {what} {found}, this run has {wanted}; give another file with -o, or \
         run as before",
        path.display()
    )]
    OtherRun {
        /// The results file.
        path: PathBuf,
        /// What differs.
        what: String,
        /// In the file.
        found: String,
        /// In this run.
        wanted: String,
    },
    /// A chat template that changes what it is given.
    #[error(
        "the model's chat template does not keep the document as it is; use --no-chat-template"
    )]
    Template,
    /// A text that the tokenizer refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A call of the engine that failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl EvalError {
    /// `action` on `path` failed.
    pub fn file(path: &Path, action: &'static str, source: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), action, source }
    }

    /// `path` does not hold what it should.
    pub fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }
}
