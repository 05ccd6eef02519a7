//! From the bytes of a file to its text, whatever it is.

use super::error::TextError;
use super::kind::Kind;
use super::{docx, encoding, html, pdf};

/// A text, and the pages that it stood on where its file has pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// The text.
    pub text: String,
    /// Pages of the file.
    pub n_pages: Option<u64>,
}

/// The text in a file of this kind, in this process: for who knows where the bytes come from.
///
/// # Errors
/// What is wrong with the bytes, or with what this program can read.
pub fn convert(kind: Kind, bytes: &[u8], max_bytes: u64) -> Result<Converted, TextError> {
    let (text, n_pages) = match kind {
        Kind::Txt | Kind::Md => (encoding::decode(bytes)?, None),
        Kind::Html => (html::text(bytes)?, None),
        Kind::Pdf => pdf::text(bytes).map(|(text, n_pages)| (text, Some(n_pages)))?,
        Kind::Docx => (docx::text(bytes, max_bytes)?, None),
    };
    if text.len() as u64 > max_bytes {
        return Err(TextError::TooLong { max_bytes });
    }
    if text.trim().is_empty() {
        return Err(TextError::Empty);
    }
    Ok(Converted { text, n_pages })
}
