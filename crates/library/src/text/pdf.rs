//! A PDF document into text, page after page.

use std::panic::{self, AssertUnwindSafe};

use pdf_extract::{Document, MediaBox, Object, OutputDev, OutputError, Transform, output_doc_page};

use super::error::TextError;
use super::kind::Kind;

/// Letters of a page below which it counts as a picture.
const MIN_LETTERS: usize = 8;

/// The text, and the number of pages.
pub(super) fn text(bytes: &[u8]) -> Result<(String, u64), TextError> {
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
    widths_as_lists(&mut document);
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
    Ok((tidy(&text), n_pages as u64))
}

/// Letters of the largest font: numbers of letters have two bytes.
const MAX_LETTERS: i64 = 1 << 16;

/// Writes `FIRST LAST WIDTH` in the widths of a font as `FIRST [WIDTH ...]`. Both are allowed, and
/// the crate that places letters takes the first form wrongly: a letter so listed has no width, and
/// a gap behind it.
fn widths_as_lists(document: &mut Document) {
    let mut elsewhere = Vec::new();
    for object in document.objects.values_mut() {
        let Ok(font) = object.as_dict_mut() else { continue };
        if !font.has(b"CIDSystemInfo") {
            continue;
        }
        match font.get_mut(b"W") {
            Ok(Object::Array(widths)) => *widths = lists(widths),
            Ok(Object::Reference(id)) => elsewhere.push(*id),
            _ => {}
        }
    }
    for id in elsewhere {
        if let Some(Object::Array(widths)) = document.objects.get_mut(&id) {
            *widths = lists(widths);
        }
    }
}

fn lists(widths: &[Object]) -> Vec<Object> {
    let mut lists = Vec::new();
    let mut rest = widths;
    loop {
        rest = match rest {
            [first, list @ Object::Array(_), rest @ ..] => {
                lists.extend([first.clone(), list.clone()]);
                rest
            }
            [first, last, width, rest @ ..] => {
                let ends = (first.as_i64().unwrap_or(0), last.as_i64().unwrap_or(-1));
                let n = ends.1.saturating_sub(ends.0).saturating_add(1).clamp(0, MAX_LETTERS);
                lists.extend([first.clone(), Object::Array(vec![width.clone(); n as usize])]);
                rest
            }
            _ => return lists,
        }
    }
}

/// The text of a page as it stands there; where a font is too odd for that, in the order in which
/// it was written.
fn page_text(document: &Document, page: u32) -> Result<String, String> {
    // A page that fails leaves nothing in the document that others see: it is only read.
    let placed = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut page_text = PageText::default();
        let made = output_doc_page(document, &mut page_text, page);
        made.map(|()| page_text.text)
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

/// Letters as they come, with blanks and line ends where they are apart on the page.
#[derive(Default)]
struct PageText {
    text: String,
    /// Where the last letter ended, and the height of its line.
    end: (f64, f64),
    /// Whether letters that follow each other may be apart: a string of the file ended.
    is_new: bool,
}

/// Sizes of a letter between two that make two words of them. Fonts pull letters together and apart
/// by up to a tenth and more; a blank is a quarter of the size at least.
const WORD_GAP: f64 = 0.18;

impl OutputDev for PageText {
    fn begin_page(
        &mut self,
        _: u32,
        _: &MediaBox,
        _: Option<(f64, f64, f64, f64)>,
    ) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        self.text.push('\n');
        Ok(())
    }

    fn output_character(
        &mut self,
        place: &Transform,
        width: f64,
        _spacing: f64,
        font_size: f64,
        letter: &str,
    ) -> Result<(), OutputError> {
        let scale = (place.m11 * place.m22 - place.m12 * place.m21).abs().sqrt();
        let (size, x, y) = (font_size.abs() * scale, place.m31, place.m32);
        let (end, line) = self.end;
        if self.is_new && !self.text.is_empty() {
            let drop = (y - line).abs();
            if drop > size * 1.5 {
                self.text.push('\n');
            }
            let has_blank = letter.starts_with(' ') || self.text.ends_with([' ', '\n']);
            if x < end && drop > size * 0.5 {
                self.text.push('\n');
            } else if x > end + size * WORD_GAP && !has_blank {
                self.text.push(' ');
            }
        }
        self.text.push_str(letter);
        (self.end, self.is_new) = ((x + width * size, y), false);
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.is_new = true;
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

/// Two and three letters that a font draws as one: a tokenizer knows them apart.
const LIGATURES: [(char, &str); 7] = [
    ('\u{fb00}', "ff"),
    ('\u{fb01}', "fi"),
    ('\u{fb02}', "fl"),
    ('\u{fb03}', "ffi"),
    ('\u{fb04}', "ffl"),
    ('\u{fb05}', "st"),
    ('\u{fb06}', "st"),
];

/// Without blanks behind lines, and at most one empty line in a row.
fn tidy(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut n_empty = 0;
    for line in text.lines().map(str::trim_end) {
        n_empty = if line.is_empty() { n_empty + 1 } else { 0 };
        if n_empty < 2 {
            for letter in line.chars() {
                match LIGATURES.iter().find(|(one, _)| *one == letter) {
                    Some((_, letters)) => tidy.push_str(letters),
                    None => tidy.push(letter),
                }
            }
            tidy.push('\n');
        }
    }
    tidy.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_widths_become_lists() {
        let number = |n: i64| Object::Integer(n);
        let list = |ns: &[i64]| Object::Array(ns.iter().map(|n| number(*n)).collect());
        let mixed = [number(3), list(&[7, 8]), number(20), number(22), number(9), number(1)];
        assert_eq!(lists(&mixed), [number(3), list(&[7, 8]), number(20), list(&[9, 9, 9])]);
        let endless = lists(&[number(0), number(i64::MAX - 1), number(1)]);
        assert_eq!(endless[1].as_array().unwrap().len(), 1 << 16);
    }
}
