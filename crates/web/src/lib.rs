//! The browser demo: a document, questions about it, and recall at work.
//!
//! A [`Reader`] is a model that has read a document: it prefills once, answers question after
//! question from there, and tells after every token where the tokens of the document stood. It is
//! generic over the device and runs natively too, which is how its answers are tested. `browser`
//! puts it behind a class that JavaScript calls from a worker, on WebGPU, with weights read from
//! the page's storage in pieces and all keys and values in array buffers outside of the program's
//! memory.

#[cfg(target_arch = "wasm32")]
pub mod browser;
mod error;
mod map;
mod passages;
mod prompt;
mod reader;

pub use error::ReaderError;
pub use map::{ContextMap, MOST_CELLS};
pub use passages::{MOST_PASSAGES, Passage};
pub use reader::{Answer, Finish, Memory, Question, ReadState, Reader, Step};
