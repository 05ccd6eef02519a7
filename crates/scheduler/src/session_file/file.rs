//! A session file of any version that this release reads.

use longview_core::RangeSource;

use super::content::SessionContent;
use super::directory::{Kind, covers};
use super::fields::{Fields, SliceFields};
use super::header::{self, SessionHeader};
use super::record_file::RecordFile;
use super::v1::{Stream, StreamFile};
use crate::error::SessionFileError;

/// A file whose header is proved, and where everything is; the rest is not yet.
pub struct SessionFile<'a>(Form<'a>);

enum Form<'a> {
    Stream(StreamFile<'a>),
    Records(RecordFile<'a>),
}

impl<'a> SessionFile<'a> {
    /// Reads what is little beside the rows: header, directory, trailer.
    ///
    /// # Errors
    /// If it is no session, of a version that this release does not read, not complete, or damaged
    /// there.
    pub fn open(source: &'a dyn RangeSource) -> Result<Self, SessionFileError> {
        let first = header::read(source)?;
        if first.version == 1 {
            return Ok(Self(Form::Stream(StreamFile::open(source, &first)?)));
        }
        let mut file = RecordFile::open(source, first)?;
        let entry = file.directory.only(Kind::Session, None)?;
        let missing = SessionFileError::Inconsistent("it does not say what it holds");
        let session = file.record(entry.ok_or(missing)?)?;
        file.header.take_session(&session)?;
        Ok(Self(Form::Records(file)))
    }

    /// What the file was made with.
    pub fn header(&self) -> &SessionHeader {
        match &self.0 {
            Form::Stream(file) => file.header(),
            Form::Records(file) => &file.header,
        }
    }

    /// Bytes at the end that belong to an append that did not end; they are of no use.
    pub fn n_torn_bytes(&self) -> u64 {
        match &self.0 {
            Form::Stream(_) => 0,
            Form::Records(file) => file.n_torn(),
        }
    }

    /// Bytes of the file up to where more may be appended; `None` for a version that is not
    /// appended to.
    pub fn append_at(&self) -> Option<u64> {
        self.records().map(|file| file.end)
    }

    pub(super) fn records(&self) -> Option<&RecordFile<'a>> {
        match &self.0 {
            Form::Stream(_) => None,
            Form::Records(file) => Some(file),
        }
    }

    /// Compares all of the file with its digests.
    ///
    /// # Errors
    /// The first part that is not as it was written.
    pub fn verify(self) -> Result<(), SessionFileError> {
        match self.0 {
            Form::Stream(file) => file.verify().map(drop),
            Form::Records(file) => file.verify(),
        }
    }

    /// Begins to read. Files of version 1 are compared with their digests as a whole before; of
    /// later ones each record is compared when it is read.
    ///
    /// # Errors
    /// The first part that is not as it was written.
    pub fn read(self) -> Result<SessionReader<'a>, SessionFileError> {
        Ok(SessionReader(match self.0 {
            Form::Stream(file) => Reading::Stream(file.verify()?),
            Form::Records(file) => Reading::Records(file),
        }))
    }
}

/// A file that is being read.
pub struct SessionReader<'a>(pub(super) Reading<'a>);

pub(super) enum Reading<'a> {
    Stream(Stream<'a>),
    Records(RecordFile<'a>),
}

impl SessionReader<'_> {
    /// What the file was made with.
    pub fn header(&self) -> &SessionHeader {
        match &self.0 {
            Reading::Stream(file) => file.header(),
            Reading::Records(file) => &file.header,
        }
    }

    /// The caller's part, which has to be taken before the sequence.
    ///
    /// # Errors
    /// If the file is damaged there, or is not made as it should be.
    pub fn content(&mut self) -> Result<SessionContent, SessionFileError> {
        match &mut self.0 {
            Reading::Stream(file) => file.content(),
            Reading::Records(file) => file.content(),
        }
    }
}

impl RecordFile<'_> {
    fn content(&self) -> Result<SessionContent, SessionFileError> {
        let mut content = SessionContent { tokens: self.tokens()?, ..SessionContent::default() };
        if let Some(entry) = self.directory.only(Kind::Note, None)? {
            content.note = self.record(entry)?;
        }
        if let Some(entry) = self.directory.only(Kind::Last, None)? {
            content.take_last(&self.record(entry)?)?;
        }
        Ok(content)
    }

    /// All tokens whose rows the file has.
    pub fn tokens(&self) -> Result<Vec<u32>, SessionFileError> {
        let n = self.header.n_tokens;
        if !covers(self.directory.of(Kind::Tokens, None), n) {
            return Err(SessionFileError::Inconsistent("its tokens"));
        }
        let mut tokens = Vec::new();
        for entry in self.directory.of(Kind::Tokens, None) {
            let bytes = self.record(entry)?;
            tokens.extend(SliceFields(&bytes).u32s(entry.key.span.len())?);
        }
        Ok(tokens)
    }
}
