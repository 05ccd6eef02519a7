//! Files of strangers into text: txt, Markdown, HTML, PDF and Word documents (docx).
//!
//! A PDF is parsed by code that no one has proved, so it runs in a process of its own: this program,
//! started again, which limits its own memory and time before it reads anything. It gets the file's
//! bytes and nothing else. Whatever ends it is one error here.
//!
//! A program that calls [`extract`] must call [`serve`] first of all in its `main`.

mod child;
mod docx;
mod encoding;
mod error;
mod html;
mod kind;
mod parent;
mod pdf;

pub use self::child::serve;
pub use self::error::TextError;
pub use self::kind::Kind;
pub use self::parent::{Extracted, extract};

/// The text in a file of this kind, in this process: for who knows where the bytes come from.
///
/// # Errors
/// What is wrong with the bytes, or with what this program can read.
pub fn convert(kind: Kind, bytes: &[u8], max_bytes: u64) -> Result<String, TextError> {
    let text = match kind {
        Kind::Txt | Kind::Md => encoding::decode(bytes)?,
        Kind::Html => html::text(bytes)?,
        Kind::Pdf => pdf::text(bytes)?,
        Kind::Docx => docx::text(bytes, max_bytes)?,
    };
    if text.len() as u64 > max_bytes {
        return Err(TextError::TooLong { max_bytes });
    }
    if text.trim().is_empty() {
        return Err(TextError::Empty);
    }
    Ok(text)
}
