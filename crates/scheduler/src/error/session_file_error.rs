//! What can be wrong with a session file.

use std::fmt;
use std::io;
use std::ops::Range;

use longview_core::Grouped;

use crate::layout::PrefillMode;

/// A session file that cannot be written or used. The file's name is the caller's to add.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionFileError {
    /// The system refused to read.
    #[error("the session cannot be read ({0})")]
    Read(io::Error),
    /// The system refused to write.
    #[error("the session cannot be written ({0}); what was written of it is of no use")]
    Write(io::Error),
    /// Something else than a session.
    #[error("this is not a Longview session; name a file that --save-session wrote")]
    NotASession,
    /// A format that this release does not know.
    #[error(
        "the session has format version {found}, and this release reads versions 1 to {supported}: \
         open it with the release that wrote it, or read the document again"
    )]
    Version {
        /// Of the file.
        found: u32,
        /// The newest of this release.
        supported: u32,
    },
    /// A record that cannot be left out, and that this release does not know.
    #[error(
        "the session has records of kind {kind} in format {format}, which this release does not \
         know: open it with the release that wrote it, or read the document again"
    )]
    UnknownRecord {
        /// What the record holds.
        kind: u32,
        /// Its format.
        format: u32,
    },
    /// A document that a later release read in a way of its own.
    #[error(
        "the document was read in way {how}, which this release does not know: open the session \
         with the release that wrote it, or read the document again"
    )]
    UnknownReading {
        /// The number of the way.
        how: u32,
    },
    /// A document that was not read exactly, where that is asked for.
    #[error(
        "the document was read with --prefill {how}: say --prefill sparse to go on with it, or \
         read it again"
    )]
    ReadSparsely {
        /// How it was read.
        how: PrefillMode,
    },
    /// A file that was cut, is still being written, or has something behind its end.
    #[error(
        "the session is not complete: {size} bytes do not end as a session does. It was cut off, \
         not written to its end, or something was added; copy it again, or read the document again"
    )]
    Incomplete {
        /// Its length.
        size: u64,
    },
    /// Bytes that are not those that were written.
    #[error(
        "the session is damaged in {part} (bytes {} to {} of the file); copy it again, or read the \
         document again",
        bytes.start,
        bytes.end
    )]
    Damaged {
        /// Where.
        part: DamagedPart,
        /// Which bytes are not as they were.
        bytes: Range<u64>,
    },
    /// A whole file that says what cannot be: nobody's disk is to blame.
    #[error("the session contradicts itself: {0}; read the document again")]
    Inconsistent(&'static str),
    /// A file that was made with something else.
    #[error("the session was made with something else:{}", Differences(.0))]
    Wrong(Vec<Difference>),
    /// More tokens than the context holds.
    #[error(
        "the session has {} tokens and the context holds {}; leave --ctx-size out, or start with \
         --ctx-size {saved}, as it was saved, or at least {needed}",
        Grouped::from(*tokens),
        Grouped::from(*capacity)
    )]
    TooLong {
        /// Tokens of the session.
        tokens: usize,
        /// Tokens that fit.
        capacity: usize,
        /// The context that it was saved with.
        saved: usize,
        /// The least that holds the session and a token more.
        needed: usize,
    },
}

/// A part of a file that is proved by a digest of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedPart {
    /// What says how the file was made.
    Header,
    /// The digests of the blocks, or the trailer.
    Table,
    /// A block of a file of version 1.
    Block(usize),
    /// A record.
    Record {
        /// What it holds.
        what: &'static str,
        /// Of which layer.
        layer: Option<usize>,
    },
}

impl fmt::Display for DamagedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DamagedPart::Header => f.write_str("its header"),
            DamagedPart::Table => f.write_str("its directory"),
            DamagedPart::Block(i) => write!(f, "block {i}"),
            DamagedPart::Record { what, layer: None } => f.write_str(what),
            DamagedPart::Record { what, layer: Some(layer) } => {
                write!(f, "{what} of layer {layer}")
            }
        }
    }
}

/// One thing that a file was made with, and what there is instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub part: &'static str,
    /// What the file was made with.
    pub file: String,
    /// What there is here.
    pub here: String,
    /// What to do about it.
    pub fix: String,
}

/// One line for each.
struct Differences<'a>(&'a [Difference]);

impl fmt::Display for Differences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Difference { part, file, here, fix } in self.0 {
            let (file, here) = (plain_numbers(file), plain_numbers(here));
            write!(f, "\n  {part}: the session has {file}, this run {here}; {fix}")?;
        }
        Ok(())
    }
}

/// A text whose numbers people read: files have them as `1.000000000e5`, the same on every machine.
fn plain_numbers(text: &str) -> String {
    let plain = |word: &str| {
        let (number, rest) = word.split_at(word.trim_end_matches(',').len());
        // Digests have no point.
        let is_exact = number.contains('e') && number.contains('.');
        match number.parse::<f64>() {
            Ok(value) if is_exact => format!("{}{rest}", grouped(value)),
            _ => word.to_owned(),
        }
    };
    text.split(' ').map(plain).collect::<Vec<_>>().join(" ")
}

/// `10,000,000`, or `0.1`.
fn grouped(value: f64) -> String {
    let text = value.to_string();
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if part.is_empty() { out } else { format!("{out}.{part}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_write_them() {
        let text = "theta 1.000000000e5, 64 of a head, yarn 4.000000000e0, 1.138629436e0, from 8";
        let want = "theta 100,000, 64 of a head, yarn 4, 1.138629436, from 8";
        assert_eq!(plain_numbers(text), want);
        let digest = "2048 tokens, 1e2345f6789a";
        assert_eq!(plain_numbers(digest), digest, "no number");
    }
}
