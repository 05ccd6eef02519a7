//! Files of strangers into text: txt, Markdown, HTML, PDF and Word documents (docx).
//!
//! A PDF is parsed by code that no one has proved, so it runs in a process of its own: this
//! program, started again, which limits its own memory and time before it reads anything. It gets
//! the file's bytes and nothing else. Whatever ends it is one error here.
//!
//! A program that calls [`extract`] must call [`serve`] first of all in its `main`.

mod child;
mod convert;
mod detect;
mod docx;
mod encoding;
mod error;
mod html;
mod kind;
mod parent;
mod pdf;

pub use self::child::serve;
pub use self::convert::{Converted, convert};
pub use self::detect::kind_of;
pub use self::error::TextError;
pub use self::kind::Kind;
pub use self::parent::{Extracted, extract};
