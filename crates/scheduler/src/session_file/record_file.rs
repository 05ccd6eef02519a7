//! The outermost layer of a file of version 2: header, records, directory, trailer.
//!
//! A writer needs no seeking, because what is known last stands last. A reader begins with the
//! header and the trailer, which together with the length of the file say where the directory is;
//! the directory has a digest of every record. Whoever appends writes behind the trailer: should
//! that end half way, the trailer before it is still there and still right.

use std::io::Write;
use std::ops::Range;

use blake3::Hasher;
use longview_core::{LayerId, RangeSource};

use super::digest::Digest;
use super::directory::{Directory, ENTRY_BYTES, Entry, Key, Kind};
use super::header::{self, FirstBytes, SessionHeader};
use super::record_reader::{PIECE, RecordReader};
use super::side_by_side::side_by_side;
use crate::error::{DamagedPart, SessionFileError};

/// The file's last bytes.
const END: &[u8; 8] = b"LVS-end\n";
/// Place and length of the directory, times that the file was written to, digest, end.
const TRAILER_BYTES: u64 = 8 + 8 + 8 + 32 + 8;
/// Bytes of a directory at most: records of some ten thousand appends.
const MAX_DIRECTORY: u64 = 1 << 30;
/// Trailers that are tried behind an append that did not end.
const MAX_TRIES: usize = 64;

/// Writes records, one after the other, then the directory and the trailer.
pub(super) struct RecordWriter<'a> {
    out: &'a mut dyn Write,
    header: Vec<u8>,
    /// Where the next byte goes.
    at: u64,
    /// Times that the file was written to, this one included.
    times: u64,
    directory: Directory,
}

impl<'a> RecordWriter<'a> {
    /// Begins a file.
    pub fn new(out: &'a mut dyn Write, header: Vec<u8>) -> Result<Self, SessionFileError> {
        out.write_all(&header).map_err(SessionFileError::Write)?;
        let at = header.len() as u64;
        Ok(Self { out, header, at, times: 1, directory: Directory::default() })
    }

    /// Goes on behind the trailer of `file`; `out` stands there.
    pub fn behind(out: &'a mut dyn Write, file: &RecordFile<'_>) -> Self {
        let (header, at, times) = (file.first.bytes.clone(), file.end, file.times + 1);
        Self { out, header, at, times, directory: Directory::default() }
    }

    /// Lists a record that lies in the file.
    pub fn keep(&mut self, entry: Entry) {
        self.directory.entries.push(entry);
    }

    /// Writes a record.
    pub fn record(&mut self, key: Key, bytes: &[u8]) -> Result<(), SessionFileError> {
        let mut record = self.begin(key);
        record.bytes(bytes)?;
        record.end();
        Ok(())
    }

    /// Writes a record in pieces.
    pub fn begin(&mut self, key: Key) -> OpenRecord<'_, 'a> {
        let at = self.at;
        OpenRecord { file: self, key, at, hasher: Hasher::new() }
    }

    /// Writes what proves it all.
    pub fn finish(self) -> Result<(), SessionFileError> {
        let directory = self.directory.encode();
        let numbers = [self.at, directory.len() as u64, self.times].map(u64::to_le_bytes);
        let proof = proof(&self.header, &directory, numbers.as_flattened());
        for part in [&directory[..], numbers.as_flattened(), &proof, END] {
            self.out.write_all(part).map_err(SessionFileError::Write)?;
        }
        self.out.flush().map_err(SessionFileError::Write)
    }
}

/// A record that is being written.
pub(super) struct OpenRecord<'f, 'a> {
    file: &'f mut RecordWriter<'a>,
    key: Key,
    at: u64,
    hasher: Hasher,
}

impl OpenRecord<'_, '_> {
    /// Adds bytes to it.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), SessionFileError> {
        self.hasher.update(bytes);
        self.file.at += bytes.len() as u64;
        self.file.out.write_all(bytes).map_err(SessionFileError::Write)
    }

    /// Lists it.
    pub fn end(self) {
        let digest = *self.hasher.finalize().as_bytes();
        let (key, at, len) = (self.key, self.at, self.file.at - self.at);
        self.file.keep(Entry { key, at, len, digest });
    }
}

fn proof(header: &[u8], directory: &[u8], numbers: &[u8]) -> Digest {
    let mut whole = Hasher::new();
    whole.update(header).update(directory).update(numbers);
    *whole.finalize().as_bytes()
}

/// A file whose header and directory are proved; its records are not yet.
pub(super) struct RecordFile<'a> {
    source: &'a dyn RangeSource,
    first: FirstBytes,
    pub header: SessionHeader,
    pub directory: Directory,
    /// Behind the trailer.
    pub end: u64,
    times: u64,
}

/// A trailer that is right.
struct Found {
    directory: Directory,
    end: u64,
    times: u64,
}

impl<'a> RecordFile<'a> {
    /// Reads header, directory and trailer, and what the session says of itself.
    pub fn open(source: &'a dyn RangeSource, first: FirstBytes) -> Result<Self, SessionFileError> {
        let header = header::parse(first.fields())?;
        let found = find(source, &first.bytes)?;
        let Found { directory, end, times } = found;
        Ok(Self { source, first, header, directory, end, times })
    }

    /// Bytes of the file that its directory lists, and of the directory.
    pub fn n_used_bytes(&self) -> u64 {
        let records = self.directory.entries.iter().map(|entry| entry.len + 80).sum::<u64>();
        self.first.bytes.len() as u64 + records + TRAILER_BYTES
    }

    /// Bytes behind the trailer: of an append that did not end.
    pub fn n_torn(&self) -> u64 {
        self.source.size().saturating_sub(self.end)
    }

    /// Whether all records of a layer can be read without waiting for a network.
    pub fn is_here(&self, layer: LayerId) -> bool {
        let of_layer = |entry: &&Entry| entry.key.layer == Some(layer);
        let mut entries = self.directory.entries.iter().filter(of_layer);
        entries.all(|entry| self.source.is_here(entry.at, entry.len))
    }

    /// Whether rows of a layer lie in another order than that of tokens.
    pub fn has_moved_rows(&self) -> bool {
        self.directory.entries.iter().any(|entry| entry.key.kind == Kind::Places)
    }

    /// The bytes of a record that fits into memory.
    pub fn record(&self, entry: &Entry) -> Result<Vec<u8>, SessionFileError> {
        let mut bytes = Vec::new();
        self.reader().read(entry, &mut bytes)?;
        Ok(bytes)
    }

    /// What one thread reads records with.
    pub fn reader(&self) -> RecordReader<'_> {
        RecordReader::new(self.source, &self.header, &self.directory)
    }

    /// [`side_by_side`] with a reader for each thread; on this thread alone where the source is not
    /// for several.
    pub fn side_by_side<T: Send, R: Send, E: Send>(
        &self,
        n_threads: usize,
        items: Vec<T>,
        work: impl Fn(&mut RecordReader<'_>, T) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        let Self { header, directory, .. } = self;
        let Some(source) = self.source.shared() else {
            let mut reader = self.reader();
            return items.into_iter().map(|item| work(&mut reader, item)).collect();
        };
        let reader = || RecordReader::new(source, header, directory);
        side_by_side(n_threads, items, reader, work)
    }

    /// Compares every record that this release knows with its digest, on up to `n_threads` threads.
    pub fn verify(&self, n_threads: usize) -> Result<(), SessionFileError> {
        let entries: Vec<&Entry> = self.directory.entries.iter().collect();
        let verify = |reader: &mut RecordReader<'_>, entry| reader.pieces(entry, 1, |_, _| {});
        self.side_by_side(n_threads, entries, verify).map(drop)
    }
}

/// The last trailer of a file that is right.
fn find(source: &dyn RangeSource, header: &[u8]) -> Result<Found, SessionFileError> {
    let size = source.size();
    let last = match at(source, header, size) {
        Err(error @ (SessionFileError::Incomplete { .. } | SessionFileError::Damaged { .. })) => {
            error
        }
        found => return found,
    };
    // An append that did not end leaves bytes behind the trailer before it.
    let ends = EndsBackwards { source, before: size.saturating_sub(1), seen: Vec::new() };
    for end in ends.take(MAX_TRIES) {
        let found = at(source, header, end?);
        // A disk that fails says nothing about the file.
        if matches!(found, Ok(_) | Err(SessionFileError::Read(_))) {
            return found;
        }
    }
    Err(last)
}

/// The trailer that ends at `end`, if there is one and it is right.
fn at(source: &dyn RangeSource, header: &[u8], end: u64) -> Result<Found, SessionFileError> {
    let incomplete = || SessionFileError::Incomplete { size: source.size() };
    let first = header.len() as u64;
    let trailer_at = end.checked_sub(TRAILER_BYTES).filter(|at| *at >= first);
    let trailer_at = trailer_at.ok_or_else(incomplete)?;
    let mut trailer = [0; TRAILER_BYTES as usize];
    source.read_at(trailer_at, &mut trailer).map_err(SessionFileError::Read)?;
    let (numbers, rest) = trailer.split_at(24);
    let (written, last) = rest.split_at(32);
    let number = |i: usize| u64::from_le_bytes(numbers[8 * i..][..8].try_into().expect("8 bytes"));
    let (directory_at, len) = (number(0), number(1));
    let lies_before = directory_at.checked_add(len) == Some(trailer_at) && directory_at >= first;
    if last != END || !lies_before {
        return Err(incomplete());
    }
    // A file with a hole is as long as anybody wants.
    if len > MAX_DIRECTORY || !len.is_multiple_of(ENTRY_BYTES) {
        return Err(SessionFileError::Inconsistent("the length of its directory"));
    }
    let mut directory = vec![0; len as usize];
    source.read_at(directory_at, &mut directory).map_err(SessionFileError::Read)?;
    if proof(header, &directory, numbers) != written {
        let (part, bytes) = (DamagedPart::Table, directory_at..end);
        return Err(SessionFileError::Damaged { part, bytes });
    }
    let directory = Directory::parse(&directory, directory_at)?;
    if directory.entries.iter().any(|entry| entry.at < first) {
        return Err(SessionFileError::Inconsistent("a record that begins in the header"));
    }
    Ok(Found { directory, end, times: number(2) })
}

/// Where [`END`] ends in a file, from `before` backwards.
struct EndsBackwards<'a> {
    source: &'a dyn RangeSource,
    /// Ends behind this were looked at.
    before: u64,
    /// Ends of the piece that was read last, the first one first.
    seen: Vec<u64>,
}

impl EndsBackwards<'_> {
    fn look(&mut self, piece: Range<u64>) -> Result<(), SessionFileError> {
        let mut bytes = vec![0; (piece.end - piece.start) as usize];
        self.source.read_at(piece.start, &mut bytes).map_err(SessionFileError::Read)?;
        let places = bytes.windows(END.len()).enumerate().filter(|(_, bytes)| bytes == END);
        self.seen.extend(places.map(|(at, _)| piece.start + (at + END.len()) as u64));
        Ok(())
    }
}

impl Iterator for EndsBackwards<'_> {
    type Item = Result<u64, SessionFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(end) = self.seen.pop() {
                return Some(Ok(end));
            }
            if self.before < END.len() as u64 {
                return None;
            }
            let start = self.before.saturating_sub(PIECE as u64);
            if let Err(error) = self.look(start..self.before) {
                self.before = 0;
                return Some(Err(error));
            }
            // An end may lie across two pieces.
            self.before = if start == 0 { 0 } else { start + END.len() as u64 - 1 };
        }
    }
}
