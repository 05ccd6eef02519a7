//! Why a model cannot become a GGUF file.

use std::io;
use std::path::PathBuf;

use crate::gguf::GgufModelError;
use crate::text::clip;
use crate::tokenizer::TokenizerError;
use crate::weights::WeightsError;

/// A model that does not become a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Its architecture has no place in the format.
    #[error(
        "{}: {class} has no GGUF form that is read here; {supported} have: use the folder itself, \
         with --quantize", path.display()
    )]
    Architecture {
        /// The folder or file of the model.
        path: PathBuf,
        /// Its class, as `config.json` names it.
        class: &'static str,
        /// The classes that have a GGUF form, separated by commas.
        supported: String,
    },
    /// Something in its config has none.
    #[error(
        "{}: {field} is {value}, which a GGUF file cannot say; use the folder itself, with \
         --quantize", path.display()
    )]
    Config {
        /// The folder or file of the model.
        path: PathBuf,
        /// The key of `config.json`.
        field: &'static str,
        /// What the model says.
        value: String,
    },
    /// Its tokenizer has none.
    #[error(
        "{}: {reason}; a GGUF file cannot hold this tokenizer: use the folder itself, with \
         --quantize", path.display()
    )]
    Tokenizer {
        /// The file of the tokenizer.
        path: PathBuf,
        /// What is in the way.
        reason: String,
    },
    /// The tokenizer fails on a text.
    #[error(transparent)]
    Encode(#[from] TokenizerError),
    /// A tensor that does not fit.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The file that is read, or the header of the one that is written.
    #[error(transparent)]
    Gguf(#[from] GgufModelError),
    /// A tensor cannot be read, or has values that the type does not hold.
    #[error("{}: {}: {source}", path.display(), clip(name))]
    Read {
        /// The folder or file of the model.
        path: PathBuf,
        /// The tensor, as the new file names it.
        name: String,
        /// What the system said, or what is wrong with a value.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot be written ({0})")]
    Write(#[source] io::Error),
}
