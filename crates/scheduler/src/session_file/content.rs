//! The caller's part of a file: tokens, what the model said last, a note.

use super::fields::{FieldWriter, Fields, SliceFields};
use crate::error::SessionFileError;

/// The most ids or logits of a file: a vocabulary.
pub(super) const MAX_SAID: usize = 4 << 20;

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
    /// What the model said last.
    pub(super) fn encode_last(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.flag(self.owed.is_some());
        out.u32s(self.owed.as_slice());
        out.u64(self.logits.len());
        out.f32s(&self.logits);
        out.u64(self.ids.len());
        out.u32s(&self.ids);
        out.into_bytes()
    }

    /// Takes what [`SessionContent::encode_last`] wrote.
    pub(super) fn take_last(&mut self, bytes: &[u8]) -> Result<(), SessionFileError> {
        let mut file = SliceFields(bytes);
        self.owed = if file.flag()? { Some(file.u32()?) } else { None };
        let n = file.number(MAX_SAID, "its number of logits")?;
        self.logits = file.f32s(n)?;
        let n = file.number(MAX_SAID, "its number of likely tokens")?;
        self.ids = file.u32s(n)?;
        file.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_model_said_comes_back() {
        let said = SessionContent {
            owed: None,
            logits: vec![0.5, -1.0],
            ids: vec![7, 9],
            ..SessionContent::default()
        };
        let owing = SessionContent { owed: Some(6), ..said.clone() };
        for said in [said, owing, SessionContent::default()] {
            let mut read = SessionContent::default();
            read.take_last(&said.encode_last()).unwrap();
            assert_eq!(read, said);
        }
    }

    #[test]
    fn more_than_a_vocabulary_is_refused() {
        let mut bytes = SessionContent::default().encode_last();
        bytes[1..9].fill(0x7f);
        let refused = SessionContent::default().take_last(&bytes);
        let Err(SessionFileError::Inconsistent(what)) = refused else { panic!("{refused:?}") };
        assert_eq!(what, "its number of logits");
    }
}
