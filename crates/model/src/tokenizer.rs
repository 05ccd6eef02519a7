//! `tokenizer.json` behind a type of our own: text to token ids, and token ids to a text stream.
//!
//! The `tokenizers` crate does the work; this module keeps its type, its panics and its settings
//! away from the rest of Longview, so that it can be replaced. Truncation and padding that a file
//! may ask for are switched off: nothing is ever cut silently.

mod bounded;
mod config;
mod encode;
mod error;
mod parts;
mod piece;
mod quiet;
mod stream;
mod validate;

pub use self::bounded::Within;
pub(crate) use self::config::{NamedTemplate, RawTemplates};
pub use self::config::{SpecialTokens, TokenizerConfig};
pub use self::encode::{Specials, Tokenizer};
pub use self::error::TokenizerError;
pub(crate) use self::parts::BpeParts;
pub use self::piece::Piece;
pub use self::stream::TokenStream;
