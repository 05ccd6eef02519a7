//! A page of HTML into text: what a reader sees, with headings and lists marked as in Markdown.

use encoding_rs::Encoding;
use html2text::config;
use html2text::render::TextDecorator;

use super::encoding::decode_as;
use super::error::TextError;
use super::kind::Kind;

/// Letters of a line: paragraphs are not wrapped for a screen.
const WIDTH: usize = 2000;
/// Bytes in which a page must name its encoding.
const HEAD_BYTES: usize = 1024;

pub(super) fn text(bytes: &[u8]) -> Result<String, TextError> {
    let page = decode_as(bytes, named_encoding(bytes))?;
    // Cells one below the other: columns would be filled with blanks, each a token.
    let how = config::with_decorator(Marks).raw_mode(true).allow_width_overflow();
    let made = how
        .string_from_read(page.as_bytes(), WIDTH)
        .map_err(|error| TextError::Broken { kind: Kind::Html, reason: error.to_string() })?;
    Ok(made.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"))
}

/// What stands for headings, lists and quotes. Letters in bold and links are their text alone:
/// signs around them would be tokens that say nothing.
struct Marks;

impl TextDecorator for Marks {
    type Annotation = ();

    fn decorate_link_start(&mut self, _: &str) -> (String, ()) {
        Default::default()
    }

    fn decorate_link_end(&mut self) -> String {
        String::new()
    }

    fn decorate_em_start(&self) -> (String, ()) {
        Default::default()
    }

    fn decorate_em_end(&self) -> String {
        String::new()
    }

    fn decorate_strong_start(&self) -> (String, ()) {
        Default::default()
    }

    fn decorate_strong_end(&self) -> String {
        String::new()
    }

    fn decorate_strikeout_start(&self) -> (String, ()) {
        Default::default()
    }

    fn decorate_strikeout_end(&self) -> String {
        String::new()
    }

    fn decorate_code_start(&self) -> (String, ()) {
        ("`".to_owned(), ())
    }

    fn decorate_code_end(&self) -> String {
        "`".to_owned()
    }

    fn decorate_preformat_first(&self) {}

    fn decorate_preformat_cont(&self) {}

    fn decorate_image(&mut self, _: &str, title: &str) -> (String, ()) {
        (title.to_owned(), ())
    }

    fn header_prefix(&self, level: usize) -> String {
        format!("{} ", "#".repeat(level))
    }

    fn quote_prefix(&self) -> String {
        "> ".to_owned()
    }

    fn unordered_item_prefix(&self) -> String {
        "* ".to_owned()
    }

    fn ordered_item_prefix(&self, i: i64) -> String {
        format!("{i}. ")
    }

    fn make_subblock_decorator(&self) -> Self {
        Self
    }
}

/// The encoding that a page says it has.
fn named_encoding(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = bytes[..bytes.len().min(HEAD_BYTES)].to_ascii_lowercase();
    let mark = b"charset=";
    let at = head.windows(mark.len()).position(|window| window == mark)? + mark.len();
    let name = head[at..].iter().skip_while(|byte| matches!(byte, b'"' | b'\'' | b' '));
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    Encoding::for_label(&name.copied().take_while(|byte| is_name(&byte)).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_what_a_reader_sees() {
        let page = b"<!doctype html><html><head><meta charset=iso-8859-1><title>T</title>\
            <style>p { color: red }</style><script>alert(1)</script></head><body><h1>Caf\xe9</h1>\
            <p>The <b>pass key</b> is <a href='x'>48213</a>.</p><ul><li>one<li>two</ul>\
            <table><tr><td>a</td><td>b</td></tr></table></body></html>";
        let text = text(page).unwrap();
        assert!(text.contains("# Café\n\nThe pass key is 48213.\n"), "{text}");
        assert!(text.contains("* one\n* two") && text.contains("a\nb"), "{text}");
        for gone in ["alert", "color", "<"] {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
    }

    #[test]
    fn long_paragraphs_stay_in_one_line() {
        let page = format!("<p>{}</p>", "word ".repeat(300));
        assert_eq!(text(page.as_bytes()).unwrap().trim().lines().count(), 1);
    }
}
