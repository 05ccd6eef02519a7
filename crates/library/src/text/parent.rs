//! Starts the process that reads a file, and waits for its text no longer than it may take.

use std::io::{self, Read};
use std::time::Duration;

use super::child::WORD;
use super::detect::kind_of;
use super::error::TextError;
use super::kind::Kind;
use crate::asked::Asked;
use crate::child::{self, Ended, Limits};

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Memory of a child beside a multiple of the file, in MiB: code and stacks.
const MEMORY_MIB: u64 = 768;
/// Bytes of memory for each byte of the file. Streams of a PDF are deflated.
const MEMORY_FACTOR: u64 = 24;
/// Memory of a child, whatever the file has, in MiB.
const MAX_MEMORY_MIB: u64 = 8192;
/// Processor time of a child in seconds, and bytes for which it gets a second more.
const CPU_S: u64 = 20;
const BYTES_PER_S: u64 = 1 << 18;
/// Digits of a number of pages, and the line end behind them.
const PAGES_BYTES: u64 = 21;
/// Bytes that tell what a file is.
const HEAD_BYTES: u64 = 4096;

/// A text that came out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extracted {
    /// The text, with `\n` at the end of lines.
    pub text: String,
    /// What the file is.
    pub kind: Kind,
    /// Its bytes.
    pub file_bytes: u64,
    /// Its pages, where the file says where they end.
    pub n_pages: Option<u64>,
}

/// The text of a file, read by a process with limits of memory and time. `name` says by its ending
/// what the file is where its bytes do not. At most `max_bytes` of text come.
///
/// # Errors
/// Why there is no text, by name; the caller says of which file.
pub fn extract(mut file: impl Read, name: &str, max_bytes: u64) -> Result<Extracted, TextError> {
    let system = |error: io::Error| TextError::Io { reason: error.to_string() };
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes).map_err(system)?;
    let kind = kind_of(name, &bytes)?;
    // A text is as long as its file at most, but for encodings of one or two bytes a letter.
    let max_file_bytes = match kind {
        Kind::Txt | Kind::Md => max_bytes.saturating_mul(2),
        Kind::Html | Kind::Pdf | Kind::Docx => MAX_FILE_BYTES,
    };
    file.take(max_file_bytes).read_to_end(&mut bytes).map_err(system)?;
    let file_bytes = bytes.len() as u64;
    if file_bytes > max_file_bytes {
        return Err(TextError::TooLarge { bytes: file_bytes, max_bytes: max_file_bytes });
    }
    let (text, n_pages) = converse(kind, bytes, file_bytes, max_bytes)?;
    Ok(Extracted { text, kind, file_bytes, n_pages })
}

/// What the child of a file may take.
fn limits(file_bytes: u64, max_bytes: u64) -> Limits {
    let memory_mib = MEMORY_MIB + (file_bytes.saturating_mul(MEMORY_FACTOR) >> 20);
    let cpu_s = CPU_S + file_bytes / BYTES_PER_S;
    Limits {
        memory_mib: memory_mib.min(MAX_MEMORY_MIB),
        cpu_s,
        wall: Duration::from_secs(2 * cpu_s),
        // The text, the letter before it, and the pages.
        answer_bytes: max_bytes + 1 + PAGES_BYTES,
    }
}

/// Sends the bytes to a child and returns its text and its pages.
fn converse(
    kind: Kind,
    bytes: Vec<u8>,
    file_bytes: u64,
    max_bytes: u64,
) -> Result<(String, Option<u64>), TextError> {
    let limits = limits(file_bytes, max_bytes);
    let ended = |ended: Ended| match ended {
        Ended::NotStarted(_) => TextError::Io { reason: ended.to_string() },
        Ended::TooLong(_) => TextError::TooLong { max_bytes },
        _ => TextError::Limits { kind, reason: ended.to_string() },
    };
    let numbers = [max_bytes, limits.memory_mib, limits.cpu_s].map(|number| number.to_string());
    let words = [&[WORD.to_owned(), kind.name().to_owned()], &numbers[..]].concat();
    let asked = Asked::start(&words).and_then(|child| child.ask(bytes, &limits));
    let (_, answer) = asked.map_err(ended)?;
    let mut text: String = child::read_answer(answer).map_err(ended)??;
    let silent = || ended(Ended::Silent("it does not begin with its pages".to_owned()));
    let end = text.find('\n').ok_or_else(silent)?;
    let n_pages = text[..end].parse().map_err(|_| silent())?;
    text.drain(..=end);
    Ok((text, (n_pages > 0).then_some(n_pages)))
}
