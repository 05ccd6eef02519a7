//! A Word document into text: an archive of XML files, of which one is the text.

use std::io::{Cursor, Read};

use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};
use zip::ZipArchive;
use zip::result::ZipError;

use super::error::TextError;
use super::kind::Kind;

/// The text and its notes, in this order.
const PARTS: [&str; 3] = ["word/document.xml", "word/footnotes.xml", "word/endnotes.xml"];
/// Bytes of XML for each byte of text: what is more is a file that was made to fill memory.
const MARKUP_FACTOR: u64 = 64;

pub(super) fn text(bytes: &[u8], max_bytes: u64) -> Result<String, TextError> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    if archive.index_for_name(PARTS[0]).is_none() {
        let what = match () {
            () if archive.index_for_name("xl/workbook.xml").is_some() => "an Excel workbook",
            () if archive.index_for_name("ppt/presentation.xml").is_some() => "a PowerPoint file",
            () if archive.index_for_name("META-INF/container.xml").is_some() => "an EPUB book",
            () => "a zip file",
        };
        return Err(TextError::NotText { what: what.to_owned() });
    }
    let mut text = String::new();
    let limit = max_bytes.saturating_mul(MARKUP_FACTOR);
    for part in PARTS {
        let file = match archive.by_name(part) {
            Ok(file) => file,
            Err(ZipError::FileNotFound) => continue,
            Err(error) => return Err(broken(error)),
        };
        let mut xml = Vec::new();
        file.take(limit).read_to_end(&mut xml).map_err(|error| match error.kind() {
            // This process may take no more.
            std::io::ErrorKind::OutOfMemory => TextError::TooLong { max_bytes },
            _ => broken(error),
        })?;
        if xml.len() as u64 == limit {
            return Err(TextError::TooLong { max_bytes });
        }
        paragraphs(&xml, &mut text)?;
    }
    Ok(text.trim().to_owned())
}

fn broken(error: impl std::fmt::Display) -> TextError {
    TextError::Broken { kind: Kind::Docx, reason: error.to_string() }
}

/// Adds the paragraphs of an XML file. What was deleted with changes recorded is no text
/// (`w:delText` is another element), nor are instructions of fields.
fn paragraphs(xml: &[u8], text: &mut String) -> Result<(), TextError> {
    let mut reader = Reader::from_reader(xml);
    let mut is_text = false;
    loop {
        match reader.read_event().map_err(broken)? {
            Event::Start(start) => match start.local_name().as_ref() {
                b"t" => is_text = true,
                name => mark(name, text),
            },
            Event::Empty(start) => mark(start.local_name().as_ref(), text),
            Event::End(end) => match end.local_name().as_ref() {
                b"t" => is_text = false,
                b"tc" => {
                    // A cell ends with a paragraph; the row is one line.
                    if text.ends_with('\n') {
                        text.pop();
                    }
                    text.push('\t');
                }
                b"p" | b"tr" => text.push('\n'),
                _ => {}
            },
            Event::Text(part) if is_text => text.push_str(&part.decode().map_err(broken)?),
            Event::GeneralRef(name) if is_text => reference(&name, text)?,
            Event::CData(part) if is_text => text.push_str(&part.decode().map_err(broken)?),
            Event::Eof => return Ok(()),
            _ => {}
        }
    }
}

/// What stands for a letter without being one.
fn mark(name: &[u8], text: &mut String) {
    match name {
        b"tab" => text.push('\t'),
        b"br" | b"cr" => text.push('\n'),
        b"noBreakHyphen" => text.push('-'),
        _ => {}
    }
}

/// `&amp;` and `&#8212;`. Names that a document defines itself are left out: they can be made to
/// grow without end.
fn reference(name: &BytesRef<'_>, text: &mut String) -> Result<(), TextError> {
    if let Some(letter) = name.resolve_char_ref().map_err(broken)? {
        text.push(letter);
        return Ok(());
    }
    let name = name.decode().map_err(broken)?;
    text.push_str(quick_xml::escape::resolve_predefined_entity(&name).unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in files {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content.as_bytes()).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    #[test]
    fn paragraphs_cells_and_notes_become_lines() {
        let body = "<w:document xmlns:w='x'><w:body><w:p><w:pPr><w:tabs/></w:pPr><w:r>\
            <w:t>The pass</w:t></w:r><w:r><w:t xml:space='preserve'> key &amp; 48213&#46;</w:t>\
            </w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del></w:p>\
            <w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r>\
            <w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl>\
            <w:p><w:r><w:t>x</w:t><w:tab/><w:t>y</w:t><w:br/><w:t>z</w:t></w:r></w:p>\
            </w:body></w:document>";
        let notes = "<w:footnotes xmlns:w='x'><w:p><w:r><w:t>Note.</w:t></w:r></w:p></w:footnotes>";
        let bytes = archive(&[("word/document.xml", body), ("word/footnotes.xml", notes)]);
        let text = text(&bytes, 1 << 20).unwrap();
        assert_eq!(text, "The pass key & 48213.\na\tb\t\nx\ty\nz\nNote.");
    }

    #[test]
    fn other_archives_are_named_and_broken_ones_are_errors() {
        let error = text(&archive(&[("xl/workbook.xml", "")]), 100).unwrap_err();
        assert_eq!(error, TextError::NotText { what: "an Excel workbook".into() });
        let bytes = archive(&[("word/document.xml", "<w:p>")]);
        for n in 0..bytes.len() {
            assert!(text(&bytes[..n], 100).is_err(), "{n} bytes of it");
        }
        let bomb = archive(&[("word/document.xml", &" ".repeat(1 << 20))]);
        assert!(bomb.len() < 10_000);
        assert_eq!(text(&bomb, 1 << 10), Err(TextError::TooLong { max_bytes: 1 << 10 }));
    }
}
