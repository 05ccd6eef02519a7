//! A reader: a model that has read a document and answers question after question about it.
//!
//! It prefills once, answers from there, takes every question back, and tells after each token
//! where the tokens of the document stood and, at the end, which passages the answer rests on. The
//! page and the desktop app are faces of it; it is generic over the device, so that both show the
//! same answers.

mod attention;
mod error;
mod map;
mod passages;
mod prompt;
mod reader;

pub use attention::Attention;
pub use error::ReaderError;
pub use map::{ContextMap, MOST_CELLS};
pub use passages::{MOST_PASSAGES, Passage, TextPieces};
pub use prompt::places_in;
pub use reader::{Answer, Finish, LeftOut, Memory, Question, ReadState, Reader, Step};
