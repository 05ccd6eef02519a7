//! The caller's part of a file: tokens, what the model said last, a note.

use super::frame::{FrameWriter, SessionReader};
use super::records::READS_ON;
use crate::error::SessionFileError;

/// The most ids or logits of a file: a vocabulary.
const MAX_SAID: usize = 4 << 20;

/// What the caller keeps beside the sequence. To the scheduler these are numbers and bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionContent {
    /// The tokens whose rows the file has.
    pub tokens: Vec<u32>,
    /// A token that comes next and has no rows yet.
    pub owed: Option<u32>,
    /// Logits of the last token: of the whole vocabulary, of some tokens, or none.
    pub logits: Vec<f32>,
    /// The tokens that the logits are of, or the most likely token alone; empty where they are of
    /// the whole vocabulary.
    pub ids: Vec<u32>,
    /// The caller's own bytes.
    pub note: Vec<u8>,
}

impl SessionContent {
    pub(super) fn write(&self, out: &mut FrameWriter<'_>) -> Result<(), SessionFileError> {
        out.bytes(b"NOTE")?;
        out.u64(self.note.len())?;
        out.bytes(&self.note)?;
        out.bytes(b"TOKS")?;
        out.u32s(&self.tokens)?;
        out.u8(self.owed.is_some().into())?;
        out.u32s(self.owed.as_slice())?;
        out.u64(self.logits.len())?;
        out.f32s(&self.logits)?;
        out.u64(self.ids.len())?;
        out.u32s(&self.ids)
    }

    /// Takes the first sections of a file.
    ///
    /// # Errors
    /// If the file changed since it was verified, or is not made as it should be.
    pub fn read(file: &mut SessionReader<'_>) -> Result<Self, SessionFileError> {
        file.section(b"NOTE", "it does not begin with a note")?;
        let len = file.number(usize::MAX, "the length of its note")?;
        let note = file.bytes(len)?;
        file.section(b"TOKS", "its note is not followed by tokens")?;
        let n_tokens = file.header().n_tokens;
        let tokens = file.u32s(n_tokens)?;
        let owed = if file.flag()? { Some(file.u32()?) } else { None };
        let n = file.number(MAX_SAID, "its number of logits")?;
        let logits = file.f32s(n)?;
        let n = file.number(MAX_SAID, "its number of likely tokens")?;
        let ids = file.u32s(n)?;
        Ok(Self { tokens, owed, logits, ids, note })
    }
}

/// Ends the stream.
pub(super) fn write_end(out: &mut FrameWriter<'_>) -> Result<(), SessionFileError> {
    out.bytes(b"DONE")
}

/// Takes the stream's end, behind which there must be nothing.
pub(super) fn read_end(file: &mut SessionReader<'_>) -> Result<(), SessionFileError> {
    file.section(b"DONE", "its layers are not followed by its end")?;
    match file.left() {
        0 => Ok(()),
        _ => Err(SessionFileError::Inconsistent(READS_ON)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::SessionFile;
    use super::super::header::tests::header;
    use super::*;

    /// The header says five tokens.
    fn content() -> SessionContent {
        SessionContent {
            tokens: vec![4, 3, 2, 1, 0],
            owed: None,
            logits: vec![0.5, -1.0],
            ids: vec![7, 9],
            note: b"a note".to_vec(),
        }
    }

    fn round_trip(
        content: &SessionContent,
        more: &[u8],
    ) -> Result<SessionContent, SessionFileError> {
        let mut bytes = Vec::new();
        let mut out = FrameWriter::new(&mut bytes, &header(), 512)?;
        content.write(&mut out)?;
        write_end(&mut out)?;
        out.bytes(more)?;
        out.finish()?;
        let mut file = SessionFile::open(&bytes)?.verify()?;
        let read = SessionContent::read(&mut file)?;
        read_end(&mut file)?;
        Ok(read)
    }

    #[test]
    fn what_the_caller_keeps_comes_back() {
        let owing = SessionContent { owed: Some(6), ..content() };
        let silent =
            SessionContent { logits: Vec::new(), ids: Vec::new(), note: Vec::new(), ..content() };
        for content in [content(), owing, silent] {
            assert_eq!(round_trip(&content, b"").unwrap(), content);
        }
    }

    #[test]
    fn a_file_of_another_number_of_tokens_or_with_more_behind_it_is_refused() {
        let shorter = SessionContent { tokens: vec![1, 2, 3, 4], ..content() };
        assert!(round_trip(&shorter, b"").is_err());
        let longer = round_trip(&content(), b"\0");
        let Err(SessionFileError::Inconsistent(what)) = longer else { panic!("{longer:?}") };
        assert_eq!(what, READS_ON);
    }
}
