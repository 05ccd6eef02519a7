//! Files that commands read: regular ones, of a size that may be of use, with text in them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use longview_core::{open_regular, special_kind};

use super::kind::seems;
use crate::units;

/// The part of the available memory that a text may take. A token of context takes a kilobyte and
/// more of keys and values, and stands for a few bytes of text, so no longer text is of use.
const MEMORY_SHARE: u64 = 64;
/// The longest text on any machine.
const MAX_TEXT_BYTES: u64 = 1 << 30;
/// What may be read on every machine.
const MIN_TEXT_BYTES: u64 = 16 << 20;
/// First bytes of a file by which its kind is told.
const HEAD: usize = 64;
/// The longest settings file.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// The most bytes that are read of a text: a 64th of the memory that is available, from 16 MiB to
/// 1 GiB.
pub fn max_text_bytes() -> u64 {
    let memory = longview_cpu::available_memory().unwrap_or(MAX_TEXT_BYTES);
    (memory / MEMORY_SHARE).clamp(MIN_TEXT_BYTES, MAX_TEXT_BYTES)
}

/// The text of a file, `-` being stdin, without the mark that some editors put at its start.
///
/// # Errors
/// For what is no regular file, too long, empty, or not text; the message names `option`.
pub fn read_text(option: &str, path: &Path) -> Result<String> {
    let limit = max_text_bytes();
    if path == Path::new("-") {
        return text_of(io::stdin().lock(), 0, limit, &format!("{option} - (stdin)"));
    }
    let shown = format!("{option} {}", path.display());
    let (file, size) = open(option, path, "pipe it in with -f -")?;
    if size > limit {
        return Err(too_long(&shown, &units::bytes(size), limit));
    }
    text_of(file, size, limit, &shown)
}

/// The text of a small file, such as a policy.
///
/// # Errors
/// As [`read_text`], but that it may be empty.
pub fn read_settings(option: &str, path: &Path) -> Result<String> {
    let shown = format!("{option} {}", path.display());
    let (file, _) = open(option, path, "give the name of a text file")?;
    let text = pieces_of(file, 0, MAX_SETTINGS_BYTES, &shown)?;
    Ok(without_mark(text))
}

/// A document of any kind, open.
///
/// # Errors
/// As [`check`].
pub fn open_document(option: &str, path: &Path) -> Result<File> {
    open(option, path, "pipe it in with the name -").map(|(file, _)| file)
}

/// Fails for what is no regular file that can be opened; `fix` says what to do with a pipe.
///
/// # Errors
/// Names `option`, the file, what it is and what to do.
pub fn check(option: &str, path: &Path, fix: &str) -> Result<()> {
    open(option, path, fix).map(drop)
}

fn open(option: &str, path: &Path, fix: &str) -> Result<(File, u64)> {
    let shown = format!("{option} {}", path.display());
    let found = path.metadata().with_context(|| format!("{shown}: cannot be read"))?;
    match special_kind(found.file_type()) {
        Some("a folder") => bail!("{shown}: is a folder; give the name of a file in it"),
        Some(kind) => bail!("{shown}: is {kind}, which may have no end; {fix}"),
        None => {}
    }
    let file = open_regular(path).with_context(|| format!("{shown}: cannot be read"))?;
    Ok((file, found.len()))
}

fn too_long(shown: &str, has: &str, limit: u64) -> anyhow::Error {
    anyhow!("{shown}: has {has}, and at most {} are read; shorten it", units::bytes(limit))
}

fn text_of(source: impl Read, size: u64, limit: u64, shown: &str) -> Result<String> {
    let text = without_mark(pieces_of(source, size, limit, shown)?);
    if text.is_empty() {
        bail!("{shown}: is empty; give a text with something in it");
    }
    Ok(text)
}

fn without_mark(mut text: String) -> String {
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    text
}

/// Reads text piece by piece, and stops at the first piece that is none: what has no end is not
/// read to the limit for that.
fn pieces_of(mut source: impl Read, size: u64, limit: u64, shown: &str) -> Result<String> {
    let mut text = String::with_capacity(usize::try_from(size).unwrap_or(0));
    let mut piece = vec![0; 1 << 16];
    // Bytes at the start of `piece` that the last one ended with: the beginning of a letter.
    let mut n_open = 0;
    let mut head = Vec::with_capacity(HEAD);
    loop {
        let n = match source.read(&mut piece[n_open..]) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| format!("{shown}: cannot be read")),
        };
        let bytes = &piece[..n_open + n];
        if head.len() < HEAD {
            head.extend(piece[n_open..n_open + n].iter().take(HEAD - head.len()));
            check_kind(&head, shown)?;
        }
        let valid = match std::str::from_utf8(bytes) {
            Ok(whole) => whole.len(),
            Err(error) if error.error_len().is_none() && n > 0 => error.valid_up_to(),
            Err(error) => {
                let at = error.valid_up_to();
                return Err(not_utf8(bytes[at], text.len() + at, shown));
            }
        };
        if let Some(at) = bytes[..valid].iter().position(|byte| *byte == 0) {
            bail!(
                "{shown}: holds a zero byte at offset {}, so it is no text in UTF-8; convert it \
                 first, for example with iconv -f utf-16 -t utf-8",
                text.len() + at
            );
        }
        text.push_str(std::str::from_utf8(&bytes[..valid]).unwrap_or_default());
        n_open = bytes.len() - valid;
        let rest = valid..valid + n_open;
        piece.copy_within(rest, 0);
        if n == 0 {
            return Ok(text);
        }
        if text.len() as u64 > limit {
            return Err(too_long(shown, "more", limit));
        }
    }
}

/// Fails where a file is of a kind that is known and no text: its bytes are not what it says.
fn check_kind(head: &[u8], shown: &str) -> Result<()> {
    let what = seems(head);
    // Some begin with letters, as a text about them might. Of a PDF all bytes may be letters.
    let has_letters_alone = std::str::from_utf8(head).is_ok_and(|text| !text.contains('\0'));
    match what {
        _ if has_letters_alone && !head.starts_with(b"%PDF-") => Ok(()),
        "a PDF document" | "a zip file" => bail!(
            "{shown}: is {what}, and this reads plain text; `longview kv build` reads PDF and Word \
             documents, and `longview kv open` asks about them"
        ),
        "a saved session" => bail!("{shown}: is {what}; name it with --session"),
        "a GGUF model" | "a PNG image" | "a JPEG image" | "a gzip file" | "a program" => {
            bail!("{shown}: is {what}, and no text")
        }
        _ => Ok(()),
    }
}

fn not_utf8(byte: u8, at: usize, shown: &str) -> anyhow::Error {
    anyhow!(
        "{shown}: not UTF-8: byte 0x{byte:02x} at offset {at}; convert the text first, for \
         example with iconv -t utf-8"
    )
}

/// `bytes` as text, or an error that says where they are none.
pub fn utf8(bytes: Vec<u8>, origin: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        not_utf8(error.as_bytes()[at], at, origin)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, so that letters come in parts.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(1).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn message(bytes: &[u8]) -> String {
        text_of(Drip(bytes), 0, 100, "x").unwrap_err().to_string()
    }

    #[test]
    fn text_is_read_in_pieces() {
        let text = "Grüße 𝄞\r\n\tan \x0c alle";
        assert_eq!(text_of(Drip(text.as_bytes()), 0, 100, "x").unwrap(), text);
        assert_eq!(text_of(text.as_bytes(), 5, 100, "x").unwrap(), text);
        let marked = format!("\u{feff}{text}\u{feff}");
        assert_eq!(text_of(Drip(marked.as_bytes()), 0, 100, "x").unwrap(), marked[3..]);
        let long = "é".repeat(100_000);
        assert_eq!(text_of(long.as_bytes(), 0, 1 << 20, "x").unwrap(), long);
    }

    #[test]
    fn what_is_no_text_is_named_with_its_place() {
        assert!(message(b"caf\xe9 au lait").starts_with("x: not UTF-8: byte 0xe9 at offset 3;"));
        assert!(message(&"é".as_bytes()[..1]).contains("byte 0xc3 at offset 0"));
        assert!(message(b"ab\0").contains("a zero byte at offset 2"));
        for (file, said) in [
            (&b"%PDF-1.4\nall letters"[..], "x: is a PDF document, and this reads plain text"),
            (b"PK\x03\x04\x00", "`longview kv build` reads PDF and Word"),
            (b"GGUF\x03\0\0\0", "x: is a GGUF model, and no text"),
        ] {
            assert!(message(file).contains(said), "{}", message(file));
        }
        assert!(text_of(&b"GGUF is a format"[..], 0, 100, "x").is_ok());
        assert!(message(b"").contains("is empty"));
        assert!(message("\u{feff}".as_bytes()).contains("is empty"));
        let cut = utf8("é".as_bytes()[..1].to_vec(), "x").unwrap_err().to_string();
        assert!(cut.contains("offset 0"), "{cut}");
    }

    #[test]
    fn what_has_no_end_is_read_to_the_limit() {
        let endless = io::repeat(b'y');
        let message = text_of(endless, 0, 1 << 20, "stdin").unwrap_err().to_string();
        assert!(message.contains("has more, and at most 1.0 MiB are read"), "{message}");
        let zeros = text_of(io::repeat(0), 0, 1 << 40, "stdin").unwrap_err().to_string();
        assert!(zeros.contains("a zero byte at offset 0"), "{zeros}");
    }
}
