//! The outermost layer of a file: header, blocks of the stream, table of their digests, trailer.
//!
//! A writer needs no seeking, because what is known last stands last. A reader begins with the
//! header and the trailer, which together with the length of the file say where everything is; so
//! no number of the file is believed before a digest has proved it, and nothing is allocated that
//! the file is not long enough to fill.

use std::io::Write;

use blake3::Hasher;
use longview_core::RangeSource;

use super::digest::{Digest, digest};
use super::header::{self, SessionHeader};
use crate::error::{DamagedPart, SessionFileError};

/// The file's last bytes.
const END: &[u8; 8] = b"LVS-end\n";
/// Length of the stream, digest, end.
const TRAILER_BYTES: usize = 8 + 32 + 8;

/// Writes header, stream, table and trailer, in order.
pub(crate) struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    block: Vec<u8>,
    block_bytes: usize,
    table: Vec<Digest>,
    whole: Hasher,
    stream_bytes: u64,
}

impl<'a> FrameWriter<'a> {
    /// Writes the header.
    pub fn new(
        out: &'a mut dyn Write,
        header: &SessionHeader,
        block_bytes: usize,
    ) -> Result<Self, SessionFileError> {
        let bytes = header.encode(block_bytes)?;
        out.write_all(&bytes).map_err(SessionFileError::Write)?;
        let mut whole = Hasher::new();
        whole.update(&bytes);
        let block = Vec::with_capacity(block_bytes);
        Ok(Self { out, block, block_bytes, table: Vec::new(), whole, stream_bytes: 0 })
    }

    /// Adds bytes to the stream.
    pub fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), SessionFileError> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.room()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.room() == 0 {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn room(&self) -> usize {
        self.block_bytes - self.block.len()
    }

    fn flush(&mut self) -> Result<(), SessionFileError> {
        self.table.push(digest(&self.block));
        self.stream_bytes += self.block.len() as u64;
        self.out.write_all(&self.block).map_err(SessionFileError::Write)?;
        self.block.clear();
        Ok(())
    }

    /// Adds a number.
    pub fn u8(&mut self, x: u8) -> Result<(), SessionFileError> {
        self.bytes(&[x])
    }

    /// Adds a number.
    pub fn u64(&mut self, x: usize) -> Result<(), SessionFileError> {
        self.bytes(&(x as u64).to_le_bytes())
    }

    /// Adds numbers, without their count.
    pub fn u32s(&mut self, values: &[u32]) -> Result<(), SessionFileError> {
        values.iter().try_for_each(|x| self.bytes(&x.to_le_bytes()))
    }

    /// Adds numbers, without their count.
    pub fn f32s(&mut self, values: &[f32]) -> Result<(), SessionFileError> {
        values.iter().try_for_each(|x| self.bytes(&x.to_le_bytes()))
    }

    /// Adds numbers, without their count.
    pub fn f64s(&mut self, values: &[f64]) -> Result<(), SessionFileError> {
        values.iter().try_for_each(|x| self.bytes(&x.to_le_bytes()))
    }

    /// Ends the stream and writes what proves it.
    pub fn finish(mut self) -> Result<(), SessionFileError> {
        if !self.block.is_empty() {
            self.flush()?;
        }
        let stream_bytes = self.stream_bytes.to_le_bytes();
        self.whole.update(self.table.as_flattened()).update(&stream_bytes);
        let proof = self.whole.finalize();
        let parts: [&[u8]; 4] = [self.table.as_flattened(), &stream_bytes, proof.as_bytes(), END];
        for part in parts {
            self.out.write_all(part).map_err(SessionFileError::Write)?;
        }
        self.out.flush().map_err(SessionFileError::Write)
    }
}

/// A file whose header, table and trailer are proved; its blocks are not yet.
pub struct SessionFile<'a> {
    source: &'a dyn RangeSource,
    header: SessionHeader,
    block_bytes: usize,
    stream_at: u64,
    stream_bytes: u64,
    table: Vec<Digest>,
}

impl<'a> SessionFile<'a> {
    /// Reads header, table and trailer, which is little beside the blocks.
    ///
    /// # Errors
    /// If it is no session, of another version, not complete, or damaged there.
    pub fn open(source: &'a dyn RangeSource) -> Result<Self, SessionFileError> {
        let size = source.size();
        let head = header::read(source)?;
        let stream_at = head.bytes.len() as u64;
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
        let n_blocks = stream_length.div_ceil(head.block_bytes as u64);
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
        whole.update(&head.bytes).update(table.as_flattened()).update(stream_bytes);
        if whole.finalize().as_bytes() != proof {
            let (part, bytes) = (DamagedPart::Table, table_at..size);
            return Err(SessionFileError::Damaged { part, bytes });
        }
        Ok(Self {
            source,
            header: head.header,
            block_bytes: head.block_bytes,
            stream_at,
            stream_bytes: stream_length,
            table,
        })
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
    pub fn verify(self) -> Result<SessionReader<'a>, SessionFileError> {
        let block = Vec::with_capacity(self.block_bytes);
        let mut reader = SessionReader { file: self, block, next: 0, at: 0 };
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
pub struct SessionReader<'a> {
    file: SessionFile<'a>,
    block: Vec<u8>,
    next: usize,
    /// Where in the block the next field begins.
    at: usize,
}

impl SessionReader<'_> {
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

    /// Bytes of the stream that were not taken yet.
    pub(crate) fn left(&self) -> u64 {
        let later = self.next as u64 * self.file.block_bytes as u64;
        self.file.stream_bytes.saturating_sub(later) + (self.block.len() - self.at) as u64
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn take(&mut self, mut out: &mut [u8]) -> Result<(), SessionFileError> {
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

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SessionFileError> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes a number.
    pub(crate) fn u8(&mut self) -> Result<u8, SessionFileError> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes a number that is 0 or 1.
    pub(crate) fn flag(&mut self) -> Result<bool, SessionFileError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(SessionFileError::Inconsistent("a flag is neither 0 nor 1")),
        }
    }

    /// Takes a number.
    pub(crate) fn u32(&mut self) -> Result<u32, SessionFileError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes a number that must be at most `most`.
    pub(crate) fn number(
        &mut self,
        most: usize,
        what: &'static str,
    ) -> Result<usize, SessionFileError> {
        let number = u64::from_le_bytes(self.array()?);
        let number = usize::try_from(number).ok().filter(|n| *n <= most);
        number.ok_or(SessionFileError::Inconsistent(what))
    }

    /// Takes `n` bytes; no more are allocated than the stream still has.
    pub(crate) fn bytes(&mut self, n: usize) -> Result<Vec<u8>, SessionFileError> {
        if n as u64 > self.left() {
            return Err(SessionFileError::Inconsistent("its stream ends within a list"));
        }
        let mut bytes = vec![0; n];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    fn list<const N: usize, T>(
        &mut self,
        n: usize,
        from: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, SessionFileError> {
        if (n as u64).checked_mul(N as u64).is_none_or(|bytes| bytes > self.left()) {
            return Err(SessionFileError::Inconsistent("its stream ends within a list"));
        }
        (0..n).map(|_| Ok(from(self.array()?))).collect()
    }

    /// Takes `n` numbers.
    pub(crate) fn u32s(&mut self, n: usize) -> Result<Vec<u32>, SessionFileError> {
        self.list(n, u32::from_le_bytes)
    }

    /// Takes `n` numbers.
    pub(crate) fn f32s(&mut self, n: usize) -> Result<Vec<f32>, SessionFileError> {
        self.list(n, f32::from_le_bytes)
    }

    /// Takes `n` numbers.
    pub(crate) fn f64s(&mut self, n: usize) -> Result<Vec<f64>, SessionFileError> {
        self.list(n, f64::from_le_bytes)
    }

    /// Takes a section's name, which must be this one.
    pub(crate) fn section(
        &mut self,
        name: &[u8; 4],
        what: &'static str,
    ) -> Result<(), SessionFileError> {
        if self.array::<4>()? == *name { Ok(()) } else { Err(SessionFileError::Inconsistent(what)) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::header;
    use super::*;

    /// A file in blocks of 512 bytes whose stream `write` fills.
    fn file(write: impl FnOnce(&mut FrameWriter<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = FrameWriter::new(&mut bytes, &header(), 512).unwrap();
        write(&mut frame);
        frame.finish().unwrap();
        bytes
    }

    fn reader(bytes: &impl RangeSource) -> SessionReader<'_> {
        SessionFile::open(bytes).unwrap().verify().unwrap()
    }

    fn said<T>(result: Result<T, SessionFileError>) -> String {
        match result {
            Err(SessionFileError::Inconsistent(what)) => what.to_owned(),
            Err(other) => other.to_string(),
            Ok(_) => "it was taken".to_owned(),
        }
    }

    #[test]
    fn fields_come_back_in_their_order() {
        let bytes = file(|f| {
            f.bytes(b"NAME").unwrap();
            f.u8(1).unwrap();
            f.u64(77).unwrap();
            f.u32s(&[1, u32::MAX]).unwrap();
            f.f32s(&[0.5, -2.0]).unwrap();
            f.f64s(&[0.1]).unwrap();
            f.bytes(&[9, 8, 7]).unwrap();
        });
        let mut file = reader(&bytes);
        assert_eq!(file.header(), &header());
        assert_eq!(file.left(), 4 + 1 + 8 + 8 + 8 + 8 + 3);
        file.section(b"NAME", "a name").unwrap();
        assert!(file.flag().unwrap());
        assert_eq!(file.number(77, "a number").unwrap(), 77);
        assert_eq!((file.u32().unwrap(), file.u32s(1).unwrap()), (1, vec![u32::MAX]));
        assert_eq!(file.f32s(2).unwrap(), [0.5, -2.0]);
        assert_eq!(file.f64s(1).unwrap(), [0.1]);
        assert_eq!((file.bytes(3).unwrap(), file.left()), (vec![9, 8, 7], 0));
    }

    /// 300 numbers are two blocks of 512 bytes and one of 176; a field may lie in two of them.
    #[test]
    fn fields_cross_the_ends_of_blocks() {
        let numbers: Vec<u32> = (0..300).collect();
        for ahead in [0, 1, 3] {
            let bytes = file(|f| {
                f.bytes(&vec![5; ahead]).unwrap();
                f.u32s(&numbers).unwrap();
            });
            let mut file = reader(&bytes);
            assert_eq!(file.file.table.len(), 3);
            file.bytes(ahead).unwrap();
            assert_eq!(file.u32s(200).unwrap(), numbers[..200]);
            assert_eq!(file.left(), 400);
            assert_eq!(file.u32s(100).unwrap(), numbers[200..]);
            assert_eq!(file.left(), 0);
        }
        // A stream that fills its blocks has no empty one behind them, and an empty one none.
        let full = file(|f| f.bytes(&[1; 1024]).unwrap());
        assert_eq!(reader(&full).file.table.len(), 2);
        assert_eq!(reader(&file(|_| {})).file.table.len(), 0);
    }

    #[test]
    fn fields_that_say_what_they_must_not_are_refused() {
        let bytes = file(|f| {
            f.bytes(b"NAME").unwrap();
            f.u64(8).unwrap();
            f.u8(2).unwrap();
        });
        assert_eq!(said(reader(&bytes).section(b"NOTE", "another name")), "another name");
        let mut file = reader(&bytes);
        file.section(b"NAME", "").unwrap();
        assert_eq!(said(file.number(7, "too many")), "too many");
        assert_eq!(said(file.flag()), "a flag is neither 0 nor 1");
    }

    #[test]
    fn a_list_that_is_longer_than_the_stream_is_refused_before_it_is_allocated() {
        let bytes = file(|f| f.bytes(&[0; 15]).unwrap());
        let ends = "its stream ends within a list";
        assert_eq!(said(reader(&bytes).bytes(16)), ends);
        assert_eq!(said(reader(&bytes).u32s(4)), ends);
        assert_eq!(said(reader(&bytes).f64s(usize::MAX)), ends);
        assert_eq!(reader(&bytes).f32s(3).unwrap(), [0.0; 3]);
        let mut file = reader(&bytes);
        file.bytes(12).unwrap();
        assert_eq!(said(file.u32()), "its stream ends within a field");
    }

    #[test]
    fn every_byte_is_proved() {
        let sound = file(|f| f.bytes(&[3; 700]).unwrap());
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            let read = SessionFile::open(&bytes).and_then(SessionFile::verify);
            assert!(read.is_err(), "byte {at} of {}", sound.len());
        }
        for len in 0..sound.len() {
            let cut = sound[..len].to_vec();
            assert!(SessionFile::open(&cut).is_err(), "{len} of {} bytes", sound.len());
        }
    }

    #[test]
    fn the_block_that_is_damaged_is_named() {
        let mut bytes = file(|f| f.bytes(&[3; 700]).unwrap());
        let stream_at = header().encode(512).unwrap().len();
        bytes[stream_at + 600] = 4;
        let damage = SessionFile::open(&bytes).unwrap().verify().err();
        let Some(SessionFileError::Damaged { part, bytes }) = damage else { panic!("{damage:?}") };
        assert!(matches!(part, DamagedPart::Block(1)), "{part:?}");
        assert_eq!(bytes, stream_at as u64 + 512..stream_at as u64 + 700);
    }
}
