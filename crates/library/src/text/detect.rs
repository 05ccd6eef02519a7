//! What a file is: by how it begins, and where that says nothing by the ending of its name.

use super::error::TextError;
use super::kind::Kind;

/// The kind of a file that begins with `head` and has this name.
///
/// # Errors
/// For kinds of files that have no text here, by name.
pub fn kind_of(name: &str, head: &[u8]) -> Result<Kind, TextError> {
    const NO_TEXT: &[(&[u8], &str)] = &[
        (b"\x89PNG", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"GIF8", "a GIF image"),
        (b"\x1f\x8b", "a gzip file"),
        (b"7z\xbc\xaf", "a 7z archive"),
        (b"Rar!", "a RAR archive"),
        (b"\x7fELF", "a program"),
        (b"MZ\x90", "a program"),
        (b"GGUF", "a GGUF model"),
        (b"\x89LVS", "a saved session"),
        (b"{\\rtf", "an RTF document"),
        (b"%!PS", "a PostScript file"),
    ];
    // A few bytes may stand before the mark of a PDF; readers take up to 1,024.
    let start = &head[..head.len().min(1024)];
    if start.windows(5).any(|five| five == b"%PDF-") {
        return Ok(Kind::Pdf);
    }
    if head.starts_with(b"PK\x03\x04") {
        return Ok(Kind::Docx);
    }
    if head.starts_with(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") {
        return Err(TextError::OldOrProtected);
    }
    if let Some((_, what)) = NO_TEXT.iter().find(|(start, _)| head.starts_with(start)) {
        return Err(TextError::NotText { what: (*what).to_owned() });
    }
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    Ok(match &*ending {
        "html" | "htm" | "xhtml" => Kind::Html,
        "md" | "markdown" => Kind::Md,
        _ if begins_html(start) => Kind::Html,
        _ => Kind::Txt,
    })
}

fn begins_html(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let begins =
        |with: &[u8]| start.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    begins(b"<!doctype html") || begins(b"<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_is_comes_before_what_it_is_called() {
        for (name, head, kind) in [
            ("a.txt", &b"text"[..], Kind::Txt),
            ("README", b"# Title", Kind::Txt),
            ("a.MD", b"# Title", Kind::Md),
            ("a.htm", b"<p>", Kind::Html),
            ("a.txt", b"\xef\xbb\xbf\n<!DOCTYPE HTML>", Kind::Html),
            ("a.txt", b"%PDF-1.7", Kind::Pdf),
            ("a", b"\n\n%PDF-1.4", Kind::Pdf),
            ("a.doc", b"PK\x03\x04", Kind::Docx),
        ] {
            assert_eq!(kind_of(name, head), Ok(kind), "{name}");
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        let what = |head: &[u8]| kind_of("a.txt", head).unwrap_err().to_string();
        assert!(what(b"\x89PNG\r\n").starts_with("is a PNG image, and no text"));
        assert!(what(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1").contains("save it as docx"));
    }
}
