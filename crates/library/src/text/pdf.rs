//! A PDF document into text, page after page.

use std::panic::{self, AssertUnwindSafe};

use pdf_extract::{Document, PlainTextOutput, output_doc_page};

use super::error::TextError;
use super::kind::Kind;

/// Letters of a page below which it counts as a picture.
const MIN_LETTERS: usize = 8;

pub(super) fn text(bytes: &[u8]) -> Result<String, TextError> {
    let broken = |reason: String| TextError::Broken { kind: Kind::Pdf, reason };
    let mut document = Document::load_mem(bytes).map_err(|error| match error {
        pdf_extract::Error::Decryption(_) | pdf_extract::Error::InvalidPassword => {
            TextError::Encrypted
        }
        error => broken(error.to_string()),
    })?;
    // Many are encrypted without a password, so that only some programs print them.
    if document.is_encrypted() && document.decrypt("").is_err() {
        return Err(TextError::Encrypted);
    }
    let pages: Vec<u32> = document.get_pages().into_keys().collect();
    let n_pages = pages.len();
    let mut text = String::new();
    for page in pages {
        text.push_str(&page_text(&document, page).map_err(broken)?);
    }
    let n_letters = text.chars().filter(|letter| letter.is_alphanumeric()).count();
    if n_letters < MIN_LETTERS * n_pages.min(100) && has_pictures(&document) {
        return Err(TextError::Scanned { n_pages });
    }
    Ok(tidy(&text))
}

/// The text of a page as it stands there; where a font is too odd for that, in the order in which it
/// was written.
fn page_text(document: &Document, page: u32) -> Result<String, String> {
    // A page that fails leaves nothing in the document that others see: it is only read.
    let placed = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut text = String::new();
        let made = output_doc_page(document, &mut PlainTextOutput::new(&mut text), page);
        made.map(|()| text)
    }));
    match placed {
        Ok(Ok(text)) => Ok(text),
        _ => document.extract_text(&[page]).map_err(|error| format!("page {page}: {error}")),
    }
}

fn has_pictures(document: &Document) -> bool {
    document.objects.values().any(|object| {
        let subtype = object.as_stream().and_then(|stream| stream.dict.get(b"Subtype"));
        subtype.and_then(|name| name.as_name()).is_ok_and(|name| name == b"Image")
    })
}

/// Without blanks behind lines, and at most one empty line in a row.
fn tidy(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut n_empty = 0;
    for line in text.lines().map(str::trim_end) {
        n_empty = if line.is_empty() { n_empty + 1 } else { 0 };
        if n_empty < 2 {
            tidy.push_str(line);
            tidy.push('\n');
        }
    }
    tidy.trim().to_owned()
}
