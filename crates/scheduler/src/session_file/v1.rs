//! Files of version 1, which this release still reads: one stream of fields, in blocks with a
//! digest each.
//!
//! Header and trailer, together with the length of the file, say where everything is; so no number
//! of the file is believed before a digest has proved it, and nothing is allocated that the file is
//! not long enough to fill. `docs/session-format-1.md` has every byte.

use blake3::Hasher;
use longview_core::RangeSource;

use super::block::is_block_size;
use super::content::{MAX_SAID, SessionContent};
use super::digest::{Digest, digest};
use super::fields::Fields;
use super::header::{self, Fingerprint, FingerprintPart, FirstBytes, SessionHeader};
use super::records::{COUNT, Dimensions, RecallStart};
use crate::error::{DamagedPart, SessionFileError};
use crate::eviction::KeptRecord;
use crate::index::{ClustersRecord, IndexRecord};
use crate::layout::{HostRows, PrefillMode};
use crate::sequence::{
    LayerRecord, LayerStateRecord, PlacesRecord, RecallRecord, RecordedRecord, SelectionRecord,
};

/// The file's last bytes.
const END: &[u8; 8] = b"LVS-end\n";
/// Length of the stream, digest, end.
const TRAILER_BYTES: usize = 8 + 32 + 8;

/// A file whose header, table and trailer are proved; its blocks are not yet.
pub(super) struct StreamFile<'a> {
    source: &'a dyn RangeSource,
    header: SessionHeader,
    block_bytes: usize,
    stream_at: u64,
    stream_bytes: u64,
    table: Vec<Digest>,
}

impl<'a> StreamFile<'a> {
    /// Reads header, table and trailer, which is little beside the blocks.
    ///
    /// # Errors
    /// If it is no session, of another version, not complete, or damaged there.
    pub fn open(source: &'a dyn RangeSource, first: &FirstBytes) -> Result<Self, SessionFileError> {
        let size = source.size();
        let (header, block_bytes) = parse(first)?;
        let stream_at = first.bytes.len() as u64;
        let incomplete = SessionFileError::Incomplete { size };
        let Some(trailer_at) = size.checked_sub(TRAILER_BYTES as u64).filter(|at| *at >= stream_at)
        else {
            return Err(incomplete);
        };
        let mut trailer = [0; TRAILER_BYTES];
        source.read_at(trailer_at, &mut trailer).map_err(SessionFileError::Read)?;
        let (stream_bytes, rest) = trailer.split_at(8);
        let (proof, end) = rest.split_at(32);
        if end != END {
            return Err(incomplete);
        }
        let stream_length = u64::from_le_bytes(stream_bytes.try_into().expect("8 bytes"));
        let n_blocks = stream_length.div_ceil(block_bytes as u64);
        let table_bytes = n_blocks.checked_mul(32);
        let lengths =
            table_bytes.and_then(|t| t.checked_add(stream_length)?.checked_add(stream_at));
        if lengths != Some(trailer_at) {
            return Err(incomplete);
        }
        // No more than the file is long.
        let mut table = vec![[0; 32]; n_blocks as usize];
        let table_at = stream_at + stream_length;
        source.read_at(table_at, table.as_flattened_mut()).map_err(SessionFileError::Read)?;
        let mut whole = Hasher::new();
        whole.update(&first.bytes).update(table.as_flattened()).update(stream_bytes);
        if whole.finalize().as_bytes() != proof {
            let (part, bytes) = (DamagedPart::Table, table_at..size);
            return Err(SessionFileError::Damaged { part, bytes });
        }
        Ok(Self { source, header, block_bytes, stream_at, stream_bytes: stream_length, table })
    }

    /// What the file was made with.
    pub fn header(&self) -> &SessionHeader {
        &self.header
    }

    /// Compares every block with its digest, and gives out a reader if all are as they were
    /// written.
    ///
    /// # Errors
    /// The first block that is not.
    pub fn verify(self) -> Result<Stream<'a>, SessionFileError> {
        let block = Vec::with_capacity(self.block_bytes);
        let mut reader = Stream { file: self, block, next: 0, at: 0 };
        while reader.next < reader.file.table.len() {
            reader.load()?;
        }
        reader.block.clear();
        (reader.next, reader.at) = (0, 0);
        Ok(reader)
    }
}

/// The stream of a file that is whole. Blocks are read again, and compared again: a file may change
/// between.
pub(super) struct Stream<'a> {
    file: StreamFile<'a>,
    block: Vec<u8>,
    next: usize,
    /// Where in the block the next field begins.
    at: usize,
}

impl Stream<'_> {
    /// What the file was made with.
    pub fn header(&self) -> &SessionHeader {
        &self.file.header
    }

    fn load(&mut self) -> Result<(), SessionFileError> {
        let start = self.next as u64 * self.file.block_bytes as u64;
        let len = (self.file.block_bytes as u64).min(self.file.stream_bytes - start);
        let place = self.file.stream_at + start;
        self.block.resize(len as usize, 0);
        self.file.source.read_at(place, &mut self.block).map_err(SessionFileError::Read)?;
        if digest(&self.block) != self.file.table[self.next] {
            let (part, bytes) = (DamagedPart::Block(self.next), place..place + len);
            return Err(SessionFileError::Damaged { part, bytes });
        }
        (self.next, self.at) = (self.next + 1, 0);
        Ok(())
    }
}

impl Fields for Stream<'_> {
    fn left(&self) -> u64 {
        let later = self.next as u64 * self.file.block_bytes as u64;
        self.file.stream_bytes.saturating_sub(later) + (self.block.len() - self.at) as u64
    }

    fn take(&mut self, mut out: &mut [u8]) -> Result<(), SessionFileError> {
        if out.len() as u64 > self.left() {
            return Err(SessionFileError::Inconsistent("its stream ends within a field"));
        }
        while !out.is_empty() {
            if self.at == self.block.len() {
                self.load()?;
            }
            let n = out.len().min(self.block.len() - self.at);
            let (now, later) = out.split_at_mut(n);
            now.copy_from_slice(&self.block[self.at..self.at + n]);
            self.at += n;
            out = later;
        }
        Ok(())
    }
}

/// The header's fields, and the size of blocks.
fn parse(first: &FirstBytes) -> Result<(SessionHeader, usize), SessionFileError> {
    let mut fields = first.fields();
    let block_bytes = fields.u32()? as usize;
    if !is_block_size(block_bytes) {
        return Err(SessionFileError::Inconsistent("the size of its blocks"));
    }
    let kv_dtype = header::row_type(&mut fields)?;
    let [n_layers, n_q_heads, n_kv_heads, head_dim] = header::dimensions(&mut fields)?;
    let (context, n_tokens) = header::lengths(&mut fields)?;
    let mut digests = [Digest::default(); 4];
    for digest in &mut digests {
        *digest = fields.array()?;
    }
    let mut parts = Vec::with_capacity(4);
    for digest in digests {
        parts.push(FingerprintPart { digest, about: fields.text()? });
    }
    let [config, weights, tokenizer, rope] = parts.try_into().expect("four parts");
    let (tokenizer, vocabulary) = (Some(tokenizer), None);
    let fingerprint = Fingerprint { config, weights, tokenizer, vocabulary, rope };
    let (options, policy) = (fields.text()?, fields.text()?);
    fields.end()?;
    let header = SessionHeader {
        fingerprint,
        kv_dtype,
        host_rows: HostRows::Plain,
        n_layers,
        n_q_heads,
        n_kv_heads,
        head_dim,
        context,
        n_tokens,
        prefill: PrefillMode::Exact,
        options,
        policy,
    };
    Ok((header, block_bytes))
}

impl Stream<'_> {
    /// Takes a section's name, which must be this one.
    fn section(&mut self, name: &[u8; 4], what: &'static str) -> Result<(), SessionFileError> {
        if self.array::<4>()? == *name { Ok(()) } else { Err(SessionFileError::Inconsistent(what)) }
    }

    /// Takes the caller's part, which comes first.
    pub fn content(&mut self) -> Result<SessionContent, SessionFileError> {
        self.section(b"NOTE", "it does not begin with a note")?;
        let len = self.number(usize::MAX, "the length of its note")?;
        let note = self.bytes(len)?;
        self.section(b"TOKS", "its note is not followed by tokens")?;
        let tokens = self.u32s(self.file.header.n_tokens)?;
        let owed = if self.flag()? { Some(self.u32()?) } else { None };
        let n = self.number(MAX_SAID, "its number of logits")?;
        let logits = self.f32s(n)?;
        let n = self.number(MAX_SAID, "its number of likely tokens")?;
        let ids = self.u32s(n)?;
        Ok(SessionContent { tokens, owed, logits, ids, note })
    }

    /// Takes the beginning of a layer, up to its rows.
    pub fn places(&mut self, dim: &Dimensions) -> Result<PlacesRecord, SessionFileError> {
        self.section(b"LAYR", "a layer does not begin where it should")?;
        let permuted_to = self.number(dim.n_tokens, "more rows out of order than tokens")?;
        let positions = (0..dim.hkv).map(|_| self.u32s(permuted_to));
        let places = PlacesRecord { permuted_to, positions: positions.collect::<Result<_, _>>()? };
        places.check()?;
        Ok(places)
    }

    /// Takes what stands behind the rows of a layer.
    pub fn layer(&mut self, dim: &Dimensions) -> Result<LayerRecord<'static>, SessionFileError> {
        let recorded = RecordedRecord::read(self, dim)?;
        let state = match self.u8()? {
            0 => LayerStateRecord::Plain,
            1 => LayerStateRecord::Recall(Box::new(self.recall(dim)?)),
            2 => LayerStateRecord::Kept(KeptRecord::read(self, dim)?),
            _ => {
                return Err(SessionFileError::Inconsistent("a layer is in no state that there is"));
            }
        };
        Ok(LayerRecord { recorded, state })
    }

    fn recall(&mut self, dim: &Dimensions) -> Result<RecallRecord<'static>, SessionFileError> {
        let start = RecallStart::read(self, dim)?;
        let index = self.index(dim)?;
        let tokens = if self.flag()? { Some(self.index(dim)?) } else { None };
        Ok(start.with(index, tokens, SelectionRecord::read(self, dim)?))
    }

    fn index(&mut self, dim: &Dimensions) -> Result<IndexRecord<'static>, SessionFileError> {
        let width = self.number(2 * dim.d, "the width of an index")?;
        let n_batches = self.number(dim.n_tokens, COUNT)?;
        let mut batches = Vec::new();
        for _ in 0..n_batches {
            let end = self.number(dim.n_tokens, "more rows indexed than tokens")?;
            batches.push((end, self.u32s(dim.hkv)?));
        }
        let mut heads = Vec::with_capacity(dim.hkv);
        for _ in 0..dim.hkv {
            let n = self.number(dim.n_tokens, COUNT)?;
            let sizes = self.u32s(n)?;
            let radius = if self.flag()? { self.f32s(n)? } else { Vec::new() };
            let row = width * dim.element_bytes;
            let centroids = self.bytes(n.saturating_mul(row))?;
            let pairs =
                if self.flag()? { self.bytes(n.saturating_mul(2 * row))? } else { Vec::new() };
            let n_open = self.number(n, COUNT)?;
            let open = (0..n_open).map(|_| self.flag()).collect::<Result<_, _>>()?;
            let (centroids, pairs) = (centroids.into(), pairs.into());
            heads.push(ClustersRecord { sizes, radius, centroids, pairs, open });
        }
        Ok(IndexRecord { width, is_coded: false, batches, heads })
    }

    /// Takes the stream's end, behind which there must be nothing.
    pub fn end(&mut self) -> Result<(), SessionFileError> {
        self.section(b"DONE", "its layers are not followed by its end")?;
        match self.left() {
            0 => Ok(()),
            _ => Err(SessionFileError::Inconsistent("it has more than a session should")),
        }
    }
}
