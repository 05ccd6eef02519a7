//! The directory of a file: which records there are, what each holds, and where.
//!
//! Records never change once they are written. To append is to write new records, and a directory
//! that lists old and new ones together, behind what was there.

use std::ops::Range;

use longview_core::LayerId;

use super::digest::Digest;
use super::fields::{FieldWriter, Fields, SliceFields};
use crate::error::SessionFileError;

/// The layer number of records that belong to no layer.
const NO_LAYER: u32 = u32::MAX;
/// A flag: who does not know this record may do without it.
const OPTIONAL: u32 = 1;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u64 = 4 * 4 + 4 * 8 + 32;

/// What a record holds. Numbers are never used for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// Context, tokens, policy, how the text was read.
    Session = 1,
    /// The caller's own bytes.
    Note = 2,
    /// Tokens of a span.
    Tokens = 3,
    /// What the model said last.
    Last = 4,
    /// The token of each row of [`Kind::Rows`], in files of earlier releases: in others rows are
    /// in the order of tokens.
    Places = 16,
    /// Rows of a span.
    Rows = 17,
    /// The same in full, where [`Kind::Rows`] are rounded.
    ExactRows = 18,
    /// What prefill recorded for later policies.
    Recorded = 19,
    /// What a layer has of its policy, but for the units of its indexes.
    State = 20,
    /// Units of the index, by batches whose rows are the span.
    Index = 21,
    /// Units of the index inside of clusters.
    TokenIndex = 22,
    /// The token of each row of a span, as the index counts rows.
    Order = 23,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Session,
        Self::Note,
        Self::Tokens,
        Self::Last,
        Self::Places,
        Self::Rows,
        Self::ExactRows,
        Self::Recorded,
        Self::State,
        Self::Index,
        Self::TokenIndex,
        Self::Order,
    ];

    /// What it is, for messages.
    pub fn about(self) -> &'static str {
        match self {
            Self::Session => "what it says of itself",
            Self::Note => "its note",
            Self::Tokens => "its tokens",
            Self::Last => "what the model said last",
            Self::Places | Self::Order => "the order of rows",
            Self::Rows | Self::ExactRows => "keys and values",
            Self::Recorded => "what was recorded of queries",
            Self::State => "the state of the policy",
            Self::Index | Self::TokenIndex => "an index",
        }
    }

    /// Whether a session can be opened without it: what is lacking is made anew.
    fn is_optional(self) -> bool {
        let is_index = matches!(self, Self::State | Self::Index | Self::TokenIndex | Self::Order);
        is_index || matches!(self, Self::Note | Self::Last)
    }

    /// The newest format of such records that this release reads and the one that it writes.
    fn formats(self) -> u32 {
        match self {
            // Types of rows.
            Self::Rows | Self::ExactRows => 3,
            // Codes in place of numbers of the KV type.
            Self::TokenIndex => 1,
            _ => 0,
        }
    }
}

/// What a record is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub kind: Kind,
    pub layer: Option<LayerId>,
    /// The type of rows; of indexes 1 for codes; 0 for others.
    pub format: u32,
    /// Tokens or rows; all or none where it does not matter.
    pub span: Range<usize>,
}

impl Key {
    /// A record of the whole session.
    pub fn whole(kind: Kind) -> Self {
        Self { kind, layer: None, format: 0, span: 0..0 }
    }

    /// A record of a layer.
    pub fn of(kind: Kind, layer: LayerId, span: Range<usize>) -> Self {
        Self { kind, layer: Some(layer), format: 0, span }
    }
}

/// A record of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub key: Key,
    /// Where it begins.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// Of all of them.
    pub digest: Digest,
}

impl Entry {
    /// The bytes that it takes.
    pub fn bytes(&self) -> Range<u64> {
        self.at..self.at + self.len
    }

    fn write(&self, out: &mut FieldWriter) {
        let Key { kind, layer, format, span } = &self.key;
        out.u32(*kind as u32);
        out.u32(if kind.is_optional() { OPTIONAL } else { 0 });
        out.u32(layer.map_or(NO_LAYER, |layer| layer.index() as u32));
        out.u32(*format);
        out.u64(span.start);
        out.u64(span.end);
        out.bytes(&self.at.to_le_bytes());
        out.bytes(&self.len.to_le_bytes());
        out.bytes(&self.digest);
    }

    /// Reads an entry; `Err` of its layer for one that this release may do without and does not
    /// know.
    fn read(
        file: &mut SliceFields<'_>,
        end: u64,
    ) -> Result<Result<Self, Option<LayerId>>, SessionFileError> {
        const ENTRY: &str = "an entry of its directory";
        let [kind, flags, layer, format] = [file.u32()?, file.u32()?, file.u32()?, file.u32()?];
        let span = file.number(usize::MAX, ENTRY)?..file.number(usize::MAX, ENTRY)?;
        let (at, len) = (u64::from_le_bytes(file.array()?), u64::from_le_bytes(file.array()?));
        let digest = file.array()?;
        let lies_within = at.checked_add(len).is_some_and(|behind| behind <= end);
        if span.start > span.end || !lies_within {
            return Err(SessionFileError::Inconsistent(ENTRY));
        }
        let known = Kind::ALL.into_iter().find(|known| *known as u32 == kind);
        let known = known.filter(|known| format <= known.formats());
        let layer = (layer != NO_LAYER).then(|| LayerId::new(layer as usize));
        let Some(kind) = known else {
            if flags & OPTIONAL != 0 {
                return Ok(Err(layer));
            }
            return Err(SessionFileError::UnknownRecord { kind, format });
        };
        Ok(Ok(Self { key: Key { kind, layer, format, span }, at, len, digest }))
    }
}

/// All records of a file, in the order in which they are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    pub entries: Vec<Entry>,
    /// Whether some layer has a record that this release does not know, and does without.
    pub lacks_layer_records: bool,
}

impl Directory {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        self.entries.iter().for_each(|entry| entry.write(&mut out));
        out.into_bytes()
    }

    /// The directory of these bytes; records lie before `end`.
    pub fn parse(bytes: &[u8], end: u64) -> Result<Self, SessionFileError> {
        let mut file = SliceFields(bytes);
        let (mut directory, mut total) = (Self::default(), 0u64);
        while file.left() > 0 {
            match Entry::read(&mut file, end)? {
                Ok(entry) => {
                    total = total.saturating_add(entry.len);
                    directory.entries.push(entry);
                }
                Err(layer) => directory.lacks_layer_records |= layer.is_some(),
            }
        }
        // Many entries of one record would be read into memory as often.
        if total > end {
            return Err(SessionFileError::Inconsistent("more in its records than it has"));
        }
        Ok(directory)
    }

    /// Records of a kind and a layer, or of none.
    pub fn of(&self, kind: Kind, layer: Option<LayerId>) -> impl Iterator<Item = &Entry> {
        let is_of = move |entry: &&Entry| entry.key.kind == kind && entry.key.layer == layer;
        self.entries.iter().filter(is_of)
    }

    /// The one record of a kind, where there is one.
    pub fn only(
        &self,
        kind: Kind,
        layer: Option<LayerId>,
    ) -> Result<Option<&Entry>, SessionFileError> {
        let mut found = self.of(kind, layer);
        let first = found.next();
        match found.next() {
            None => Ok(first),
            Some(_) => Err(SessionFileError::Inconsistent("two records of what there is once")),
        }
    }
}

/// Whether spans follow each other from 0 to `end` without gaps.
pub(super) fn covers<'a>(spans: impl Iterator<Item = &'a Entry>, end: usize) -> bool {
    let mut at = 0;
    for entry in spans {
        let span = &entry.key.span;
        if span.start != at || span.is_empty() {
            return false;
        }
        at = span.end;
    }
    at == end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: Kind, span: Range<usize>) -> Entry {
        let key = Key { kind, layer: Some(LayerId(1)), format: 0, span };
        Entry { key, at: 100, len: 20, digest: [7; 32] }
    }

    fn directory(entry: Entry) -> Directory {
        Directory { entries: vec![entry], lacks_layer_records: false }
    }

    #[test]
    fn a_directory_comes_back() {
        let entries = Kind::ALL.map(|kind| entry(kind, 3..5)).to_vec();
        let whole = Entry { key: Key::whole(Kind::Session), ..entries[0].clone() };
        let entries = [entries, vec![whole]].concat();
        let directory = Directory { entries, lacks_layer_records: false };
        let bytes = directory.encode();
        assert_eq!(bytes.len(), 13 * 80);
        assert_eq!(Directory::parse(&bytes, 13 * 20).unwrap(), directory);
        let refused = Directory::parse(&bytes, 13 * 20 - 1).unwrap_err();
        assert!(refused.to_string().contains("more in its records"), "{refused}");
    }

    /// Numbers as docs/session-format.md has them.
    #[test]
    fn kinds_have_their_numbers_for_good() {
        let numbers = Kind::ALL.map(|kind| kind as u32);
        assert_eq!(numbers, [1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23]);
        let optional = Kind::ALL.into_iter().filter(|kind| kind.is_optional());
        let optional: Vec<u32> = optional.map(|kind| kind as u32).collect();
        assert_eq!(optional, [2, 4, 20, 21, 22, 23]);
    }

    #[test]
    fn what_is_not_known_is_left_out_or_refused() {
        let bytes = directory(entry(Kind::Index, 0..5)).encode();
        let with = |at: usize, word: u32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            Directory::parse(&bytes, 120)
        };
        let without = Directory { entries: Vec::new(), lacks_layer_records: true };
        assert_eq!(with(0, 99).unwrap(), without, "an optional record of a later release");
        assert_eq!(with(12, 1).unwrap(), without, "a later form of one");
        let mut needed = bytes.clone();
        (needed[0], needed[4]) = (99, 0);
        let refused = Directory::parse(&needed, 120);
        assert!(matches!(refused, Err(SessionFileError::UnknownRecord { kind: 99, format: 0 })));
    }

    #[test]
    fn records_lie_within_the_file() {
        let bytes = directory(entry(Kind::Rows, 2..5)).encode();
        Directory::parse(&bytes, 120).unwrap();
        assert!(Directory::parse(&bytes, 119).is_err());
        assert!(Directory::parse(&bytes[..79], 120).is_err());
        for (at, what) in
            [(16, "a span that ends before it begins"), (32, "a start behind the end")]
        {
            let mut wrong = bytes.clone();
            wrong[at..at + 8].fill(0xff);
            assert!(Directory::parse(&wrong, 120).is_err(), "{what}");
        }
    }

    #[test]
    fn spans_leave_nothing_out() {
        let spans = |spans: &[[usize; 2]], end| {
            let entries = spans.iter().map(|[from, to]| entry(Kind::Rows, *from..*to));
            covers(entries.collect::<Vec<Entry>>().iter(), end)
        };
        assert!(spans(&[[0, 3], [3, 4]], 4) && spans(&[], 0));
        assert!(!spans(&[[0, 3]], 4) && !spans(&[[0, 3], [4, 5]], 5) && !spans(&[[1, 4]], 4));
        assert!(!spans(&[[0, 3], [2, 4]], 4) && !spans(&[[0, 3], [3, 3], [3, 4]], 4));
    }
}
