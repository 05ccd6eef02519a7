//! GGUF files made of models: from a folder of Hugging Face, or from a GGUF file with plain values.
//!
//! What is written is what llama.cpp and this crate read: key-values of the config, the tokenizer,
//! and tensors by the names and in the row order of GGUF. The key-values are read back before the
//! first tensor is written and compared with the model, so that whatever the format cannot say is
//! an error with a name, and never a file that answers differently. Tensors are made while they are
//! written, some rows at a time.

mod check;
mod config;
mod error;
mod keys;
mod plan;
mod tensors;
mod tokenizer;
mod types;

pub use self::error::ExportError;
pub use self::plan::GgufExport;
pub use self::types::{ExportType, ParseExportTypeError};

#[cfg(test)]
mod tests;
