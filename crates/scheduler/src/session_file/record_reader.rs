//! How one thread reads records: each byte is hashed right after it was read, while it is near the
//! processor, and used before the next ones come.

use blake3::Hasher;
use longview_core::RangeSource;

use super::directory::{Directory, Entry};
use super::fields::SliceFields;
use super::header::SessionHeader;
use crate::error::{DamagedPart, SessionFileError};

/// Bytes that are read at a time.
pub(super) const PIECE: usize = 1 << 18;

/// Reads records of a file and compares each with its digest. Where that fails nothing that was
/// read of the record may be used.
pub(super) struct RecordReader<'a> {
    source: &'a dyn RangeSource,
    pub header: &'a SessionHeader,
    pub directory: &'a Directory,
    hasher: Hasher,
    /// Memory to reuse: a piece, and a record.
    piece: Vec<u8>,
    record: Vec<u8>,
    /// The same, for records that are used where they lie.
    pub indexes: Vec<Vec<u8>>,
}

impl<'a> RecordReader<'a> {
    /// With memory of its own.
    pub fn new(
        source: &'a dyn RangeSource,
        header: &'a SessionHeader,
        directory: &'a Directory,
    ) -> Self {
        let [piece, record] = [Vec::new(), Vec::new()];
        let (hasher, indexes) = (Hasher::new(), Vec::new());
        Self { source, header, directory, hasher, piece, record, indexes }
    }

    /// Reads all of a record that fits into memory to the first bytes of `out`, which becomes
    /// longer where it has fewer.
    pub fn read<'b>(
        &mut self,
        entry: &Entry,
        out: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], SessionFileError> {
        let len = usize::try_from(entry.len)
            .map_err(|_| SessionFileError::Inconsistent("a record that no memory holds"))?;
        let out = sized(out, len);
        self.hasher.reset();
        let mut at = entry.at;
        for piece in out.chunks_mut(PIECE) {
            self.source.read_at(at, piece).map_err(SessionFileError::Read)?;
            self.hasher.update(piece);
            at += piece.len() as u64;
        }
        self.compare(entry)?;
        Ok(out)
    }

    /// What `parse` makes of all of a record that fits into memory.
    pub fn parsed<T>(
        &mut self,
        entry: &Entry,
        parse: impl FnOnce(&mut SliceFields<'_>) -> Result<T, SessionFileError>,
    ) -> Result<T, SessionFileError> {
        let mut record = std::mem::take(&mut self.record);
        let parsed = self.read(entry, &mut record).and_then(|bytes| all_of(bytes, parse));
        self.record = record;
        parsed
    }

    /// Gives out a record in pieces of whole `unit`s, of which nothing may be used where this
    /// fails.
    pub fn pieces(
        &mut self,
        entry: &Entry,
        unit: usize,
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<(), SessionFileError> {
        let step = (PIECE / unit.max(1)).max(1) * unit.max(1);
        self.hasher.reset();
        let mut at = 0;
        while at < entry.len {
            let len = (entry.len - at).min(step as u64);
            let piece = sized(&mut self.piece, len as usize);
            self.source.read_at(entry.at + at, piece).map_err(SessionFileError::Read)?;
            self.hasher.update(piece);
            take(at, piece);
            at += len;
        }
        self.compare(entry)
    }

    fn compare(&self, entry: &Entry) -> Result<(), SessionFileError> {
        if *self.hasher.finalize().as_bytes() == entry.digest {
            return Ok(());
        }
        let (what, layer) = (entry.key.kind.about(), entry.key.layer);
        let part = DamagedPart::Record { what, layer: layer.map(|layer| layer.index()) };
        Err(SessionFileError::Damaged { part, bytes: entry.bytes() })
    }
}

/// What `parse` makes of bytes, all of which it must take.
pub(super) fn all_of<'b, T>(
    bytes: &'b [u8],
    parse: impl FnOnce(&mut SliceFields<'b>) -> Result<T, SessionFileError>,
) -> Result<T, SessionFileError> {
    let mut fields = SliceFields(bytes);
    let parsed = parse(&mut fields)?;
    fields.end()?;
    Ok(parsed)
}

/// The first `len` of these bytes, of which there are as many from now on.
fn sized(bytes: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if bytes.len() < len {
        bytes.resize(len, 0);
    }
    &mut bytes[..len]
}
