//! From the bytes of a file to its text, whatever it is.

use super::error::TextError;
use super::kind::Kind;
use super::{docx, encoding, html, pdf};

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
