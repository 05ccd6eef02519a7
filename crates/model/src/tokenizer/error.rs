//! What can go wrong with a tokenizer.

use std::path::PathBuf;

use crate::json::FieldError;
use crate::text::clip;

/// A tokenizer that cannot be used, or text that it cannot handle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The system refused.
    #[error("{}: cannot be read ({source})", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no tokenizer.
    #[error("{}: is not a tokenizer ({reason}); download the file again", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// A field of the settings beside it has the wrong type.
    #[error("{}: {source}; correct it or download the file again", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Which, and what it holds.
        source: FieldError,
    },
    /// A text becomes too long before it becomes tokens.
    #[error(
        "{}: its normalizer makes more than {limit} bytes of a text of {bytes}; use the \
         tokenizer.json that the model came with",
        path.display()
    )]
    Grows {
        /// The tokenizer.
        path: PathBuf,
        /// Bytes of the text.
        bytes: usize,
        /// What they may become.
        limit: usize,
    },
    /// The settings beside it are not what they should be.
    #[error("{}: is not a tokenizer config ({source}); download it again", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Line and column are in it.
        source: serde_json::Error,
    },
    /// `add_bos_token` without a token to add.
    #[error("{}: add_bos_token is set, but {}", path.display(), match token {
        Some(token) => format!("bos_token {:?} is not in the vocabulary", clip(token)),
        None => "there is no bos_token in tokenizer_config.json".to_owned(),
    })]
    NoBos {
        /// The tokenizer.
        path: PathBuf,
        /// The name given, if any.
        token: Option<String>,
    },
    /// The tokenizer belongs to another model.
    #[error(
        "{}: the vocabulary of {found} is larger than vocab_size {vocab_size} of config.json; \
         the files belong to different models",
        path.display()
    )]
    Vocabulary {
        /// The tokenizer.
        path: PathBuf,
        /// Its size.
        found: usize,
        /// Tokens that the config gives the model.
        vocab_size: usize,
    },
    /// A token without an embedding.
    #[error(
        "{}: the text contains {:?}, token {id}, but the model has embeddings for ids \
         below {vocab_size} only",
        path.display(),
        clip(token)
    )]
    TokenBeyondModel {
        /// The tokenizer.
        path: PathBuf,
        /// The token's text.
        token: String,
        /// Its number in the vocabulary.
        id: u32,
        /// The config's size.
        vocab_size: usize,
    },
    /// The crate gave up on this input.
    #[error("{}: {action} failed ({reason})", path.display())]
    Failed {
        /// The tokenizer.
        path: PathBuf,
        /// Encoding or decoding.
        action: &'static str,
        /// What it said.
        reason: String,
    },
}
